"""What a person sees: both sides, side by side or as lines; then the bill; and a picture in a file.

The screen needs 80 columns. Where there is no such terminal, as in a pipe, the show is printed as
lines.
"""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from celery_ckpt.demo.ledger import End, Event, Payment, Story
from celery_ckpt.demo.research import (
    DOLLARS_IN,
    DOLLARS_OUT,
    ITERATIONS,
    LEASE,
    SOFT_SHUTDOWN,
    VISIBILITY,
)
from celery_ckpt.demo.stage import DURABLE, KILLED_IN, STOPPED_IN, Side

INTRODUCTION = (
    f"The same research agent twice: {ITERATIONS} model calls if nothing goes wrong. Both lose a\n"
    f"worker to SIGKILL in iteration {KILLED_IN}, and the next one to a deploy in iteration "
    f"{STOPPED_IN}."
)
LEAST_WIDTH, MOST_WIDTH = 80, 104
_LABEL, _CELL, _TIME = 9, 3, 6
_ATTEMPTS, _EVENTS = 3, 9
_PAYMENTS = {
    Payment.PAID: ("■", "green"),
    Payment.PAID_AGAIN: ("$", "bold red"),
    Payment.REPLAYED: ("↺", "bold cyan"),
}
_ENDS = {
    End.KILLED: ("✗", "bold red"),
    End.STOPPED: ("✗", "bold red"),
    End.HANDED_OFF: ("→", "bold cyan"),
    End.ANSWERED: ("✓", "bold green"),
}
_NOW = ("▸", "bold")
_SAVED = ("◆", "blue")
_LEGEND = {
    "paid": _PAYMENTS[Payment.PAID],
    "paid again": _PAYMENTS[Payment.PAID_AGAIN],
    "replayed": _PAYMENTS[Payment.REPLAYED],
    "saved": _SAVED,
    "lost": _ENDS[End.KILLED],
    "handed off": _ENDS[End.HANDED_OFF],
    "answered": _ENDS[End.ANSWERED],
}


class Screen:
    """Draws both sides."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def __call__(self, sides: list[Side]) -> None:
        """Draw the current state of both sides."""
        self._live.update(drawn(sides, min(self._live.console.width, MOST_WIDTH)), refresh=True)


@contextmanager
def screen(console: Console) -> Iterator[Screen]:
    """Yield a screen. Its last picture stays on the terminal."""
    with Live(
        Text("Starting a server and workers ...", "dim"), console=console, auto_refresh=False
    ) as live:
        yield Screen(live)


def drawn(sides: list[Side], columns: int) -> RenderableType:
    """Return the picture of both sides."""
    beside = Table.grid(expand=False)
    beside.add_row(*(_panel(side, columns // 2) for side in sides))
    legend = [
        Text.assemble((glyph, style), " ", (word, "dim")) for word, (glyph, style) in _LEGEND.items()
    ]
    return Group(Text(INTRODUCTION, "dim"), beside, Text("  ").join(legend))


def _panel(side: Side, columns: int) -> Panel:
    inner, story = columns - 4, side.story
    color = "green" if side.kind is DURABLE else "yellow"
    seconds = story.seconds(time.monotonic())
    costs = f"{story.model_calls} model calls   ${story.dollars:.2f}   {seconds:.1f} s"
    parts = [_track(story), Text(costs, "bold"), _doing(side, inner), Text(), _log(story.events, inner)]
    return Panel(Group(*parts), title=f"[b]{side.kind.title}", border_style=color, width=columns)


def _track(story: Story) -> Text:
    """Return one row for each attempt, with one column for each iteration."""
    rows = [_row("iteration", {number: (str(number), "dim") for number in range(1, ITERATIONS + 1)})]
    for attempt in story.attempts[:_ATTEMPTS]:
        cells = {number: _PAYMENTS[how] for number, how in attempt.iterations.items()}
        if attempt.iterations:
            cells[attempt.at] = _NOW if attempt.end is None else _ENDS[attempt.end]
        rows.append(_row(f"worker {attempt.shown}", cells))
    rows += [Text()] * (_ATTEMPTS - len(story.attempts))
    rows.append(_row("saved", dict.fromkeys(story.saved, _SAVED)) if story.saved else Text())
    return Text("\n").join(rows)


def _row(label: str, cells: dict[int, tuple[str, str]]) -> Text:
    row = Text.assemble((f"{label:<{_LABEL}}", "dim"))
    for number in range(1, ITERATIONS + 1):
        glyph, style = cells.get(number, ("", ""))
        row.append(f"{glyph:>{_CELL}}", style)
    return row


def _doing(side: Side, columns: int) -> Text:
    """Return the end of what the model is streaming, or what the side waits for."""
    story = side.story
    if not story.attempts:
        return Text("starting workers ...", "dim")
    if story.now.end is End.KILLED:
        return Text(f"waiting for {side.kind.waits_for} ...", "yellow")
    text = story.text if len(story.text) <= columns - 2 else "…" + story.text[3 - columns :]
    return Text(f"> {text}" if text else "", "italic dim", no_wrap=True)


def _log(events: list[Event], columns: int) -> Text:
    """Return the latest turning points, with a fixed number of lines."""
    console, lines = Console(width=columns), []
    for event in events:
        if event.is_turning_point:
            for number, line in enumerate(Text(event.text).wrap(console, columns - _TIME)):
                seconds = "" if number else f"{event.seconds:4.1f}"
                lines.append(Text.assemble((f"{seconds:<{_TIME}}", "dim"), line))
    shown = lines[-_EVENTS:]
    return Text("\n").join([*shown, *[Text()] * (_EVENTS - len(shown))])


# -- without a terminal ------------------------------------------------------------------------------


class Lines:
    """Prints the new events of both sides as lines of plain text, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: Counter[str] = Counter()

    def __call__(self, sides: list[Side]) -> None:
        """Print what is new."""
        new: list[tuple[float, str, str]] = []
        for side in sides:
            title = side.kind.title
            events = side.story.events[self._printed[title] :]
            self._printed[title] += len(events)
            new += [(event.seconds, title, event.text) for event in events]
        for seconds, title, text in sorted(new):
            line = f"{seconds:5.1f} s  {title:<17}  {text}"
            self._console.print(line, highlight=False, soft_wrap=True)


