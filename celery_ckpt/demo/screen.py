"""The show on a terminal: both sides beside each other, in the width of 80 columns or more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from celery_ckpt.demo.research import TURNS
from celery_ckpt.demo.sides import DURABLE, Side
from celery_ckpt.demo.story import Attempt, End, Event, Story, Turn
from celery_ckpt.demo.wording import INTRODUCTION

LEAST_WIDTH, MOST_WIDTH = 80, 104
_LABEL, _CELL, _TIME = 9, 3, 6
_ATTEMPTS, _EVENTS = 3, 9
_TURNS = {
    Turn.PAID: ("■", "green"),
    Turn.PAID_AGAIN: ("$", "bold red"),
    Turn.REPLAYED: ("↺", "bold cyan"),
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
    "paid": _TURNS[Turn.PAID],
    "paid again": _TURNS[Turn.PAID_AGAIN],
    "replayed": _TURNS[Turn.REPLAYED],
    "saved": _SAVED,
    "lost": _ENDS[End.KILLED],
    "handed off": _ENDS[End.HANDED_OFF],
    "answered": _ENDS[End.ANSWERED],
}


class Screen:
    """Draws both sides anew each time."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def __call__(self, sides: list[Side]) -> None:
        """Look at both sides."""
        self._live.update(drawn(sides, width(self._live.console)), refresh=True)


@contextmanager
def screen(console: Console) -> Iterator[Screen]:
    """A screen for as long as it is needed; what it showed last stays."""
    with Live(
        Text("Starting a server and workers ...", "dim"), console=console, auto_refresh=False
    ) as live:
        yield Screen(live)


def width(console: Console) -> int:
    """How wide the picture is."""
    return min(console.width, MOST_WIDTH)


def drawn(sides: list[Side], columns: int) -> RenderableType:
    """What a person sees at this moment."""
    beside = Table.grid(expand=False)
    beside.add_row(*(_panel(side, columns // 2) for side in sides))
    return Group(Text(INTRODUCTION, "dim"), beside, _legend())


def _panel(side: Side, columns: int) -> Panel:
    inner, story = columns - 4, side.story
    color = "green" if side.kind is DURABLE else "yellow"
    parts = [_track(story), _costs(story), _doing(side, inner), Text(), _log(story.events, inner)]
    return Panel(Group(*parts), title=f"[b]{side.kind.title}", border_style=color, width=columns)


def _track(story: Story) -> Text:
    """One row for each attempt, one column for each iteration."""
    rows = [_row("iteration", {turn: (str(turn), "dim") for turn in range(1, TURNS + 1)})]
    for number in range(_ATTEMPTS):
        is_there = number < len(story.attempts)
        rows.append(_attempt(story.attempts[number]) if is_there else Text())
    rows.append(_row("saved", dict.fromkeys(story.saved, _SAVED)) if story.saved else Text())
    return Text("\n").join(rows)


def _attempt(attempt: Attempt) -> Text:
    cells = {turn: _TURNS[how] for turn, how in attempt.turns.items()}
    if attempt.turns:
        cells[attempt.at] = _NOW if attempt.end is None else _ENDS[attempt.end]
    return _row(f"worker {attempt.shown}", cells)


def _row(label: str, cells: dict[int, tuple[str, str]]) -> Text:
    row = Text.assemble((f"{label:<{_LABEL}}", "dim"))
    for turn in range(1, TURNS + 1):
        glyph, style = cells.get(turn, ("", ""))
        row.append(f"{glyph:>{_CELL}}", style)
    return row


def _costs(story: Story) -> Text:
    seconds = story.seconds(time.monotonic())
    told = f"{story.model_calls} model calls   ${story.dollars:.2f}   {seconds:.1f} s"
    return Text(told, "bold")


def _doing(side: Side, columns: int) -> Text:
    """The end of what the model says just now, or what is waited for."""
    story = side.story
    if not story.attempts:
        return Text("starting workers ...", "dim")
    if story.now.end is End.KILLED:
        return Text(f"waiting for {side.kind.waits_for} ...", "yellow")
    text = story.text if len(story.text) <= columns - 2 else "…" + story.text[3 - columns :]
    return Text(f"> {text}" if text else "", "italic dim", no_wrap=True)


def _log(events: list[Event], columns: int) -> Text:
    """The latest turning points, always as high."""
    console, lines = Console(width=columns), []
    for event in events:
        if event.is_turning_point:
            for number, line in enumerate(Text(event.text).wrap(console, columns - _TIME)):
                moment = "" if number else f"{event.seconds:4.1f}"
                lines.append(Text.assemble((f"{moment:<{_TIME}}", "dim"), line))
    shown = lines[-_EVENTS:]
    return Text("\n").join([*shown, *[Text()] * (_EVENTS - len(shown))])


def _legend() -> Text:
    parts = [
        Text.assemble((glyph, style), " ", (word, "dim")) for word, (glyph, style) in _LEGEND.items()
    ]
    return Text("  ").join(parts)
