"""Wrong orders that replace those of the library, one at a time. The exploration must find each
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.exceptions import Ignore

from celery_ckpt.errors import RunOver
from celery_ckpt.records import RunRecord, RunStatus, Schedule
from celery_ckpt.runtime.agents.cancellation import _settle as settle_cancelled
from celery_ckpt.runtime.attempt.backend import store_cancelled
from celery_ckpt.runtime.attempt.execution import _finished as finished
from celery_ckpt.runtime.attempt.settlement import publish_next, settle
from celery_ckpt.runtime.broker.publisher import before_publish, publish
from celery_ckpt.runtime.process.context import AppContext
from tests.protocol.scenarios import OPERATOR, Given
from tests.protocol.schedules import CRASH, JUMP, REDELIVER


def _publish_before_release(attempt: Any, run: Any, reason: str) -> BaseException:
    released = attempt.run_record.model_copy(update={"status": RunStatus.QUEUED})
    publish(attempt.context.app, released.envelope, has_begun=True, instead_of=attempt.held.tag)
    attempt.release(released, 5.0, "handed_off")
    return Ignore("handed off")


def _settle_before_result_is_stored(attempt: Any, run: Any, value: Any) -> Any:
    finished(attempt, run, value)
    settle(attempt)
    return value


@contextmanager
def _publish_before_recording(
    task_name: str, serializer: str, action: Callable[[dict[str, Any]], None]
) -> Iterator[None]:
    envelopes: list[dict[str, Any]] = []
    with before_publish(task_name, serializer, envelopes.append):
        yield
    action(envelopes[0])


def _count_only_in_message(attempt: Any, envelope: Any, retries: int, eta: Any) -> None:
    changes = {"status": RunStatus.QUEUED, "eta": eta, "envelope": envelope}
    attempt.release(attempt.run_record.model_copy(update=changes), 30, "retried")


def _schedule_later(store: Any, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
    store._schedules[on][agent_id] = due_at = store._now() + round(after * 1_000_000)
    return int(due_at)


def _settle_and_unschedule(attempt: Any) -> None:
    context, record = attempt.context, attempt.run_record
    following = context.store.settle_run(record, attempt.held.lease)
    if following is None:
        context.lease_renewer.unschedule(attempt.held)
    publish_next(context, following)


def _report_before_recording(context: AppContext, run: RunRecord, log: Any) -> bool:
    store_cancelled(context.app, run)
    try:
        lease = context.store.cancel_run(run.agent_id, run.run_id, context.owner, 10.0)
    except RunOver:
        return False
    settle_cancelled(context, run, lease)
    return True


def _settle_before_reporting(context: AppContext, run: RunRecord, lease: Any) -> None:
    cancelled = context.store.run(run.agent_id, run.run_id)
    if cancelled is not None:
        publish_next(context, context.store.settle_run(cancelled, lease))
    store_cancelled(context.app, run)


def _schedule_blindly(renewer: Any, renewed: list[Any]) -> None:
    for held in renewed:
        held.due_at = renewer._store.schedule(held.lease.agent_id, renewer._ttl)


def _only_the_active_run_goes_first(agent: Any, other: RunRecord, run: RunRecord) -> bool:
    return other.run_id == agent.turn.active != run.run_id


#: Each wrong order: its replacement and what it replaces, the plan, the deviations that precede the one
#: that is explored, and the violation that must be found.
BROKEN: dict[str, tuple[tuple[str, Callable[..., Any]], str, Given, str]] = {
    "a message is published before its run is recorded": (
        ("celery_ckpt.runtime.task.admission.before_publish", _publish_before_recording),
        "one run",
        # The caller dies between the two. A worker that takes the message may die with it as well.
        (("add_run", CRASH),),
        "outcome never stored",
    ),
    "a hand-off is published before the lease is released": (
        ("celery_ckpt.runtime.attempt.execution._handed_off", _publish_before_release),
        "handed off after each iteration",
        (),
        "waits: ",
    ),
    "a run is settled before Celery has its result": (
        ("celery_ckpt.runtime.attempt.execution._finished", _settle_before_result_is_stored),
        "one run",
        (),
        "outcome never stored",
    ),
    "a process that lost the lease continues to write": (
        ("celery_ckpt.stores.rules.leases.LeaseState.refuse", lambda *_: None),
        "one run",
        (("record_step", JUMP),),
        "accepted from a process that had lost the lease",
    ),
    "a duplicate is dropped although no other process can publish it again": (
        ("celery_ckpt.runtime.attempt.start._duplicate", lambda *_: Ignore("another worker has it")),
        "lost",
        # A worker has created the record again, and has not stored the message in it.
        (
            ("take a message", OPERATOR),
            ("read the state", REDELIVER),
            ("read the state", "second"),
        ),
        "not settled",
    ),
    "a blocked run is dropped although no other process can publish it": (
        ("celery_ckpt.runtime.attempt.start._nothing_to_do", lambda *_: Ignore("it waits")),
        "lost",
        # The second run is recorded, and lost with the first; its message arrives while another run is
        # active.
        (("take a message", OPERATOR), ("read the state", "second")),
        "not settled",
    ),
    "a deletion leaves no markers": (
        ("celery_ckpt.stores.rules.deletion.delete", lambda agent, remember: agent.delete()),
        "deleted while it is retried",
        (),
        "deleted and back",
    ),
    "the state of a deleted run is not corrected after a late STARTED": (
        ("celery_ckpt.runtime.attempt.settlement.store_deleted_if_missing", lambda *_: None),
        "deleted while it is retried",
        # The message of the retry is lost with its worker, which would correct the state too.
        (("record it as unacknowledged", CRASH),),
        "outcome never stored",
    ),
    "the loss of a record is not reported": (
        ("celery_ckpt.runtime.attempt.execution._lost", lambda *_: None),
        "lost while running",
        (),
        "outcome never stored",
    ),
    "a run whose record was lost begins again although it had begun": (
        ("celery_ckpt.runtime.attempt.start.may_have_begun", lambda request: False),
        "lost while it is retried",
        (),
        "was repeated although it was recorded",
    ),
    "an agent is unscheduled although one of its runs was never published": (
        ("celery_ckpt.runtime.attempt.settlement.settle", _settle_and_unschedule),
        "two runs of one agent",
        (),
        "not settled",
    ),
    "a run begins before an older one that is due": (
        ("celery_ckpt.stores.rules.turns._goes_first", _only_the_active_run_goes_first),
        "a younger run is delivered first",
        (),
        "begun in another order",
    ),
    "an older run gets the turn, and is not published": (
        ("celery_ckpt.runtime.attempt.start.publish_next", lambda *_: None),
        "the first message is lost",
        (),
        "waits: ",
    ),
    "a run that no worker begins is never passed over": (
        ("celery_ckpt.runtime.worker.watchdog.Watchdog._is_passed_over", lambda *_: False),
        "no worker takes the first message",
        (),
        "it does not end",
    ),
    "a renewal moves a deadline without comparing it": (
        ("celery_ckpt.runtime.process.lease_renewer.LeaseRenewer._move_deadlines", _schedule_blindly),
        "renewed late",
        (),
        "moved a deadline that another process had set",
    ),
    "a retry is published before the lease is released": (
        ("celery_ckpt.runtime.task.admission.before_publish", _publish_before_recording),
        "retried immediately",
        (),
        "waits: ",
    ),
    "each delivery of a blocked run puts off the check of the active one": (
        ("celery_ckpt.stores.memory.MemoryCheckpointStore.schedule", _schedule_later),
        "lost",
        (("take a message", OPERATOR),),
        "it does not end",
    ),
    "a retry is counted only in its message": (
        ("celery_ckpt.runtime.task.admission._release", _count_only_in_message),
        "retried until it fails",
        (),
        "was attempted too often",
    ),
    "a retry is stored after the run was cancelled, and the state is not checked again": (
        ("celery_ckpt.runtime.attempt.settlement.store_outcome_again", lambda attempt: None),
        "cancelled while it is retried",
        (),
        "cancelled, RETRY, retries 1. has another state in Celery",
    ),
    "a cancellation is reported before it is recorded": (
        ("celery_ckpt.runtime.agents.cancellation._cancel", _report_before_recording),
        "cancelled while running and another run is blocked",
        (),
        "reported as REVOKED, then as SUCCESS",
    ),
    "a cancelled run is settled before it is reported": (
        ("celery_ckpt.runtime.agents.cancellation._settle", _settle_before_reporting),
        "cancelled while running and another run is blocked",
        (),
        "outcome never stored",
    ),
}
