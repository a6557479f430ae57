"""What a store promises to those who look after it: a watchdog, a sweep, a doctor.

Agents have *moments*, apart from their data: when a watchdog, or a sweep, should look at them. Whoever
takes an agent on gives it a later one in the same atomic step, so that each is named to one caller.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease
from celery_ckpt.retention.report import PIN, Change, Finding, Notes, Pruned, Rounds, Sight, Verdict


class Upkeep(ABC):
    """The part of a store that is looked after."""

    @abstractmethod
    def load(self, checkpoint_id: str) -> Checkpoint | None:
        """A checkpoint by its id, of whichever agent.

        Raises:
            CheckpointDamaged: it is there, and cannot be read.
        """

    # -- what a watchdog, or a sweep, looks at -------------------------------------------------------

    @abstractmethod
    def watch(self, agent_id: str, after: float, rounds: Rounds = Rounds.WATCHDOG) -> int:
        """Let ``due`` name the agent ``after`` seconds from now; returns that moment's number."""

    @abstractmethod
    def unwatch(self, moments: Mapping[str, int], rounds: Rounds = Rounds.WATCHDOG) -> int:
        """Stop watching agents that have these moments and were not given others since; how many."""

    @abstractmethod
    def due(
        self, limit: int, hold: float, rounds: Rounds = Rounds.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """Some agents whose moment has come, each with its next one, ``hold`` seconds from now.

        Each is named to one caller only; it comes again after ``hold`` unless something else is said.

        A sweep is told of every agent that was saved, settled or given notes since a sweep was done
        with it (``carry_out``), and of all that earlier versions have left.
        """

    @abstractmethod
    def count_due(self, rounds: Rounds = Rounds.WATCHDOG) -> int:
        """How many agents' moments have come."""

    # -- what a sweep does ---------------------------------------------------------------------------

    @abstractmethod
    def notes(self, agent_id: str) -> Notes:
        """What was decided about the agent."""

    @abstractmethod
    def set_notes(self, agent_id: str, before: Notes, after: Notes) -> bool:
        """Replace the agent's notes, if they are still those. False, and nothing changes: they are
        others by now, or there is no such agent.
        """

    def pin(self, checkpoint_id: str, label: str | None) -> bool:
        """Pin a checkpoint, of whichever agent, by a label; ``None`` takes the pin away.

        Returns whether there is such a checkpoint.

        Raises:
            InvalidName: nothing can be labelled that.
        """
        label = None if label is None else checked_name(label, "A pin's label")
        while (checkpoint := self.load(checkpoint_id)) is not None:
            before = self.notes(checkpoint.agent_id)
            after = before.labelled(checkpoint_id, label, checkpoint.metadata.get(PIN))
            if before == after or self.set_notes(checkpoint.agent_id, before, after):
                # A sweep may have been quicker; from now on none can.
                return self.load(checkpoint_id) is not None
        return False

    @abstractmethod
    def sights(self, agent_ids: Sequence[str]) -> builtins.list[Sight]:
        """What a sweep has to know of each of these agents, in this order."""

    @abstractmethod
    def carry_out(self, verdicts: Sequence[Verdict]) -> builtins.list[Pruned]:
        """Do what a sweep decided, agent by agent; returns what went of each.

        Nothing goes of an agent whose notes have changed since it was seen. An agent is forgotten, or
        loses its latest checkpoint, only if nothing at all has changed. Which runs are old
        (``retention.old_runs``) is seen in the same atomic step in which they go. One that has changed
        is named by ``due`` again after ``retry`` seconds, any other after ``again`` seconds or when it
        changes.
        """

    @abstractmethod
    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        """Put other contents in the place of all that an agent has, in one atomic step, as ``change``
        says; if it says ``None``, all stays as it is. Its lease, its notes and the order stay too.

        Checkpoints and runs keep their ids. Steps may be left out; the others keep their runs, and have
        different keys within a run. It is the one thing that changes what was saved, for who writes it
        in another way: under another key.

        Returns False, and nothing has changed, if somebody has changed the agent meanwhile.

        Raises:
            CheckpointDamaged: one of its checkpoints cannot be read.
            LeaseLost, LeaseHeld: as for any write, if there is anything to write.
        """

    def ailments(self, repair: bool = False) -> Iterator[Finding]:
        """What a crash, or somebody's hand, has left behind that nobody needs or finds; with ``repair``
        it is put right. Looks at everything there is. Nothing that is being written is touched.
        """
        return iter(())
