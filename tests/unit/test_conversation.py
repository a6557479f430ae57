"""Conversations grow, share their common messages, and never affect each other."""

from __future__ import annotations

import copy
import hashlib
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ckpt import Conversation, Message
from celery_ckpt.conversation import Spine
from celery_ckpt.errors import NotJson


def conversation_of(*texts: str, max_tokens: int = 100_000) -> Conversation:
    return Conversation(max_tokens, [Message.user(text) for text in texts])


def texts(conversation: Conversation) -> list[str]:
    return [message.text for message in conversation]


def test_a_new_conversation_is_empty() -> None:
    conversation = Conversation()
    assert (len(conversation), conversation.messages, conversation.max_tokens) == (0, [], 100_000)


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, "9", None, True])
def test_max_tokens_must_be_a_positive_integer(max_tokens: Any) -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        Conversation(max_tokens)


def test_append_accepts_messages_and_objects_and_never_trims() -> None:
    conversation = Conversation(max_tokens=1)
    conversation.append(Message.user("a" * 100))
    conversation.append({"role": "user", "content": "b"})
    assert texts(conversation) == ["a" * 100, "b"]


def test_changing_an_object_after_append_does_not_change_the_conversation() -> None:
    blocks = [{"type": "text", "text": "before"}]
    conversation = Conversation()
    conversation.append({"role": "user", "content": blocks})
    blocks.clear()
    assert texts(conversation) == ["before"]


def test_conversations_compare_by_value() -> None:
    assert conversation_of("a", "b") == conversation_of("a", "b")
    assert conversation_of("a", "b") != conversation_of("b", "a")
    assert conversation_of("a") != conversation_of("a", "b")
    assert conversation_of("a") != conversation_of("a", max_tokens=5)
    assert conversation_of("a") != [Message.user("a")]


def test_a_conversation_is_not_hashable_because_it_grows() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Conversation())


def test_with_system_prompt_puts_the_prompt_first_and_leaves_the_original_unchanged() -> None:
    original = conversation_of("a", max_tokens=7)
    assert original.with_system_prompt("s").messages == [Message.system("s"), Message.user("a")]
    assert original.with_system_prompt("s").max_tokens == 7
    assert texts(original) == ["a"]


def test_a_new_system_prompt_replaces_the_old_one() -> None:
    assert texts(conversation_of("a").with_system_prompt("s").with_system_prompt("t")) == ["t", "a"]


def test_a_copy_shares_the_spine_and_does_not_change() -> None:
    live = conversation_of("a")
    snapshot = live.copy()
    live.append(Message.user("b"))
    assert live.spine is snapshot.spine
    assert (texts(snapshot), texts(live)) == (["a"], ["a", "b"])


def test_copies_that_diverge_do_not_affect_each_other() -> None:
    first = conversation_of("a")
    second, third = first.copy(), first.copy()
    for conversation, text in ((first, "1"), (second, "2"), (third, "3"), (first, "4")):
        conversation.append(Message.user(text))
    assert [texts(c) for c in (first, second, third)] == [["a", "1", "4"], ["a", "2"], ["a", "3"]]


def test_replace_changes_only_this_conversation() -> None:
    live = conversation_of("a", "b", max_tokens=9)
    snapshot = live.copy()
    live.replace([{"role": "user", "content": "summary"}, live.messages[1]])
    assert texts(live) == ["summary", "b"]
    assert texts(snapshot) == ["a", "b"]
    assert live.max_tokens == 9


def test_a_refused_replace_changes_nothing() -> None:
    live = conversation_of("a")
    with pytest.raises(NotJson, match=r"message\.x"):
        live.replace([Message.user("b"), {"x": b""}])
    assert live == conversation_of("a")


def test_changing_the_returned_list_does_not_change_the_conversation() -> None:
    conversation = conversation_of("a")
    conversation.messages.clear()
    assert texts(conversation) == ["a"]


