"""All of an agent, written anew, in files.

Each file is replaced as a whole. A crash between two of them leaves some as they were: as good as new.
"""

from __future__ import annotations

from celery_ckpt.names import checked_name
from celery_ckpt.records import AgentContents, Change, Lease
from celery_ckpt.stores.file.directory import Agent
from celery_ckpt.stores.file.steps import StepTable
from celery_ckpt.stores.file.sweeps import FileSweeps
from celery_ckpt.stores.log.rewrite import rewritten
from celery_ckpt.stores.log.store import listed, newest_first, ranges_of_all
from celery_ckpt.stores.rules.leases import LeaseState


class FileRewriting(FileSweeps):
    """The part of the store that writes everything anew."""

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        """See ``Upkeep``."""
        with self._agents.changing(checked_name(agent_id)) as agent:
            after = change(AgentContents([], [], []) if agent is None else self._contents(agent))
            if after is not None:
                held = agent.lease() if agent is not None else LeaseState()
                held.refuse(agent_id, lease, self._clock.now())
            if agent is not None and after is not None:
                self._replace(agent, after)
            if agent is not None and lease is not None:
                # Also if there was nothing to do: a crash may have left the files of before.
                self._remove(agent, [])
        return True

    def _contents(self, agent: Agent) -> AgentContents:
        journal = agent.journal
        lines = newest_first(journal.lines())
        messages = journal.messages(ranges_of_all(agent.agent_id, lines))
        checkpoints = listed(agent.agent_id, lines, messages)[::-1]
        return AgentContents(checkpoints, StepTable(agent).all(), self._desk(agent).runs())

    def _replace(self, agent: Agent, after: AgentContents) -> None:
        journal = agent.journal
        if after.checkpoints:
            # Behind those that are there: a journal only grows.
            numbered = enumerate(after.checkpoints, journal.seq + 1)
            journal.rewrite(rewritten(agent.agent_id, numbered, journal.end))
        steps = StepTable(agent)
        if after.steps or steps.all():
            steps.replace(after.steps, self.max_checkpoint_bytes)
        self._desk(agent).replace(after.runs)
