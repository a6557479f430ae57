"""Follow an agent from outside: what is new in its store since the last look."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.conversation import Conversation
from celery_ckpt.event_log import LogEntry
from celery_ckpt.messages import Message
from celery_ckpt.records import RunOutline, RunStatus
from celery_ckpt.store import CheckpointStore
from celery_ckpt.views.timeline import sentence_of

#: The kinds of entries that a follower reports. Ends of runs and checkpoints it reads elsewhere.
_SHOWN = frozenset({"attempt", "ended", "call", "replay", "action", "waiting", "woken", "gap"})


@dataclass(frozen=True)
class Happening:
    """Something that happened to an agent."""

    #: ``messages``, ``replaced``, ``checkpoint``, ``step`` or ``run``; or the kind of an entry of the
    #: event log, such as ``call``. With an event log, a follower reports no steps: it has the calls.
    kind: str
    #: When it happened, by the store's records. The store has no time of a step or of the start of an
    #: attempt: then this is when the follower saw it, or ``None`` if it was there at the first look.
    at: datetime | None = None
    what: str = ""
    #: The new messages, and the number of the first of them.
    messages: list[Message] = field(default_factory=list)
    first: int = 1
    facts: dict[str, Any] = field(default_factory=dict)


class Follower:
    """Reports what is new about one agent, each time it looks."""

    def __init__(
        self, store: CheckpointStore, agent_id: str, last: int, clock: Clock = system_clock
    ) -> None:
        self._store, self._agent_id, self._last, self._clock = store, agent_id, last, clock
        #: When this look began; ``None`` in the first one.
        self._seen_at: datetime | None = None
        self._has_looked = False
        self._seen: Conversation | None = None
        self._checkpoint = ""
        self._runs: dict[str, tuple[RunStatus, int]] = {}
        self._steps: dict[str, set[str]] = {}
        #: The cursor of the last entry of the event log; ``None``: before the first look.
        self._cursor: int | None = None
        self._has_log = False
        self.is_open = False
        self.has_succeeded = False

    def look(self) -> list[Happening]:
        """Return what has happened since the last look. The first look returns the last messages."""
        self._seen_at = self._clock.now() if self._has_looked else None
        # Runs first: a checkpoint that is saved during the look is reported now or by the next look.
        runs = self._store.run_outlines(self._agent_id)[::-1]
        of_checkpoint = self._look_at_checkpoint()
        of_log = self._look_at_log()
        of_steps = [each for run in runs if not run.is_settled for each in self._look_at_steps(run)]
        of_steps = of_log if self._has_log else of_steps
        of_runs = [each for run in runs for each in self._look_at_run(run)]
        self.is_open = any(not run.is_settled for run in runs)
        self.has_succeeded = not runs or runs[-1].status is RunStatus.SUCCEEDED
        earlier = [each for each in of_runs if _is_before(each, of_checkpoint)]
        later = [each for each in of_runs if each not in earlier]
        self._has_looked = True
        return [*earlier, *of_steps, *of_checkpoint, *later]

    def _look_at_run(self, run: RunOutline) -> list[Happening]:
        now = run.status, run.attempts
        if self._runs.get(run.run_id) == now:
            return []
        self._runs[run.run_id] = now
        error = f": {run.error}" if run.error else ""
        what = f"run {run.run_id} {run.status.value}, attempt {run.attempts}{error}"
        facts = {"run_id": run.run_id, "status": run.status.value, "attempts": run.attempts}
        at = self._seen_at
        if run.status.is_final:
            at = run.ended_at or at
        elif run.status is RunStatus.QUEUED and not run.attempts:
            at = run.created_at
        return [Happening("run", at, what, facts={**facts, "error": run.error})]

    def _look_at_steps(self, run: RunOutline) -> list[Happening]:
        steps = self._store.steps(self._agent_id, run.run_id)
        known = self._steps.setdefault(run.run_id, set())
        new = [step for step in steps if step.key not in known]
        known.update(step.key for step in new)
        return [
            Happening(
                "step",
                self._seen_at,
                f"step {step.name} recorded, iteration {step.iteration}",
                facts={"run_id": run.run_id, "name": step.name, "iteration": step.iteration},
            )
            for step in new
        ]

    def _look_at_log(self) -> list[Happening]:
        """Return what is new in the event log; at the first look, since the last attempt started."""
        if "log" not in self._store.features:
            return []
        found = self._store.event_log(self._agent_id, after=self._cursor)
        if self._cursor is None:
            starts = [at for at, entry in enumerate(found) if entry.kind == "attempt"]
            self._cursor = found[-1].cursor if found else 0
            found = found[starts[-1] :] if starts else []
        elif found:
            self._cursor = found[-1].cursor
        self._has_log = self._has_log or bool(found)
        shown = (entry for entry in found if entry.kind in _SHOWN)
        return [_of_entry(entry) for entry in shown]

    def _look_at_checkpoint(self) -> list[Happening]:
        history = self._store.history(self._agent_id, limit=1)
        if not history or history[0].id == self._checkpoint:
            return []
        latest = self._store.load_latest(self._agent_id)
        if latest is None:
            return []
        self._checkpoint = latest.id
        facts = {
            "id": latest.id,
            "iteration": latest.iteration,
            "event": latest.event,
            "run_id": latest.run_id,
        }
        what = f"checkpoint {latest.id}, iteration {latest.iteration}"
        messages = self._new_messages(latest.conversation, latest.created_at)
        return [*messages, Happening("checkpoint", latest.created_at, what, facts=facts)]

    def _new_messages(self, now: Conversation, saved_at: datetime) -> list[Happening]:
        before, self._seen = self._seen, now
        messages = now.messages
        if before is None:
            start = max(len(messages) - self._last, 0)
        elif len(before) <= len(now) and now.spine.digest(len(before))[0] == before.digest:
            start = len(before)
        else:
            what = f"conversation replaced: {len(before)} messages became {len(now)}"
            facts = {"old": len(before), "new": len(now)}
            return [Happening("replaced", saved_at, what, facts=facts)]
        if start == len(messages):
            return []
        return [Happening("messages", saved_at, messages=messages[start:], first=start + 1)]


def _of_entry(entry: LogEntry) -> Happening:
    facts = {**entry.data, "cursor": entry.cursor}
    return Happening(entry.kind, entry.at, sentence_of(entry), facts=facts)


def _is_before(run: Happening, checkpoint: list[Happening]) -> bool:
    """Return True if this happened to another run, before the checkpoint was saved.

    The run that saved the checkpoint is reported after it: it ends just before its last save.
    """
    if run.at is None or not checkpoint:
        return False
    saved = checkpoint[-1]
    return saved.at is not None and run.at < saved.at and run.facts["run_id"] != saved.facts["run_id"]
