r"""Whose turn it is: the rules, for the stores that decide in Python.

    queued --start--> running --release--> queued --start--> ...
       |                 \--save/update--> finished --settle--> settled, and the next one's turn
       \--start, while another run is active--> blocked --the other is settled--> queued

An agent has one active run, from its first attempt until it is settled. ``lua/run_start.lua``,
``lua/run_settle.lua`` and ``lua/run_cancel.lua`` say the same for Redis.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from celery_ckpt.errors import RunNotFound, RunOver
from celery_ckpt.records import AgentActivity, Lease, RunRecord, RunStatus, StartResult
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.usage import Usage


class Desk(Protocol):
    """What there is of one agent's runs, while nobody else can change it."""

    agent_id: str
    lease: LeaseState
    #: The id of the run whose turn it is; empty: none's.
    active: str

    def run(self, run_id: str) -> RunRecord | None:
        """A run's record."""
        ...

    def put(self, run: RunRecord) -> None:
        """Add a run's record, or replace it."""
        ...

    def open_runs(self) -> list[RunRecord]:
        """The runs that are not settled, in the order in which they were added."""
        ...

    def progress(self) -> str:
        """A text that changes whenever a checkpoint is saved or a step recorded."""
        ...

    def drop_steps_of(self, run_id: str) -> None:
        """Forget the steps of a run."""
        ...


def start(
    desk: Desk, run: RunRecord, owner: str, ttl: float, now: datetime, over: Lease | None
) -> StartResult:
    """See ``CheckpointStore.start_run``."""
    known = desk.run(run.run_id)
    record = known or run
    if record.is_settled:
        return StartResult(run=record)
    if not record.status.is_final and desk.active not in ("", run.run_id):
        waiting = {"status": RunStatus.BLOCKED, "delivery": run.delivery}
        return StartResult(run=_put(desk, record, **waiting))
    desk.lease = desk.lease.granted(desk.agent_id, owner, ttl, now, over)
    if not record.status.is_final:
        desk.active = run.run_id
        record = _put(desk, record, **_attempt(record, run.delivery, desk.progress()))
    elif known is None:
        desk.put(record)
    return StartResult(run=record, lease=desk.lease.lease(desk.agent_id))


def _attempt(record: RunRecord, delivery: str, progress: str) -> dict[str, Any]:
    # Nobody wrote the end of the attempt before, and it has left nothing behind: it stalled.
    is_stalled = record.status is RunStatus.RUNNING and record.progress == progress
    return {
        "status": RunStatus.RUNNING,
        "attempts": record.attempts + 1,
        "stalled": record.stalled + 1 if is_stalled else 0,
        "progress": progress,
        "delivery": delivery,
    }


def settle(desk: Desk, run: RunRecord, lease: Lease | None, now: datetime) -> RunRecord | None:
    """See ``CheckpointStore.settle_run``."""
    is_active = desk.active == run.run_id
    refuse_unknown(desk, run)
    if is_active or lease is not None:
        desk.lease.refuse(desk.agent_id, lease, now)
        desk.lease = desk.lease.released()
    _put(desk, with_usage(desk, run), delivered=True)
    if run.status is RunStatus.SUCCEEDED:  # others may be resumed by hand
        desk.drop_steps_of(run.run_id)
    return _turn_of_next(desk) if is_active else None


def _turn_of_next(desk: Desk) -> RunRecord | None:
    waiting = (run for run in desk.open_runs() if run.status is RunStatus.BLOCKED)
    following = next(waiting, None)
    desk.active = following.run_id if following else ""
    return following and _put(desk, following, status=RunStatus.QUEUED)


def cancel(desk: Desk, run_id: str, owner: str, ttl: float, now: datetime) -> Lease | None:
    """See ``CheckpointStore.cancel_run``."""
    run = desk.run(run_id)
    if run is None:
        raise RunNotFound(agent_id=desk.agent_id, run_id=run_id)
    # A cancellation that was not delivered may be repeated.
    if run.is_settled or run.status in (RunStatus.SUCCEEDED, RunStatus.FAILED):
        raise RunOver(agent_id=desk.agent_id, run_id=run_id, status=run.status.value)
    # Freed for a moment, so that it is given whoever held it.
    granted = desk.lease.released().granted(desk.agent_id, owner, ttl, now, None)
    _put(desk, run, status=RunStatus.CANCELLED)
    if desk.active != run_id:
        return None
    desk.lease = granted
    return granted.lease(desk.agent_id)


def refuse_unknown(desk: Desk, run: RunRecord | None) -> None:
    """Raise ``RunNotFound`` for a run that was never added."""
    if run is not None and desk.run(run.run_id) is None:
        raise RunNotFound(agent_id=desk.agent_id, run_id=run.run_id)


def activity(desk: Desk, now: datetime) -> AgentActivity:
    """See ``CheckpointStore.standing``."""
    active, runs = desk.active or None, desk.open_runs()
    if not desk.lease.is_held(now):
        return AgentActivity(active=active, open=runs)
    left = (desk.lease.expires_at - now).total_seconds()
    holder = desk.lease.lease(desk.agent_id)
    return AgentActivity(active=active, open=runs, holder=holder, seconds_left=left)


def with_usage(desk: Desk, run: RunRecord) -> RunRecord:
    """A record that is to replace another one, with the usage that is there."""
    known = desk.run(run.run_id)
    if known is None or known.usage == run.usage:
        return run
    return run.model_copy(update={"usage": known.usage})


def pay(desk: Desk, run_id: str, paid: Usage | None) -> bool:
    """Raise the usage of a run; says whether there was anything to raise."""
    run = desk.run(run_id) if paid else None
    if run is None or paid is None:
        return False
    desk.put(run.model_copy(update={"usage": run.usage + paid}))
    return True


def _put(desk: Desk, run: RunRecord, **changes: Any) -> RunRecord:
    changed = run.model_copy(update=changes)
    desk.put(changed)
    return changed
