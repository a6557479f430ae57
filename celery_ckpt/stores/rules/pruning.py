"""What a sweep reads of an agent, and how the store applies its plan: the rules of the stores that
decide in Python.

    the agent, compared with the snapshot         what is deleted
    the policy has changed                        nothing; the sweep looks again soon
    it changed, and the plan deletes all of it    nothing; the sweep looks again soon
    it changed, and would lose its latest         nothing; the sweep looks again soon, because a
    checkpoint                                    run may have resumed from that checkpoint
    it changed otherwise                          what the plan says; the sweep looks again soon
    nothing has changed                           what the plan says; the sweep looks again after
                                                  ``plan.again``, or when the agent changes

Old runs are deleted with the checkpoints. Which runs are old is decided again, in the same transaction.

An agent is *listed* while it is certain to be on the schedule of sweeps, so that a save need not
schedule it again. A sweep that finishes with an agent unlists it in the same transaction.
``lua/checkpoint_remove.lua``, ``lua/agent_delete.lua`` and ``lua/run_delete.lua`` are the same rules
for Redis.
"""

from __future__ import annotations

from datetime import datetime

from celery_ckpt.errors import CheckpointError
from celery_ckpt.retention.report import AgentSnapshot, PrunePlan, PruneResult, RunSummary
from celery_ckpt.stores.rules.transaction import AgentTransaction


def snapshot(agent: AgentTransaction, now: datetime) -> AgentSnapshot:
    """Return what a sweep needs to know of an agent."""
    if not agent.exists:
        return AgentSnapshot(agent.agent_id)
    lease, policy, (runs, open_runs) = agent.lease, agent.policy, agent.count_runs()
    counts = f"{agent.last_save} {agent.count_steps()} {runs} {open_runs}"
    return AgentSnapshot(
        agent.agent_id,
        # Changes whenever the agent does.
        seen=f"{counts} {lease.token}:{lease.nonce} {policy.to_bytes().decode()}",
        checkpoints=agent.summaries(),
        policy=policy,
        is_busy=bool(open_runs) or lease.is_held(now),
        is_named_by_task=agent.has_run(agent.agent_id),
        last_run=RunSummary.of(agent.last_run()),
        earliest_end=min(agent.deletable_runs().values(), default=None),
    )


def apply(agent: AgentTransaction, plan: PrunePlan, now: datetime) -> PruneResult:
    """Apply the plan of a sweep to an agent, as ``CheckpointStore.apply`` promises."""
    agent_id, seen = plan.snapshot.agent_id, plan.snapshot
    current = seen if seen.damage else snapshot(agent, now)
    is_same, result = current.seen == seen.seen, PruneResult(agent_id)
    loses_latest = bool(current.checkpoints) and current.checkpoints[0].id in plan.remove
    if current.policy != seen.policy or (not is_same and (plan.forget or loses_latest)):
        is_same = False
    elif plan.forget:
        ids, size = tuple(one.id for one in current.checkpoints), agent.size()
        agent.delete()
        result = PruneResult(agent_id, len(ids), size, forgotten=True, ids=ids)
    elif current.seen and not current.damage:
        existing, size, old = {one.id for one in current.checkpoints}, agent.size(), list[str]()
        ids = tuple(name for name in plan.remove if name in existing)
        agent.remove(list(ids))
        if plan.runs_before is not None:
            ends = agent.deletable_runs().items()
            old = [run_id for run_id, end in ends if end <= plan.runs_before]
            agent.delete_runs(old)
        freed = max(0, size - agent.size())
        result = PruneResult(agent_id, len(ids), freed, ids=ids, runs=len(old))
    if is_same and not result.forgotten:
        agent.unlist()
    if plan.due_at is not None:
        agent.reschedule(plan.due_at, plan.again if is_same else plan.retry)
    return result


def damaged(agent_id: str, error: CheckpointError) -> AgentSnapshot:
    """Return the snapshot of an agent that cannot be read."""
    return AgentSnapshot(agent_id, seen="?", damage=str(error))