def test_digest_and_size_match_the_json_lines() -> None:
    conversation = conversation_of("a", "\u2028")
    lines = b"".join(message.to_json() + b"\n" for message in conversation)
    assert conversation.digest == hashlib.sha256(lines).hexdigest()
    assert conversation.size == len(lines)
    assert conversation.estimated_tokens() == -(-len(lines) // 4)


def test_an_empty_conversation_is_estimated_at_zero_tokens() -> None:
    assert Conversation().estimated_tokens() == 0


GROWTH = st.lists(
    st.tuples(st.sampled_from(["append", "replace", "copy", "digest"]), st.integers(0, 9)), max_size=30
)


@given(GROWTH)
def test_conversations_equal_fresh_ones_however_they_were_created(steps: list[tuple[str, int]]) -> None:
    grown, expected = [Conversation()], [[""] * 0]
    for number, (what, which) in enumerate(steps):
        at = which % len(grown)
        if what == "append":
            grown[at].append(Message.user(str(number)))
            expected[at] = [*expected[at], str(number)]
        elif what == "replace":
            grown[at].replace(grown[at].messages[1:])
            expected[at] = expected[at][1:]
        elif what == "copy":
            grown.append(grown[at].copy())
            expected.append(expected[at])
        else:
            assert grown[at].digest == conversation_of(*expected[at]).digest
    for conversation, wanted in zip(grown, expected, strict=True):
        fresh = conversation_of(*wanted)
        assert conversation == fresh
        assert (conversation.digest, conversation.size) == (fresh.digest, fresh.size)


def test_lines_are_correct_after_a_spine_was_extended_with_stored_lines() -> None:
    spine = Spine([Message.user("a")])
    spine.digest(1)
    spine.extend_with_stored([Message.user("b").to_json()], [Message.user("b")])
    assert spine.lines(1, 2) == [Message.user("b").to_json()]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_python_copies_are_independent(duplicate: Any) -> None:
    original = conversation_of("a", max_tokens=9)
    other = duplicate(original)
    assert other == original
    other.append(Message.user("b"))
    assert texts(original) == ["a"]


def test_to_dict_returns_plain_json() -> None:
    expected = {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    assert conversation_of("a", max_tokens=9).to_dict() == expected


def said(*words: str) -> list[Message]:
    return [Message.user(word) for word in words]


def test_extend_to_appends_what_is_new_and_keeps_the_rest() -> None:
    conversation = conversation_of("a", "b")
    before, spine = conversation.messages, conversation.spine
    assert conversation.extend_to([*said("a", "b"), {"role": "user", "content": "c"}]) == 1
    assert texts(conversation) == ["a", "b", "c"]
    assert conversation.spine is spine
    assert all(one is other for one, other in zip(conversation.messages, before, strict=False))


def test_extend_to_the_same_messages_changes_nothing() -> None:
    conversation = conversation_of("a", "b")
    assert conversation.extend_to(said("a", "b")) == 0
    assert conversation.extend_to([message.to_dict() for message in conversation]) == 0
    assert conversation.edits == 0


@pytest.mark.parametrize(
    ("given", "new"),
    [
        (["a", "x", "c"], 2),
        (["a", "x"], 1),
        (["x"], 1),
        (["a"], 0),
        ([], 0),
        (["a", "b", "c", "d"], 1),
        (["b", "c"], 2),
    ],
)
def test_extend_to_replaces_from_where_the_messages_differ(given: list[str], new: int) -> None:
    conversation = conversation_of("a", "b", "c")
    snapshot, first = conversation.copy(), conversation.messages[0]
    assert conversation.extend_to(said(*given)) == new
    assert texts(conversation) == given
    assert texts(snapshot) == ["a", "b", "c"]
    assert conversation.edits == 1
    fresh = conversation_of(*given)
    assert (conversation.digest, conversation.size) == (fresh.digest, fresh.size)
    if given[:1] == ["a"]:
        assert conversation.messages[0] is first


@pytest.mark.parametrize("other", [{"n": True}, {"n": 1.0}, {"m": 2, "n": 1}], ids=str)
def test_extend_to_keeps_what_is_given_byte_for_byte(other: dict[str, Any]) -> None:
    conversation = Conversation(messages=[{"n": 1, "m": 2} if "m" in other else {"n": 1}])
    assert conversation.extend_to([other]) == 1
    assert conversation.messages[0].to_json() == Message.of(other).to_json()


def test_a_refused_message_leaves_the_conversation_as_it_was() -> None:
    conversation = conversation_of("a")
    with pytest.raises(NotJson):
        conversation.extend_to([{"role": "user", "content": "b"}, {"odd": {1, 2}}])
    assert texts(conversation) == ["a"]
    assert conversation.edits == 0


def test_extend_to_reads_each_message_once_if_it_gets_the_same_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history, conversation, read = said(*"abc"), Conversation(), []
    conversation.extend_to(history)

    def json_object(message: Message) -> dict[str, Any]:
        read.append(message)
        return message.__dict__["root"]

    monkeypatch.setattr(Message, "json_object", property(json_object))
    for word in "defg":
        history.append(Message.user(word))
        del read[:]
        assert conversation.extend_to(history) == 1
        assert {id(message) for message in read} <= {id(history[-1])}
    assert texts(conversation) == [*"abcdefg"]


def test_extend_to_redacts_each_message_once() -> None:
    redacted: list[str] = []

    def redact(message: Message) -> Message:
        redacted.append(message.text)
        return Message.user(message.text.replace("secret", "***"))

    conversation = Conversation()
    conversation.redact = redact
    history = said("a secret", "b")
    assert conversation.extend_to(history) == 2
    history.append(Message.user("another secret"))
    assert conversation.extend_to(history) == 1
    assert conversation.extend_to([message.to_dict() for message in history]) == 0
    assert texts(conversation) == ["a ***", "b", "another ***"]
    assert redacted == ["a secret", "b", "another secret"]


def test_extend_to_recognises_messages_that_an_earlier_process_has_redacted() -> None:
    conversation = conversation_of("a ***", "b")
    conversation.redact = lambda message: Message.user(message.text.replace("secret", "***"))
    assert conversation.extend_to(said("a secret", "b", "c secret")) == 1
    assert texts(conversation) == ["a ***", "b", "c ***"]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=6), st.integers(0, 200))
def test_a_conversation_that_is_extended_again_and_again_equals_a_fresh_one(
    histories: list[list[str]], before: int
) -> None:
    conversation = conversation_of(*["x"] * before)
    for history in histories:
        whole = ["x"] * before + history
        conversation.extend_to(said(*whole))
        assert conversation == conversation_of(*whole)
        assert conversation.digest == conversation_of(*whole).digest
        spine, length = conversation.extent
        assert spine.lines(0, length) == [message.to_json() for message in said(*whole)]
