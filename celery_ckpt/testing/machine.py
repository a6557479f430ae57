"""StoreMachine compares any store with the memory store, over random sequences of operations.

    class MyMachine(StoreMachine):
        def open(self):
            return MyStore("somewhere")     # must be empty

    TestMyStore = MyMachine.TestCase

Hypothesis generates sequences of saves, rewrites, forks, prunes, sweeps, pins, deletions, crashes and
lease operations. After each operation, both stores must have returned the same and contain the same.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_ckpt.checkpoint import Checkpoint, Entry
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import StoreError
from celery_ckpt.event_log import LogEntry, Part, limit_of
from celery_ckpt.records import AgentContents, AgentOutline, Lease, RunRecord, RunStatus
from celery_ckpt.retention.policy import Rules
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL, SWEEP, sweep
from celery_ckpt.testing.factories import (
    changed_contents,
    make_checkpoint,
    make_message,
    make_run,
    make_step,
)

NAMES = ("a", "b", "{a}")
AGENTS = st.sampled_from(NAMES)
RUN_IDS = ("run", "other", "third")
RUNS = st.sampled_from(RUN_IDS)
ENDINGS = ("release", "update", "save", "settle")
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
#: Long ago, and in the far future: the stores have different clocks.
TIMES = st.none() | st.sampled_from([BEGINNING, datetime(2100, 1, 1, tzinfo=UTC)])
#: How many calls the event logs keep: few, so that they are cut.
LOG_LIMIT = 5
#: Few texts, so that equal messages are frequent.
TEXTS = st.lists(st.sampled_from(["x", "y", "z"]), max_size=4)


class StoreMachine(RuleBasedStateMachine):
    """Subclasses define ``open``, and ``reopen`` if the data outlives the store object."""

    #: True if the store records when agents change (see ``CheckpointStore.page``): then it must list
    #: them in the same order as the memory store.
    records_changes = False

    def open(self) -> CheckpointStore:
        """Make an empty store."""
        raise NotImplementedError("define `open`: it returns an empty store")

    def reopen(self, store: CheckpointStore) -> CheckpointStore:
        """Make another store object on the same data, as another process would."""
        return store

    @initialize()
    def begin(self) -> None:
        """Open both stores, empty."""
        self.store = self.open()
        self.model = MemoryCheckpointStore()
        self.model.event_log_limit = self.store.event_log_limit = LOG_LIMIT
        self.live: dict[str, Conversation] = {}
        self.saved: list[Checkpoint] = []
        #: All leases so far, each as the model and as the store returned it.
        self.leases: list[tuple[Lease, Lease]] = []

    def teardown(self) -> None:
        """Compare once more, and close the store."""
        if hasattr(self, "store"):
            self.everything_is_equal()
            self.store.close()

    # -- saving --------------------------------------------------------------------------------------

    @rule(agent_id=AGENTS, texts=TEXTS, hold=st.integers(-1, 3), enter=st.booleans())
    def save(self, agent_id: str, texts: list[str], hold: int, enter: bool) -> None:
        """Append to the agent's conversation and save, with one of the leases or without."""
        conversation = self.live.setdefault(agent_id, Conversation())
        entry = Entry(conversation=conversation, state={"n": len(conversation)}) if enter else None
        for text in texts:
            conversation.append(make_message(text))
        self._save(make_checkpoint(agent_id, conversation, len(conversation), entry=entry), hold)

    @rule(agent_id=AGENTS, keep=st.integers(0, 3), texts=TEXTS, enter=st.booleans())
    def rewrite(self, agent_id: str, keep: int, texts: list[str], enter: bool) -> None:
        """Compact the agent's conversation and save."""
        conversation = self.live.setdefault(agent_id, Conversation())
        entry = Entry(conversation=conversation) if enter else None
        old = conversation.messages
        conversation.replace([*old[:1], *map(make_message, texts), *old[len(old) - keep :]])
        self._save(make_checkpoint(agent_id, conversation, entry=entry))

    @rule(agent_id=AGENTS, pick=st.integers(0, 50))
    def fork(self, agent_id: str, pick: int) -> None:
        """Continue an agent from any earlier checkpoint of any agent."""
        if self.saved:
            self.live[agent_id] = self.saved[pick % len(self.saved)].conversation
            self.live[agent_id].append(make_message("forked"))
            self._save(make_checkpoint(agent_id, self.live[agent_id]))

    @rule(pick=st.integers(0, 50), change=st.booleans())
    def save_again(self, pick: int, change: bool) -> None:
        """Save an old checkpoint again, the same or changed."""
        if self.saved:
            old = self.saved[pick % len(self.saved)]
            self._save(old.with_metadata("changed", "yes") if change else old)

    @precondition(lambda self: "rewrite" in self.store.features)
    @rule(agent_id=AGENTS, hold=st.integers(-1, 2), is_any=st.booleans())
    def rewrite_agent(self, agent_id: str, hold: int, is_any: bool) -> None:
        """Change everything that an agent has, or only look at it."""
        model_lease, store_lease = self._lease(hold)

        def change(contents: AgentContents) -> AgentContents | None:
            return changed_contents(contents) if is_any else None

        results = self._both(
            lambda: self.model.rewrite(agent_id, change, model_lease),
            lambda: self.store.rewrite(agent_id, change, store_lease),
        )
        assert results in (None, (True, True))

    def _save(self, checkpoint: Checkpoint, hold: int = -1) -> None:
        model_lease, store_lease = self._lease(hold)
        self._both(
            lambda: self.model.save(checkpoint, model_lease),
            lambda: self.store.save(checkpoint, store_lease),
        )
        self.saved.append(checkpoint)

    def _lease(self, pick: int) -> tuple[Lease | None, Lease | None]:
        return self.leases[-1 - pick % len(self.leases)] if self.leases and pick >= 0 else (None, None)

    # -- removing ------------------------------------------------------------------------------------

    @rule(agent_id=AGENTS, keep=st.integers(0, 4))
    def prune(self, agent_id: str, keep: int) -> None:
        """Prune an agent's history."""
        self._same(lambda store: store.prune(agent_id, keep))

    @rule(agent_id=AGENTS, pick=st.integers(0, 50))
    def remove(self, agent_id: str, pick: int) -> None:
        """Remove any one checkpoint."""
        if self.saved:
            self._same(lambda store: store.remove(agent_id, [self.saved[pick % len(self.saved)].id]))

    @rule(agent_id=AGENTS)
    def delete(self, agent_id: str) -> None:
        """Delete an agent."""
        self._same(lambda store: store.delete(agent_id))

    @rule(after=st.sampled_from([None, 1.0]))
    def sweep(self, after: float | None) -> None:
        """Sweep all agents that are due; with ``after``, sweep all agents, and delete old runs."""
        for store in (self.model, self.store):
            for agent_id in NAMES if after else ():
                store.schedule(agent_id, 0, SWEEP)
            sweep(store, Rules(keep=3, forget_after=after))

    @rule(pick=st.integers(0, 50), label=st.sampled_from(["x", "y"]) | st.none())
    def pin(self, pick: int, label: str | None) -> None:
        """Pin any earlier checkpoint, or remove its pin."""
        if self.saved:
            self._same(lambda store: store.pin(self.saved[pick % len(self.saved)].id, label))

    @rule()
    def crash_and_reopen(self) -> None:
        """Discard everything that the process had in memory, as after a crash."""
        self.store = self.reopen(self.store)
        self.store.event_log_limit = LOG_LIMIT
        # New objects, as another process would read them.
        self.live = {
            name: Conversation(conversation.max_tokens, [m.to_dict() for m in conversation])
            for name, conversation in self.live.items()
        }

    # -- leases and steps ----------------------------------------------------------------------------

    @rule(agent_id=AGENTS, over=st.integers(-1, 2))
    def acquire(self, agent_id: str, over: int) -> None:
        """Acquire the lease, perhaps over another."""
        model_over, store_over = self._lease(over)
        if model_over and model_over.agent_id != agent_id:
            model_over = store_over = None
        leases = self._both(
            lambda: self.model.acquire(agent_id, "owner", LONG_TTL, over=model_over),
            lambda: self.store.acquire(agent_id, "owner", LONG_TTL, over=store_over),
        )
        if leases is not None:
            assert leases[0].token == leases[1].token
            self.leases.append(leases)

    @rule(pick=st.integers(0, 3), renew=st.booleans())
    def renew_or_release(self, pick: int, renew: bool) -> None:
        """Renew or release one of the leases so far."""
        model_lease, store_lease = self._lease(pick)
        if model_lease and store_lease and renew:
            self._both(
                lambda: self.model.renew(model_lease, LONG_TTL).token,
                lambda: self.store.renew(store_lease, LONG_TTL).token,
            )
        elif model_lease and store_lease:
            assert self.model.release(model_lease) == self.store.release(store_lease)

    @rule(picks=st.lists(st.integers(0, 5), max_size=4))
    def renew_many(self, picks: list[int]) -> None:
        """Renew several of the leases so far, some of which may be lost."""
        pairs = [self._lease(pick) for pick in picks] if self.leases else []
        expected = self.model.renew_many([lease for lease, _ in pairs if lease], LONG_TTL)
        renewed = self.store.renew_many([lease for _, lease in pairs if lease], LONG_TTL)
        assert list(map(_outcome, renewed)) == list(map(_outcome, expected))

    @rule(
        agent_id=AGENTS, key=st.sampled_from("pq"), iteration=st.integers(0, 2), hold=st.integers(-1, 2)
    )
    def record_step(self, agent_id: str, key: str, iteration: int, hold: int) -> None:
        """Record a step."""
        step = make_step(agent_id, "run", key, iteration=iteration)
        model_lease, store_lease = self._lease(hold)
        noted = self._noted(LogEntry("call", BEGINNING, {"run_id": "run", "name": key}))
        self._both(
            lambda: self.model.record_step(step, model_lease, **noted),
            lambda: self.store.record_step(step, store_lease, **noted),
        )

    def _noted(self, *entries: LogEntry) -> dict[str, Any]:
        return {"log": entries} if "log" in self.store.features else {}

    @precondition(lambda self: "log" in self.store.features)
    @rule(agent_id=AGENTS, run_id=RUNS, how=st.sampled_from(["call", "attempt", "ended"]))
    def note(self, agent_id: str, run_id: str, how: str) -> None:
        """Append an entry to the event log that belongs to no write."""
        data = {"run_id": run_id, **({"how": "fenced"} if how == "ended" else {})}
        self._same(lambda store: store.note(agent_id, [LogEntry(how, BEGINNING, data)]))

    @precondition(lambda self: "log" in self.store.features)
    @rule(agent_id=AGENTS)
    def follow(self, agent_id: str) -> None:
        """Follow an agent from now on."""
        self._same(lambda store: store.follow(agent_id, LONG_TTL))

    @precondition(lambda self: "log" in self.store.features)
    @rule(pick=st.integers(0, 3), count=st.integers(0, 3))
    def stream(self, pick: int, count: int) -> None:
        """Append live entries, with one of the leases so far."""
        model_lease, store_lease = self._lease(pick)
        if model_lease and store_lease:
            entries = [LogEntry("token", BEGINNING, number) for number in range(count)]
            told = self._both(
                lambda: self.model.stream(model_lease, entries),
                lambda: self.store.stream(store_lease, entries),
            )
            assert told is None or told[0] == told[1]

    @rule(agent_id=AGENTS, key=st.sampled_from("pq"), pick=st.integers(-4, 50), hold=st.integers(-1, 2))
    def record_and_save(self, agent_id: str, key: str, pick: int, hold: int) -> None:
        """Record a step, and save the conversation as it is, or an old checkpoint changed."""
        step = make_step(agent_id, "run", key, iteration=1)
        conversation = self.live.setdefault(agent_id, Conversation())
        conversation.append(make_message("recorded"))
        checkpoint = make_checkpoint(agent_id, conversation)
        if self.saved and pick >= 0:
            old = self.saved[pick % len(self.saved)]
            checkpoint = old.with_metadata("changed", "yes") if old.agent_id == agent_id else checkpoint
        model_lease, store_lease = self._lease(hold)
        refusals = self._both(
            lambda: self.model.record_and_save(step, checkpoint, model_lease),
            lambda: self.store.record_and_save(step, checkpoint, store_lease),
        )
        if refusals is not None:
            assert type(refusals[0]) is type(refusals[1])
            self.saved.append(checkpoint)

    @rule(agent_id=AGENTS, first=st.integers(0, 2), last=st.integers(0, 2) | st.none())
    def drop_steps(self, agent_id: str, first: int, last: int | None) -> None:
        """Drop steps."""
        self._same(lambda store: store.drop_steps(agent_id, "run", first=first, last=last))

    @precondition(lambda self: "reschedule" in self.store.features)
    @rule(agent_id=AGENTS, is_changed=st.booleans())
    def reschedule(self, agent_id: str, is_changed: bool) -> None:
        """Reschedule an agent, whose due time may have changed since it was read."""

        def moved(store: CheckpointStore) -> list[str]:
            due_at = store.schedule(agent_id, LONG_TTL)
            if is_changed:
                store.schedule(agent_id, LONG_TTL)
            return list(store.reschedule({agent_id: due_at, "unknown": due_at}, LONG_TTL))

        self._same(moved)

    # -- runs ----------------------------------------------------------------------------------------

    @rule(agent_id=AGENTS, run_id=RUNS, over=st.integers(-1, 2), recorded=st.booleans())
    def start_run(self, agent_id: str, run_id: str, over: int, recorded: bool) -> None:
        """Deliver a run to a worker, with a message that says whether the run was recorded."""
        run = make_run(agent_id, run_id, created_at=BEGINNING)
        model_over, store_over = self._lease(over)
        if model_over and model_over.agent_id != agent_id:
            model_over = store_over = None
        starts = self._both(
            lambda: self.model.start_run(run, "owner", LONG_TTL, over=model_over, recorded=recorded),
            lambda: self.store.start_run(run, "owner", LONG_TTL, over=store_over, recorded=recorded),
        )
        assert starts is None or starts[0].is_deleted == starts[1].is_deleted
        assert starts is None or _id(starts[0].next) == _id(starts[1].next)
        if starts is not None and starts[0].lease is not None:
            assert starts[0].lease.token == starts[1].lease.token
            self.leases.append((starts[0].lease, starts[1].lease))

    @rule(agent_id=AGENTS, run_id=RUNS, eta=TIMES, expires_at=TIMES)
    def send_run(
        self, agent_id: str, run_id: str, eta: datetime | None, expires_at: datetime | None
    ) -> None:
        """Record a run that is sent, perhaps with an ETA or an expiry."""
        times = {"created_at": BEGINNING, "eta": eta, "expires_at": expires_at}
        self._same(lambda store: store.add_run(make_run(agent_id, run_id, **times)))

    @rule(agent_id=AGENTS, run_id=RUNS, hold=st.integers(-1, 2))
    def reopen_run(self, agent_id: str, run_id: str, hold: int) -> None:
        """Open a settled run again."""
        run = self.model.run(agent_id, run_id)
        if run is not None and run.is_settled:
            changes = {"status": RunStatus.QUEUED, "delivered": False, "eta": None, "progress": ""}
            again = run.model_copy(update=changes)
            model_lease, store_lease = self._lease(hold)
            self._both(
                lambda: self.model.update_run(again, model_lease),
                lambda: self.store.update_run(again, store_lease),
            )

    @rule(agent_id=AGENTS, run_id=RUNS, waited=st.sampled_from([0.0, LONG_TTL]))
    def pass_turn(self, agent_id: str, run_id: str, waited: float) -> None:
        """Pass a run over that no worker has begun."""
        self._same(lambda store: _id(store.pass_turn(agent_id, run_id, waited)))

    @rule(agent_id=AGENTS, run_id=RUNS, hold=st.integers(-1, 2), verb=st.sampled_from(ENDINGS))
    def end_attempt(self, agent_id: str, run_id: str, hold: int, verb: str) -> None:
        """Release a run, finish it with or without a checkpoint, or settle it."""
        run = self.model.run(agent_id, run_id) or make_run(agent_id, run_id, created_at=BEGINNING)
        status = RunStatus.QUEUED if verb == "release" else RunStatus.SUCCEEDED
        run = run.model_copy(update={"status": status, "progress": ""})
        model_lease, store_lease = self._lease(hold)
        checkpoint = make_checkpoint(agent_id, self.live.get(agent_id))
        noted = self._noted(LogEntry("ended", BEGINNING, {"run_id": run_id, "how": verb}))
        self._both(
            lambda: _end(self.model, verb, run, checkpoint, model_lease, noted),
            lambda: _end(self.store, verb, run, checkpoint, store_lease, noted),
        )

    @rule(agent_id=AGENTS, run_id=RUNS)
    def cancel_run(self, agent_id: str, run_id: str) -> None:
        """Cancel a run."""
        leases = self._both(
            lambda: self.model.cancel_run(agent_id, run_id, "owner", LONG_TTL),
            lambda: self.store.cancel_run(agent_id, run_id, "owner", LONG_TTL),
        )
        if leases is not None and leases[0] is not None:
            assert leases[0].token == leases[1].token
            self.leases.append(leases)

    # -- what must be equal --------------------------------------------------------------------------

    def _same(self, act: Callable[[CheckpointStore], Any]) -> None:
        results = self._both(lambda: act(self.model), lambda: act(self.store))
        assert results is None or results[0] == results[1]

    def _both(self, on_model: Callable[[], Any], on_store: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Do both. The store must refuse what the model refuses, with the same error."""
        try:
            expected = on_model()
        except StoreError as refusal:
            with pytest.raises(type(refusal)):
                on_store()
            return None
        return expected, on_store()

    @invariant()
    def the_latest_checkpoint_is_equal(self) -> None:
        """A run that resumes now finds the same checkpoint in both stores."""
        for agent_id in NAMES if hasattr(self, "store") else ():
            assert self.store.load_latest(agent_id) == self.model.load_latest(agent_id)

    @rule()
    def everything_is_equal(self) -> None:
        """Every read method returns the same from both stores."""
        assert sorted(self.store.agents()) == sorted(self.model.agents())
        self._pages_are_equal()
        for agent_id in NAMES:
            assert self.store.list(agent_id) == self.model.list(agent_id)
            assert _pins(self.store, agent_id) == _pins(self.model, agent_id)
            assert _pins(self.store, agent_id, 3) == _pins(self.store, agent_id)[:3]
            assert self.store.steps(agent_id, "run") == self.model.steps(agent_id, "run")
            assert _runs(self.store, agent_id) == _runs(self.model, agent_id)
            if "log" in self.store.features:
                assert _log(self.store, agent_id) == _log(self.model, agent_id)
        for run_id in RUN_IDS:
            assert self.store.was_deleted(run_id) == self.model.was_deleted(run_id)
        for checkpoint in self.saved:
            assert self.store.load(checkpoint.id) == self.model.load(checkpoint.id)
            assert self.store.messages(checkpoint.id, -3) == self.model.messages(checkpoint.id, -3)

    def _pages_are_equal(self) -> None:
        for status in (None, "idle", *RunStatus):
            expected, found = _rows(self.model, status), _rows(self.store, status)
            assert sorted(found) == sorted(expected)
            if self.records_changes:
                assert found == expected
            assert _rows(self.store, status, limit=1) == found
        for agent_id in NAMES:
            assert self.store.run_outlines(agent_id, limit=2) == [
                run.outline for run in self.store.runs(agent_id)[::-1][:2]
            ]


def _end(
    store: CheckpointStore,
    verb: str,
    run: RunRecord,
    checkpoint: Checkpoint,
    lease: Lease | None,
    noted: dict[str, Any],
) -> Any:
    if verb == "release":
        is_own = lease is not None and lease.agent_id == run.agent_id
        return is_own and lease and store.release(lease, run=run, **noted)
    if verb == "update":
        return store.update_run(run, lease, **noted)
    if verb == "save":
        return store.save(checkpoint, lease, run=run, **noted)
    following = store.settle_run(run, lease)
    return following and following.run_id


def _id(run: RunRecord | None) -> str | None:
    return None if run is None else run.run_id


def _outcome(renewed: Lease | StoreError) -> Any:
    return (renewed.agent_id, renewed.token) if isinstance(renewed, Lease) else type(renewed)


def _rows(
    store: CheckpointStore, status: RunStatus | str | None, limit: int = 100
) -> list[tuple[Any, ...]]:
    """Return the agents with a status, page by page, and what a list shows of them."""
    rows, after = list[AgentOutline](), None
    while True:
        page = store.page(status, limit=limit, after=after)
        rows += page.agents
        after = page.after
        if after is None:
            break
    return [
        (row.agent_id, row.status or "", row.run_id or "", row.attempts, row.blocked, row.owner or "",
         row.iteration or 0, row.checkpoints)
        for row in rows
    ]  # fmt: skip


def _pins(store: CheckpointStore, agent_id: str, limit: int | None = None) -> Any:
    return [(info.id, info.pin) for info in store.history(agent_id, limit=limit)]


def _log(store: CheckpointStore, agent_id: str) -> Any:
    """Return what every store has kept of an event log: without times, and without older entries."""
    found = store.event_log(agent_id)
    parts = [[entry for entry in found if entry.part is part] for part in Part]
    kept = [own[-limit_of(own[0].part, LOG_LIMIT) :] for own in parts if own]
    return [
        (one.kind, one.cursor, {**one.data, "renewed_at": 0} if one.kind == "ended" else one.data)
        for own in kept
        for one in own
    ]


def _runs(store: CheckpointStore, agent_id: str) -> Any:
    """Return the runs of an agent, without the progress marks, which differ between stores."""
    activity = store.activity(agent_id)
    everything = [*store.runs(agent_id), *activity.open]
    last = store.last_run(agent_id)
    assert _id(last) == _id(next(reversed(everything[: len(everything) - len(activity.open)]), None))
    assert activity.count == len(activity.open)
    return activity.active, [run.model_copy(update={"progress": ""}) for run in everything]
