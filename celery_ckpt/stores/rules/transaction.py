"""One agent inside a transaction: everything that the rules read and change of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from celery_ckpt.event_log import Part
from celery_ckpt.records import AgentContents, CheckpointInfo, RunRecord, Schedule, Step
from celery_ckpt.retention.report import AgentPolicy, CheckpointSummary
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.stores.rules.open_attempt import OpenAttempt


@dataclass(frozen=True)
class TurnState:
    """Which run of an agent has the turn, as it is stored."""

    #: The id of the active run, or an empty string.
    active: str = ""
    #: When the active run was given the turn; ``None``: it has begun.
    given_at: datetime | None = None
    #: The id of the youngest run that was ever blocked, or an empty string.
    youngest_blocked: str = ""


class AgentTransaction(Protocol):
    """One agent, which no other thread or process can change until the transaction ends.

    An agent that does not exist reads as an empty one. When the transaction ends without an error, the
    store keeps all changes; otherwise it keeps none.
    """

    lease: LeaseState
    turn: TurnState
    policy: AgentPolicy
    #: The attempt that has started and has not ended, as far as the event log knows.
    attempt: OpenAttempt | None
    #: Until when the agent has a follower, in milliseconds since 1970; 0: it has none.
    followed_until: int

    @property
    def agent_id(self) -> str:
        """The agent's name."""
        ...

    @property
    def exists(self) -> bool:
        """True if the store has this agent."""
        ...

    @property
    def changed_at(self) -> int:
        """When the agent last changed (see ``CheckpointStore.page``), in microseconds since 1970."""
        ...

    def note_change(self) -> None:
        """Note that a run of the agent has changed now: after the change of the run."""
        ...

    # -- runs ----------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRecord | None:
        """Return a run's record, or ``None`` if the run was never added."""
        ...

    def has_run(self, run_id: str) -> bool:
        """Return True if the run was added. Does not read its record."""
        ...

    def runs(self) -> list[RunRecord]:
        """Return all runs in the order in which they were sent."""
        ...

    def open_runs(self) -> list[RunRecord]:
        """Return runs that are not settled: those that ``AgentActivity.open`` promises."""
        ...

    def first_in_line(self, now: datetime) -> RunRecord | None:
        """Return the oldest open run that ``may_have_turn``, without reading all open runs."""
        ...

    def is_older(self, run_id: str, *, than: str) -> bool:
        """Return True if both runs were added, and the first was sent before the second."""
        ...

    def runs_to_mark(self) -> list[str]:
        """Return the ids of the runs whose messages may still arrive if the agent is deleted.

        These are the open runs, the cancelled runs, and runs whose records cannot be read.
        """
        ...

    def last_run(self) -> RunRecord | None:
        """Return the run that was sent last."""
        ...

    def count_runs(self) -> tuple[int, int]:
        """Return the number of runs and the number of open runs."""
        ...

    def put(self, run: RunRecord) -> None:
        """Add a run's record or replace it. A settled run that is opened again counts as sent now.

        Raises:
            CheckpointTooLarge: the record exceeds the limit.
        """
        ...

    def deletable_runs(self) -> dict[str, datetime]:
        """Return when each run ended that ``retention.policy.old_runs`` may delete some day."""
        ...

    def delete_runs(self, run_ids: list[str]) -> None:
        """Delete the records of these runs, and their steps."""
        ...

    # -- steps ---------------------------------------------------------------------------------------

    def step(self, run_id: str, key: str) -> Step | None:
        """Return a recorded step."""
        ...

    def steps_of(self, run_id: str) -> list[Step]:
        """Return the steps of a run in the order in which they were recorded."""
        ...

    def count_steps(self) -> int:
        """Return the number of steps of all runs."""
        ...

    def add_step(self, step: Step, value: bytes) -> None:
        """Record a step. ``value`` is the encoded step."""
        ...

    def drop_steps(self, run_id: str, first: int = 0, last: int | None = None) -> int:
        """Drop the run's steps of iterations ``first`` to ``last``. Return how many."""
        ...

    # -- checkpoints ---------------------------------------------------------------------------------

    @property
    def last_save(self) -> int:
        """A number that grows with every save."""
        ...

    def latest(self) -> CheckpointInfo | None:
        """Return the outline of the latest checkpoint."""
        ...

    def count_checkpoints(self) -> int:
        """Return the number of checkpoints."""
        ...

    def summaries(self) -> list[CheckpointSummary]:
        """Return the summaries of the agent's checkpoints, newest first."""
        ...

    def remove(self, checkpoint_ids: list[str]) -> int:
        """Remove checkpoints with their pins and what only they needed. Return how many existed.

        Also finishes a removal that a crash interrupted, even if ``checkpoint_ids`` is empty.
        """
        ...

    # -- the event log -------------------------------------------------------------------------------

    def append_log(self, lines: list[tuple[Part, bytes]]) -> None:
        """Append entries to the event log, and cut its parts to their sizes now and then.

        A log that cannot be written is left as it is.
        """
        ...

    def drop_live(self) -> None:
        """Delete the live entries."""
        ...

    def log_lines(self) -> tuple[int, list[tuple[int, Part, bytes]]]:
        """Return the number of the last entry that was written, and the stored entries in order."""
        ...

    # -- the whole agent -----------------------------------------------------------------------------

    def size(self) -> int:
        """Return how many bytes the agent takes, as far as the store can tell."""
        ...

    def contents(self) -> AgentContents:
        """Return everything that the agent has, except its lease and its policy."""
        ...

    def replace(self, contents: AgentContents) -> None:
        """Replace everything that ``contents`` returns. Does nothing if the agent does not exist."""
        ...

    def delete(self) -> int:
        """Delete the agent with everything it has. Return how many checkpoints it had."""
        ...

    def mark_deleted(self, digests: list[str], seconds: float) -> None:
        """Leave markers that last that long, and remove all markers of the store that have expired."""
        ...

    def is_marked(self, digest: str) -> bool:
        """Return True if the store has this marker, and it has not expired."""
        ...

    # -- schedules -----------------------------------------------------------------------------------

    def schedule(self, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        """Make the agent due ``after`` seconds from now, or earlier if it is due earlier already.

        Return its due time, which differs from the one before.

        Takes effect before any other change of this transaction, and stays if the transaction fails: an
        agent that is due for nothing is harmless, a missing due time loses a run.
        """
        ...

    def reschedule(self, due_at: int, after: float | None, on: Schedule = Schedule.SWEEP) -> int | None:
        """Change when the agent is due, if ``due_at`` is still its due time.

        ``None`` takes the agent off the schedule. Return the new due time, or ``None``.
        """
        ...

    def unlist(self) -> None:
        """Make the next save put the agent on the schedule of sweeps again."""
        ...
