"""Control flow inside a body: what stops it without being an error of it.

All are ``BaseException``, so that an agent's own ``except Exception`` cannot eat them. A task group
may wrap them; ``found`` looks inside.
"""

from __future__ import annotations

from collections.abc import Iterator


class HandOff(BaseException):
    """The run stops here and goes back to the queue; nothing is wrong."""


class Fenced(BaseException):
    """Somebody else holds the agent now: stop, and change nothing any more."""


class Unrecorded(BaseException):
    """The store is away, and cannot be told how the attempt ends: nobody else may be told either."""


Control = HandOff | Fenced | Unrecorded


def found(error: BaseException) -> Control | None:
    """The control flow in an exception, however deep in groups. ``Fenced`` wins: it forbids to save."""
    inside = list(_control_flow(error))
    return next((one for one in inside if isinstance(one, Fenced)), inside[0] if inside else None)


def _control_flow(error: BaseException) -> Iterator[Control]:
    if isinstance(error, Control):
        yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _control_flow(inner)
