"""The tables: on the terminal, and as docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.budgets import Budget
from benchmarks.fleet import Fleet
from benchmarks.measure import BOUNDS, Figures, Plan
from benchmarks.results import Results

_DASH = "-"
_STYLES = {"ours": "bold green", "naive": "yellow", "limit": "cyan", "peer": "magenta"}


def show(results: Results, console: Console) -> None:
    """Print both tables and what has to be known to read them."""
    table = _table(_head(results.plan), f"Checkpoint stores, {results.machine}")
    for figures in results.figures:
        table.add_row(*_row(figures, results.plan), style=_STYLES[figures.kind])
    console.print(table)
    for line in _remarks(results):
        console.print(f"  {line}", style="dim", highlight=False)
    budgets = _table(_BUDGET_HEAD, "Budgets: ratios measured in this run")
    for budget in results.budgets:
        budgets.add_row(*_budget_row(budget), style="green" if budget.holds else "bold red")
    console.print()
    console.print(budgets)
    console.print(_verdict(results.budgets), highlight=False)
    console.print(fleet_table(results.fleets))


def _table(head: list[str], title: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for number, name in enumerate(head):
        is_text = not number or name == "against"
        heading = name if is_text else name.replace(" ", "\n")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    return table


def _head(plan: Plan) -> list[str]:
    saves = [f"save @{column:,}" for column in plan.columns]
    return ["", *saves, "load latest", "list all", "prune each", "bytes", "x messages"]


def _row(figures: Figures, plan: Plan) -> list[str]:
    times = [figures.save.get(column) for column in plan.columns]
    stored = figures.stored
    return [
        figures.name,
        *(seconds(time) for time in times),
        seconds(figures.load),
        ("> " if figures.list_cut else "") + seconds(figures.list_all),
        seconds(figures.prune),
        size(stored),
        f"{stored / figures.message_bytes:.2f}" if stored else _DASH,
    ]


def _remarks(results: Results) -> list[str]:
    remarks = []
    for figures in results.figures:
        said = "; ".join(part for part in (figures.note, figures.stopped) if part)
        if said:
            remarks.append(f"{figures.name}: {said}.")
    return [*remarks, *(f"{reason}." for reason in results.missing)]


_BUDGET_HEAD = ["what", "against", "ours", "limit", "ratio", "budget", ""]


def _budget_row(budget: Budget) -> list[str]:
    show = seconds if budget.unit == "s" else size
    return [
        budget.what,
        budget.limit_is,
        show(budget.ours),
        show(budget.limit),
        f"{budget.ratio:.2f}",
        f"<= {budget.allowed:g}",
        "OK" if budget.holds else "OVER",
    ]


def _verdict(budgets: list[Budget]) -> str:
    over = [budget.what for budget in budgets if not budget.holds]
    if not over:
        return f"All {len(budgets)} budgets hold."
    return f"{len(over)} of {len(budgets)} budgets are OVER: {', '.join(over)}."


def seconds(value: float | None) -> str:
    """A time with three digits, in the unit that suits it."""
    if value is None:
        return _DASH
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{_three_digits(value * factor)} {unit}"
    return f"{_three_digits(value * 1e6)} µs"


def size(value: float | None) -> str:
    """Bytes with three digits, in the unit that suits them."""
    if value is None:
        return _DASH
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= factor:
            return f"{_three_digits(value / factor)} {unit}"
    return f"{value:.0f} B"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write(results: Results, path: Path, picture: str | None) -> None:
    """Write the page."""
    plan = results.plan
    rows = [_row(figures, plan) for figures in results.figures]
    parts = [
        "# Benchmarks",
        "Written by `make bench`; every number is of one run. Please do not edit it.",
        f"![Time of a save by iteration, and bytes stored]({picture})" if picture else "",
        "## What everybody did",
        _DESCRIPTION.format(plan=plan, bounds=BOUNDS, gigabytes=BOUNDS.stored_bytes / 1e9),
        _markdown(_head(plan), rows),
        "\n".join(f"- {line}" for line in _remarks(results)),
        "## Budgets",
        _ABOUT_BUDGETS,
        _markdown(_BUDGET_HEAD, [_budget_row(budget) for budget in results.budgets]),
        _verdict(results.budgets),
        "## A fleet, and a sweep",
        _ABOUT_FLEETS,
        _fleet_markdown(results.fleets),
        "## Where",
        f"{results.date}, {results.machine}; the run took {results.seconds / 60:.1f} minutes.",
        _markdown(["", "version"], [[name, v] for name, v in results.versions.items()]),
    ]
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---:" if number and name != "against" else "---" for number, name in enumerate(head)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


_DESCRIPTION = """\
One agent; each iteration adds two messages of 1 KB and takes one checkpoint. A save is the median of
those that led to that iteration. `load_latest`, `list` (every checkpoint, whole), `prune` (to the
newest {plan.keep}; per checkpoint removed) and the bytes are taken at iteration {plan.read_at:,}.
Bytes in Redis are the sum of `MEMORY USAGE SAMPLES 0` over all keys, bytes of files their sizes after a
WAL checkpoint. A contender is stopped when one save takes over {bounds.save_seconds:g} s, its saves
took over {bounds.total_seconds:g} s, or it would store over {gigabytes:g} GB; what it did not reach is
a dash. One contender was measured after the other: for small differences see the ratios below."""

_ABOUT_FLEETS = """\
Every agent has 20 checkpoints, each with one message of 100 bytes more than the one before. Memory is
that of the data set as the server reports it. What it means for ten million agents is in
[Keep the store small](howto/prune.md)."""

_ABOUT_BUDGETS = """\
Each ratio comes from a loop that does both things in turn, with the same work before each, so that both
meet the same machine; it is the median over blocks of rounds. The limits do only a part of the work: no
order, no atomicity, no lease, no header."""


# -- the fleet -----------------------------------------------------------------------------------------

_FLEET_ROWS: tuple[tuple[str, Callable[[Fleet], str]], ...] = (
    ("agents, with 20 checkpoints each", lambda one: f"{one.agents:,}"),
    ("a sweep that prunes all of them to 2", lambda one: seconds(one.sweep)),
    ("for each checkpoint that it removes", lambda one: seconds(one.each)),
    ("the same removed by a pipelined HDEL", lambda one: seconds(one.bare_each)),
    ("ratio (budget: 2)", lambda one: f"{one.ratio:.2f}"),
    ("the next sweep, which has nothing to do", lambda one: seconds(one.idle_sweep)),
    ("a sweep of an empty store", lambda one: seconds(one.idle_empty)),
    ("time of the server's processor, for each agent", lambda one: seconds(one.server_each)),
    ("longest wait of another client meanwhile", lambda one: seconds(one.longest_stall)),
    ("the same, while nobody sweeps", lambda one: seconds(one.longest_stall_before)),
    ("longest script, by the server's slow log", lambda one: seconds(one.longest_script)),
    ("memory of an agent", lambda one: size(one.agent_bytes)),
    ("memory that goes with a checkpoint's record", lambda one: size(one.checkpoint_bytes)),
)


def fleet_table(fleets: list[Fleet]) -> Table:
    """The fleet, for a terminal."""
    table = _table(["", *(one.where for one in fleets)], "A fleet, and a sweep")
    for what, show_one in _FLEET_ROWS:
        table.add_row(what, *map(show_one, fleets))
    return table


def _fleet_markdown(fleets: list[Fleet]) -> str:
    rows = [[what, *map(show_one, fleets)] for what, show_one in _FLEET_ROWS]
    return _markdown(["", *(one.where for one in fleets)], rows)
