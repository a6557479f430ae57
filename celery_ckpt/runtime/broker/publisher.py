"""Publishing the messages of runs, and doing something with a message just before it is published.

The record of a run must be written before its message is published, and the record contains the
message. Celery makes the message deep inside ``apply_async`` and sends ``before_task_publish`` with
its parts. ``before_publish`` names, in a context variable, what is done at that point: add a new run,
or release one that is retried. Celery's signals swallow exceptions. A failure here must reach the
caller, so it is raised as a ``BaseException``.

The same signal gives the messages that an async body sends their parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery import Celery
from celery.app.task import Task
from celery.signals import before_task_publish

from celery_ckpt.runtime.broker.envelope import (
    BEGUN_HEADER,
    RECORDED_HEADER,
    address_of,
    envelope,
    may_have_begun,
    payload_of,
    reading_envelope,
)
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.runtime.current import current_attempt

#: Headers that do not apply to a run any more once it has begun.
_ONLY_BEFORE_THE_START = ("eta", "expires")
#: Called with the envelope of the message that is about to be published.
Action = Callable[[dict[str, Any]], None]

_expected: ContextVar[tuple[str, str, Action] | None] = ContextVar("celery_ckpt_publish", default=None)


class _NotPublished(BaseException):
    """Carries a failure through Celery's signal."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason


def publish(app: Celery, envelope: Mapping[str, Any], *, has_begun: bool, instead_of: str = "") -> None:
    """Publish a run's message again, under its own task id.

    ``instead_of`` is the delivery tag of a message that the new one replaces.

    Raises:
        StoreError: the stored envelope is damaged.
    """
    with reading_envelope():
        headers = {**envelope["headers"], RECORDED_HEADER: True}
        if has_begun:
            headers.update(dict.fromkeys(_ONLY_BEFORE_THE_START))
            headers[BEGUN_HEADER] = True
        properties = dict(envelope["properties"])
        exchange, routing_key = address_of(envelope)
        with app.producer_or_acquire() as producer:
            producer.publish(
                payload_of(envelope),
                headers=headers,
                exchange=exchange,
                routing_key=routing_key,
                content_type=envelope["content_type"],
                content_encoding=envelope["content_encoding"],
                retry=True,
                retry_policy=app.conf.task_publish_retry_policy,
                **properties,
            )
            if instead_of:
                # The worker that received it may die before it acknowledges it.
                Unacked(producer.connection).drop(instead_of)


def publish_later(task: Any, seconds: float, *, has_begun: bool = False) -> None:
    """Publish the request that a task is executing again, with a delay. This does not use the store.

    ``has_begun``: an attempt has begun the run, so it is on record.
    """
    request = task.request
    copy = task.signature_from_request(request, retries=request.retries, countdown=seconds)
    headers = dict(copy.options.get("headers") or {})
    if has_begun:
        headers[RECORDED_HEADER] = True
    if has_begun or may_have_begun(request):
        headers[BEGUN_HEADER] = True  # the copy is not a redelivered message
    copy.options["headers"] = headers
    Task.apply_async(task, copy.args, copy.kwargs, **copy.options)


@contextmanager
def before_publish(task_name: str, serializer: str, action: Action) -> Iterator[None]:
    """Call ``action`` with the envelope of the next message of this task, before it is published.

    If ``action`` raises, the message is not published, and the exception is raised here.
    """
    token = _expected.set((task_name, serializer, action))
    try:
        yield
    except _NotPublished as failure:
        raise failure.reason from None
    finally:
        _expected.reset(token)


def _on_publish(sender: str, **message: Any) -> None:
    _set_parent(message["headers"])
    expected = _expected.get()
    if expected is None or expected[0] != sender:
        return
    # Only the next message: not those of the callbacks of an eager task, for instance.
    _expected.set(None)
    _, serializer, action = expected
    names = ("body", "headers", "properties", "exchange", "routing_key")
    try:
        action(envelope(serializer=serializer, **{name: message[name] for name in names}))
    except BaseException as error:
        raise _NotPublished(error) from error


def _set_parent(headers: dict[str, Any]) -> None:
    """Celery finds the parent of a message by thread, and an async body runs in another thread."""
    attempt, is_orphan = current_attempt(), headers.get("parent_id", "") is None
    if attempt is not None and is_orphan and headers["id"] != attempt.request.id:
        parent, app = attempt.request, attempt.context.app
        headers.update(parent_id=parent.id, root_id=parent.root_id or parent.id)
        if attempt.task.trail:
            parent.children.append(app.AsyncResult(headers["id"]))


def connect() -> None:
    """Connect to Celery's signals."""
    before_task_publish.connect(_on_publish, weak=False, dispatch_uid="celery_ckpt.publisher")
