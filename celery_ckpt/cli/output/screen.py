"""What commands write to: tables and colours on a terminal, plain text elsewhere, JSON on request.

Everything becomes text first and is written by one call, so that a closed pipe shows in one place.
Stored data is never interpreted as markup. ``rich`` is imported only if there is a terminal.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from celery_ckpt.cli.output.progress import bar_hidden
from celery_ckpt.cli.output.tables import STYLES, Column, plain_table, rich_table
from celery_ckpt.cli.output.text import as_json_line, excerpt, visible
from celery_ckpt.messages import Message
from celery_ckpt.views.transcript import Kind, pieces, speaker

if TYPE_CHECKING:
    from rich.console import RenderableType


#: How many characters of a piece of a message are shown by default.
EXCERPT = 1_000
_MARKS = {Kind.THINKING: "thinking: ", Kind.CALL: "→ ", Kind.RESULT: "← "}


class Screen:
    """What a command writes to."""

    def __init__(self, *, as_json: bool = False, colour: bool = True) -> None:
        self.as_json = as_json
        self.is_terminal = not as_json and sys.stdout.isatty()
        self._colour = colour
        self._page: list[str] | None = None
        self._is_empty = True

    # -- for programs --------------------------------------------------------------------------------

    def json(self, value: Any) -> None:
        """Write one JSON value on one line."""
        with bar_hidden(sys.stdout):
            click.echo(as_json_line(value))

    def json_list(self, values: Iterable[Any]) -> None:
        """Write a JSON list on one line, each value as soon as it is there."""
        before = "["
        for value in values:
            with bar_hidden(sys.stdout):
                click.echo(before + as_json_line(value), nl=False)
            before = ", "
        with bar_hidden(sys.stdout):
            click.echo("[]" if before == "[" else "]")

    # -- for people ----------------------------------------------------------------------------------

    def line(self, text: str = "", style: str = "") -> None:
        """Write a line, or several. Control characters become visible escapes."""
        text = visible(text)
        if self.is_terminal and style:
            from rich.text import Text

            self._emit(self._rendered(Text(text, style)))
        else:
            self._emit(f"{text}\n")

    def heading(self, text: str) -> None:
        """Write a title, after an empty line unless it is the first line."""
        if not self._is_empty:
            self.line()
        self.line(text, "bold")

    def table(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[object]],
        *,
        has_titles: bool = True,
    ) -> None:
        """Write a table; without titles, it continues the table before it."""
        cells = [["" if cell is None else visible(str(cell)) for cell in row] for row in rows]
        if self.is_terminal:
            self._emit(self._rendered(rich_table(columns, cells, _width(), has_titles)))
        else:
            self._emit(plain_table(columns, cells, has_titles))

    def labelled(self, label: str, text: str, *, kind: str = "", width: int = 10) -> None:
        """Write a text beside a label; its further lines are indented to the same column."""
        style = "dim" if kind in ("thinking", "other") else ""
        self._beside(visible(label), text, width, STYLES.get(kind or label, ""), style)

    def fact(self, name: str, value: str) -> None:
        """Write one property: its name and its value."""
        self._beside(name, value, 10, "dim", STYLES.get(value, ""))

    def messages(
        self, messages: Iterable[Message], *, first: int = 1, limit: int | None = EXCERPT
    ) -> None:
        """Write messages, numbered from ``first``, with each piece cut to ``limit`` characters."""
        for number, message in enumerate(messages, first):
            self.message(f"{number:>4} {speaker(message)[:12]}", message, limit=limit)

    def message(
        self, label: str, message: Message, *, limit: int | None = EXCERPT, kind: str = ""
    ) -> None:
        """Write one message beside a label, in the colour of its speaker or of ``kind``."""
        for piece in pieces(message):
            text = visible(piece.text) if limit is None else excerpt(piece.text, limit)
            own = speaker(message) if piece.kind is Kind.TEXT else piece.kind.value
            shown = _MARKS.get(piece.kind, "") + text.strip("\n")
            self.labelled(label, shown, kind=kind or own, width=17)
            label = ""

    # -- how it is written ---------------------------------------------------------------------------

    def _beside(self, label: str, text: str, width: int, label_style: str, style: str) -> None:
        for number, line in enumerate(visible(text).split("\n")):
            shown = f"{'' if number else label:{width}} "
            if not self.is_terminal:
                self._emit(f"{shown}{line}".rstrip() + "\n")
                continue
            from rich.padding import Padding
            from rich.table import Table
            from rich.text import Text

            grid = Table.grid(padding=0)
            grid.add_column(width=len(shown), no_wrap=True)
            grid.add_column(overflow="fold")
            grid.add_row(Text(shown, label_style), Text(line, style))
            self._emit(self._rendered(Padding(grid, 0)))

    @contextmanager
    def paged(self, wanted: bool = True) -> Iterator[None]:
        """Collect the output, and show it in a pager if it is longer than the terminal."""
        if not (self.is_terminal and wanted):
            yield
            return
        self._page = []
        try:
            yield
        finally:
            text, self._page = "".join(self._page), None
            if text.count("\n") < shutil.get_terminal_size().lines:
                self._emit(text)
            else:
                click.echo_via_pager(text.removesuffix("\n"))

    def _emit(self, text: str) -> None:
        self._is_empty = False
        if self._page is not None:
            self._page.append(text)
        else:
            # Force colours: click removes them if it does not recognise the terminal. The text is safe.
            with bar_hidden(sys.stdout):
                click.echo(text, nl=False, color=True if self.is_terminal else None)

    def _rendered(self, what: RenderableType) -> str:
        from rich.console import Console

        buffer = io.StringIO()
        console = Console(
            file=buffer, force_terminal=True, width=_width(), no_color=not self._colour,
            markup=False, emoji=False, highlight=False,
        )  # fmt: skip
        console.print(what)
        return buffer.getvalue()


def _width() -> int:
    return shutil.get_terminal_size().columns
