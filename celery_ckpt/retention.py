"""Which checkpoints may go: a pure decision about an agent's history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.records import CheckpointInfo


@dataclass(frozen=True)
class RetentionPolicy:
    """Keep the newest ``keep`` and nothing older than ``max_age``; ``None`` sets no limit.

    The latest checkpoint of a live agent stays, whatever the limits say: the agent resumes from it.
    """

    keep: int | None = 20
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 0:
            raise ConfigurationError(reason=f"RetentionPolicy(keep={self.keep}): 0 or more, or None.")
        if self.max_age is not None and self.max_age <= timedelta(0):
            raise ConfigurationError(reason=f"RetentionPolicy(max_age={self.max_age}): must be over 0.")

    def expired(
        self, history: Sequence[CheckpointInfo], now: datetime, *, live: bool = True
    ) -> list[CheckpointInfo]:
        """The checkpoints of one agent that may go, newest first.

        Order is the store's (``seq``), not the clock's; only the age limit looks at the clock.
        """
        newest_first = sorted(history, key=lambda info: info.seq, reverse=True)
        return [
            info
            for rank, info in enumerate(newest_first)
            if not (live and rank == 0) and self._is_over(rank, now - info.created_at)
        ]

    def _is_over(self, rank: int, age: timedelta) -> bool:
        too_many = self.keep is not None and rank >= self.keep
        too_old = self.max_age is not None and age > self.max_age
        return too_many or too_old
