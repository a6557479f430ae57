"""The show as lines of plain text, for logs and pipes."""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from celery_ckpt.demo.sides import Side
from celery_ckpt.demo.story import Event


class Lines:
    """Prints what is new."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: Counter[str] = Counter()

    def __call__(self, sides: list[Side]) -> None:
        """Look at both sides."""
        news = [
            (event.seconds, side.kind.title, event.text) for side in sides for event in self._new(side)
        ]
        for seconds, title, text in sorted(news):
            line = f"{seconds:5.1f} s  {title:<17}  {text}"
            self._console.print(line, highlight=False, soft_wrap=True)

    def _new(self, side: Side) -> list[Event]:
        events = side.story.events[self._told[side.kind.title] :]
        self._told[side.kind.title] += len(events)
        return events
