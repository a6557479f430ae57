r"""Which run of an agent may work: the rules of the stores that decide in Python.

    queued --start--> running --release--> queued --start--> ...
       |                 \--save/update--> ended --settle--> settled; the next run gets its turn
       \--start, while another run is active--> blocked --the other run is settled--> queued

An agent has one active run, from its first attempt until it is settled. ``lua/run_start.lua``,
``lua/run_settle.lua`` and ``lua/run_cancel.lua`` are the same rules for Redis.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery_ckpt.errors import RunNotFound, RunOver
from celery_ckpt.records import AgentActivity, Lease, RunRecord, RunStatus, Schedule, StartResult
from celery_ckpt.stores.rules.transaction import AgentTransaction
from celery_ckpt.usage import Usage


def start(
    agent: AgentTransaction, run: RunRecord, owner: str, ttl: float, now: datetime, over: Lease | None
) -> StartResult:
    """Begin an attempt of a delivered run, as ``CheckpointStore.start_run`` promises."""
    due_at = agent.schedule(ttl)
    known = agent.run(run.run_id)
    record = known or run
    if record.is_settled:
        return StartResult(run=record, due_at=due_at)
    if not record.status.is_final and agent.active not in ("", run.run_id):
        blocked = _put(agent, record, status=RunStatus.BLOCKED, delivery=run.delivery)
        return StartResult(run=blocked, due_at=due_at)
    agent.lease = agent.lease.granted(agent.agent_id, owner, ttl, now, over)
    if not record.status.is_final:
        agent.active = run.run_id
        progress = f"{agent.last_save}.{agent.count_steps()}"
        # The previous attempt did not record its end and saved nothing: it stalled.
        is_stalled = record.status is RunStatus.RUNNING and record.progress == progress
        record = _put(
            agent,
            record,
            status=RunStatus.RUNNING,
            attempts=record.attempts + 1,
            stalled=record.stalled + 1 if is_stalled else 0,
            progress=progress,
            delivery=run.delivery,
        )
    elif known is None:
        agent.put(record)
    return StartResult(run=record, lease=agent.lease.lease(agent.agent_id), due_at=due_at)


def settle(
    agent: AgentTransaction, run: RunRecord, lease: Lease | None, now: datetime
) -> RunRecord | None:
    """Settle a run, as ``CheckpointStore.settle_run`` promises. Return the next active run."""
    record = replacement(agent, run)
    is_active = agent.active == run.run_id
    if is_active or lease is not None:
        agent.lease.refuse(agent.agent_id, lease, now)
        agent.lease = agent.lease.released()
    agent.schedule(0, Schedule.SWEEP)
    _put(agent, record, delivered=True)
    if run.status is RunStatus.SUCCEEDED:  # any other run can be resumed
        agent.drop_steps(run.run_id)
    if not is_active:
        return None
    blocked = (one for one in agent.open_runs() if one.status is RunStatus.BLOCKED)
    following = next(blocked, None)
    agent.active = following.run_id if following else ""
    return following and _put(agent, following, status=RunStatus.QUEUED)


def cancel(agent: AgentTransaction, run_id: str, owner: str, ttl: float, now: datetime) -> Lease | None:
    """Cancel a run, as ``CheckpointStore.cancel_run`` promises."""
    run = known_run(agent, run_id)
    # A cancellation whose outcome was not delivered may be repeated.
    if run.is_settled or run.status in (RunStatus.SUCCEEDED, RunStatus.FAILED):
        raise RunOver(agent_id=agent.agent_id, run_id=run_id, status=run.status.value)
    # Released first, so that the lease is granted even while another owner holds it.
    granted = agent.lease.released().granted(agent.agent_id, owner, ttl, now, None)
    _put(agent, run, status=RunStatus.CANCELLED)
    if agent.active != run_id:
        return None
    agent.lease = granted
    return granted.lease(agent.agent_id)


def activity(agent: AgentTransaction, now: datetime) -> AgentActivity:
    """Return the agent's open runs, its active run and its lease."""
    active, runs = agent.active or None, agent.open_runs()
    if not agent.lease.is_held(now):
        return AgentActivity(active=active, open=runs)
    left = (agent.lease.expires_at - now).total_seconds()
    holder = agent.lease.lease(agent.agent_id)
    return AgentActivity(active=active, open=runs, holder=holder, seconds_left=left)


def known_run(agent: AgentTransaction, run_id: str) -> RunRecord:
    """Return a run's record. Raises ``RunNotFound`` if the run was never added."""
    run = agent.run(run_id)
    if run is None:
        raise RunNotFound(agent_id=agent.agent_id, run_id=run_id)
    return run


def replacement(agent: AgentTransaction, run: RunRecord) -> RunRecord:
    """Return the record that replaces a run's: ``run``, with the usage that the store has counted.

    Raises:
        RunNotFound: the run was never added.
    """
    known = known_run(agent, run.run_id)
    return run if known.usage == run.usage else run.model_copy(update={"usage": known.usage})


def pay(agent: AgentTransaction, run_id: str, paid: Usage) -> None:
    """Add to the usage of a run, if the run was added."""
    run = agent.run(run_id)
    if run is not None:
        _put(agent, run, usage=run.usage + paid)


def _put(agent: AgentTransaction, run: RunRecord, **changes: Any) -> RunRecord:
    changed = run.model_copy(update=changes)
    agent.put(changed)
    return changed
