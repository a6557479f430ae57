"""One agent in an SQLite database, inside a transaction."""
# ruff: noqa: D102  (AgentTransaction documents these methods)

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from celery_ckpt.clock import Clock
from celery_ckpt.errors import StoreDamaged, StoreError
from celery_ckpt.event_log import LogEntry, Part, decoded, limit_of
from celery_ckpt.event_log import encoded as encoded_entry
from celery_ckpt.format_version import FORMAT_VERSION
from celery_ckpt.json_values import microseconds
from celery_ckpt.names import locator, names_its_agent
from celery_ckpt.records import (
    MANY_RUNS,
    AgentContents,
    CheckpointInfo,
    RunOutline,
    RunRecord,
    Schedule,
    Step,
)
from celery_ckpt.retention.report import AgentPolicy, CheckpointSummary
from celery_ckpt.stores.encoding import (
    decoded_outline,
    decoded_run,
    decoded_step,
    encoded,
    encoded_parts,
    run_end,
)
from celery_ckpt.stores.encryption_tag import key_of_run
from celery_ckpt.stores.log.ranges import Ranges
from celery_ckpt.stores.log.record import Record, low_of, stamp
from celery_ckpt.stores.log.rewrite import rewritten
from celery_ckpt.stores.log.store import listed, ranges_of_all
from celery_ckpt.stores.log.summaries import summaries
from celery_ckpt.stores.rules.changes import change_time, status_of
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.stores.rules.open_attempt import OpenAttempt
from celery_ckpt.stores.rules.transaction import TurnState
from celery_ckpt.stores.sqlite.database import Database

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The number of a save is the key of its agent, shifted by this, plus its seq.
SEQ_BITS = 32
#: An iteration that no run reaches.
_LAST_ITERATION = 2**62
#: An offset that no log reaches.
_EVERYTHING = 2**62
#: The row of an agent that does not exist. No agent has the key 0.
_BLANK = (0, 0, "", "", 0, "", 0, "", b"", 0, b"", 0)
#: A number that no run reaches.
_LAST_RUN = 2**62


def save_numbers(key: int) -> tuple[int, int]:
    """Return the first and the last number that an agent's saves can have."""
    return key << SEQ_BITS, (key + 1 << SEQ_BITS) - 1


def schedule(
    database: Database, clock: Clock, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG
) -> int:
    """Make an agent due, as ``CheckpointStore.schedule`` promises. Return its due time."""
    due_at = microseconds(clock.now()) + round(after * 1_000_000)
    return int(database.one(f"schedule_{on.value}", agent_id, due_at)[0])


