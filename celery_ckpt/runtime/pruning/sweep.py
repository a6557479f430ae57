"""One part of a sweep: look at some agents, judge them, have that done, and tell of it.

PRUNE   beat -> celery_ckpt.prune -> agents that changed since -> RetentionPolicy -> store -> signals

Each agent is named to one sweep only, and for a minute to no other: two beats, or twenty workers, share
the work and do no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import CheckpointError, StoreUnavailable
from celery_ckpt.records import Schedule
from celery_ckpt.retention.policy import Rules, judge, old_runs
from celery_ckpt.retention.report import PrunePlan, PruneReport, PruneResult
from celery_ckpt.runtime import phrases, signals
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.settings import Settings

logger = logging.getLogger(__name__)

#: How many agents are asked for at once, and for how long nobody else is told of them.
_CLAIM, _HOLD = 500, 60.0
#: How many of them are judged at a time.
_PAGE = 100
#: How often sweeps come, where beat does not say.
_USUAL_SECONDS = 300.0

#: An agent with its moment.
Found = tuple[str, int]


def rules_of(settings: Settings) -> Rules:
    """The limits for agents that have none of their own."""
    return Rules(settings.keep, settings.max_age, settings.forget_finished_after)


def sweep(context: AppContext, limit: int) -> PruneReport:
    """Look at agents whose moments have come, until about so many are done, or no more are due."""
    report = PruneReport()
    while report.agents < limit:
        found = context.store.claim_due(min(_CLAIM, limit - report.agents), _HOLD, Schedule.SWEEP)
        if not found:
            break
        for first in range(0, len(found), _PAGE):
            for pruned in _swept(context, found[first : first + _PAGE]):
                report.add(pruned)
    return report


def sweep_all(
    context: AppContext, *, dry_run: bool, told: Callable[[PruneResult], object] | None
) -> PruneReport:
    """Look at every agent there is; in a dry run only say what would go."""
    report, agents = PruneReport(dry_run=dry_run), context.store.agents()
    while page := list(islice(agents, _PAGE)):
        for one in _would_go(context, page) if dry_run else _swept_whole(context, page):
            report.add(one)
            if told is not None:
                told(one)
    return report


def _swept(context: AppContext, found: Sequence[Found]) -> Iterator[PruneResult]:
    plans = list(_judged(context, found))
    for pruned in context.store.apply(plans):
        tell(context, pruned)
        yield pruned


def _swept_whole(context: AppContext, page: Sequence[str]) -> Iterator[PruneResult]:
    """The same until nothing is left to go: a store may drop a long history in parts."""
    total, left = {name: PruneResult(name) for name in page}, list(page)
    while left:
        found = [(name, context.store.schedule(name, _HOLD, Schedule.SWEEP)) for name in left]
        plans, left = list(_judged(context, found)), []
        for plan, pruned in zip(plans, context.store.apply(plans), strict=True):
            tell(context, pruned)
            name = pruned.agent_id
            total[name] = total[name].and_then(pruned)
            if 0 < pruned.checkpoints < len(plan.drop):
                left.append(name)
    yield from total.values()


def _judged(context: AppContext, found: Sequence[tuple[str, int | None]]) -> Iterator[PrunePlan]:
    rules, now = rules_of(context.settings), system_clock.now()
    # Whatever changes meanwhile is looked at in the next sweep, not again and again in this one.
    retry = (context.settings.prune_every or _USUAL_SECONDS) / 2
    snapshots = context.store.snapshots([agent_id for agent_id, _ in found])
    for snapshot, (_, due_at) in zip(snapshots, found, strict=True):
        if snapshot.damage:
            who = phrases.identity_of_agent(snapshot.agent_id)
            logger.error(phrases.AGENT_NOT_PRUNED, *who, snapshot.damage)
        yield judge(snapshot, rules, now, due_at, retry)


def _would_go(context: AppContext, page: Sequence[str]) -> Iterator[PruneResult]:
    for plan in _judged(context, [(agent_id, None) for agent_id in page]):
        snapshot, gone = plan.snapshot, set(plan.drop)
        marks = [mark for mark in snapshot.marks if plan.forget or mark.id in gone]
        size, ids = sum(mark.size for mark in marks), tuple(mark.id for mark in marks)
        runs = _runs_that_would_go(context, plan)
        yield PruneResult(snapshot.agent_id, len(ids), size, plan.forget, ids, runs)


def _runs_that_would_go(context: AppContext, plan: PrunePlan) -> int:
    agent_id, before = plan.snapshot.agent_id, plan.runs_before
    if before is None:
        return 0
    try:
        return len(old_runs(agent_id, context.store.runs(agent_id), before))
    except StoreUnavailable:
        raise
    except CheckpointError as error:
        logger.error(phrases.AGENT_NOT_PRUNED, *phrases.identity_of_agent(agent_id), error)
        return 0


def tell(context: AppContext, pruned: PruneResult) -> None:
    """Say what went of an agent, if anything did."""
    if pruned.is_any:
        signals.checkpoints_pruned.send(
            sender=context.app,
            agent_id=pruned.agent_id,
            count=pruned.checkpoints,
            bytes=pruned.bytes,
            forgotten=pruned.forgotten,
            runs=pruned.runs,
        )
