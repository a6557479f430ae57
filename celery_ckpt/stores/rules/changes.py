"""When an agent changes, and what a list shows of it: the rules of the stores that decide in Python.

    what happens                                       does the agent change?
    it is created by a lease, a save, a step or a run  yes
    a run is added                                     yes, unless it has a record
    a run is delivered (``start_run``)                 yes, unless it is settled, deleted or refused
    a run's record is replaced: by ``update_run``,     yes
    a ``save`` or a ``release`` with a run
    a run is settled or cancelled                      yes
    anything else: a save, a step, a renewal, a sweep  no

An agent has the status of its active run, or else of the run that was sent last. The status of an
agent that never had a run is ``IDLE``. ``redis/change_index.py`` and ``lua/agent_note.lua`` are the
same rules for Redis.
"""

from __future__ import annotations

from datetime import datetime

from celery_ckpt.json_values import from_microseconds
from celery_ckpt.records import IDLE, AgentOutline, CheckpointInfo, RunOutline
from celery_ckpt.store import outline_of
from celery_ckpt.stores.rules.event_log import current_call
from celery_ckpt.stores.rules.transaction import AgentTransaction


def change_time(now: int, before: int) -> int:
    """Return when an agent changes that changed at ``before``: a clock that is set back is ignored."""
    return max(now, before + 1)


def status_of(run: RunOutline | None) -> str:
    """Return the status of an agent with this active or last run."""
    return IDLE if run is None else run.status.value


def outline(
    agent: AgentTransaction, run: RunOutline | None, latest: CheckpointInfo | None, now: datetime
) -> AgentOutline | None:
    """Return an agent in one row, given its active or last run and its latest checkpoint.

    ``None`` if it has neither.
    """
    if run is None and latest is None:
        return None
    _, open_runs = agent.count_runs()
    is_open = run is not None and not run.is_settled
    is_held = agent.lease.is_held(now)
    calling = agent.attempt.calling if is_held and agent.attempt else None
    return outline_of(
        agent.agent_id,
        run,
        blocked=open_runs - is_open,
        owner=agent.lease.owner if is_held else None,
        call=current_call(calling) if calling else None,
        iteration=latest.iteration if latest else None,
        checkpointed_at=latest.created_at if latest else None,
        checkpoints=agent.count_checkpoints(),
        changed_at=from_microseconds(agent.changed_at),
    )
