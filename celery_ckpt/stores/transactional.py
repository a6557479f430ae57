"""Leases, steps, runs, turns and sweeps, written once for the stores that decide in Python.

The memory, file and SQLite stores bring ``_transaction``: one agent, which nothing else can change
until the transaction ends. The rules (``stores/rules``) decide inside of it. ``CheckpointStore``
states what each method promises.
"""
# ruff: noqa: D102  (CheckpointStore documents these methods)

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from celery_ckpt.clock import Clock
from celery_ckpt.errors import AlreadyExists, CheckpointError, StoreError, StoreUnavailable
from celery_ckpt.event_log import LogEntry, Part, milliseconds, page_of
from celery_ckpt.json_values import microseconds
from celery_ckpt.names import checked_name
from celery_ckpt.page_cursor import PageCursor
from celery_ckpt.records import (
    IDLE,
    AgentActivity,
    AgentOutline,
    AgentPage,
    Change,
    CurrentCall,
    Lease,
    RunOutline,
    RunRecord,
    RunStatus,
    Schedule,
    StartResult,
    Step,
)
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, PrunePlan, PruneResult
from celery_ckpt.store import (
    DEFAULT_REMEMBER,
    CheckpointStore,
    checked_limit,
    checked_page_limit,
    checked_status,
)
from celery_ckpt.stores.encoding import encoded, is_same
from celery_ckpt.stores.encryption_tag import (
    plain_history,
    plain_log,
    plain_run,
    plain_runs,
    plain_start,
    plain_steps,
)
from celery_ckpt.stores.rules import changes, deletion, event_log, pruning, turns
from celery_ckpt.stores.rules.transaction import AgentTransaction
from celery_ckpt.usage import Usage


