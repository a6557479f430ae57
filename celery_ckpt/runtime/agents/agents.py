"""Agents: looking at agents, and acting on them, from outside of a task."""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Annotated

from celery.result import AsyncResult
from celery.utils import uuid
from pydantic import PlainSerializer, PlainValidator

from celery_ckpt.checkpoint import Checkpoint, Value
from celery_ckpt.errors import (
    AgentNotFound,
    AlreadyExists,
    LeaseError,
    RunOver,
    StoreError,
    StoreUnavailable,
)
from celery_ckpt.names import checked_name
from celery_ckpt.records import CheckpointInfo, RunRecord, RunStatus, Step
from celery_ckpt.retention.report import without_pin
from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.agents.cancellation import cancel_runs
from celery_ckpt.runtime.agents.upkeep import Tidying
from celery_ckpt.runtime.attempt.start import UNREADABLE_HERE
from celery_ckpt.runtime.broker.unacked import send, without_retries
from celery_ckpt.store import CheckpointStore
from celery_ckpt.usage import Usage

logger = logging.getLogger(__name__)

#: What can be asked for again, later or by somebody else.
_NOT_DAMAGED = (StoreUnavailable, LeaseError, *UNREADABLE_HERE)
#: A run that was sent by hand and that nobody has begun so much later is sent again.
_UNCLAIMED_SECONDS = 5.0
#: How long to wait until another look at a run that is being settled.
_SETTLING_SECONDS = 0.02


_NO_ENVELOPE = (
    "Run {run_id!r} of agent {agent_id!r} cannot be resumed, because its message is not on record. "
    "Send a new task for the agent instead: it continues the agent's history."
)
_NAME_TAKEN = "Agent {agent_id!r} already exists. Choose another name for the fork."
_NO_RUN = "Agent {agent_id!r} has no run to resume. Send a task for it."


Paid = Annotated[Usage, PlainValidator(lambda value: value), PlainSerializer(Usage.to_dict)]


class AgentStatus(Value):
    """Where an agent stands."""

    agent_id: str
    #: Of its active run, or of the last one; ``None``: it never had any.
    status: RunStatus | None = None
    run_id: str | None = None
    task: str = ""
    attempts: int = 0
    retries: int = 0
    #: How many other runs of it wait for their turn.
    blocked: int = 0
    #: Who works on it now.
    owner: str | None = None
    error: str | None = None
    #: What the recorded calls of that run were paid for.
    usage: Paid = Usage()
    #: Of its latest checkpoint.
    iteration: int | None = None
    checkpointed_at: datetime | None = None
    checkpoints: int = 0


