"""``Agents``: the agents of an app, inspected and controlled from outside a task."""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from celery import Celery
from celery.result import AsyncResult
from celery.utils import uuid

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.errors import (
    AgentNotFound,
    AlreadyExists,
    CheckpointError,
    CheckpointNotFound,
    ConfigurationError,
    LeaseError,
    RunOver,
    StoreError,
    StoreUnavailable,
)
from celery_ckpt.event_log import LogEntry
from celery_ckpt.names import checked_name
from celery_ckpt.records import (
    AgentActivity,
    AgentOutline,
    CheckpointInfo,
    Finding,
    MessagePage,
    RunOutline,
    RunRecord,
    RunStatus,
    Step,
)
from celery_ckpt.retention.policy import RetentionPolicy
from celery_ckpt.retention.report import AgentPolicy, PrunePlan, PruneReport, PruneResult, without_pin
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.agents.cancellation import cancel_runs
from celery_ckpt.runtime.attempt.attempt_log import keeps_log
from celery_ckpt.runtime.attempt.backend import store_outcome_if_missing
from celery_ckpt.runtime.attempt.start import UNREADABLE_HERE
from celery_ckpt.runtime.broker.envelope import without_retries
from celery_ckpt.runtime.broker.publisher import publish
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.pruning.sweep import emit_pruned, sweep_all
from celery_ckpt.runtime.settings import seconds
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.stores.findings import damage_in
from celery_ckpt.stores.registry import without_password
from celery_ckpt.stores.wrapper import given

logger = logging.getLogger(__name__)

#: Errors that are not damage: the same call may succeed later, or in another process.
_NOT_DAMAGED = (StoreUnavailable, LeaseError, *UNREADABLE_HERE)
#: After how many seconds the watchdog requeues a resumed run, if no worker has begun it.
_REQUEUE_AFTER = 5.0
#: The pause between checks of a run that is being settled, in seconds.
_SETTLING_SECONDS = 0.02


_NO_ENVELOPE = (
    "Run {run_id!r} of agent {agent_id!r} cannot be resumed, because its message is not on record. "
    "Send a new task for the agent instead: it continues the agent's history."
)
_NAME_TAKEN = "Agent {agent_id!r} already exists. Choose another name for the fork."
_NO_RUN = "Agent {agent_id!r} has no run to resume. Send a task for it."
_HOW_TO_SET_IT_UP = "Configure it as docs/howto/choose-a-store.md describes, or use another store."


#: How many agents are read at once.
_PAGE = 100


class AgentStatus(AgentOutline):
    """The state of an agent and of its active run, or else of its last one."""

    @classmethod
    def of(cls, outline: AgentOutline) -> AgentStatus:
        """Return the status of an agent that a store has outlined."""
        return cls.model_construct(**outline.__dict__)


class AgentList(builtins.list[AgentStatus]):
    """What ``Agents.list`` returns: a list of agents that says where the next page begins."""

    def __init__(self) -> None:
        super().__init__()
        #: Pass it to ``Agents.list`` to get the agents that follow; ``None``: there are no more.
        self.after: str | None = None
        #: The agents that cannot be read, for example because they are damaged, and why.
        self.unreadable: dict[str, StoreError] = {}


class RekeyedAgent(NamedTuple):
    """The result of rekeying one agent."""

    agent_id: str
    #: How many of each were not encrypted with the first key before.
    checkpoints: int = 0
    steps: int = 0
    runs: int = 0
    #: Why the agent was not changed.
    error: CheckpointError | None = None


