"""``ckpt bench``: measures the speed of the store from this machine.

The measurement uses an agent with a random name, which is deleted even if an operation fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import ParamSpec, TypeVar

import click

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.cli.options import agents_of, json_option, screen_of
from celery_ckpt.cli.output.progress import bar
from celery_ckpt.cli.output.tables import Column
from celery_ckpt.cli.output.text import bytes_of, counted
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import StoreError
from celery_ckpt.messages import Message
from celery_ckpt.records import Step
from celery_ckpt.store import CheckpointStore

P = ParamSpec("P")
R = TypeVar("R")

_LEASE_SECONDS = 60.0
_COLUMNS = (
    Column("operation"),
    Column("median ms", right=True),
    Column("95 % ms", right=True),
    Column("slowest ms", right=True),
    Column("per second", right=True),
)


@click.command("bench")
@click.option("--rounds", type=click.IntRange(1, 100_000), default=200, show_default=True,
              help="How many checkpoints to save.")  # fmt: skip
@click.option("--bytes", "size", type=click.IntRange(2, 10_000_000), default=2_048, show_default=True,
              help="How many bytes each checkpoint adds to the conversation.")  # fmt: skip
@json_option
@click.pass_context
def bench_(ctx: click.Context, rounds: int, size: int, as_json: bool) -> None:
    """Measure the speed of the store.

    Times each operation from this machine, with an agent that is deleted afterwards.
    """
    bench = Bench(agents_of(ctx, may_make_store=True).store, rounds, size)
    with bar("measuring", rounds) as advance:
        timings = bench.run(advance)
    screen = screen_of(ctx, as_json=as_json)
    if as_json:
        screen.json({"rounds": rounds, "bytes": size, "operations": [t.as_object() for t in timings]})
        return
    screen.table(_COLUMNS, [timing.as_row() for timing in timings])
    many, grown = counted(rounds, "round"), bytes_of(rounds * size)
    screen.line(f"{many}, each adding {bytes_of(size)}; load_latest reads up to {grown}.", "dim")


@dataclass
class Timing:
    """The durations of one operation."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """Return the duration that this share of all durations does not exceed."""
        return sorted(self.seconds)[min(int(share * len(self.seconds)), len(self.seconds) - 1)]

    @property
    def rate(self) -> float:
        """Operations per second."""
        return len(self.seconds) / (sum(self.seconds) or 1e-9)

    def as_row(self) -> list[str]:
        """Return the cells of the table."""
        median, most, slowest = (self.quantile(share) * 1000 for share in (0.5, 0.95, 1))
        return [self.name, f"{median:.2f}", f"{most:.2f}", f"{slowest:.2f}", f"{self.rate:,.0f}"]

    def as_object(self) -> dict[str, object]:
        """Return what ``--json`` prints."""
        shares = {"median": 0.5, "p95": 0.95, "slowest": 1.0}
        times = {f"{name}_seconds": self.quantile(share) for name, share in shares.items()}
        return {"name": self.name, **times, "per_second": self.rate}


class Bench:
    """Saves a growing conversation, records steps and loads checkpoints, for an agent of its own."""

    def __init__(self, store: CheckpointStore, rounds: int, size: int) -> None:
        self.agent_id = f"ckpt-bench-{token_hex(8)}"
        self._store, self._rounds, self._size = store, rounds, size
        self._timings: dict[str, Timing] = {}

    def run(self, after_round: Callable[[], object] = lambda: None) -> list[Timing]:
        """Measure each operation once per round, and call ``after_round`` after each round."""
        store, conversation, value = self._store, Conversation(), "x" * self._size
        try:
            for number in range(1, self._rounds + 1):
                lease = self._timed("acquire", store.acquire, self.agent_id, "bench", _LEASE_SECONDS)
                step = Step(agent_id=self.agent_id, run_id="bench", key=str(number), value=value)
                self._timed("record_step", store.record_step, step, lease)
                conversation.append(Message.assistant(token_hex(self._size // 2)))
                checkpoint = Checkpoint.new(self.agent_id, conversation, number)
                self._timed("save", store.save, checkpoint, lease)
                self._timed("load_latest", store.load_latest, self.agent_id)
                self._timed("release", store.release, lease)
                after_round()
        finally:
            with suppress(StoreError):  # the first error says what is wrong
                store.delete(self.agent_id)
        return list(self._timings.values())

    def _timed(self, name: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        begin = time.perf_counter()
        result = call(*args, **kwargs)
        self._timings.setdefault(name, Timing(name)).seconds.append(time.perf_counter() - begin)
        return result