# -- the bill ----------------------------------------------------------------------------------------

_NOTES = (
    "Both sides pay again for a call that was in flight when its worker was killed.\n"
    f"Pretend prices: ${DOLLARS_IN:.0f} per million input tokens, ${DOLLARS_OUT:.0f} per million "
    "output tokens."
)
_SETTINGS = (
    "Settings, chosen to keep this short and to give the plain task a fair chance:\n"
    f"  celery_ckpt        lease {LEASE} s (default: 30 s)\n"
    "  plain Celery task  acks_late and reject_on_worker_lost (default: off);\n"
    f"                     visibility timeout {VISIBILITY} s, just longer than the task,\n"
    "                     or it would run twice at once (default: 1 hour);\n"
    f"                     soft shutdown {SOFT_SHUTDOWN} s (default: none)"
)
_WHERE = "Compare the two agents: celery_ckpt/demo/durable.py and celery_ckpt/demo/plain.py"

_ROWS: dict[str, Callable[[Story], str]] = {
    "model calls paid": lambda story: str(story.model_calls),
    "... of these, paid before": lambda story: str(story.repeated_calls),
    "tool calls made": lambda story: str(story.tools),
    "steps replayed, free": lambda story: str(story.replayed),
    "pretend price": lambda story: f"${story.dollars:.2f}",
    "seconds to the answer": lambda story: f"{story.seconds(time.monotonic()):.1f}",
}
_HEAVY = ("pretend price", "seconds to the answer")


def bill(sides: list[Side], *, is_plain: bool = False) -> RenderableType:
    """Return the table of calls, prices and seconds."""
    table = Table(box=None if is_plain else box.ROUNDED, title=None, border_style="dim")
    table.add_column("the bill")
    for side in sides:
        table.add_column(side.kind.title, justify="right")
    for name, read in _ROWS.items():
        style = "bold" if name in _HEAVY else ""
        table.add_row(name, *(read(side.story) for side in sides), style=style)
    return Group(table, Text(_NOTES, "dim"))


def print_bill(console: Console, sides: list[Side]) -> None:
    """Print the bill, the settings of both sides, and where to find the agents."""
    console.print()
    console.print(bill(sides, is_plain=not console.is_terminal))
    console.print()
    console.print(Text(f"{_SETTINGS}\n\n{_WHERE}", "dim"), soft_wrap=True)


# -- the picture -------------------------------------------------------------------------------------

#: Rich adds fonts that a browser would download.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def write_svg(path: Path, sides: list[Side]) -> None:
    """Write both sides and their bill as a picture."""
    console = Console(record=True, file=io.StringIO(), width=LEAST_WIDTH, force_terminal=True)
    console.print(drawn(sides, LEAST_WIDTH), bill(sides))
    svg = console.export_svg(title="celery-ckpt demo", unique_id="demo")
    path.write_text(_FONTS.sub("", svg), encoding="utf-8")