class TransactionalStore(CheckpointStore):
    """A store whose changes of one agent are transactions."""

    max_checkpoint_bytes: int
    _clock: Clock

    @abstractmethod
    def _transaction(
        self, agent_id: str, *, write: bool = True, make: bool = False
    ) -> AbstractContextManager[AgentTransaction]:
        """Work on one agent: to read it, to change it (``write``), or to create it as well (``make``).

        Raises:
            InvalidName: the agent's name cannot be stored.
        """

    def _now(self) -> int:
        return microseconds(self._clock.now())

    def _refuse_too_large(self, run: RunRecord | None) -> None:
        if run is not None:
            encoded(run, self.max_checkpoint_bytes)

    # -- checkpoints ---------------------------------------------------------------------------------

    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        for checkpoint_id in checkpoint_ids:
            checked_name(checkpoint_id, "A checkpoint id")
        with self._transaction(agent_id) as agent:
            return agent.remove(checkpoint_ids) if agent.exists else 0

    def delete(self, agent_id: str, *, remember: float = DEFAULT_REMEMBER) -> int:
        deletion.checked_remember(remember)
        with self._transaction(agent_id) as agent:
            return deletion.delete(agent, remember) if agent.exists else 0

    # -- the list of agents --------------------------------------------------------------------------

    @abstractmethod
    def _changes(self, unreadable: dict[str, StoreError]) -> Iterable[tuple[int, str]]:
        """Return when each agent last changed, and its name. Add to ``unreadable`` what has no name.

        A store that replaces ``page`` does not need it.
        """

    def page(
        self,
        status: RunStatus | str | None = None,
        *,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> AgentPage:
        wanted, size = checked_status(status), checked_page_limit(limit)
        last = None if after is None else PageCursor.parse(after)
        page = AgentPage([], None, [], {})
        nameless: dict[str, StoreError] = {}
        places = (PageCursor(*change) for change in self._changes(nameless))
        named = (place for place in places if place.agent_id.startswith(prefix))
        before = sorted((place for place in named if last is None or place < last), reverse=True)
        if last is None:
            page.unreadable.update(nameless)
        for place in before:
            if len(page.agents) == size:
                return page._replace(after=page.cursors[-1])
            try:
                row = self.outline(place.agent_id)
            except StoreUnavailable:
                raise
            except StoreError as error:
                page.unreadable[place.agent_id] = error
                continue
            if row is not None and wanted in (None, row.status or IDLE):
                page.agents.append(row)
                page.cursors.append(str(place))
        return page

    def outline(self, agent_id: str) -> AgentOutline | None:
        with self._transaction(agent_id, write=False) as agent:
            run = self._present_run(agent)
            latest = agent.latest()
            found = changes.outline(agent, run, latest, self._clock.now())
        plain_history(self, agent_id, [latest] if latest else [])
        return found

    def _present_run(self, agent: AgentTransaction) -> RunOutline | None:
        """Return the active run of an agent, or else the last one. Raises ``EncryptionKeyMissing``."""
        active = agent.turn.active
        return plain_run(self, (agent.run(active) if active else None) or agent.last_run())

    # -- leases --------------------------------------------------------------------------------------

    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        with self._transaction(agent_id, make=True) as agent:
            agent.lease = agent.lease.granted(agent_id, owner, ttl, self._clock.now(), over)
            return agent.lease.lease(agent_id)

    def renew(self, lease: Lease, ttl: float, *, call: CurrentCall | None = None) -> Lease:
        with self._transaction(lease.agent_id) as agent:
            return self._renew(agent, lease, ttl, call)

    def _renew(
        self, agent: AgentTransaction, lease: Lease, ttl: float, call: CurrentCall | None
    ) -> Lease:
        """Renew a lease in a transaction."""
        now = self._clock.now()
        agent.lease = agent.lease.renewed(lease, ttl, now)
        if self.event_log_limit:
            event_log.renewed(agent, call, now)
        return agent.lease.lease(lease.agent_id)

    def release(
        self,
        lease: Lease,
        *,
        run: RunRecord | None = None,
        due_in: float | None = None,
        log: Sequence[LogEntry] = (),
    ) -> bool:
        self._refuse_too_large(run)
        with self._transaction(lease.agent_id) as agent:
            if due_in is not None:
                agent.schedule(due_in)
            if not agent.lease.is_(lease):
                return False
            if run is not None:
                agent.put(turns.replacement(agent, run))
                agent.note_change()
            agent.lease = agent.lease.released()
            self._note(agent, log)
            return True

    def holder(self, agent_id: str) -> Lease | None:
        with self._transaction(agent_id, write=False) as agent:
            return agent.lease.lease(agent_id) if agent.lease.is_held(self._clock.now()) else None

    # -- steps ---------------------------------------------------------------------------------------

    def record_step(
        self,
        step: Step,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        value = encoded(step, self.max_checkpoint_bytes)
        with self._transaction(step.agent_id, make=True) as agent:
            self._record(agent, step, value, lease, paid, log)

    def _record(
        self,
        agent: AgentTransaction,
        step: Step,
        value: bytes,
        lease: Lease | None,
        paid: Usage | None,
        log: Sequence[LogEntry],
    ) -> None:
        """Record a step in a transaction. ``value`` is the encoded step."""
        stored = agent.step(step.run_id, step.key)
        if stored is None:
            agent.lease.refuse(step.agent_id, lease, self._clock.now())
            if paid:
                turns.pay(agent, step.run_id, paid)
            agent.add_step(step, value)
            self._note(agent, log)
        elif not is_same(stored, step):
            raise AlreadyExists(what=f"Step {step.key!r}", agent_id=step.agent_id)

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        checked_name(run_id, "A run_id")
        with self._transaction(agent_id, write=False) as agent:
            return plain_steps(self, agent.steps_of(run_id))

    def drop_steps(
        self,
        agent_id: str,
        run_id: str,
        *,
        first: int = 0,
        last: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        checked_name(run_id, "A run_id")
        with self._transaction(agent_id) as agent:
            agent.lease.refuse(agent_id, lease, self._clock.now())
            return agent.drop_steps(run_id, first, last)

    # -- runs ----------------------------------------------------------------------------------------

    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        self._refuse_too_large(run)
        with self._transaction(run.agent_id, make=True) as agent:
            if due_in is not None:
                agent.schedule(due_in)
            stored = agent.run(run.run_id)
            if stored is None:
                agent.put(run)
                agent.note_change()
            return stored is None or is_same(stored, run)

    def update_run(
        self, run: RunRecord, lease: Lease | None = None, *, log: Sequence[LogEntry] = ()
    ) -> None:
        self._refuse_too_large(run)
        with self._transaction(run.agent_id) as agent:
            record = turns.replacement(agent, run)
            agent.lease.refuse(run.agent_id, lease, self._clock.now())
            agent.put(record)
            agent.note_change()
            self._note(agent, log)

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        checked_name(run_id, "A run_id")
        with self._transaction(agent_id, write=False) as agent:
            return plain_run(self, agent.run(run_id))

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        with self._transaction(agent_id, write=False) as agent:
            return plain_runs(self, agent.runs())

    def last_run(self, agent_id: str) -> RunRecord | None:
        with self._transaction(agent_id, write=False) as agent:
            return plain_run(self, agent.last_run())

    # -- turns ---------------------------------------------------------------------------------------

    def start_run(
        self,
        run: RunRecord,
        owner: str,
        ttl: float,
        *,
        over: Lease | None = None,
        recorded: bool = False,
        worker: str = "",
    ) -> StartResult:
        self._refuse_too_large(run)
        try:
            with self._transaction(run.agent_id, make=True) as agent:
                if recorded:
                    deletion.refuse_deleted(agent, run.run_id)
                start = turns.start(agent, run, owner, ttl, self._clock.now(), over)
                if not start.run.is_settled:
                    agent.note_change()
                self._note_start(agent, start, worker)
        except deletion.RunWasDeleted:
            return deletion.deleted_start(run)
        return plain_start(self, start)

    def _note_start(self, agent: AgentTransaction, start: StartResult, worker: str) -> None:
        if start.lease is None or start.run.status.is_final:
            return
        if self.event_log_limit:
            event_log.start(agent, start.run, worker, self._clock.now())
        elif agent.attempt is not None:
            agent.attempt = None  # of an attempt that began before the log was switched off

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        self._refuse_too_large(run)
        with self._transaction(run.agent_id) as agent:
            was_settled, now = turns.known_run(agent, run.run_id).is_settled, self._clock.now()
            following = turns.settle(agent, run, lease, now)
            if self.event_log_limit and not was_settled:
                event_log.settled(agent, run, now)
            agent.note_change()
        return plain_run(self, following)

    def pass_turn(self, agent_id: str, run_id: str, waited: float) -> RunRecord | None:
        checked_name(run_id, "A run_id")
        with self._transaction(agent_id) as agent:
            following = turns.pass_turn(agent, run_id, waited, self._clock.now())
            if following is not None:
                agent.note_change()
        return plain_run(self, following)

    def cancel_run(
        self, agent_id: str, run_id: str, owner: str, ttl: float, *, log: Sequence[LogEntry] = ()
    ) -> Lease | None:
        with self._transaction(agent_id) as agent:
            now = self._clock.now()
            lease = turns.cancel(agent, run_id, owner, ttl, now)
            self._note(agent, event_log.ends_as_cancelled(log, run_id, now))
            agent.note_change()
            return lease

    def activity(self, agent_id: str) -> AgentActivity:
        with self._transaction(agent_id, write=False) as agent:
            activity = turns.activity(agent, self._clock.now())
            calling = agent.attempt and activity.holder and agent.attempt.calling
        plain_runs(self, activity.open)
        call = event_log.current_call(calling) if calling else None
        return activity.model_copy(update={"call": call}) if call else activity

    # -- the event log -------------------------------------------------------------------------------

    def _note(self, agent: AgentTransaction, log: Sequence[LogEntry]) -> None:
        """Append entries in a transaction."""
        if log and self.event_log_limit:
            event_log.note(agent, log)

    def _note_save(self, agent: AgentTransaction, checkpoint_id: str, iteration: int) -> None:
        """Note a checkpoint in a transaction, if the agent has a follower."""
        if self.event_log_limit:
            event_log.saved(agent, checkpoint_id, iteration, self._clock.now())

    def event_log(
        self, agent_id: str, *, after: int | None = None, limit: int | None = None
    ) -> builtins.list[LogEntry]:
        checked_limit(limit, "event_log")
        with self._transaction(agent_id, write=False) as agent:
            last, lines = agent.log_lines()
            if event_log.has_no_live(agent, self._clock.now()):
                lines = [line for line in lines if line[1] is not Part.LIVE]
        texts = ((number, text) for number, _, text in lines)
        return plain_log(self, agent_id, page_of(agent_id, last, texts, after, limit))

    def note(self, agent_id: str, log: Sequence[LogEntry], *, copied: bool = False) -> bool:
        with self._transaction(agent_id) as agent:
            if agent.exists and copied:
                if self.event_log_limit:
                    event_log.copy(agent, log)
            elif agent.exists:
                self._note(agent, log)
            return agent.exists

    def follow(self, agent_id: str, seconds: float) -> int:
        with self._transaction(agent_id) as agent:
            last, _ = agent.log_lines()
            if agent.exists and self.event_log_limit:
                now = self._clock.now()
                event_log.drop_old_live(agent, now)
                until = milliseconds(now) + round(seconds * 1000)
                agent.followed_until = max(agent.followed_until, until)
            return last

    def stream(self, lease: Lease, log: Sequence[LogEntry]) -> bool:
        with self._transaction(lease.agent_id) as agent:
            now = self._clock.now()
            agent.lease.refuse(lease.agent_id, lease, now)
            if not (self.event_log_limit and event_log.is_followed(agent, now)):
                return False
            self._note(agent, log)
            return True

    # -- policies and pruning ------------------------------------------------------------------------

    def policy(self, agent_id: str) -> AgentPolicy:
        with self._transaction(agent_id, write=False) as agent:
            return agent.policy

    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        with self._transaction(agent_id) as agent:
            if not agent.exists or agent.policy != before:
                return False
            agent.schedule(0, Schedule.SWEEP)
            agent.policy = after
            return True

    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        return [self._snapshot(agent_id) for agent_id in agent_ids]

    def _snapshot(self, agent_id: str) -> AgentSnapshot:
        try:
            with self._transaction(agent_id, write=False) as agent:
                return pruning.snapshot(agent, self._clock.now())
        except StoreUnavailable:
            raise
        except CheckpointError as error:
            return pruning.damaged(agent_id, error)

    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        return [self._apply(plan) for plan in plans]

    def _apply(self, plan: PrunePlan) -> PruneResult:
        with self._transaction(plan.snapshot.agent_id) as agent:
            if agent.exists:
                event_log.drop_old_live(agent, self._clock.now())
            return pruning.apply(agent, plan, self._clock.now())

    # -- maintenance ---------------------------------------------------------------------------------

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        with self._transaction(agent_id) as agent:
            after = change(agent.contents())
            if after is not None:
                agent.lease.refuse(agent_id, lease, self._clock.now())
                agent.replace(after)
            if lease is not None and agent.exists:
                # Even if nothing was replaced: a crash may have interrupted an earlier rewrite.
                agent.remove([])
        return True
