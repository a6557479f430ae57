"""One agent in files, inside a transaction: the caller holds the lock of its directory.

    lease        {"token": ..., "nonce": ..., "owner": ..., "expires_at": ..., "active": run_id,
                 "given_at": ..., "youngest_blocked": run_id} (see ``TurnState``)
    runs         a table of run records (see record_table.py)
    steps        a table of steps
    policy       the agent's policy
    changed      when the agent last changed, in microseconds: where it is listed
    events       the event log (see event_file.py)
    attempt      the attempt that has started and has not ended, for the event log
    followed     until when the agent has a follower, in milliseconds since 1970
    listed       exists while the agent is certain to be on the schedule of sweeps
    pending-run  {"checkpoint": id, "run": run_id, "record": {...}}: written before a checkpoint that is
                 saved together with a run record. The record is valid if that checkpoint is in the
                 journal, so that both are one write

A crash can happen between two files. So ``write`` keeps an order: first a run that is new, or the
outcome of a run that has none yet; then the lease; then the steps to drop; then the other runs; then
new steps; then entries of the event log. The worst that a crash leaves is a run that looks as if its
attempt had died, a run that is delivered once more, or a call that is paid for and not recorded.
"""
# ruff: noqa: D102  (AgentTransaction documents these methods)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from celery_ckpt.clock import Clock
from celery_ckpt.errors import StoreDamaged, StoreError
from celery_ckpt.event_log import Part, decoded
from celery_ckpt.event_log import encoded as encoded_entry
from celery_ckpt.json_values import decode, encode, microseconds
from celery_ckpt.records import (
    MANY_RUNS,
    AgentContents,
    CheckpointInfo,
    RunRecord,
    Schedule,
    Step,
)
from celery_ckpt.retention.policy import old_runs
from celery_ckpt.retention.report import AgentPolicy, CheckpointSummary
from celery_ckpt.stores.encoding import decoded_run, encoded, says_settled
from celery_ckpt.stores.file.directory import AgentDirectory, StoreDirectory
from celery_ckpt.stores.file.event_file import EventFile
from celery_ckpt.stores.file.filesystem import overwrite, read, replace, sync_directory
from celery_ckpt.stores.file.journal import Journal
from celery_ckpt.stores.file.record_table import StepTable, Table
from celery_ckpt.stores.log.record import Record
from celery_ckpt.stores.log.rewrite import rewritten
from celery_ckpt.stores.log.store import listed, newest_first, ranges_of_all
from celery_ckpt.stores.log.summaries import summaries
from celery_ckpt.stores.rules.changes import change_time
from celery_ckpt.stores.rules.deletion import needs_marker
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.stores.rules.open_attempt import OpenAttempt
from celery_ckpt.stores.rules.transaction import TurnState

