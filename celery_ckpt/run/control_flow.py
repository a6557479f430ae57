"""The exceptions that stop a body although it has no error.

All are ``BaseException``, so that an ``except Exception`` of an agent cannot catch them. A task group
may wrap them; ``found`` searches inside.
"""

from __future__ import annotations

from collections.abc import Iterator


class HandOff(BaseException):
    """The run stops here and returns to the queue. Nothing is wrong."""


class Fenced(BaseException):
    """The lease is lost: the attempt stops, and changes nothing any more."""


class Unrecorded(BaseException):
    """The store is unavailable and has no outcome of the attempt, so Celery must not get one either."""


Control = HandOff | Fenced | Unrecorded


def found(error: BaseException) -> Control | None:
    """Return the control flow in an exception, at any depth. ``Fenced`` wins: it forbids saving."""
    inside = list(_control_flow(error))
    return next((one for one in inside if isinstance(one, Fenced)), inside[0] if inside else None)


def _control_flow(error: BaseException) -> Iterator[Control]:
    if isinstance(error, Control):
        yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _control_flow(inner)
