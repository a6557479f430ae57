"""What a save has to write, tested on a log that is a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ckpt import Checkpoint, Conversation, Entry, Message
from celery_ckpt.errors import CheckpointDamaged, CheckpointTooLarge, SchemaTooNew
from celery_ckpt.stores.encoding import decoded_run, decoded_step
from celery_ckpt.stores.log.draft import Basis, Draft, Memory, Parts
from celery_ckpt.stores.log.reader import Reading
from celery_ckpt.stores.log.record import Record, low_of, stamp

AGENT = "agent-1"


def said(*texts: str) -> list[Message]:
    return [Message.user(text) for text in texts]


def taken(live: Conversation, entered: Conversation | None = None) -> Checkpoint:
    entry = None if entered is None else Entry(conversation=entered)
    return Checkpoint.new(AGENT, live, 1, entry=entry)


@dataclass
class Log:
    """A log store, reduced to the data that it keeps."""

    lines: list[bytes] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)

    def write(self, checkpoint: Checkpoint, draft: Draft) -> Record:
        base = len(self.lines)
        self.lines += draft.messages
        line = stamp(1, len(self.records) + 1, base, draft.rest)
        self.records.append(Record.parse(AGENT, checkpoint.id, line))
        mark, end = f"{base} {draft.place}", len(self.lines)
        self.memory.remember(checkpoint, mark, end, draft.ranges.at(base))
        return self.records[-1]

    def save_first(self, *texts: str, entered: Conversation | None = None) -> Conversation:
        live = Conversation(messages=said(*texts))
        checkpoint = taken(live, entered)
        self.write(checkpoint, Parts(checkpoint).draft_of_all(Basis.EMPTY))
        return live

    def by_search(self, checkpoint: Checkpoint) -> Draft:
        return Parts(checkpoint).draft_by_search(self.records[-1], self.messages())

    def by_memory(self, checkpoint: Checkpoint) -> Draft | None:
        return Parts(checkpoint).draft_by_memory(self.memory, AGENT)

    def read(self, record: Record) -> Checkpoint:
        return Reading().checkpoint(record, self.messages())

    def messages(self) -> dict[int, bytes]:
        return dict(enumerate(self.lines))


def test_a_first_save_writes_everything() -> None:
    log = Log()
    log.save_first("a", "b")
    assert log.lines == [message.to_json() for message in said("a", "b")]
    assert (log.records[0].seq, log.records[0].base, log.records[0].low) == (1, 0, 0)


def test_the_usual_save_writes_only_what_is_new() -> None:
    log = Log()
    live = log.save_first("a", "b")
    live.append(Message.user("c"))
    draft = log.by_memory(taken(live))
    assert draft is not None
    assert draft.messages == [Message.user("c").to_json()]
    assert (draft.basis, str(draft.ranges)) == (log.records[0].checkpoint_id, "0:2,+0:1")


def test_a_save_without_new_messages_writes_none() -> None:
    log = Log()
    live = log.save_first("a")
    draft = log.by_memory(taken(live))
    assert draft is not None
    assert (draft.messages, str(draft.ranges)) == ([], "0:1")


@pytest.mark.parametrize("new", [0, 2])
def test_a_draft_appends_at_the_log_end_that_its_base_knows(new: int) -> None:
    log = Log()
    live = log.save_first("a", "b", "c")
    shorter = taken(Conversation(messages=[*live.messages[:1], *said("x", "y")[:new]]))
    log.write(shorter, log.by_search(shorter))
    assert log.records[-1].end == len(log.lines) == 3 + new
    for draft in (log.by_memory(taken(shorter.conversation)), log.by_search(taken(live))):
        assert draft is not None
        assert draft.end == len(log.lines)


def test_nothing_is_remembered_across_agents_or_stores() -> None:
    log = Log()
    parts = Parts(taken(log.save_first("a")))
    assert parts.draft_by_memory(log.memory, "agent-2") is None
    assert parts.draft_by_memory(Memory(), AGENT) is None


@pytest.mark.parametrize(
    ("more_live", "more_entered", "written"),
    [
        *(("", "", []), ("c", "", ["c"]), ("", "z", ["z"]), ("xy", "z", ["x", "y", "z"])),
        # These grow until they share more than what was known of the entry.
        *(("b", "z", ["b", "z"]), ("bc", "cz", ["b", "c", "z"])),
    ],
)
def test_the_entry_is_also_continued_from_memory(
    more_live: str, more_entered: str, written: list[str]
) -> None:
    log = Log()
    entered = Conversation(messages=said("a", "b"))
    live = log.save_first("a", entered=entered)
    for conversation, more in ((live, more_live), (entered, more_entered)):
        for message in said(*more):
            conversation.append(message)
    checkpoint = taken(live, entered)
    draft = log.by_memory(checkpoint)
    assert draft is not None
    assert draft.messages == [message.to_json() for message in said(*written)]
    assert log.read(log.write(checkpoint, draft)) == checkpoint


def test_positions_based_on_different_checkpoints_are_not_combined() -> None:
    log = Log()
    entered = Conversation(messages=said("z"))
    live = log.save_first("a", entered=entered)
    later = taken(live)
    draft = log.by_memory(later)
    assert draft is not None
    log.write(later, draft)
    assert log.by_memory(taken(live, entered)) is None


def test_a_writer_that_never_saw_the_agent_does_not_write_the_prefix_again() -> None:
    log = Log()
    log.save_first("a", "b")
    draft = log.by_search(taken(Conversation(messages=said("a", "b", "c"))))
    assert draft.messages == [Message.user("c").to_json()]


def test_a_compaction_writes_only_its_summary() -> None:
    log = Log()
    live = log.save_first("a", "b", "c", "d")
    live.replace([*said("summary"), *live.messages[2:]])
    draft = log.by_search(taken(live))
    assert draft.messages == [Message.user("summary").to_json()]
    assert str(draft.ranges) == "+0:1,2:2"


def test_a_conversation_that_diverges_writes_only_what_is_new_without_a_search() -> None:
    log = Log()
    live = log.save_first("a", "b", "c", "d")
    live.extend_to(said("a", "b", "x", "y"))
    draft = log.by_memory(taken(live))
    assert draft is not None
    assert draft.messages == [message.to_json() for message in said("x", "y")]
    assert str(draft.ranges) == "0:2,+0:2"
    assert log.read(log.write(taken(live), draft)).conversation == live


def test_an_entry_that_the_conversation_has_left_is_not_written_again() -> None:
    log = Log()
    live = log.save_first("a", "b", "c")
    entered = live.copy()
    live.extend_to(said("a", "x"))
    draft = log.by_memory(taken(live, entered))
    assert draft is not None
    assert draft.messages == [Message.user("x").to_json()]


def test_an_equal_message_is_matched_next_to_the_previous_match() -> None:
    log = Log()
    log.save_first("a", "again", "b", "again", "c")
    draft = log.by_search(taken(Conversation(messages=said("b", "again", "c"))))
    assert str(draft.ranges) == "2:3"


WORDS = st.lists(st.sampled_from("abcde"), max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from(["append", "replace", "enter", "fork"]), WORDS), max_size=12)


@given(WORDS, WORDS)
def test_a_search_rebuilds_exactly_the_wanted_messages(stored: list[str], wanted: list[str]) -> None:
    log = Log()
    log.save_first(*stored)
    checkpoint = taken(Conversation(messages=said(*wanted)))
    record = log.write(checkpoint, log.by_search(checkpoint))
    assert [log.lines[at] for at in record.ranges] == [m.to_json() for m in said(*wanted)]
    assert record.low == min(record.ranges, default=record.base)


@given(STEPS, st.booleans())
def test_every_saved_checkpoint_is_read_back_exactly(
    steps: list[tuple[str, list[str]]], forgetful: bool
) -> None:
    log, saved = Log(), []
    live, entered = log.save_first("a"), None
    for what, words in steps:
        if what == "append":
            for message in said(*words):
                live.append(message)
        elif what == "replace":
            live.replace([*said(*words), *live.messages[len(words) :]])
        elif what == "fork":
            live = live.copy()
            live.append(Message.user("fork"))
        else:
            entered = live.copy()
        checkpoint = taken(live, entered)
        draft = None if forgetful else log.by_memory(checkpoint)
        log.write(checkpoint, draft or log.by_search(checkpoint))
        saved.append(checkpoint)
    assert [log.read(record) for record in log.records[1:]] == saved
    reading = Reading()
    assert [reading.checkpoint(record, log.messages()) for record in log.records[1:]] == saved


def test_the_error_about_a_checkpoint_over_the_limit_names_its_largest_part() -> None:
    checkpoint = taken(Conversation(messages=said("a", "b" * 1000, "c")))
    parts = Parts(checkpoint)
    parts.refuse_too_large(checkpoint, parts.size)
    with pytest.raises(CheckpointTooLarge, match=r"message 1 \(role user\)") as refused:
        parts.refuse_too_large(checkpoint, parts.size - 1)
    assert (refused.value.size, refused.value.limit) == (parts.size, parts.size - 1)


def test_the_error_about_a_large_state_names_the_state() -> None:
    checkpoint = Checkpoint.new(AGENT, Conversation(), 1, state={"x": "y" * 1000})
    with pytest.raises(CheckpointTooLarge, match="header with state"):
        Parts(checkpoint).refuse_too_large(checkpoint, 100)


def test_a_record_summarises_its_checkpoint() -> None:
    checkpoint = Checkpoint.new(AGENT, Conversation(), 4, metadata={"k": "v"}, run_id="r")
    info = Log().write(checkpoint, Parts(checkpoint).draft_of_all(Basis.EMPTY)).info()
    assert (info.id, info.seq, info.iteration) == (checkpoint.id, 1, 4)
    assert (info.created_at, info.metadata, info.run_id) == (checkpoint.created_at, {"k": "v"}, "r")


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"x", b"1", b"1 1 0", b"0 1 0 - - d {}", b"1 x 0 - - d {}", b"1 1 0 - 0:0 d {}"),
        *(b"1 1 0 - - d [1]", b"1 1 0 - - d {", b"1 1 0 - \xff d {}"),
    ],
)
def test_a_damaged_line_is_an_error_that_names_its_checkpoint(line: bytes) -> None:
    with pytest.raises(CheckpointDamaged, match="Checkpoint c of agent 'agent-1' is damaged"):
        Record.parse(AGENT, "c", line)


@pytest.mark.parametrize(
    "header", [b"{}", b'{"created_at":9e99}', b'{"created_at":1' + b"0" * 40 + b',"iteration":1}']
)
def test_an_incomplete_header_is_damage(header: bytes) -> None:
    record = Record.parse(AGENT, "c", b"1 1 0 - - d " + header)
    with pytest.raises(CheckpointDamaged, match="its header is incomplete"):
        record.info()


def test_a_line_of_a_newer_version_is_refused() -> None:
    with pytest.raises(SchemaTooNew, match="Checkpoint c of agent 'agent-1'"):
        Record.parse(AGENT, "c", b"2 whatever it says")


@pytest.mark.parametrize("decoded", [decoded_step, decoded_run])
def test_a_step_or_run_of_a_newer_version_is_refused(decoded: Callable[..., object]) -> None:
    with pytest.raises(SchemaTooNew, match="of run 'r' of agent 'a' has format version 2"):
        decoded("a", "r", b'{"format":2,"then":[]}')


@pytest.mark.parametrize(
    ("line", "low"),
    [(b"1 1 7 - +0:1 d {}", 7), (b"1 1 7 3 3:1 d {}", 3), (b"1 1", 0), (b"1 1 x - ", 0)],
)
def test_the_low_end_of_a_line_is_read_without_parsing_the_rest(line: bytes, low: int) -> None:
    assert low_of(line) == low


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ({}, "it needs 2 messages, and some are missing"),
        ({1: b'{"x":1}'}, "not what was saved"),
        ({1: b"{"}, "is damaged: .* at line 1"),
        ({1: b"3"}, "not a JSON object"),
        ({1: b"{},{}"}, "not a JSON object"),
    ],
)
def test_a_lost_or_changed_message_is_damage(lost: dict[int, bytes], reason: str) -> None:
    log = Log()
    log.save_first("a", "b")
    with pytest.raises(CheckpointDamaged, match=reason):
        Reading().checkpoint(log.records[0], {0: log.lines[0], **lost})


def test_a_changed_header_is_damage() -> None:
    checkpoint = taken(Conversation(messages=said("a")))
    draft = Parts(checkpoint).draft_of_all(Basis.EMPTY)
    line = stamp(1, 1, 0, draft.rest.replace(b'"iteration":1', b'"iteration":2'))
    with pytest.raises(CheckpointDamaged, match="not what was saved"):
        Reading().checkpoint(Record.parse(AGENT, checkpoint.id, line), {0: draft.messages[0]})


def test_checkpoints_of_one_growing_conversation_share_a_spine() -> None:
    log = Log()
    live = log.save_first("a")
    live.append(Message.user("b"))
    checkpoint = taken(live)
    log.write(checkpoint, log.by_search(checkpoint))
    reading = Reading()
    first, second = (reading.checkpoint(record, log.messages()) for record in log.records)
    assert first.conversation.spine is second.conversation.spine
    assert str(log.records[1].ranges) == "0:2"