_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class FileTransaction:
    """An ``AgentTransaction``. ``write`` writes the changes of the lease, of runs and of steps.

    Other changes are written at once. A file is read when it is needed, so that a damaged one does not
    fail what works without it.
    """

    def __init__(
        self,
        root: StoreDirectory,
        agent: AgentDirectory,
        *,
        clock: Clock,
        limit: int,
        event_log_limit: int,
    ) -> None:
        self.agent_id = agent.agent_id
        #: The ids of checkpoints whose entries in ``ids/`` must be deleted after the transaction.
        self.unregistered: list[str] = []
        #: True if the agent was moved to the trash.
        self.is_deleted = False
        self.directory = agent
        self._root, self._clock, self._limit = root, clock, limit
        self._event_log_limit = event_log_limit
        self._lease_before: tuple[LeaseState, TurnState] | None = None
        self._lease_after: tuple[LeaseState, TurnState] | None = None
        self._run_table: Table | None = None
        self._step_table: StepTable | None = None
        self._pending: dict[str, bytes] | None = None
        self._changed: dict[str, RunRecord] = {}
        self._added_steps: list[tuple[Step, bytes]] = []
        self._dropped_steps: list[str] = []
        self._has_changed = False
        self._added_entries: list[tuple[Part, bytes]] = []
        self._attempt: OpenAttempt | None = None
        self._has_read_attempt = self._has_new_attempt = False

    @property
    def exists(self) -> bool:
        return self.directory.exists

    @property
    def journal(self) -> Journal:
        """The agent's journal."""
        return self.directory.journal

    # -- the lease and the policy --------------------------------------------------------------------

    @property
    def lease(self) -> LeaseState:
        return self._lease_and_turn()[0]

    @lease.setter
    def lease(self, state: LeaseState) -> None:
        self._lease_after = state, self.turn

    @property
    def turn(self) -> TurnState:
        return self._lease_and_turn()[1]

    @turn.setter
    def turn(self, state: TurnState) -> None:
        self._lease_after = self.lease, state

    def _lease_and_turn(self) -> tuple[LeaseState, TurnState]:
        if self._lease_after is None:
            self._lease_before = self._lease_after = self.directory.lease()
        return self._lease_after

    @property
    def policy(self) -> AgentPolicy:
        return self.directory.policy()

    @policy.setter
    def policy(self, policy: AgentPolicy) -> None:
        self.directory.set_policy(policy)

    @property
    def changed_at(self) -> int:
        return self.directory.changed_at()

    def note_change(self) -> None:
        self._has_changed = True

    # -- runs ----------------------------------------------------------------------------------------

    @property
    def _runs(self) -> Table:
        if self._run_table is None:
            self._run_table = Table(self.directory.path / "runs")
        return self._run_table

    def run(self, run_id: str) -> RunRecord | None:
        if run_id in self._changed:
            return self._changed[run_id]
        stored = self._pending_run().get(run_id) or self._runs.values.get(run_id)
        return None if stored is None else decoded_run(self.agent_id, run_id, stored)

    def has_run(self, run_id: str) -> bool:
        return run_id in self._changed or run_id in self._runs.values

    def runs(self) -> list[RunRecord]:
        names = dict.fromkeys([*self._runs.values, *self._changed])
        return [run for name in names if (run := self.run(name)) is not None]

    def open_runs(self) -> list[RunRecord]:
        active = self.turn.active
        chosen = {*islice(self._open_ids(), MANY_RUNS), *([active] if active else ())}
        runs = (self.run(run_id) for run_id in self._open_ids() if run_id in chosen)
        return [run for run in runs if run is not None]

    def _open_ids(self) -> Iterator[str]:
        """Yield the ids of the runs that are not settled. Decodes no record that says that it is."""
        pending = self._pending_run()
        for run_id in dict.fromkeys([*self._runs.values, *self._changed]):
            if run_id in self._changed:
                is_open = not self._changed[run_id].is_settled
            else:
                stored = pending.get(run_id) or self._runs.values[run_id]
                is_open = not says_settled(stored)
            if is_open:
                yield run_id

    def first_in_line(self, now: datetime) -> RunRecord | None:
        runs = (self.run(run_id) for run_id in self._open_ids())
        return next((run for run in runs if run is not None and run.may_have_turn(now)), None)

    def is_older(self, run_id: str, *, than: str) -> bool:
        names = list(dict.fromkeys([*self._runs.values, *self._changed]))
        return run_id in names and than in names and names.index(run_id) < names.index(than)

    def runs_to_mark(self) -> list[str]:
        try:
            run_ids = list(self._runs.values)
        except StoreDamaged:
            return []  # no id can be read
        return [run_id for run_id in run_ids if self._needs_marker(run_id)]

    def _needs_marker(self, run_id: str) -> bool:
        try:
            run = self.run(run_id)
        except StoreError:
            return True
        return run is not None and needs_marker(run)

    def last_run(self) -> RunRecord | None:
        last = next(reversed(self._runs.values), None)
        return None if last is None else self.run(last)

    def count_runs(self) -> tuple[int, int]:
        return len(self._runs.values), sum(1 for _ in self._open_ids())

    def put(self, run: RunRecord) -> None:
        encoded(run, self._limit)
        self._changed[run.run_id] = run

    def deletable_runs(self) -> dict[str, datetime]:
        runs = old_runs(self.agent_id, self.runs(), _END_OF_TIME)
        return {run.run_id: run.counts_as_ended_at for run in runs}

    def delete_runs(self, run_ids: list[str]) -> None:
        self.resolve_pending_run()
        # First the steps, which must not outlive their run.
        self._steps.drop([key for run_id in run_ids for key in self._steps.keys_of(run_id)])
        self._runs.drop(run_ids)

    # -- steps ---------------------------------------------------------------------------------------

    @property
    def _steps(self) -> StepTable:
        if self._step_table is None:
            self._step_table = StepTable(self.directory.path, self.agent_id)
        return self._step_table

    def step(self, run_id: str, key: str) -> Step | None:
        return self._steps.get(run_id, key)

    def steps_of(self, run_id: str) -> list[Step]:
        return self._steps.of(run_id)

    def count_steps(self) -> int:
        return len(self._steps)

    def add_step(self, step: Step, value: bytes) -> None:
        self._added_steps.append((step, value))

    def drop_steps(self, run_id: str, first: int = 0, last: int | None = None) -> int:
        found = self._steps.keys_of(run_id, first, last)
        self._dropped_steps += found
        return len(found)

    # -- checkpoints ---------------------------------------------------------------------------------

    @property
    def last_save(self) -> int:
        return self.journal.seq

    def latest(self) -> CheckpointInfo | None:
        lines = newest_first(self.journal.lines())[:1]
        return Record.parse(self.agent_id, *lines[0]).info() if lines else None

    def count_checkpoints(self) -> int:
        return len(self.journal.live)

    def summaries(self) -> list[CheckpointSummary]:
        return summaries(self.agent_id, self.journal.lines(), self.policy)

    def mark_listed(self) -> None:
        """Put the agent on the schedule of sweeps, unless it is certain to be there."""
        if not self.directory.listed.exists():
            self.schedule(0, Schedule.SWEEP)
            self.directory.listed.touch(mode=0o600)

    def remove(self, checkpoint_ids: list[str]) -> int:
        # A crash may have left a pending run record. It is valid only while its checkpoint exists.
        self.resolve_pending_run()
        removed = self.journal.prune(checkpoint_ids)
        policy = self.policy
        if policy.without(checkpoint_ids) != policy:
            self.policy = policy.without(checkpoint_ids)
        self.unregistered += checkpoint_ids
        return removed

    # -- the event log -------------------------------------------------------------------------------

    @property
    def events(self) -> EventFile:
        """The file of the event log."""
        return EventFile(self.directory.path)

    @property
    def attempt(self) -> OpenAttempt | None:
        if not self._has_read_attempt:
            self._attempt = OpenAttempt.from_bytes(read(self.directory.path / "attempt") or b"")
            self._has_read_attempt = True
        return self._attempt

    @attempt.setter
    def attempt(self, attempt: OpenAttempt | None) -> None:
        self._attempt, self._has_read_attempt, self._has_new_attempt = attempt, True, True

    @property
    def followed_until(self) -> int:
        stored = read(self.directory.path / "followed") or b""
        return int(stored) if stored.isdigit() else 0

    @followed_until.setter
    def followed_until(self, milliseconds: int) -> None:
        path = self.directory.path / "followed"
        if milliseconds:
            replace(path, b"%d" % milliseconds)
        else:
            path.unlink(missing_ok=True)

    def append_log(self, lines: list[tuple[Part, bytes]]) -> None:
        self._added_entries += lines

    def drop_live(self) -> None:
        last, lines = self.events.lines()
        with suppress(OSError):  # a log that cannot be written keeps nothing else from working
            self.events.write(last, [line for line in lines if line[1] is not Part.LIVE])

    def log_lines(self) -> tuple[int, list[tuple[int, Part, bytes]]]:
        return self.events.lines()

    # -- the whole agent -----------------------------------------------------------------------------

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.directory.path.iterdir())

    def contents(self) -> AgentContents:
        lines = newest_first(self.journal.lines())
        messages = self.journal.messages(ranges_of_all(self.agent_id, lines))
        checkpoints = listed(self.agent_id, lines, messages)[::-1]
        _, stored = self.events.lines()
        log = [
            decoded(self.agent_id, number, text)
            for number, part, text in stored
            if part is not Part.LIVE
        ]
        return AgentContents(checkpoints, self._steps.all(), self.runs(), log)

    def replace(self, contents: AgentContents) -> None:
        # Each file is replaced as a whole. A crash between two of them leaves some as they were.
        if not self.exists:
            return
        if contents.checkpoints:
            # Numbered after those that exist: a journal only grows.
            numbered = enumerate(contents.checkpoints, self.journal.seq + 1)
            self.journal.rewrite(rewritten(self.agent_id, numbered, self.journal.end))
        if contents.steps or len(self._steps):
            self._steps.replace(contents.steps, self._limit)
        self.resolve_pending_run()
        if contents.runs:
            self._runs.replace({run.run_id: encoded(run, self._limit) for run in contents.runs})
        log = [(one.cursor, one.part, encoded_entry(one, self.agent_id)) for one in contents.log]
        self.events.write(self.events.lines()[0], log)

    def delete(self) -> int:
        names = list(self.journal.live)
        # What is saved from now on is another agent, which is scheduled by its own save.
        self._root.schedules[Schedule.SWEEP].delete(self.agent_id)
        self._root.move_to_trash(self.directory.path)
        self.unregistered += names
        self.is_deleted = True
        return len(names)

    def mark_deleted(self, digests: list[str], seconds: float) -> None:
        now = microseconds(self._clock.now())
        self._root.markers.remove_expired(now)
        if digests:
            self._root.markers.add(digests, now + round(seconds * 1_000_000))

    def is_marked(self, digest: str) -> bool:
        return self._root.markers.has(digest, microseconds(self._clock.now()))

    # -- schedules -----------------------------------------------------------------------------------

    def schedule(self, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        return self._root.schedules[on].set(self.agent_id, microseconds(self._clock.now()), after)

    def reschedule(self, due_at: int, after: float | None, on: Schedule = Schedule.SWEEP) -> int | None:
        schedule = self._root.schedules[on]
        if after is None:
            schedule.remove(self.agent_id, due_at)
            return None
        return schedule.move(self.agent_id, due_at, microseconds(self._clock.now()), after)

    def unlist(self) -> None:
        self.directory.listed.unlink(missing_ok=True)

    # -- writing -------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the changes of the lease, of runs and of steps, in the order that the module states."""
        self._write_runs_and_steps()
        before = self.changed_at
        if self.exists and not self.is_deleted and (self._has_changed or not before):
            now = microseconds(self._clock.now())
            with suppress(OSError):  # a full disk, for example: what was written stays valid
                self.directory.set_changed_at(change_time(now, before))

    def _write_runs_and_steps(self) -> None:
        if self._changed:
            self.resolve_pending_run()
        before = {run_id: self._runs.values.get(run_id) for run_id in self._changed}
        for run in self._changed.values():
            if not self._has_outcome(run, before[run.run_id]):
                self._write_run(run.model_copy(update={"delivered": False}))
        is_lease_changed = self._lease_after != self._lease_before
        if self._lease_after is not None and is_lease_changed:
            self.directory.set_lease(*self._lease_after)
        try:
            if self._dropped_steps:
                self._steps.drop(self._dropped_steps)
            for run in self._changed.values():
                self._write_run(run)
        except OSError:
            # The caller must be able to repeat what failed, with the lease that it knows.
            if self._lease_before is not None and is_lease_changed:
                with suppress(OSError):
                    self.directory.set_lease(*self._lease_before)
            raise
        try:
            for step, value in self._added_steps:
                self._steps.add(step, value)
        except OSError:
            # The usage of the run counts a step that is not recorded. The caller will record it again.
            with suppress(OSError):
                for run_id, stored in before.items():
                    if stored is not None:
                        self._runs.put(run_id, stored)
            raise
        if not self.is_deleted:
            with suppress(OSError):  # everything else is written
                self._write_log()

    def _write_log(self) -> None:
        """Write what only the event log needs, without waiting for the disk."""
        if self._has_new_attempt:
            stored = self._attempt.to_bytes() if self._attempt else b""
            overwrite(self.directory.path / "attempt", stored, 0)
        if self._added_entries:
            self.events.append(self._added_entries, self._event_log_limit)

    def _has_outcome(self, run: RunRecord, stored: bytes | None) -> bool:
        """Return True unless the run is new, or is settled without an outcome on disk."""
        if stored is None or not run.is_settled:
            return stored is not None
        return decoded_run(self.agent_id, run.run_id, stored).status.is_final

    def _write_run(self, run: RunRecord) -> None:
        value, stored = encoded(run, self._limit), self._runs.values.get(run.run_id)
        if stored is not None and says_settled(stored) and not run.is_settled:
            # It is opened again, which counts as sent now: it becomes the last one.
            others = {name: each for name, each in self._runs.values.items() if name != run.run_id}
            self._runs.replace({**others, run.run_id: value})
        elif stored != value:
            self._runs.put(run.run_id, value)

    # -- a run record that is saved together with a checkpoint ---------------------------------------

    def write_pending_run(self, checkpoint_id: str, run: RunRecord) -> None:
        """Write the record that the run gets as soon as that checkpoint is in the journal."""
        self.resolve_pending_run()
        record = decode(encoded(run, self._limit))
        pending = {"checkpoint": checkpoint_id, "run": run.run_id, "record": record}
        replace(self.directory.path / "pending-run", encode(pending))
        self._pending = None

    def resolve_pending_run(self) -> None:
        """Move the pending record to the table of runs if it is valid. Delete it otherwise."""
        path = self.directory.path / "pending-run"
        if not path.exists():
            return
        for run_id, record in self._pending_run().items():
            self._runs.put(run_id, record)
        self._pending = {}
        path.unlink()
        # After a power failure it must not exist again: it would hide later records in the table.
        sync_directory(path.parent)

    def _pending_run(self) -> dict[str, bytes]:
        """Return the pending record by the id of its run; empty if there is none or it is not valid."""
        if self._pending is None:
            path = self.directory.path / "pending-run"
            stored = read(path)
            try:
                pending: dict[str, Any] = {} if stored is None else decode(stored)
                is_valid = bool(pending) and pending["checkpoint"] in self.journal.live
                self._pending = {pending["run"]: encode(pending["record"])} if is_valid else {}
            except (ValueError, KeyError, TypeError) as error:
                raise StoreDamaged(where=str(path), reason=str(error)) from error
        return self._pending
