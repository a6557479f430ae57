"""The bill of both sides."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from celery_ckpt.demo.sides import Side
from celery_ckpt.demo.story import Story
from celery_ckpt.demo.wording import NOTES, SETTINGS, WHERE

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
    """Calls, money and seconds, and how they came about."""
    table = Table(box=None if is_plain else box.ROUNDED, title=None, border_style="dim")
    table.add_column("the bill")
    for side in sides:
        table.add_column(side.kind.title, justify="right")
    for name, read in _ROWS.items():
        style = "bold" if name in _HEAVY else ""
        table.add_row(name, *(read(side.story) for side in sides), style=style)
    return Group(table, Text(NOTES, "dim"))


def print_bill(console: Console, sides: list[Side]) -> None:
    """The bill, and what was set."""
    console.print()
    console.print(bill(sides, is_plain=not console.is_terminal))
    console.print()
    console.print(Text(f"{SETTINGS}\n\n{WHERE}", "dim"), soft_wrap=True)
