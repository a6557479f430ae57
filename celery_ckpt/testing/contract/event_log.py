"""The contract on the event log: what is noted, in which order, and what is kept of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_ckpt.errors import AlreadyExists, LeaseLost
from celery_ckpt.event_log import ATTEMPT_ENTRIES, LIVE_SECONDS, LogEntry
from celery_ckpt.records import CurrentCall, RunRecord, RunStatus
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.contract.features import needs
from celery_ckpt.testing.contract.fixtures import LONG_TTL, SHORT_TTL, ContractFixtures, pass_time
from celery_ckpt.testing.factories import changed_contents, make_checkpoint, make_run, make_step

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def made(name: str = "search", **data: Any) -> LogEntry:
    """Return the entry of a call."""
    known = {"run_id": "run", "attempt": 1, "iteration": 1, "call": "tool", "name": name, "took": 12}
    return LogEntry("call", NOON, {**known, **data})


def ended(how: str = "succeeded", **data: Any) -> LogEntry:
    """Return the entry of the end of an attempt."""
    return LogEntry("ended", NOON, {"run_id": "run", "how": how, **data})


def kinds(store: CheckpointStore, agent_id: str = "agent", **which: Any) -> list[str]:
    """Return the kinds of entries in order; of an end, how the attempt ended."""
    return [
        entry.data["how"] if entry.kind == "ended" else entry.kind
        for entry in store.event_log(agent_id, **which)
    ]


def names(store: CheckpointStore, **which: Any) -> list[Any]:
    """Return the names of the calls in the log."""
    log = store.event_log("agent", **which)
    return [entry.data["name"] if entry.kind == "call" else entry.kind for entry in log]


def with_status(run: RunRecord, status: RunStatus) -> RunRecord:
    """Return the run with another status."""
    return run.model_copy(update={"status": status})


class EventLogContract(ContractFixtures):
    """A store with the feature ``log`` keeps a bounded record of what happened to each agent."""

    @pytest.fixture
    def logging(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store, if it has an event log."""
        needs("log", store)
        return store

    # -- entries of a write --------------------------------------------------------------------------

    def test_a_write_appends_its_entries(
        self, logging: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        usage = {"input_tokens": 1200, "output_tokens": 80, "cost": 0.5}
        replay = LogEntry("replay", NOON, {"run_id": "run", "attempt": 1, "call": "llm", "name": "ask"})
        failed = made("fetch", error="ValueError: no")
        logging.record_step(make_step(), log=[replay, failed, made(usage=usage)])
        found = other_store.event_log("agent")
        assert [entry[:3] for entry in found] == [
            tuple(entry[:3]) for entry in (replay, failed, made(usage=usage))
        ]
        assert [entry.cursor for entry in found] == [1, 2, 3]

    def test_a_repeated_or_refused_write_appends_nothing(self, logging: CheckpointStore) -> None:
        step, lease = make_step(), logging.acquire("agent", "owner", LONG_TTL)
        logging.record_step(step, lease, log=[made("first")])
        logging.record_step(step, lease, log=[made("again")])
        other = step.model_copy(update={"value": "other"})
        with pytest.raises(AlreadyExists):
            logging.record_step(other, lease, log=[made("other")])
        logging.release(lease)
        with pytest.raises(LeaseLost):
            logging.record_step(make_step(), lease, log=[made("late")])
        assert names(logging) == ["first"]

    def test_a_step_with_a_checkpoint_appends_its_entries(self, logging: CheckpointStore) -> None:
        lease = logging.acquire("agent", "owner", LONG_TTL)
        for name in ("first", "second"):
            step, checkpoint = make_step(), make_checkpoint("agent")
            assert logging.record_and_save(step, checkpoint, lease, log=[made(name)]) is None
        assert names(logging) == ["first", "second"]

    def test_a_run_has_its_own_name_in_the_log(self, logging: CheckpointStore) -> None:
        logging.record_step(make_step(), log=[made(), made(run_id="agent"), made(run_id="{x} 'y' 1")])
        runs = [entry.data["run_id"] for entry in logging.event_log("agent")]
        assert runs == ["run", "agent", "{x} 'y' 1"]

    def test_names_and_texts_are_kept_exactly(self, logging: CheckpointStore) -> None:
        odd = 'a "quoted"\nname\\ {with} % é 漢 \u2028'
        logging.record_step(make_step(), log=[made(odd, error=odd)])
        [entry] = logging.event_log("agent")
        assert (entry.data["name"], entry.data["error"]) == (odd, odd)

    def test_an_entry_without_a_write_needs_an_agent(self, logging: CheckpointStore) -> None:
        action = LogEntry("action", NOON, {"action": "pin", "by": "ann", "label": "good"})
        assert not logging.note("agent", [action])
        assert logging.event_log("agent") == []
        assert list(logging.agents()) == []
        logging.save(make_checkpoint("agent"))
        assert logging.note("agent", [action])
        assert [entry.data for entry in logging.event_log("agent")] == [action.data]

    def test_entries_of_a_copied_log_are_appended_as_they_are(self, logging: CheckpointStore) -> None:
        logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        calling = {"call": "llm", "name": "ask", "began_at": 1767268800000}
        log = [
            LogEntry("attempt", NOON, {"run_id": "old", "attempt": 1, "worker": "w"}),
            made("search", error="ValueError: no"),
            ended("lost", run_id="old", attempt=1, calling=calling),
            ended("succeeded", attempt=1, why="a reason"),
        ]
        assert not logging.note("absent", log, copied=True)
        assert logging.note("agent", log, copied=True)
        assert [entry[:3] for entry in logging.event_log("agent")[1:]] == [
            tuple(entry[:3]) for entry in log
        ]
        # The attempt that this store has started has not ended.
        logging.note("agent", [ended("fenced", attempt=1)])
        assert kinds(logging)[-1] == "fenced"

    # -- attempts ------------------------------------------------------------------------------------

    def test_an_attempt_is_noted_from_its_start_to_its_end(self, logging: CheckpointStore) -> None:
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL, worker="celery@host")
        done = with_status(start.run, RunStatus.SUCCEEDED)
        logging.save(make_checkpoint("agent"), start.lease, run=done, log=[ended()])
        logging.settle_run(done, start.lease)
        logging.settle_run(done)
        began, end, settled = logging.event_log("agent")
        assert (began.kind, end.kind, settled.kind) == ("attempt", "ended", "settled")
        assert began.data == {"run_id": "run", "attempt": 1, "worker": "celery@host"}
        assert end.data == {"run_id": "run", "attempt": 1, "how": "succeeded"}
        assert settled.data == {"run_id": "run", "status": "succeeded"}

    @pytest.mark.parametrize("verb", ["release", "update_run"])
    def test_an_attempt_ends_once(self, logging: CheckpointStore, verb: str) -> None:
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        assert start.lease is not None
        queued = with_status(start.run, RunStatus.QUEUED)
        if verb == "release":
            assert logging.release(start.lease, run=queued, log=[made(), ended("handed_off")])
            assert not logging.release(start.lease, run=queued, log=[ended("again")])
        else:
            logging.update_run(queued, start.lease, log=[made(), ended("handed_off", why="a reason")])
            logging.update_run(queued, start.lease, log=[ended("again")])
        assert kinds(logging) == ["attempt", "call", "handed_off"]
        assert logging.event_log("agent")[-1].data["attempt"] == 1

    def test_an_attempt_that_left_no_end_is_noted_as_lost(
        self, logging: CheckpointStore, clock: FakeClock | None
    ) -> None:
        run = make_run("agent", "run")
        start = logging.start_run(run, "first", LONG_TTL)
        assert start.lease is not None
        call = CurrentCall(kind="llm", name="ask {it}", began_at=NOON)
        logging.renew(start.lease, SHORT_TTL, call=call)
        pass_time(logging, "agent", clock)
        # As a watchdog does before it publishes the run again.
        logging.release(logging.acquire("agent", "watchdog", LONG_TTL))
        logging.start_run(run, "second", LONG_TTL)
        assert kinds(logging) == ["attempt", "lost", "attempt"]
        began, lost, again = logging.event_log("agent")
        assert (lost.data["run_id"], lost.data["attempt"], again.data["attempt"]) == ("run", 1, 2)
        calling = lost.data["calling"]
        assert (calling["call"], calling["name"]) == ("llm", "ask {it}")
        assert calling["began_at"] == 1767268800000
        assert abs(lost.data["renewed_at"] - began.at.timestamp() * 1000) < 60_000

    def test_an_attempt_that_ended_is_not_noted_as_lost(self, logging: CheckpointStore) -> None:
        run = make_run("agent", "run")
        for _ in range(2):
            start = logging.start_run(run, "owner", LONG_TTL)
            assert start.lease is not None
            # It counts as one that died, but it has noted its end.
            logging.release(start.lease, run=start.run, log=[ended("interrupted")])
        assert kinds(logging) == ["attempt", "interrupted"] * 2

    def test_the_end_of_another_attempt_is_not_noted(self, logging: CheckpointStore) -> None:
        run = make_run("agent", "run")
        first = logging.start_run(run, "owner", LONG_TTL)
        logging.start_run(run, "owner", LONG_TTL, over=first.lease)
        logging.note("agent", [ended("fenced", attempt=1)])
        assert kinds(logging) == ["attempt", "lost", "attempt"]
        logging.note("agent", [ended("fenced", attempt=2)])
        assert kinds(logging)[-1] == "fenced"

    def test_a_cancellation_ends_the_attempt(self, logging: CheckpointStore) -> None:
        logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        logging.start_run(make_run("agent", "other"), "owner", LONG_TTL)
        action = LogEntry("action", NOON, {"action": "cancel", "by": "ann"})
        logging.cancel_run("agent", "other", "me", LONG_TTL, log=[action])
        logging.cancel_run("agent", "run", "me", LONG_TTL, log=[action])
        assert kinds(logging) == ["attempt", "action", "action", "cancelled"]

    def test_a_run_that_is_blocked_or_has_ended_begins_no_attempt(
        self, logging: CheckpointStore
    ) -> None:
        logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        logging.start_run(make_run("agent", "other"), "owner", LONG_TTL)
        failed = make_run("ended", "run", status=RunStatus.FAILED)
        logging.start_run(failed, "owner", LONG_TTL)
        assert (kinds(logging), kinds(logging, "ended")) == (["attempt"], [])

    def test_readers_see_the_call_in_progress(self, logging: CheckpointStore) -> None:
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        assert start.lease is not None
        assert logging.activity("agent").call is None
        call = CurrentCall(kind="tool", name='a "tool" name', began_at=NOON)
        logging.renew_many([start.lease], LONG_TTL, calls=[call])
        assert logging.activity("agent").call == call
        assert [row.call for row in logging.page().agents] == [call]
        assert logging.outline("agent").call == call  # type: ignore[union-attr]
        logging.renew_many([start.lease], LONG_TTL, calls=[None])
        assert logging.activity("agent").call is None
        assert logging.outline("agent").call is None  # type: ignore[union-attr]
        assert logging.holder("agent") is not None

    # -- what is kept --------------------------------------------------------------------------------

    def test_each_part_is_bounded_by_itself(self, logging: CheckpointStore) -> None:
        logging.event_log_limit = 5
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        for number in range(30):
            logging.record_step(make_step(), start.lease, log=[made(str(number))])
        found = names(logging)
        assert found[0] == "attempt"
        assert found[-5:] == ["25", "26", "27", "28", "29"]
        assert len(found) <= 1 + 2 * 5

    def test_many_attempts_are_bounded(self, logging: CheckpointStore) -> None:
        logging.event_log_limit = 5
        logging.save(make_checkpoint("agent"))
        logging.record_step(make_step(), log=[made("before")])
        beginning = LogEntry("attempt", NOON, {"run_id": "run", "attempt": 1})
        for _ in range(4):
            logging.note("agent", [beginning] * (ATTEMPT_ENTRIES // 2))
        found = kinds(logging)
        assert found[0] == "call"
        assert ATTEMPT_ENTRIES <= len(found) - 1 <= 2 * ATTEMPT_ENTRIES

    def test_without_a_log_nothing_is_noted_and_everything_works(
        self, logging: CheckpointStore
    ) -> None:
        logging.event_log_limit = 0
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL, worker="celery@host")
        assert start.lease is not None
        logging.record_step(make_step(), start.lease, log=[made()])
        logging.renew(start.lease, LONG_TTL, call=CurrentCall(kind="llm", name="x", began_at=NOON))
        logging.follow("agent", 60)
        assert not logging.stream(start.lease, [LogEntry("token", NOON, "a")])
        done = with_status(start.run, RunStatus.SUCCEEDED)
        logging.save(make_checkpoint("agent"), start.lease, run=done, log=[ended()])
        logging.settle_run(done, start.lease)
        assert logging.event_log("agent") == []
        assert logging.event_log("agent", after=0) == []
        assert logging.run("agent", "run").is_settled  # type: ignore[union-attr]

    def test_a_deleted_agent_has_no_log(self, logging: CheckpointStore) -> None:
        logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        logging.delete("agent")
        assert logging.event_log("agent") == []
        logging.record_step(make_step(), log=[made()])
        [entry] = logging.event_log("agent", after=0)
        assert entry.cursor == 1

    def test_agents_have_logs_of_their_own(self, logging: CheckpointStore) -> None:
        logging.record_step(make_step("agent"), log=[made()])
        logging.record_step(make_step("other"), log=[made(), made()])
        assert [len(logging.event_log(name)) for name in ("agent", "other")] == [1, 2]

    def test_a_rewrite_keeps_the_cursors(self, logging: CheckpointStore) -> None:
        needs("rewrite", logging)
        logging.event_log_limit = 5
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        for number in range(12):
            logging.record_step(make_step(), start.lease, log=[made(str(number))])
        before = logging.event_log("agent")
        assert logging.rewrite("agent", changed_contents, start.lease)
        assert logging.event_log("agent") == before
        logging.record_step(make_step(), start.lease, log=[made("after")])
        assert logging.event_log("agent")[-1].cursor == 14

    def test_a_rewrite_may_leave_entries_out(self, logging: CheckpointStore) -> None:
        needs("rewrite", logging)
        logging.record_step(make_step(), log=[made("first"), made("second")])

        def change(contents: Any) -> Any:
            return type(contents)(contents.checkpoints, contents.steps, contents.runs, [])

        assert logging.rewrite("agent", change)
        assert logging.event_log("agent") == []
        logging.record_step(make_step(), log=[made("third")])
        assert [(e.kind, e.cursor) for e in logging.event_log("agent", after=0)] == [
            ("gap", 2),
            ("call", 3),
        ]

    # -- reading -------------------------------------------------------------------------------------

    def test_a_page_of_the_newest_entries(self, logging: CheckpointStore) -> None:
        logging.record_step(make_step(), log=[made("1"), made("2"), made("3")])
        assert names(logging, limit=2) == ["2", "3"]
        assert names(logging, limit=0) == []
        with pytest.raises(ValueError, match="limit is 0 or more"):
            logging.event_log("agent", limit=-1)

    def test_a_reader_continues_after_a_cursor(self, logging: CheckpointStore) -> None:
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        logging.record_step(make_step(), start.lease, log=[made("1"), made("2"), made("3")])
        seen: list[Any] = []
        cursor = 0
        while page := logging.event_log("agent", after=cursor, limit=2):
            seen += [entry.data.get("name", entry.kind) for entry in page]
            cursor = page[-1].cursor
        assert seen == ["attempt", "1", "2", "3"]

    def test_a_reader_is_told_what_it_has_missed(self, logging: CheckpointStore) -> None:
        logging.event_log_limit = 4
        for number in range(20):
            logging.record_step(make_step(), log=[made(str(number))])
        gap, first, *rest = logging.event_log("agent", after=2)
        assert (gap.kind, first.kind) == ("gap", "call")
        assert gap.cursor == 2 + gap.data["missing"] == first.cursor - 1
        assert rest[-1].cursor == 20
        assert "gap" not in names(logging, after=gap.cursor)
        assert "gap" not in names(logging, after=20 - 4)

    def test_a_cursor_of_a_deleted_agent_has_expired(self, logging: CheckpointStore) -> None:
        logging.record_step(make_step(), log=[made("new")])
        assert names(logging, after=99) == ["new"]

    # -- live entries --------------------------------------------------------------------------------

    def test_live_entries_are_written_while_somebody_follows(self, logging: CheckpointStore) -> None:
        lease = logging.acquire("agent", "owner", LONG_TTL)
        first, second = make_checkpoint("agent", iteration=1), make_checkpoint("agent", iteration=7)
        logging.save(first, lease)
        assert not logging.stream(lease, [LogEntry("token", NOON, "lost")])
        assert logging.event_log("agent") == []
        cursor = logging.follow("agent", LONG_TTL)
        assert logging.stream(lease, [LogEntry("token", NOON, "a"), LogEntry("token", NOON, {"b": 1})])
        logging.save(second, lease)
        logging.record_step(make_step(), lease, log=[made()])
        found = logging.event_log("agent", after=cursor)
        assert [entry.kind for entry in found] == ["token", "token", "checkpoint", "call"]
        assert [entry.data for entry in found[:3]] == ["a", {"b": 1}, {"id": second.id, "iteration": 7}]
        assert [entry.cursor for entry in found] == [1, 2, 3, 4]

    def test_every_way_to_save_tells_a_follower(self, logging: CheckpointStore) -> None:
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        cursor = logging.follow("agent", LONG_TTL)
        saves = [make_checkpoint("agent", iteration=n) for n in range(3)]
        logging.save(saves[0], start.lease)
        logging.record_and_save(make_step(), saves[1], start.lease, log=[made()])
        logging.save(saves[2], start.lease, run=start.run, log=[ended()])
        found = logging.event_log("agent", after=cursor)
        told = [entry.data["id"] for entry in found if entry.kind == "checkpoint"]
        assert told == [each.id for each in saves]

    def test_a_stream_is_fenced(self, logging: CheckpointStore) -> None:
        old = logging.acquire("agent", "owner", LONG_TTL)
        new = logging.acquire("agent", "other", LONG_TTL, over=old)
        logging.follow("agent", LONG_TTL)
        with pytest.raises(LeaseLost):
            logging.stream(old, [LogEntry("token", NOON, "a")])
        assert logging.stream(new, [LogEntry("token", NOON, "b")])
        assert [entry.data for entry in logging.event_log("agent")] == ["b"]

    def test_a_stream_pushes_out_no_other_entry(self, logging: CheckpointStore) -> None:
        start = logging.start_run(make_run("agent", "run"), "owner", LONG_TTL)
        assert start.lease is not None
        logging.record_step(make_step(), start.lease, log=[made()])
        logging.follow("agent", LONG_TTL)
        for _ in range(30):
            logging.stream(start.lease, [LogEntry("token", NOON, "x")] * 100)
        found = kinds(logging)
        assert found[:2] == ["attempt", "call"]
        assert 1000 <= found.count("token") <= 2000

    def test_nothing_is_created_by_following(self, logging: CheckpointStore) -> None:
        assert logging.follow("agent", LONG_TTL) == 0
        assert list(logging.agents()) == []

    def test_live_entries_are_deleted_after_the_last_follower(
        self, logging: CheckpointStore, clock: FakeClock | None
    ) -> None:
        if clock is None:
            pytest.skip("the store has no clock that a test can move")
        lease = logging.acquire("agent", "owner", 10 * LIVE_SECONDS)
        logging.follow("agent", 60)
        logging.stream(lease, [LogEntry("token", NOON, "a")])
        logging.record_step(make_step(), lease, log=[made()])
        clock.advance(61)
        assert not logging.stream(lease, [LogEntry("token", NOON, "b")])
        assert kinds(logging) == ["token", "call"]
        clock.advance(LIVE_SECONDS)
        assert kinds(logging) == ["call"]
        assert kinds(logging, after=0) == ["gap", "call"]
        cursor = logging.follow("agent", 60)
        logging.stream(lease, [LogEntry("token", NOON, "c")])
        assert kinds(logging) == ["call", "token"]
        assert kinds(logging, after=cursor) == ["token"]

    def test_the_times_are_those_that_were_given(self, logging: CheckpointStore) -> None:
        at = NOON + timedelta(milliseconds=123)
        logging.record_step(make_step(), log=[made()._replace(at=at)])
        assert logging.event_log("agent")[0].at == at
