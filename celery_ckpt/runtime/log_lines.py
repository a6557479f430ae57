"""What the runtime logs: one fixed phrase for each event, with agent, task and run in a fixed place.

    Run handed off: agent=user-7 task=tasks.research run=5e1c0b2e iteration=3 reason=the worker ...

An unknown value is ``-``. An error or a reason comes last, because it may contain spaces. The table in
docs/howto/monitor.md lists every phrase; a test compares them.
"""

from __future__ import annotations

from typing import Any

from celery_ckpt.records import RunRecord
from celery_ckpt.runtime.broker.envelope import agent_id_of

#: Agent, task and run, as a line shows them.
Identity = tuple[str, str, str]
UNKNOWN = "-"
_RUN = "agent=%s task=%s run=%s"

RESUMED = f"Run resumed: {_RUN} attempt=%d iteration=%d steps=%d"
HANDED_OFF = f"Run handed off: {_RUN} iteration=%s reason=%s"
DELETED = f"Run was deleted with its agent and its message is dropped: {_RUN}"
CANNOT_START = f"Run cannot start yet and will be retried: {_RUN} error=%s"
CANNOT_CONTINUE = f"Run cannot continue on this worker and was requeued: {_RUN} error=%s"
LEASE_LOST = f"Run lost its lease and this attempt stops: {_RUN} attempt=%d"
LEASE_NOT_RELEASED = f"Could not release the lease, which will expire: {_RUN} error=%s"
LEASE_NOT_RENEWED = f"Could not renew the lease: {_RUN} error=%s"
NOT_RECORDED = f"Could not record the outcome; the run is published again: {_RUN} error=%s"
ENDED_NOT_RECORDED = f"Could not record the end of the run: {_RUN} status=%s error=%s"
NOT_PUBLISHED = f"Could not publish the run; the watchdog will requeue it: {_RUN} error=%s"
NOT_PUT_OFF = f"Could not publish the run; the broker keeps its message: {_RUN} error=%s"
NOT_SETTLED = f"Could not settle the run; the watchdog will retry: {_RUN} error=%s"
SETTLED_ELSEWHERE = f"Run was settled by another process: {_RUN}"
STATE_NOT_STORED = f"Could not store the state in the result backend: {_RUN} state=%s error=%s"
RESULT_NOT_READ = f"Could not read the state from the result backend: {_RUN} error=%s"
MESSAGE_DAMAGED = (
    f"Could not notify the chord of the cancelled run because its message is damaged: {_RUN} error=%s"
)
WORKER_LOST = f"Run lost its worker and was requeued: {_RUN} attempt=%d"
REQUEUED = f"Run was requeued: {_RUN} attempt=%d status=%s"
PASSED_OVER = f"Run was passed over, because no worker has begun it: {_RUN} next=%s"
PREFETCHED_LOST = f"Run was prefetched by a lost worker and was requeued: {_RUN}"
CHECKPOINT_NOT_SAVED = f"Could not save a checkpoint: {_RUN} iteration=%d error=%s"
STEP_CHANGED = f"Step changed since it was recorded and is called again: {_RUN} iteration=%d step=%s"
CHANGED_STEP_REPLAYED = (
    f"Step changed since it was recorded and its record is used: {_RUN} iteration=%d step=%s"
)
COST_NOT_COMPUTED = f"Could not compute the usage or cost of a call: {_RUN} error=%s"
EVENT_NOT_SENT = f"Could not send an event: {_RUN} event=%s error=%s"
AGENT_NOT_CHECKED = f"Watchdog could not check the agent: {_RUN} error=%s"
AGENT_NOT_PRUNED = f"Could not prune the agent: {_RUN} error=%s"
AGENT_HALF_DELETED = f"Agent was deleted, but some of its runs could not be cancelled: {_RUN} error=%s"


def identity(run: RunRecord) -> Identity:
    """Return agent, task and run of a record."""
    return shown(run.agent_id), shown(run.task), shown(run.run_id)


def identity_of_request(task: Any) -> Identity:
    """Return agent, task and run of a delivery that may not have a record yet."""
    return shown(agent_id_of(task.request)), shown(task.name), shown(task.request.id)


def identity_of_agent(agent_id: str) -> Identity:
    """Return the identity of an agent, without a run."""
    return shown(agent_id), UNKNOWN, UNKNOWN


def shown(name: object) -> str:
    """Return a name for a log line, quoted if it could be taken for another field or line."""
    text = str(name or UNKNOWN)
    is_plain = text.isprintable() and " " not in text and "=" not in text
    return text if is_plain else repr(text)
