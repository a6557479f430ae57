"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_console = Console(stderr=True)


class Steps:
    """A sequence of steps."""

    def __init__(self, total: int, bar: Progress | None) -> None:
        self._total, self._bar, self._done = total, bar, 0
        self._task = bar.add_task("", total=total) if bar else None

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[float], None]]:
        """Run one step. Yields a function that takes its progress, from 0 to 1."""
        start = monotonic()
        if self._bar is not None:
            self._bar.update(self._task, description=name)  # type: ignore[arg-type]
        yield self._show
        self._done += 1
        self._show(0)
        if self._bar is None:
            seconds = monotonic() - start
            _console.print(f"{self._done:2}/{self._total}  {name}: {seconds:.1f} s", highlight=False)

    def _show(self, part: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done + part)  # type: ignore[arg-type]


@contextmanager
def steps(total: int) -> Iterator[Steps]:
    """Show the progress of this many steps."""
    if not _console.is_terminal:
        yield Steps(total, None)
        return
    columns = (TextColumn("{task.description:<28}"), BarColumn(None), TimeElapsedColumn())
    with Progress(*columns, console=_console, transient=True) as bar:
        yield Steps(total, bar)
