"""The attempt of an agent that has started and has not ended, for the event log."""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_ckpt.json_values import decode, encode


class OpenAttempt(NamedTuple):
    """The attempt that has started and has not ended, as its lease was renewed last."""

    run_id: str
    number: int
    #: In milliseconds since 1970.
    renewed_at: int
    #: As ``event_log.call_data`` returns it.
    calling: dict[str, Any] | None = None

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        return encode(list(self))

    @classmethod
    def from_bytes(cls, stored: bytes) -> OpenAttempt | None:
        """Return what ``to_bytes`` wrote; ``None`` if there is nothing that can be read."""
        try:
            run_id, number, renewed_at, calling = decode(stored) if stored else (None, 0, 0, None)
            return None if run_id is None else cls(str(run_id), int(number), int(renewed_at), calling)
        except (ValueError, TypeError):
            return None
