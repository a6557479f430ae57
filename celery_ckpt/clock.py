"""What time is it? The only reader of the wall clock in the vocabulary and the local stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time; tests bring their own."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        return datetime.now(UTC)


system_clock = SystemClock()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(due_at: datetime) -> int:
    """A point in time as what is stored has it: microseconds since 1970."""
    return (due_at - _EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    """The point in time so many microseconds after 1970. Raises ``ValueError`` if it is no date."""
    try:
        return _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        raise ValueError(f"{microseconds} microseconds after 1970 is no date") from None
