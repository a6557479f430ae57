r"""Which run of an agent may work: the rules of the stores that decide in Python.

    queued --start--> running --release--> queued --start--> ...
       |                 \--save/update--> ended --settle--> settled; the next run gets the turn
       \--start, while it is another run's turn--> blocked --it gets the turn--> queued

An agent has one active run: the run that has the turn, from its first attempt, or since it was given
the turn, until it is settled. The others stand in line, in the order in which they were sent. A run is
not in line before its ETA, after it has expired or ended, and after it was passed over
(``may_have_turn``).

    a run is delivered, no run is active    the oldest one in line gets the turn: it starts if it is the
                                            delivered one, otherwise it must be published
    a run is delivered, another is active   it is blocked; unless the other one is younger and has not
                                            begun: then the delivered run takes the turn, and starts
    the active run is settled               the oldest one in line gets the turn and must be published,
                                            if its message was consumed (it is blocked) or a younger run
                                            was blocked before it: its message is late. Otherwise its
                                            message is expected, and no run is active
    no worker begins the active run         the watchdog passes it over (``pass_turn``): the next one in
                                            line gets the turn. When it is delivered, it takes its place
                                            in line again

``lua/run_start.lua``, ``lua/run_settle.lua``, ``lua/run_pass.lua`` and ``lua/run_cancel.lua`` are the
same rules for Redis.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
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
    trace_before = known.trace if known else ""
    record = known or run
    if record.is_settled:
        return StartResult(run=record, due_at=due_at)
    if record.status.is_final:
        agent.lease = agent.lease.granted(agent.agent_id, owner, ttl, now, over)
        if known is None:
            agent.put(record)
        return StartResult(run=record, lease=agent.lease.lease(agent.agent_id), due_at=due_at)
    active = agent.turn.active
    other = agent.run(active) if active not in ("", run.run_id) else None
    ahead = other if active else agent.first_in_line(now)
    if ahead is not None and _goes_first(agent, ahead, record):
        blocked = _put(
            agent, record, status=RunStatus.BLOCKED, delivery=run.delivery, passed_over=False
        )
        _note_blocked(agent, run.run_id)
        given = None if ahead is other else _given(agent, ahead, now)
        return StartResult(run=blocked, next=given, due_at=due_at)
    agent.lease = agent.lease.granted(agent.agent_id, owner, ttl, now, over)
    if other is not None:  # it had not begun: it waits again, and is published when its turn comes
        _put(agent, other, status=RunStatus.BLOCKED)
        _note_blocked(agent, other.run_id)
    agent.turn = replace(agent.turn, active=run.run_id, given_at=None)
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
        trace=run.trace,
        passed_over=False,
    )
    due_at = agent.reschedule(due_at, ttl, Schedule.WATCHDOG) or due_at
    lease = agent.lease.lease(agent.agent_id)
    return StartResult(run=record, lease=lease, due_at=due_at, trace_before=trace_before)


def _goes_first(agent: AgentTransaction, other: RunRecord, run: RunRecord) -> bool:
    """Return True if it is the turn of ``other``, which is active or the first in line."""
    has_begun = other.attempts > 0 or other.status.is_final
    if other.run_id == run.run_id:
        return False
    if other.run_id == agent.turn.active and has_begun:
        return True
    # A run without a record is younger than all others.
    return not agent.has_run(run.run_id) or agent.is_older(other.run_id, than=run.run_id)


def _note_blocked(agent: AgentTransaction, run_id: str) -> None:
    youngest = agent.turn.youngest_blocked
    if not agent.is_older(run_id, than=youngest):
        agent.turn = replace(agent.turn, youngest_blocked=run_id)


def _given(agent: AgentTransaction, run: RunRecord, now: datetime) -> RunRecord:
    """Give the turn to a run that has to be published."""
    agent.turn = replace(agent.turn, active=run.run_id, given_at=now)
    return _put(agent, run, status=RunStatus.QUEUED)


def settle(
    agent: AgentTransaction, run: RunRecord, lease: Lease | None, now: datetime
) -> RunRecord | None:
    """Settle a run, as ``CheckpointStore.settle_run`` promises. Return the next active run."""
    record = replacement(agent, run)
    is_active = agent.turn.active == run.run_id
    if is_active or lease is not None:
        agent.lease.refuse(agent.agent_id, lease, now)
        agent.lease = agent.lease.released()
    agent.schedule(0, Schedule.SWEEP)
    _put(agent, record, delivered=True)
    if run.status is RunStatus.SUCCEEDED:  # any other run can be resumed
        agent.drop_steps(run.run_id)
    if not is_active:
        return None
    agent.turn = replace(agent.turn, active="", given_at=None)
    following = agent.first_in_line(now)
    if following is None or not _must_be_published(agent, following):
        return None
    return _given(agent, following, now)


def _must_be_published(agent: AgentTransaction, run: RunRecord) -> bool:
    """Return False if the message of the first run in line can be expected to arrive by itself."""
    is_overtaken = agent.is_older(run.run_id, than=agent.turn.youngest_blocked)
    return run.status is RunStatus.BLOCKED or is_overtaken


def pass_turn(agent: AgentTransaction, run_id: str, waited: float, now: datetime) -> RunRecord | None:
    """Pass a run over, as ``CheckpointStore.pass_turn`` promises."""
    run, given_at = agent.run(run_id), agent.turn.given_at
    if run is None or agent.turn.active != run_id or run.status is not RunStatus.QUEUED or run.attempts:
        return None
    if given_at is not None and now < given_at + timedelta(seconds=waited):
        return None
    _put(agent, run, passed_over=True)
    following = agent.first_in_line(now)
    if following is None:
        _put(agent, run)
        return None
    return _given(agent, following, now)


def cancel(agent: AgentTransaction, run_id: str, owner: str, ttl: float, now: datetime) -> Lease | None:
    """Cancel a run, as ``CheckpointStore.cancel_run`` promises."""
    run = known_run(agent, run_id)
    # A cancellation whose outcome was not delivered may be repeated.
    if run.is_settled or run.status in (RunStatus.SUCCEEDED, RunStatus.FAILED):
        raise RunOver(agent_id=agent.agent_id, run_id=run_id, status=run.status.value)
    # Released first, so that the lease is granted even while another owner holds it.
    granted = agent.lease.released().granted(agent.agent_id, owner, ttl, now, None)
    _put(agent, run, status=RunStatus.CANCELLED)
    if agent.turn.active != run_id:
        return None
    agent.lease = granted
    return granted.lease(agent.agent_id)


def activity(agent: AgentTransaction, now: datetime) -> AgentActivity:
    """Return the agent's open runs, its active run and its lease."""
    active, runs, (_, count) = agent.turn.active or None, agent.open_runs(), agent.count_runs()
    if not agent.lease.is_held(now):
        return AgentActivity(active=active, open=runs, count=count)
    left = (agent.lease.expires_at - now).total_seconds()
    holder = agent.lease.lease(agent.agent_id)
    return AgentActivity(active=active, open=runs, count=count, holder=holder, seconds_left=left)


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
