"""The clock: the only place where the vocabulary and the local stores read the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of the time. Tests use their own."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""
        return datetime.now(UTC)


system_clock = SystemClock()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(time: datetime) -> int:
    """Return a time as it is stored: microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    """Return the time this long after 1970. Raises ``ValueError`` if it is not a date."""
    try:
        return _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        raise ValueError(f"{microseconds} microseconds after 1970 is not a date") from None