class SqliteTransaction:
    """An ``AgentTransaction``: every change is a statement of the transaction that is open."""

    def __init__(
        self,
        database: Database,
        agent_id: str,
        clock: Clock,
        limit: int,
        make: bool,
        event_log_limit: int,
    ) -> None:
        self.agent_id = agent_id
        self._database, self._clock, self._limit = database, clock, limit
        row = database.one("agent", agent_id) or _BLANK
        if make and row is _BLANK:
            created_at = microseconds(clock.now())
            key = database.add("add_agent", agent_id, locator(agent_id), created_at)
            row = (key, *_BLANK[1:9], created_at, *_BLANK[10:])
        self.key: int = row[0]
        self._held, self._turn, self._stored_policy = row[1:5], row[5:8], row[8]
        self.changed_at: int = row[9]
        self._attempt: bytes = row[10]
        self._followed: int = row[11]
        self._event_log_limit = event_log_limit

    @property
    def exists(self) -> bool:
        return self.key != 0

    @property
    def lease(self) -> LeaseState:
        token, nonce, owner, expires_at = self._held
        return LeaseState(token, nonce, owner, _EPOCH + timedelta(microseconds=expires_at))

    @lease.setter
    def lease(self, state: LeaseState) -> None:
        self._held = (state.token, state.nonce, state.owner, microseconds(state.expires_at))
        self._database.run("set_lease", self.key, *self._held)

    @property
    def turn(self) -> TurnState:
        active, given_at, youngest_blocked = self._turn
        since = _EPOCH + timedelta(microseconds=given_at) if given_at else None
        return TurnState(active, since, youngest_blocked)

    @turn.setter
    def turn(self, state: TurnState) -> None:
        given_at = 0 if state.given_at is None else microseconds(state.given_at)
        turn = (state.active, given_at, state.youngest_blocked)
        if turn != self._turn:
            self._database.run("set_turn", self.key, *turn)
        self._turn = turn

    @property
    def policy(self) -> AgentPolicy:
        try:
            return AgentPolicy.from_bytes(self._stored_policy)
        except ValueError as error:
            where = f"{self._database.where}, policy of agent {self.agent_id!r}"
            raise StoreDamaged(where=where, reason=str(error)) from error

    @policy.setter
    def policy(self, policy: AgentPolicy) -> None:
        self._stored_policy = policy.to_bytes()
        self._database.run("set_policy", self.key, self._stored_policy)

    def note_change(self) -> None:
        self.changed_at = change_time(microseconds(self._clock.now()), self.changed_at)
        try:
            present = self.present_outline()
            status = status_of(present[0] if present else None)
        except StoreError:  # the active run, which is another one, is damaged: its status stays listed
            status = None
        self._database.run("set_changed", self.key, self.changed_at, status)

    @property
    def attempt(self) -> OpenAttempt | None:
        return OpenAttempt.from_bytes(self._attempt)

    @attempt.setter
    def attempt(self, attempt: OpenAttempt | None) -> None:
        self._attempt = attempt.to_bytes() if attempt else b""
        self._database.run("set_attempt", self.key, self._attempt)

    @property
    def followed_until(self) -> int:
        return self._followed

    @followed_until.setter
    def followed_until(self, milliseconds: int) -> None:
        self._followed = milliseconds
        self._database.run("set_followed", self.key, milliseconds)

    # -- runs ----------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRecord | None:
        found = self._database.one("run", self.key, run_id)
        return None if found is None else decoded_run(self.agent_id, *found)

    def present_outline(self) -> tuple[RunOutline, str | None] | None:
        """Return the active run, or else the last one, and the key that it is encrypted with."""
        found, active = None, self.turn.active
        if active:
            found = self._database.one("run_outline", self.key, active)
        return next(iter(self.outlines(1)), None) if found is None else self._outline(*found)

    def outlines(
        self, limit: int | None = None, before: int | None = None
    ) -> list[tuple[RunOutline, str | None]]:
        """Return the runs whose numbers are below ``before``, the last added run first."""
        numbers = _LAST_RUN if before is None else before, -1 if limit is None else limit
        rows = self._database.all("run_outlines", self.key, numbers[0], numbers[1])
        return [self._outline(*row) for row in rows]

    def _outline(
        self, run_id: str, outline: bytes, key_id: str | None
    ) -> tuple[RunOutline, str | None]:
        return decoded_outline(self.agent_id, run_id, outline), key_id

    def run_number(self, run_id: str) -> int | None:
        """Return the number of a run, which gives the order of runs; ``None`` if it was never added."""
        found = self._database.one("run_number", self.key, run_id)
        return None if found is None else int(found[0])

    def has_run(self, run_id: str) -> bool:
        return self._database.one("has_run", self.key, run_id) is not None

    def runs(self) -> list[RunRecord]:
        return self._decoded("runs")

    def open_runs(self) -> list[RunRecord]:
        return self._decoded("open_runs", self.turn.active, MANY_RUNS // 2)

    def first_in_line(self, now: datetime) -> RunRecord | None:
        self._database.run("join_line", self.key, microseconds(now))
        while (found := next(iter(self._decoded("first_in_line")), None)) is not None:
            if found.may_have_turn(now):
                return found
            self._database.run("leave_line", self.key, found.run_id)  # it has expired
        return None

    def is_older(self, run_id: str, *, than: str) -> bool:
        return self._database.one("is_older", self.key, run_id, than) is not None

    def runs_to_mark(self) -> list[str]:
        return [run_id for (run_id,) in self._database.all("runs_to_mark", self.key)]

    def last_run(self) -> RunRecord | None:
        return next(iter(self._decoded("last_run")), None)

    def _decoded(self, query: str, *args: Any) -> list[RunRecord]:
        rows = self._database.all(query, self.key, *args)
        return [decoded_run(self.agent_id, *row) for row in rows]

    def count_runs(self) -> tuple[int, int]:
        runs, open_runs = self._database.one("count_runs", self.key)
        return runs, open_runs

    def put(self, run: RunRecord) -> None:
        parts, in_line = encoded_parts(run, self._limit), None
        if not run.status.is_final and not run.passed_over:
            is_put_off = run.eta is not None and not run.attempts
            in_line = max(1, microseconds(run.eta)) if run.eta and is_put_off else 0
        place = not run.is_settled, in_line, key_of_run(run)
        self._database.run("put_run", self.key, run.run_id, *place, *parts)

    def deletable_runs(self) -> dict[str, datetime]:
        rows = self._database.all("deletable_runs", self.key, self.agent_id)
        ends = ((run_id, run_end(outline)) for run_id, outline in rows)
        return {run_id: end for run_id, end in ends if end is not None}

    def delete_runs(self, run_ids: list[str]) -> None:
        for run_id in run_ids:
            self.drop_steps(run_id)
            self._database.run("delete_run", self.key, run_id)

    # -- steps ---------------------------------------------------------------------------------------

    def step(self, run_id: str, key: str) -> Step | None:
        found = self._database.one("step", self.key, run_id, key)
        return None if found is None else decoded_step(self.agent_id, run_id, found[0])

    def steps_of(self, run_id: str) -> list[Step]:
        rows = self._database.all("steps", self.key, run_id)
        return [decoded_step(self.agent_id, run_id, value) for (value,) in rows]

    def count_steps(self) -> int:
        return int(self._database.one("count_steps", self.key)[0])

    def add_step(self, step: Step, value: bytes) -> None:
        self._database.run("add_step", self.key, step.run_id, step.key, step.iteration, value)

    def drop_steps(self, run_id: str, first: int = 0, last: int | None = None) -> int:
        last = _LAST_ITERATION if last is None else min(last, _LAST_ITERATION)
        return self._database.run("drop_steps", self.key, run_id, first, last)

    # -- checkpoints ---------------------------------------------------------------------------------

    @property
    def last_save(self) -> int:
        return self._database.one("last_number", *save_numbers(self.key))[0] or 0

    def line(self, checkpoint_id: str | None) -> tuple[str, bytes] | None:
        """Return the id and the line of a checkpoint, or of the latest one."""
        if checkpoint_id is None:
            found = self._database.one("latest", *save_numbers(self.key))
        else:
            is_own = names_its_agent(checkpoint_id, self.agent_id)
            found = self._database.one("by_id", *save_numbers(self.key), checkpoint_id, is_own)
        return None if found is None else (found[0], stamp(*found[1:]))

    def lines(self, limit: int | None = None, before: int | None = None) -> list[tuple[str, bytes]]:
        """Return the ids and lines of the newest checkpoints, newest first."""
        first, last = save_numbers(self.key)
        if before is not None:
            last = min(last, first + before - 1)
        rows = self._database.all("newest", first, last, -1 if limit is None else limit)
        return [(name, stamp(*stored)) for name, *stored in rows]

    def messages(self, ranges: Ranges) -> dict[int, bytes]:
        """Return the messages at these offsets. Messages that are missing are left out."""
        messages: dict[int, bytes] = {}
        for start, count, _ in ranges.spans:
            rows = self._database.all("messages", *save_numbers(self.key), start, start + count)
            for base, added, text in rows:
                lines = text.split(b"\n")
                if len(lines) == added:
                    messages.update(zip(range(base, base + added), lines, strict=True))
        return messages

    def latest(self) -> CheckpointInfo | None:
        found = self.line(None)
        return None if found is None else Record.parse(self.agent_id, *found).info()

    def count_checkpoints(self) -> int:
        return int(self._database.one("count_checkpoints", *save_numbers(self.key))[0])

    def summaries(self) -> list[CheckpointSummary]:
        return summaries(self.agent_id, self.lines(), self.policy)

    def mark_listed(self) -> None:
        """Put the agent on the schedule of sweeps. Until a sweep has finished, saves need not do so."""
        self.schedule(0, Schedule.SWEEP)
        self._database.run("set_listed", self.key, 1)

    def remove(self, checkpoint_ids: list[str]) -> int:
        numbers_by_id = dict(self._database.all("ids", *save_numbers(self.key)))
        found = numbers_by_id.keys() & checkpoint_ids
        for name in found:
            self._database.run("remove", numbers_by_id[name])
        keep_from = min((low_of(line) for _, line in self.lines()), default=_EVERYTHING)
        self._database.run("trim", *save_numbers(self.key), keep_from)
        if (policy := self.policy.without(checkpoint_ids)) != self.policy:
            self.policy = policy
        return len(found)

    # -- the event log -------------------------------------------------------------------------------

    def append_log(self, lines: list[tuple[Part, bytes]]) -> None:
        first, last = save_numbers(self.key)
        for part, text in lines:
            number = self._database.add("append_event", first, last, str(part), text)
            # Now and then: to cut it each time would cost as much as the entry itself.
            if (number - first) % self._event_log_limit == 0:
                for each in Part:
                    keep = limit_of(each, self._event_log_limit)
                    self._database.run("trim_events", first, last, each.value, keep)

    def drop_live(self) -> None:
        numbers = save_numbers(self.key)
        self._database.run("drop_events", *numbers, Part.LIVE.value)
        self._database.run("empty_events", *numbers, Part.LIVE.value)

    def log_lines(self) -> tuple[int, list[tuple[int, Part, bytes]]]:
        rows = self._database.all("events", *save_numbers(self.key))
        last = rows[-1][0] if rows else 0
        return last, [(number, Part(part), text) for number, part, text in rows if part]

    # -- the whole agent -----------------------------------------------------------------------------

    def size(self) -> int:
        return int(self._database.one("size", *save_numbers(self.key), self.key)[0])

    def contents(self) -> AgentContents:
        lines = self.lines()
        messages = self.messages(ranges_of_all(self.agent_id, lines))
        checkpoints = listed(self.agent_id, lines, messages)[::-1]
        rows = self._database.all("all_steps", self.key)
        steps = [decoded_step(self.agent_id, run_id, value) for _, run_id, value in rows]
        _, stored = self.log_lines()
        log = [
            decoded(self.agent_id, number, text)
            for number, part, text in stored
            if part is not Part.LIVE
        ]
        return AgentContents(checkpoints, steps, self.runs(), log)

    def replace(self, contents: AgentContents) -> None:
        if not self.exists:
            return
        self._replace_saves(contents)
        numbers = [number for number, *_ in self._database.all("all_steps", self.key)]
        self._database.run("delete_steps", self.key)
        for number, step in zip(numbers, contents.steps, strict=False):
            added = (step.run_id, step.key, step.iteration, encoded(step, self._limit))
            self._database.run("put_step", number, self.key, *added)
        for run in contents.runs:
            self.put(run)
        self._replace_log(contents.log)

    def _replace_log(self, log: list[LogEntry]) -> None:
        (first, last), (last_cursor, _) = save_numbers(self.key), self.log_lines()
        self._database.run("delete_events", first, last)
        for one in log:
            text = encoded_entry(one, self.agent_id)
            self._database.run("put_event", first + one.cursor, one.part.value, text)
        if last_cursor > (log[-1].cursor if log else 0):
            self._database.run("put_event", first + last_cursor, "", b"")

    def _replace_saves(self, contents: AgentContents) -> None:
        first, last = save_numbers(self.key)
        seqs = [int(line.split(b" ", 2)[1]) for _, line in reversed(self.lines())]
        last_number = self.last_save
        self._database.run("delete_saves", first, last)
        history = rewritten(self.agent_id, zip(seqs, contents.checkpoints, strict=True))
        for one in history:
            messages = b"\n".join(one.messages)
            added = (FORMAT_VERSION, len(one.messages), one.checkpoint_id, one.rest, messages)
            self._database.run("add_save", first + one.seq, True, one.base, *added)
        if last_number > first + max(seqs, default=0):
            # The last save was removed before. An empty row keeps its number from being used again.
            end = history[-1].base + len(history[-1].messages) if history else 0
            removed = (FORMAT_VERSION, 0, None, None, b"")
            self._database.run("add_save", last_number, True, end, *removed)

    def delete(self) -> int:
        count = self.count_checkpoints()
        self._database.run("delete_saves", *save_numbers(self.key))
        self._database.run("delete_events", *save_numbers(self.key))
        for table in ("delete_steps", "delete_runs", "delete_agent"):
            self._database.run(table, self.key)
        self._database.run("delete_sweep", self.agent_id)
        return count

    def mark_deleted(self, digests: list[str], seconds: float) -> None:
        now = microseconds(self._clock.now())
        self._database.run("drop_markers", now)
        for digest in digests:
            self._database.run("add_marker", digest, now + round(seconds * 1_000_000))

    def is_marked(self, digest: str) -> bool:
        return self._database.one("marker", digest, microseconds(self._clock.now())) is not None

    # -- schedules -----------------------------------------------------------------------------------

    def schedule(self, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        return schedule(self._database, self._clock, self.agent_id, after, on)

    def reschedule(self, due_at: int, after: float | None, on: Schedule = Schedule.SWEEP) -> int | None:
        if after is None:
            self._database.run(f"unschedule_{on.value}", self.agent_id, due_at)
            return None
        later = microseconds(self._clock.now()) + round(after * 1_000_000)
        row = self._database.one(f"reschedule_{on.value}", self.agent_id, due_at, later)
        return None if row is None else int(row[0])

    def unlist(self) -> None:
        self._database.run("set_listed", self.key, 0)
