"""A run's record is written just before its message is published.

Celery makes the message deep inside ``apply_async`` and tells of it with ``before_task_publish``. The
task says, in a context variable, what is to be done then: ``admit`` a new run, or ``release`` the one
that is retried. The message's own content becomes the record's envelope. Celery's signals swallow
exceptions; a failure here must reach the caller, so it travels as a ``BaseException``.

By the same signal, whatever an async body sends learns whose child it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery.signals import before_task_publish

from celery_ckpt.run.current import current_attempt
from celery_ckpt.runtime.broker.unacked import envelope

#: What to do with the envelope of the message that is about to be published.
Sealed = Callable[[dict[str, Any]], None]

_sending: ContextVar[tuple[str, str, Sealed] | None] = ContextVar("celery_ckpt_sending", default=None)


class _NotSent(BaseException):
    """Carries a failure through Celery's signal."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def sending(task_name: str, serializer: str, sealed: Sealed) -> Iterator[None]:
    """Have ``sealed`` called with the envelope of the next message of that task, before it goes out.

    What ``sealed`` raises is raised here, and the message is not sent.
    """
    token = _sending.set((task_name, serializer, sealed))
    try:
        yield
    except _NotSent as failure:
        raise failure.reason from None
    finally:
        _sending.reset(token)


def _on_publish(sender: str, **message: Any) -> None:
    _name_parent(message["headers"])
    expected = _sending.get()
    if expected is None or expected[0] != sender:
        return
    # Only the next message: others, such as the callbacks of an eager task, are not meant.
    _sending.set(None)
    try:
        expected[2](_envelope_of(message, expected[1]))
    except BaseException as error:
        raise _NotSent(error) from error


def _name_parent(headers: dict[str, Any]) -> None:
    """Celery looks for the task that sends another one in the thread; async bodies have another one."""
    attempt, is_orphan = current_attempt(), headers.get("parent_id", "") is None
    if attempt is not None and is_orphan and headers["id"] != attempt.request.id:
        parent, app = attempt.request, attempt.context.app
        headers.update(parent_id=parent.id, root_id=parent.root_id or parent.id)
        if attempt.task.trail:
            parent.children.append(app.AsyncResult(headers["id"]))


def _envelope_of(message: Mapping[str, Any], serializer: str) -> dict[str, Any]:
    names = ("body", "headers", "properties", "exchange", "routing_key")
    return envelope(serializer=serializer, **{name: message[name] for name in names})


def connect() -> None:
    """Listen to Celery."""
    before_task_publish.connect(_on_publish, weak=False, dispatch_uid="celery_ckpt.sending")
