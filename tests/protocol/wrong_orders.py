"""Orders that are wrong on purpose, each in the place of what the library does: all are to be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.exceptions import Ignore

from celery_ckpt.errors import RunOver
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.runtime.agents.cancellation import _settle as settle_cancelled
from celery_ckpt.runtime.attempt.backend import store_cancelled
from celery_ckpt.runtime.attempt.execution import _finished as finished
from celery_ckpt.runtime.attempt.settlement import publish_next, settle
from celery_ckpt.runtime.broker.publisher import before_publish, publish
from celery_ckpt.runtime.process.context import AppContext
from tests.protocol.scenarios import OPERATOR, Given
from tests.protocol.schedules import CRASH, JUMP, REDELIVER


def _send_before_it_is_released(attempt: Any, run: Any, reason: str) -> BaseException:
    released = attempt.run_record.model_copy(update={"status": RunStatus.QUEUED})
    publish(attempt.context.app, released.envelope, has_begun=True, instead_of=attempt.held.tag)
    attempt.release(released, 5.0)
    return Ignore("handed off")


def _settle_before_celery_has_it(attempt: Any, run: Any, value: Any) -> Any:
    finished(attempt, run, value)
    settle(attempt)
    return value


@contextmanager
def _publish_before_it_is_recorded(
    task_name: str, serializer: str, action: Callable[[dict[str, Any]], None]
) -> Iterator[None]:
    envelopes: list[dict[str, Any]] = []
    with before_publish(task_name, serializer, envelopes.append):
        yield
    action(envelopes[0])


def _count_in_the_message_alone(attempt: Any, envelope: Any, retries: int, delay: float) -> None:
    changes = {"status": RunStatus.QUEUED, "envelope": envelope}
    attempt.release(attempt.run_record.model_copy(update=changes), delay + 30)


def _settle_and_watch_no_more(attempt: Any) -> None:
    context, record = attempt.context, attempt.run_record
    following = context.store.settle_run(record, attempt.held.lease)
    if following is None:
        context.lease_renewer.unschedule(record.agent_id, attempt.due_at)
    publish_next(context, following)


def _tell_before_it_is_on_record(context: AppContext, run: RunRecord) -> bool:
    store_cancelled(context.app, run)
    try:
        lease = context.store.cancel_run(run.agent_id, run.run_id, context.owner, 10.0)
    except RunOver:
        return False
    settle_cancelled(context, run, lease)
    return True


def _settle_before_it_is_told(context: AppContext, run: RunRecord, lease: Any) -> None:
    cancelled = context.store.run(run.agent_id, run.run_id)
    if cancelled is not None:
        publish_next(context, context.store.settle_run(cancelled, lease))
    store_cancelled(context.app, run)


#: What is wrong: what is done instead of what, in which plan, with what before the one thing between,
#: and what comes of it.
BROKEN: dict[str, tuple[tuple[str, Callable[..., Any]], str, Given, str]] = {
    "a message is published before its run is on record": (
        ("celery_ckpt.runtime.task.admission.before_publish", _publish_before_it_is_recorded),
        "one run",
        # The caller dies between both. A worker that takes the message may die with it, too.
        (("add_run", CRASH),),
        "nobody hears of",
    ),
    "a hand-off is published before the lease is free": (
        ("celery_ckpt.runtime.attempt.execution._handed_off", _send_before_it_is_released),
        "handed off after each iteration",
        (),
        "waits: ",
    ),
    "a run is settled before Celery has its result": (
        ("celery_ckpt.runtime.attempt.execution._finished", _settle_before_celery_has_it),
        "one run",
        (),
        "nobody hears of",
    ),
    "whoever lost the lease goes on writing": (
        ("celery_ckpt.stores.rules.leases.LeaseState.refuse", lambda *_: None),
        "one run",
        (("record_step", JUMP),),
        "accepted of somebody who had lost the lease",
    ),
    "a duplicate is dropped although nobody could send it again": (
        ("celery_ckpt.runtime.attempt.start._duplicate", lambda *_: Ignore("somebody works on it")),
        "deleted",
        # A worker has made the record anew, and has not put the message into it.
        (
            ("take a message", OPERATOR),
            ("ask for the state", REDELIVER),
            ("ask for the state", "second"),
        ),
        "not settled",
    ),
    "a run that waits is dropped although nobody could send it": (
        ("celery_ckpt.runtime.attempt.start._nothing_to_do", lambda *_: Ignore("it waits")),
        "deleted",
        # The second run is recorded, and deleted with the first; its message comes when another works.
        (("take a message", OPERATOR), ("ask for the state", "second")),
        "not settled",
    ),
    "an agent is watched no more although a run was never sent": (
        ("celery_ckpt.runtime.attempt.settlement.settle", _settle_and_watch_no_more),
        "two runs of one agent",
        (),
        "not settled",
    ),
    "a retry is published before the lease is free": (
        ("celery_ckpt.runtime.task.admission.before_publish", _publish_before_it_is_recorded),
        "tried again at once",
        (),
        "waits: ",
    ),
    "a retry is counted in its message alone": (
        ("celery_ckpt.runtime.task.admission._release", _count_in_the_message_alone),
        "tried again until it fails",
        (),
        "was tried too often",
    ),
    "a retry is told when the run was cancelled, and nobody looks again": (
        ("celery_ckpt.runtime.attempt.settlement.store_outcome_again", lambda attempt: None),
        "cancelled while it is tried again",
        (),
        "cancelled, RETRY, retries 1. is told otherwise",
    ),
    "a cancellation is told before it is on record": (
        ("celery_ckpt.runtime.agents.cancellation._cancel", _tell_before_it_is_on_record),
        "cancelled at work while another waits",
        (),
        "told to be REVOKED, and then SUCCESS",
    ),
    "a cancelled run is settled before it is told": (
        ("celery_ckpt.runtime.agents.cancellation._settle", _settle_before_it_is_told),
        "cancelled at work while another waits",
        (),
        "nobody hears of",
    ),
}
