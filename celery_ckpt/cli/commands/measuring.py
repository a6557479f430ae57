"""How quick a store is, measured with an agent that is deleted again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import ParamSpec, TypeVar

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import StoreError
from celery_ckpt.messages import Message
from celery_ckpt.records import Step
from celery_ckpt.store import CheckpointStore

P = ParamSpec("P")
R = TypeVar("R")

_LEASE_SECONDS = 60.0


@dataclass
class Timing:
    """How long an operation took, each time."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """So many of the times are not longer."""
        return sorted(self.seconds)[min(int(share * len(self.seconds)), len(self.seconds) - 1)]


class Bench:
    """Saves a growing conversation, records steps and loads, in the name of an agent of its own."""

    def __init__(self, store: CheckpointStore, rounds: int, size: int) -> None:
        self.agent_id = f"ckpt-bench-{token_hex(8)}"
        self._store, self._rounds, self._size = store, rounds, size
        self._timings: dict[str, Timing] = {}

    def run(self, told: Callable[[], object] = lambda: None) -> list[Timing]:
        """Measure; ``told`` is called after each round. The agent is deleted, whatever happens."""
        try:
            self._rounds_of_work(told)
        finally:
            with suppress(StoreError):  # the first error says what is wrong
                self._store.delete(self.agent_id)
        return list(self._timings.values())

    def _rounds_of_work(self, told: Callable[[], object]) -> None:
        conversation = Conversation()
        for number in range(1, self._rounds + 1):
            lease = self._timed("acquire", self._store.acquire, self.agent_id, "bench", _LEASE_SECONDS)
            step = Step(agent_id=self.agent_id, run_id="bench", key=str(number), value="x" * self._size)
            self._timed("record_step", self._store.record_step, step, lease)
            conversation.append(Message.assistant(token_hex(self._size // 2)))
            checkpoint = Checkpoint.new(self.agent_id, conversation, number)
            self._timed("save", self._store.save, checkpoint, lease)
            self._timed("load_latest", self._store.load_latest, self.agent_id)
            self._timed("release", self._store.release, lease)
            told()

    def _timed(self, name: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        begin = time.perf_counter()
        result = call(*args, **kwargs)
        self._timings.setdefault(name, Timing(name)).seconds.append(time.perf_counter() - begin)
        return result
