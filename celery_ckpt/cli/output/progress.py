"""Progress on standard error, if it is a terminal. Standard output carries only what was asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
#: Work on fewer items needs no bar.
_MANY = 50
#: The bar on the screen, if there is one.
_shown: list[Progress] = []


class Advance(Protocol):
    """Moves the bar: ``more`` items are done, and ``what`` is being worked on."""

    def __call__(self, more: int = 1, what: str = "") -> None:
        """Move the bar."""


@contextmanager
def bar(title: str, total: int | None = None, *, hidden: bool = False) -> Iterator[Advance]:
    """Show a progress bar, unless it is hidden or standard error is not a terminal."""
    if hidden or not sys.stderr.isatty():
        yield lambda more=1, what="": None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from celery_ckpt.cli.output.text import one_line

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", style="dim", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(title), total=total, what="")
        _shown.append(progress)
        try:
            yield lambda more=1, what="": progress.update(task, advance=more, what=one_line(what, 40))
        finally:
            _shown.remove(progress)


@contextmanager
def bar_hidden(stream: TextIO) -> Iterator[None]:
    """Hide the bar while text is written to a terminal, so that they do not share a line."""
    bars = [*_shown] if stream.isatty() else []
    for progress in bars:
        progress.stop()
    try:
        yield
    finally:
        for progress in bars:
            progress.start()


def counting(items: Iterable[T], title: str) -> Iterator[T]:
    """Yield the items, and show a count of them once there are many."""
    iterator = iter(items)
    for number, item in enumerate(iterator, 1):
        yield item
        if number >= _MANY:
            break
    else:
        return
    with bar(f"reading {title}") as advance:
        advance(_MANY)
        for item in iterator:
            yield item
            advance()
