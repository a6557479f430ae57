"""What the runtime logs: one fixed phrase for each event, and whom it is about in a fixed place.

    Run handed off: agent=user-7 task=tasks.research run=5e1c0b2e iteration=3 reason=the worker ...

What is not known at a place is ``-``. An error or a reason comes last, since it may hold spaces.
"""

from __future__ import annotations

from typing import Any

from celery_ckpt.records import RunRecord
from celery_ckpt.runtime.broker.envelope import agent_id_of

#: Agent, task and run, as they stand in a line.
Identity = tuple[str, str, str]
UNKNOWN = "-"
_OF = "agent=%s task=%s run=%s"

RESUMED = f"Run resumed: {_OF} attempt=%d iteration=%d steps=%d"
HANDED_OFF = f"Run handed off: {_OF} iteration=%s reason=%s"
CANNOT_START = f"Run cannot start yet and is tried again: {_OF} error=%s"
CANNOT_CONTINUE = f"Run cannot continue on this worker and was requeued: {_OF} error=%s"
LEASE_LOST = f"Run lost its lease, and this attempt stops: {_OF} attempt=%d"
LEASE_NOT_RELEASED = f"Run could not release its lease, which expires by itself: {_OF} error=%s"
LEASE_NOT_RENEWED = f"Run could not renew its lease: {_OF} error=%s"
NOT_RECORDED = f"Run outcome could not be recorded, and the run is sent again: {_OF} error=%s"
ENDED_NOT_RECORDED = f"Run was ended, but this could not be recorded: {_OF} status=%s error=%s"
NOT_PUBLISHED = f"Run could not be sent, and the watchdog will send it: {_OF} error=%s"
NOT_PUT_OFF = f"Run could not be sent, and the broker keeps its message: {_OF} error=%s"
NOT_SETTLED = f"Run could not be settled, and the watchdog will settle it: {_OF} error=%s"
SETTLED_ELSEWHERE = f"Run was settled by another process: {_OF}"
STATE_NOT_STORED = f"Run state could not be stored in the result backend: {_OF} state=%s error=%s"
RESULT_NOT_READ = f"Run result could not be read from the result backend: {_OF} error=%s"
MESSAGE_DAMAGED = (
    f"Run was cancelled, but its chord is not told, as its message is damaged: {_OF} error=%s"
)
WORKER_LOST = f"Run lost its worker and was requeued: {_OF} attempt=%d"
REQUEUED = f"Run was sent again: {_OF} attempt=%d status=%s"
PREFETCHED_LOST = f"Run was fetched by a worker that is lost, and was requeued: {_OF}"
CHECKPOINT_NOT_SAVED = f"Checkpoint could not be saved: {_OF} iteration=%d error=%s"
STEP_CHANGED = f"Step changed since it was recorded, and is called again: {_OF} iteration=%d step=%s"
COST_NOT_COMPUTED = f"Cost of a call could not be computed by ckpt_cost: {_OF} error=%s"
EVENT_NOT_SENT = f"Event could not be sent: {_OF} event=%s error=%s"
AGENT_NOT_CHECKED = f"Agent could not be looked after by the watchdog: {_OF} error=%s"
AGENT_NOT_PRUNED = f"Agent could not be pruned: {_OF} error=%s"
AGENT_HALF_DELETED = f"Agent was deleted, but some of its runs could not be ended: {_OF} error=%s"


def identity(run: RunRecord) -> Identity:
    """Whom a line about a run is about."""
    return shown(run.agent_id), shown(run.task), shown(run.run_id)


def identity_of_request(task: Any) -> Identity:
    """The same of what was delivered, when there is no record yet."""
    return shown(agent_id_of(task.request)), shown(task.name), shown(task.request.id)


def identity_of_agent(agent_id: str) -> Identity:
    """The same of an agent as a whole."""
    return shown(agent_id), UNKNOWN, UNKNOWN


def shown(name: object) -> str:
    """A name in a line. It may hold anything, and must not look like another field or line."""
    text = str(name or UNKNOWN)
    is_plain = text.isprintable() and " " not in text and "=" not in text
    return text if is_plain else repr(text)
