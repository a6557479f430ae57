"""The bill of both sides, and what is printed after the show."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from celery_ckpt.demo.research import DOLLARS_IN, DOLLARS_OUT, LEASE, SOFT_SHUTDOWN, VISIBILITY
from celery_ckpt.demo.stage import Side
from celery_ckpt.demo.story import Story

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
