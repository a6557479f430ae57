"""Progress on standard error, if somebody watches; standard output stays what was asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
#: What is over sooner needs no bar.
_MANY = 50
#: The bar on the screen, if there is one.
_shown: list[Progress] = []


class Advance(Protocol):
    """Tell how far it is: so many more, and what is being done now."""

    def __call__(self, more: int = 1, what: str = "") -> None:
        """See the class."""


@contextmanager
def bar(title: str, total: int | None = None, *, hidden: bool = False) -> Iterator[Advance]:
    """A progress bar; nothing at all where standard error is no terminal, or if it is hidden."""
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
def aside(stream: TextIO) -> Iterator[None]:
    """Take the bar away while a terminal is written to: it would come behind the bar, on its line."""
    in_the_way = [*_shown] if stream.isatty() else []
    for progress in in_the_way:
        progress.stop()
    try:
        yield
    finally:
        for progress in in_the_way:
            progress.start()


def counting(items: Iterable[T], title: str) -> Iterator[T]:
    """The items, with a count of them on the screen once they are many."""
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
