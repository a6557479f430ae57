"""One part of a sweep: claim some agents, plan what to delete, have the store do it, emit signals.

PRUNE   beat -> celery_ckpt.prune -> agents that changed since -> RetentionPolicy -> store -> signals

Each agent is claimed by one sweep, and for a minute by no other: two beats, or twenty workers, share
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
from celery_ckpt.runtime import log_lines, signals
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.settings import Settings

logger = logging.getLogger(__name__)

#: How many agents are claimed at once, and after how many seconds another sweep can claim them.
_CLAIM, _CLAIM_LAPSES_AFTER = 500, 60.0
#: How many of them are planned at a time.
_PAGE = 100
#: The interval of sweeps where ``ckpt_prune_every`` is not set.
_USUAL_SECONDS = 300.0


def rules_of(settings: Settings) -> Rules:
    """Return the limits for agents that do not have their own."""
    return Rules(settings.keep, settings.max_age, settings.forget_finished_after)


def sweep(context: AppContext, limit: int) -> PruneReport:
    """Prune due agents, until about ``limit`` of them are done or no more are due."""
    report = PruneReport()
    for page in _claimed(context, limit):
        for pruned in context.store.apply(list(_planned(context, page))):
            emit_pruned(context, pruned)
            report.add(pruned)
    return report


def _claimed(context: AppContext, limit: int) -> Iterator[Sequence[tuple[str, int]]]:
    """Claim due agents, and yield them page by page."""
    left = limit
    while left > 0:
        claimed = context.store.claim_due(min(_CLAIM, left), _CLAIM_LAPSES_AFTER, Schedule.SWEEP)
        if not claimed:
            return
        left -= len(claimed)
        yield from (claimed[first : first + _PAGE] for first in range(0, len(claimed), _PAGE))


def sweep_all(
    context: AppContext, *, dry_run: bool, on_result: Callable[[PruneResult], object] | None
) -> PruneReport:
    """Prune every agent; in a dry run only report what would be deleted."""
    report, agents = PruneReport(dry_run=dry_run), context.store.agents()
    while page := list(islice(agents, _PAGE)):
        for result in _dry_run(context, page) if dry_run else _prune_completely(context, page):
            report.add(result)
            if on_result is not None:
                on_result(result)
    return report


def _prune_completely(context: AppContext, page: Sequence[str]) -> Iterator[PruneResult]:
    """Prune agents until nothing is left to delete: a store may remove a long history in parts."""
    total, left = {name: PruneResult(name) for name in page}, list(page)
    while left:
        seconds = _CLAIM_LAPSES_AFTER
        due = [(name, context.store.schedule(name, seconds, Schedule.SWEEP)) for name in left]
        plans, left = list(_planned(context, due)), []
        for plan, pruned in zip(plans, context.store.apply(plans), strict=True):
            emit_pruned(context, pruned)
            name = pruned.agent_id
            total[name] = total[name].and_then(pruned)
            if 0 < pruned.checkpoints < len(plan.remove):
                left.append(name)
    yield from total.values()


def _planned(context: AppContext, due: Sequence[tuple[str, int | None]]) -> Iterator[PrunePlan]:
    """Plan what to delete from agents, each with the time at which it is due."""
    rules, now = rules_of(context.settings), system_clock.now()
    # An agent that changes during the sweep is checked in the next one, not repeatedly in this one.
    retry = (context.settings.prune_every or _USUAL_SECONDS) / 2
    snapshots = context.store.snapshots([agent_id for agent_id, _ in due])
    for snapshot, (_, due_at) in zip(snapshots, due, strict=True):
        if snapshot.damage:
            identity = log_lines.identity_of_agent(snapshot.agent_id)
            logger.error(log_lines.AGENT_NOT_PRUNED, *identity, snapshot.damage)
        yield judge(snapshot, rules, now, due_at, retry)


def _dry_run(context: AppContext, page: Sequence[str]) -> Iterator[PruneResult]:
    """Yield what would be deleted."""
    for plan in _planned(context, [(agent_id, None) for agent_id in page]):
        agent_id, gone, runs = plan.snapshot.agent_id, set(plan.remove), 0
        summaries = [one for one in plan.snapshot.checkpoints if plan.forget or one.id in gone]
        size, ids = sum(one.size for one in summaries), tuple(one.id for one in summaries)
        if plan.runs_before is not None:
            try:
                outlines = context.store.run_outlines(agent_id)[::-1]
                runs = len(old_runs(agent_id, outlines, plan.runs_before))
            except StoreUnavailable:
                raise
            except CheckpointError as error:
                logger.error(log_lines.AGENT_NOT_PRUNED, *log_lines.identity_of_agent(agent_id), error)
        yield PruneResult(agent_id, len(ids), size, plan.forget, ids, runs)


def emit_pruned(context: AppContext, pruned: PruneResult) -> None:
    """Emit ``checkpoints_pruned``, if anything was deleted."""
    if pruned.is_any:
        signals.checkpoints_pruned.send(
            sender=context.app,
            agent_id=pruned.agent_id,
            count=pruned.checkpoints,
            bytes=pruned.bytes,
            forgotten=pruned.forgotten,
            runs=pruned.runs,
        )
