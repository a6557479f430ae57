"""What ``Agents`` does about what is kept: pins, limits, pruning, and looking for what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple

from celery import Celery

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import (
    AgentNotFound,
    CheckpointError,
    CheckpointNotFound,
    ConfigurationError,
    StoreUnavailable,
)
from celery_ckpt.names import checked_name
from celery_ckpt.records import Finding
from celery_ckpt.retention.policy import RetentionPolicy
from celery_ckpt.retention.report import AgentPolicy, PrunePlan, PruneReport, PruneResult
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.pruning.sweep import sweep_all, tell
from celery_ckpt.runtime.settings import seconds
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.stores.findings import damage_in
from celery_ckpt.stores.registry import without_password

_HOW_TO_SET_IT_UP = "Configure it as docs/howto/choose-a-store.md describes, or use another store."


class RekeyedAgent(NamedTuple):
    """What became of an agent whose key was to be changed."""

    agent_id: str
    #: How many of each were not encrypted with the first key.
    checkpoints: int = 0
    steps: int = 0
    runs: int = 0
    #: Why nothing was changed.
    error: CheckpointError | None = None


class Tidying:
    """The part of ``Agents`` that keeps a store in order."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    @property
    def _context(self) -> AppContext:
        return AppContext.of(self._app)

    def _no_agent(self, agent_id: str) -> AgentNotFound:
        return AgentNotFound(agent_id=agent_id, where=self._where)

    def _no_checkpoint(self, checkpoint_id: str) -> CheckpointNotFound:
        return CheckpointNotFound(checkpoint_id=checkpoint_id, where=self._where)

    @property
    def _where(self) -> str:
        return without_password(self._context.settings.needed_store_url(self._app))

    def pin(self, checkpoint_id: str, label: str) -> None:
        """Let no sweep drop a checkpoint, nor its agent, for the reason that the label says.

        Raises:
            CheckpointNotFound: there is none of that id.
            InvalidName: nothing can be labelled that.
        """
        if not self._context.store.pin(checkpoint_id, label):
            raise self._no_checkpoint(checkpoint_id)

    def unpin(self, checkpoint_id: str) -> bool:
        """Let sweeps treat a checkpoint as any other; False: it was not pinned.

        Raises:
            CheckpointNotFound: there is none of that id.
        """
        store = self._context.store
        checkpoint = store.load(checkpoint_id)
        if checkpoint is None:
            raise self._no_checkpoint(checkpoint_id)
        [snapshot] = store.snapshots([checkpoint.agent_id])
        is_pinned = any(mark.pin for mark in snapshot.marks if mark.id == checkpoint_id)
        return store.pin(checkpoint_id, None) and is_pinned

    def retain(
        self,
        agent_id: str,
        *,
        keep: int | None = None,
        max_age: float | timedelta | None = None,
        forget_after: float | timedelta | None = None,
    ) -> None:
        """Give one agent limits of its own, in the place of those it had. ``None``: as its task or the
        settings say. With ``forget_after`` also a named agent goes, so long after its last run.

        Raises:
            AgentNotFound: there is none of that name.
        """
        store = self._context.store
        limits = {"keep": keep, "max_age": seconds(max_age), "forget_after": seconds(forget_after)}
        AgentPolicy.model_validate(limits)
        while store.snapshots([checked_name(agent_id)])[0].seen:
            before = store.policy(agent_id)
            if store.set_policy(agent_id, before, before.model_copy(update=limits)):
                return
        raise self._no_agent(agent_id)

    def prune(self, agent_id: str, keep: int) -> int:
        """Drop all but the newest checkpoints; never a pinned one, nor the latest one of an agent with
        an open run. Returns how many went.
        """
        policy, store, total, seen = RetentionPolicy(keep), self._context.store, 0, ""
        while True:
            [snapshot] = store.snapshots([checked_name(agent_id)])
            gone = policy.expired(snapshot.marks, system_clock.now(), live=snapshot.is_busy)
            [pruned] = store.apply([PrunePlan(snapshot, drop=[mark.id for mark in gone])])
            tell(self._context, pruned)
            total += pruned.checkpoints
            # Less went: the agent has changed meanwhile, or it has more to lose than goes at once; or
            # somebody has spoilt it, so that nothing ever will.
            is_stuck = not pruned.checkpoints and snapshot.seen == seen
            if pruned.checkpoints >= len(gone) or is_stuck:
                return total
            seen = snapshot.seen

    def prune_all(
        self, *, dry_run: bool = False, told: Callable[[PruneResult], object] | None = None
    ) -> PruneReport:
        """Look at every agent, here and now, and drop what the limits say; in a dry run only say what
        would go. ``told`` is called for each agent that was looked at.
        """
        return sweep_all(self._context, dry_run=dry_run, told=told)

    def rekey(
        self,
        agent_ids: Iterable[str] | None = None,
        *,
        from_plaintext: bool = False,
        dry_run: bool = False,
    ) -> Iterator[RekeyedAgent]:
        """Encrypt everything that agents have, all of them or those named, with the first key of
        ``ckpt_encryption_keys``; says of each what became of it. Then the other keys can go.

        With ``from_plaintext`` also what is not encrypted; in a dry run nothing is written.

        Raises:
            ConfigurationError: there are no keys.
        """
        store = self._context.store
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
        """Look at everything in the store, and at how it is set up: what can lose work, what crashes
        have left behind, and what nobody would look at. With ``repair`` what can be put right is.
        """
        store, damaged = self._context.store, set()
        for risk in store.risks():
            yield Finding("risk", "the store", risk, _HOW_TO_SET_IT_UP)
        for finding in store.findings(repair):
            damaged |= {finding.subject} if finding.kind == "damaged" else set()
            yield finding
        yield from (finding for finding in damage_in(store) if finding.subject not in damaged)
