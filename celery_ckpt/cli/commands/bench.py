"""``ckpt bench``: how quick the store is, from here."""

from __future__ import annotations

import click

from celery_ckpt.cli.commands.measuring import Bench, Timing
from celery_ckpt.cli.options import agents_of, json_option, screen_of
from celery_ckpt.cli.output.progress import bar
from celery_ckpt.cli.output.tables import Column
from celery_ckpt.cli.output.text import bytes_of, counted

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
              help="How many bytes each of them adds to the conversation.")  # fmt: skip
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
        screen.json({"rounds": rounds, "bytes": size, "operations": [_as_object(t) for t in timings]})
        return
    screen.table(_COLUMNS, [_row(timing) for timing in timings])
    many, grown = counted(rounds, "round"), bytes_of(rounds * size)
    screen.line(f"{many}, each adding {bytes_of(size)}; load_latest reads up to {grown}.", "dim")


def _row(timing: Timing) -> list[str]:
    median, most, slowest = (timing.quantile(share) * 1000 for share in (0.5, 0.95, 1))
    return [timing.name, f"{median:.2f}", f"{most:.2f}", f"{slowest:.2f}", f"{_rate(timing):,.0f}"]


def _rate(timing: Timing) -> float:
    return len(timing.seconds) / (sum(timing.seconds) or 1e-9)


def _as_object(timing: Timing) -> dict[str, object]:
    shares = {"median": 0.5, "p95": 0.95, "slowest": 1.0}
    times = {f"{name}_seconds": timing.quantile(share) for name, share in shares.items()}
    return {"name": timing.name, **times, "per_second": _rate(timing)}