class Agents:
    """The agents of an app, with the store that its settings name.

    ``by`` names who acts. The event logs of the agents show it with every action.
    """

    def __init__(self, app: Celery, *, by: str | None = None) -> None:
        self._app, self._by = app, by

    @property
    def _context(self) -> AppContext:
        return AppContext.of(self._app)

    @property
    def store(self) -> CheckpointStore:
        """Return the store itself."""
        return self._context.store

    # -- inspection ----------------------------------------------------------------------------------

    def list(
        self,
        status: RunStatus | str | None = None,
        task: str | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | None = None,
    ) -> AgentList:
        """Return agents, the most recently changed first: all of them, or at most ``limit``.

        An agent changes when it is created, and when a run is added, started, released, ended, settled
        or cancelled. ``status`` selects agents by the status of their active or last run; ``"idle"``
        are those that never had a run. ``prefix`` selects by the beginning of their names, ``task`` by
        the task of that run. Names, and tasks, are compared while they are read: a rare one takes long.

        ``after``, the ``after`` of an earlier list, continues where that list ended. An agent that
        changes in between may move. Any other agent is returned exactly once. Agents that cannot be
        read are not in the list, but in its ``unreadable``.
        """
        found = AgentList()
        found.after = after
        while limit is None or len(found) < limit:
            left = _PAGE if limit is None or task is not None else min(_PAGE, limit - len(found))
            page = self.store.page(status, prefix=prefix, limit=left, after=after)
            found.unreadable |= page.unreadable
            after = found.after = page.after
            for row, cursor in zip(page.agents, page.cursors, strict=True):
                if task in (None, row.task):
                    found.append(AgentStatus.of(row))
                    if len(found) == limit and cursor != page.cursors[-1]:
                        found.after = cursor
                        break
            if after is None:
                break
        return found

    def names(self) -> Iterator[str]:
        """Return the names of all agents, read page by page, in no order."""
        return self.store.agents()

    def status(self, agent_id: str) -> AgentStatus:
        """Return the status of an agent.

        Raises:
            AgentNotFound: there is no agent of that name.
        """
        outline = self.store.outline(agent_id)
        if outline is None:
            raise self._no_agent(agent_id)
        return AgentStatus.of(outline)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """Return the records of its runs, in the order in which they were sent."""
        return self.store.runs(agent_id)

    def run_outlines(
        self, agent_id: str, *, limit: int | None = None, before: str | None = None
    ) -> builtins.list[RunOutline]:
        """Return its runs without their messages and results, the run that was sent last first.

        With ``limit``, at most that many. ``before``, the ``run_id`` of the last one, continues after
        it.
        """
        return self.store.run_outlines(agent_id, limit=limit, before=before)

    def steps(self, agent_id: str) -> builtins.list[Step]:
        """Return the recorded steps of all its runs, except steps that no later attempt needs."""
        runs = reversed(self.run_outlines(agent_id))
        return [step for run in runs for step in self.store.steps(agent_id, run.run_id)]

    def history(
        self, agent_id: str, *, limit: int | None = None, before: int | None = None
    ) -> builtins.list[CheckpointInfo]:
        """Return a summary of each of its checkpoints, newest first.

        With ``limit``, at most that many. ``before``, the ``seq`` of the last one, continues after it.
        """
        return self.store.history(agent_id, limit=limit, before=before)

    def messages(self, checkpoint_id: str, start: int = 0, stop: int | None = None) -> MessagePage:
        """Return the messages ``start`` to ``stop - 1`` of a checkpoint; below 0, from the end.

        Only these are read, so they are not checked against the digest of the checkpoint.

        Raises:
            CheckpointNotFound: there is no checkpoint with that id.
        """
        found = self.store.messages(checkpoint_id, start, stop)
        if found is None:
            raise self._no_checkpoint(checkpoint_id)
        return found

    def latest(self, agent_id: str) -> Checkpoint | None:
        """Return its latest checkpoint, or ``None``."""
        return self.store.load_latest(agent_id)

    def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Return a checkpoint by its id.

        Raises:
            CheckpointNotFound: there is no checkpoint with that id.
        """
        found = self.store.load(checkpoint_id)
        if found is None:
            raise self._no_checkpoint(checkpoint_id)
        return found

    def log(
        self, agent_id: str, *, after: int | str | None = None, limit: int | None = None
    ) -> builtins.list[LogEntry]:
        """Return entries of its event log in order, at most ``limit``: the newest ones.

        With ``after``, the cursor of an entry, they are the first ones after it; where entries are no
        longer kept, an entry of the kind ``gap`` says how many. Entries that cannot be read are left
        out.

        Raises:
            FeatureMissing: the store keeps no event logs.
        """
        cursor = None if after is None else int(after)
        found = self.store.event_log(agent_id, after=cursor, limit=limit)
        return [entry for entry in found if entry.kind != "damaged"]

    def _action(self, action: str, **about: Any) -> builtins.list[LogEntry]:
        """Return the entry of an action, if the store keeps event logs."""
        if not keeps_log(self.store):
            return []
        known = {"action": action, "by": self._by, **about}
        data = {name: value for name, value in known.items() if value is not None}
        return [LogEntry("action", system_clock.now(), data)]

    def _note(self, agent_id: str, action: str, **about: Any) -> None:
        """Note an action whose write takes no entry. That it is not noted does not undo the action."""
        entries = self._action(action, **about)
        with suppress(StoreError):
            if entries:
                self.store.note(agent_id, entries)

    # -- control -------------------------------------------------------------------------------------

    def resume(self, agent_id: str) -> AsyncResult:
        """Publish its run again, under its own task id and with all its retries.

        Raises:
            AgentNotFound: there is no agent of that name.
            RunOver: its run has succeeded.
            StoreError: it never had a run, or the message of its run is not on record, so that it
                cannot be published.
        """
        run = self._settled_run(agent_id)
        if run is None:
            self.status(agent_id)  # raises AgentNotFound
            raise StoreError(reason=_NO_RUN.format(agent_id=agent_id))
        if run.status is RunStatus.SUCCEEDED:
            raise RunOver(agent_id=agent_id, run_id=run.run_id, status=run.status.value)
        if not run.has_envelope:
            raise StoreError(reason=_NO_ENVELOPE.format(run_id=run.run_id, agent_id=agent_id))
        self.store.schedule(agent_id, _REQUEUE_AFTER)
        result = self._app.AsyncResult(run.run_id)
        if run.status.is_final:
            # First: as soon as the run may begin, its next result may be stored.
            with suppress(NotImplementedError):  # some backends cannot delete results
                result.forget()
            run, noted = _reset(run), given(log=self._action("resume", run_id=run.run_id))
            self.store.update_run(run, **noted)
        else:
            self._note(agent_id, "resume", run_id=run.run_id)
        publish(self._app, run.envelope, has_begun=True)
        return result

    def _present_run(self, agent_id: str, activity: AgentActivity) -> RunRecord | None:
        """Return the active run of an agent, or the one that was sent last."""
        active = (run for run in activity.open if run.run_id == activity.active)
        return next(active, None) or self.store.last_run(agent_id)

    def _settled_run(self, agent_id: str) -> RunRecord | None:
        """Return its active or last run. If that has just ended, wait until it is settled."""
        end = time.monotonic() + self._context.settings.lease_ttl
        while True:
            run = self._present_run(agent_id, self.store.activity(agent_id))
            is_settling = run is not None and run.status.is_final and not run.delivered
            if not is_settling or time.monotonic() > end:
                return run
            time.sleep(_SETTLING_SECONDS)

    def fork(self, checkpoint_id: str, agent_id: str | None = None) -> str:
        """Make a new agent from a checkpoint. Return its name.

        Raises:
            CheckpointNotFound: there is no checkpoint with that id.
            AlreadyExists: there is already an agent of that name.
        """
        original = self.checkpoint(checkpoint_id)
        name = checked_name(uuid() if agent_id is None else agent_id)
        if self.store.outline(name) is not None:
            raise AlreadyExists(_NAME_TAKEN.format(agent_id=name), agent_id=name)
        metadata = {**without_pin(original.metadata), "forked_from": checkpoint_id}
        fork = Checkpoint.new(
            name, original.conversation, original.iteration, state=original.state, metadata=metadata
        )
        self.store.save(fork, **given(log=self._action("fork", checkpoint_id=checkpoint_id)))
        return name

    def cancel(self, agent_id: str) -> bool:
        """Cancel all its runs that have not ended. False if there are none.

        A body that is being executed stops at its next event. The conversation is left in a form that
        providers accept.
        """
        return bool(cancel_runs(self._context, agent_id, self._action("cancel")))

    def delete(self, agent_id: str) -> int:
        """Cancel its runs and delete everything it has. Return the number of deleted checkpoints.

        For ``ckpt_forget_finished_after``, and at least for the broker's visibility timeout, the store
        remembers digests of the ids of its runs, so that late messages do not start them again.
        Damaged records are deleted too, although a run that cannot be read cannot be cancelled.
        """
        try:
            self.cancel(agent_id)
            for run in self.store.activity(agent_id).open:
                if run.status.is_final:  # its record is the last that knows the outcome
                    store_outcome_if_missing(self._app, run)
        except _NOT_DAMAGED:
            raise
        except StoreError as damage:
            identity = log_lines.identity_of_agent(agent_id)
            logger.warning(log_lines.AGENT_HALF_DELETED, *identity, damage)
        return self.store.delete(agent_id, remember=self._context.settings.remember_deleted(self._app))

    # -- retention and upkeep ------------------------------------------------------------------------

    def pin(self, checkpoint_id: str, label: str) -> None:
        """Keep sweeps from deleting a checkpoint and its agent. The label says why.

        Raises:
            CheckpointNotFound: there is no checkpoint with that id.
            InvalidName: this is not a valid label.
        """
        if not self.store.pin(checkpoint_id, label):
            raise self._no_checkpoint(checkpoint_id)
        page = self.store.messages(checkpoint_id, 0, 0) if keeps_log(self.store) else None
        if page is not None:
            self._note(page.agent_id, "pin", checkpoint_id=checkpoint_id, label=label)

    def unpin(self, checkpoint_id: str) -> bool:
        """Let sweeps treat a checkpoint like any other. False if it was not pinned.

        Raises:
            CheckpointNotFound: there is no checkpoint with that id.
        """
        store = self.store
        checkpoint = store.load(checkpoint_id)
        if checkpoint is None:
            raise self._no_checkpoint(checkpoint_id)
        [snapshot] = store.snapshots([checkpoint.agent_id])
        is_pinned = any(one.pin for one in snapshot.checkpoints if one.id == checkpoint_id)
        is_unpinned = store.pin(checkpoint_id, None) and is_pinned
        if is_unpinned:
            self._note(checkpoint.agent_id, "unpin", checkpoint_id=checkpoint_id)
        return is_unpinned

    def retain(
        self,
        agent_id: str,
        *,
        keep: int | None = None,
        max_age: float | timedelta | None = None,
        forget_after: float | timedelta | None = None,
    ) -> None:
        """Set the retention limits of one agent, replacing earlier ones.

        ``None`` means the limit of its task or of the settings. With ``forget_after`` a named agent is
        deleted too, this time after its last run.

        Raises:
            AgentNotFound: there is no agent of that name.
        """
        store = self.store
        limits = {"keep": keep, "max_age": seconds(max_age), "forget_after": seconds(forget_after)}
        AgentPolicy.model_validate(limits)
        while store.snapshots([checked_name(agent_id)])[0].seen:
            before = store.policy(agent_id)
            if store.set_policy(agent_id, before, before.model_copy(update=limits)):
                return self._note(agent_id, "retain", **limits)
        raise self._no_agent(agent_id)

    def prune(self, agent_id: str, keep: int) -> int:
        """Remove all but the newest ``keep`` checkpoints. Return how many were removed.

        A pinned checkpoint is never removed, nor the latest one of an agent with an open run.
        """
        policy, store, total, seen = RetentionPolicy(keep), self.store, 0, ""
        while True:
            [snapshot] = store.snapshots([checked_name(agent_id)])
            gone = policy.expired(snapshot.checkpoints, system_clock.now(), live=snapshot.is_busy)
            [pruned] = store.apply([PrunePlan(snapshot, remove=[one.id for one in gone])])
            emit_pruned(self._context, pruned)
            total += pruned.checkpoints
            # If fewer were removed than planned, the agent has changed since, or has more checkpoints
            # than the store removes at once. If it did not change either, it is damaged.
            is_stuck = not pruned.checkpoints and snapshot.seen == seen
            if pruned.checkpoints >= len(gone) or is_stuck:
                self._note(agent_id, "prune", keep=keep, removed=total)
                return total
            seen = snapshot.seen

    def prune_all(
        self, *, dry_run: bool = False, on_result: Callable[[PruneResult], object] | None = None
    ) -> PruneReport:
        """Apply the retention limits to every agent now; in a dry run only report what would be
        deleted. ``on_result`` is called for each agent.
        """
        return sweep_all(self._context, dry_run=dry_run, on_result=on_result)

    def rekey(
        self,
        agent_ids: Iterable[str] | None = None,
        *,
        from_plaintext: bool = False,
        dry_run: bool = False,
    ) -> Iterator[RekeyedAgent]:
        """Encrypt everything that agents have with the first key of ``ckpt_encryption_keys``. Yield
        the result for each agent. Afterwards the other keys can be removed from the setting.

        ``agent_ids`` limits it to these agents. With ``from_plaintext`` unencrypted data is encrypted
        too. In a dry run nothing is written.

        Raises:
            ConfigurationError: no keys are set.
        """
        store = self.store
        if not isinstance(store, EncryptedStore):
            raise ConfigurationError(
                reason="ckpt_encryption_keys is not set, so there is nothing to rekey."
            )
        for agent_id in store.agents() if agent_ids is None else agent_ids:
            try:
                done = store.rekey(agent_id, from_plaintext=from_plaintext, dry_run=dry_run)
                yield RekeyedAgent(agent_id, *done)
            except StoreUnavailable:
                raise
            except CheckpointError as error:
                if not isinstance(error, AgentNotFound):
                    yield RekeyedAgent(agent_id, error=error)
                elif agent_ids is not None:
                    yield RekeyedAgent(agent_id, error=self._no_agent(agent_id))

    def doctor(self, *, repair: bool = False) -> Iterator[Finding]:
        """Check the store and its configuration. Yield what can lose work, what crashes have left
        behind, and entries that nothing would find. With ``repair``, repair what can be repaired.
        """
        store, damaged = self.store, set()
        for risk in store.risks():
            yield Finding("risk", "the store", risk, _HOW_TO_SET_IT_UP)
        for finding in store.findings(repair):
            damaged |= {finding.subject} if finding.kind == "damaged" else set()
            yield finding
        yield from (finding for finding in damage_in(store) if finding.subject not in damaged)

    def _no_agent(self, agent_id: str) -> AgentNotFound:
        return AgentNotFound(agent_id=agent_id, where=self._where)

    def _no_checkpoint(self, checkpoint_id: str) -> CheckpointNotFound:
        return CheckpointNotFound(checkpoint_id=checkpoint_id, where=self._where)

    @property
    def _where(self) -> str:
        return without_password(self._context.settings.required_store_url(self._app))


def _reset(run: RunRecord) -> RunRecord:
    """Return a run that has ended as if it had just been sent."""
    again = {"status": RunStatus.QUEUED, "delivered": False, "retries": 0, "stalled": 0}
    now = {"eta": None, "expires_at": None, "passed_over": False}
    envelope = without_retries(run.envelope)
    return run.model_copy(
        update={**again, **now, "error": None, "result": None, "ended_at": None, "envelope": envelope}
    )