class Agents(Tidying):
    """The agents of an app, with the store that its settings name."""

    @property
    def store(self) -> CheckpointStore:
        """The store itself, for what is not here."""
        return self._context.store

    # -- looking -------------------------------------------------------------------------------------

    def list(self, status: RunStatus | str | None = None) -> builtins.list[AgentStatus]:
        """All agents, or those with that status."""
        wanted = None if status is None else RunStatus(status)
        return [found for found in self._all() if wanted is None or found.status is wanted]

    def _all(self) -> Iterator[AgentStatus]:
        for agent_id in self.names():
            # It may have gone meanwhile, or there is nothing of it but a lease that somebody took.
            with suppress(AgentNotFound):
                yield self.status(agent_id)

    def names(self) -> Iterator[str]:
        """The names of all agents, read page by page, in no order."""
        return self.store.agents()

    def status(self, agent_id: str) -> AgentStatus:
        """Where an agent stands.

        Raises:
            AgentNotFound: there is none of that name.
        """
        standing = self.store.activity(agent_id)
        run = _present(self.runs(agent_id), standing.active)
        history = self.history(agent_id)
        if run is None and not history:
            raise self._no_agent(agent_id)
        fields = {"status", "run_id", "task", "attempts", "retries", "error"}
        run_record = {} if run is None else run.model_dump(include=fields) | {"usage": run.usage}
        latest = history[0] if history else None
        return AgentStatus(
            agent_id=agent_id,
            **run_record,
            blocked=sum(other.status is RunStatus.BLOCKED for other in standing.open),
            owner=standing.holder.owner if standing.holder else None,
            iteration=latest.iteration if latest else None,
            checkpointed_at=latest.created_at if latest else None,
            checkpoints=len(history),
        )

    def _run(self, agent_id: str) -> RunRecord | None:
        """The active run, else the last one."""
        runs = self.runs(agent_id)
        return _present(runs, self.store.activity(agent_id).active)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """The records of its runs, in the order in which they were sent."""
        return self.store.runs(agent_id)

    def steps(self, agent_id: str) -> builtins.list[Step]:
        """The recorded steps of all its runs; those that no later attempt needs are gone."""
        runs = self.runs(agent_id)
        return [step for run in runs for step in self.store.steps(agent_id, run.run_id)]

    def history(self, agent_id: str) -> builtins.list[CheckpointInfo]:
        """The outlines of its checkpoints, newest first."""
        return self.store.history(agent_id)

    def latest(self, agent_id: str) -> Checkpoint | None:
        """Its latest checkpoint."""
        return self.store.load_latest(agent_id)

    def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """A checkpoint by its id, of whichever agent.

        Raises:
            CheckpointNotFound: there is none of that id.
        """
        found = self.store.load(checkpoint_id)
        if found is None:
            raise self._no_checkpoint(checkpoint_id)
        return found

    # -- acting --------------------------------------------------------------------------------------

    def resume(self, agent_id: str) -> AsyncResult:
        """Send its run again, under its own task id and with all its retries before it.

        Raises:
            AgentNotFound: there is none of that name.
            RunOver: its run has succeeded.
            StoreError: it has had no run, or the message of its run is not on record, so that nobody
                can send it again.
        """
        run = self._settled(agent_id)
        if run is None:
            self.status(agent_id)  # says so if there is none
            raise StoreError(reason=_NO_RUN.format(agent_id=agent_id))
        if run.status is RunStatus.SUCCEEDED:
            raise RunOver(agent_id=agent_id, run_id=run.run_id, status=run.status.value)
        if not run.has_envelope:
            raise StoreError(reason=_NO_ENVELOPE.format(run_id=run.run_id, agent_id=agent_id))
        self.store.schedule(agent_id, _UNCLAIMED_SECONDS)
        result = self._app.AsyncResult(run.run_id)
        if run.status.is_final:
            # First: once it may be begun, its next result may be there.
            with suppress(NotImplementedError):  # some backends cannot, and there may be none
                result.forget()
            run = _anew(run)
            self.store.update_run(run)
        send(self._app, run.envelope, has_begun=True)
        return result

    def _settled(self, agent_id: str) -> RunRecord | None:
        """Its run. One that has just ended is about to be settled, which has to be waited for."""
        end = time.monotonic() + self._context.settings.lease_ttl
        while (run := self._run(agent_id)) and run.status.is_final and not run.delivered:
            if time.monotonic() > end:
                break
            time.sleep(_SETTLING_SECONDS)
        return run

    def fork(self, checkpoint_id: str, agent_id: str | None = None) -> str:
        """Begin another agent with what a checkpoint holds; returns its name.

        Raises:
            CheckpointNotFound: there is none of that id.
            AlreadyExists: there is an agent of that name.
        """
        original = self.checkpoint(checkpoint_id)
        name = checked_name(uuid() if agent_id is None else agent_id)
        if self.history(name) or self.runs(name):
            raise AlreadyExists(_NAME_TAKEN.format(agent_id=name), agent_id=name)
        metadata = {**without_pin(original.metadata), "forked_from": checkpoint_id}
        fork = Checkpoint.new(
            name, original.conversation, original.iteration, state=original.state, metadata=metadata
        )
        self.store.save(fork)
        return name

    def cancel(self, agent_id: str) -> bool:
        """End all its runs that have not ended. A body at work stops at its next event; the
        conversation is left as one that providers accept. False: there was nothing to end.
        """
        return bool(cancel_runs(self._context, agent_id))

    def delete(self, agent_id: str) -> int:
        """End its runs and forget everything about it; returns how many checkpoints went.

        What is damaged goes too, although a run that nobody can read cannot be ended.
        """
        try:
            self.cancel(agent_id)
        except _NOT_DAMAGED:
            raise
        except StoreError as damage:
            who = phrases.identity_of_agent(agent_id)
            logger.warning(phrases.AGENT_HALF_DELETED, *who, damage)
        return self.store.delete(agent_id)


def _present(runs: builtins.list[RunRecord], active: str | None) -> RunRecord | None:
    """The active one of an agent's runs, else the last one."""
    return next((run for run in runs if run.run_id == active), runs[-1] if runs else None)


def _anew(run: RunRecord) -> RunRecord:
    """A run that has ended, as if it had just been sent."""
    again = {"status": RunStatus.QUEUED, "delivered": False, "retries": 0, "stalled": 0}
    envelope = without_retries(run.envelope)
    return run.model_copy(
        update={**again, "error": None, "result": None, "ended_at": None, "envelope": envelope}
    )
