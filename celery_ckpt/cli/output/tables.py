"""Tables: with lines and colours on a terminal, as plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    from rich.table import Table

#: The colours of statuses, speakers and marks.
STYLES = {
    **dict.fromkeys(("queued", "blocked", "warning", "thinking", "other", "~"), "yellow"),
    **dict.fromkeys(("running", "call", "assistant"), "cyan"),
    **dict.fromkeys(("succeeded", "ok", "user", "+"), "green"),
    **dict.fromkeys(("failed", "cancelled", "damaged", "risk", "-"), "red"),
    **dict.fromkeys(("tool", "result", "system"), "magenta"),
}
_GAP = 2
#: The least width of a column.
_NARROWEST = 8
#: The share of the width that a name may take before it wraps; other columns are omitted for it.
_SHARE_OF_NAMES = 0.6


@dataclass(frozen=True)
class Column:
    """A column of a table. The cells of a ``coloured`` column have the colour of their word."""

    title: str
    #: Cells that are too long wrap instead of being cut, so that they can be copied.
    whole: bool = False
    right: bool = False
    coloured: bool = False
    dim: bool = False


def rich_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, has_titles: bool = True
) -> Table:
    """Return a table for a terminal of this width, without empty columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    used = [number for number, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    columns, rows = [columns[number] for number in used], [[row[n] for n in used] for row in rows]
    columns, rows = _that_fit(columns, rows, width)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        header_style="bold",
        show_edge=False,
        show_header=has_titles,
    )
    for column, room in zip(columns, _widths(columns, rows, width), strict=True):
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            style="dim" if column.dim else "",
            overflow="fold" if column.whole else "ellipsis",
            no_wrap=not column.whole,
            width=room,
        )
    for row in rows:
        styled = zip(columns, row, strict=True)
        table.add_row(*(Text(c, STYLES.get(c, "") if column.coloured else "") for column, c in styled))
    return table


def _that_fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """Omit the last columns, which matter least, if all columns together would be too narrow to read.

    Columns are also omitted rather than wrapping a name, unless the name is very long.
    """
    least, most = _widths(columns, rows, 0), _widths(columns, rows, sys.maxsize)
    longest = int(_SHARE_OF_NAMES * width)
    needed = [
        _GAP + (max(narrow, min(wide, longest)) if column.whole else narrow)
        for column, narrow, wide in zip(columns, least, most, strict=True)
    ]
    count = len(columns)
    while count > 1 and sum(needed[:count]) > width:
        count -= 1
    return columns[:count], [row[:count] for row in rows]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column. The widest shrink first, and ``whole`` columns last."""
    from rich.cells import cell_len

    titles = [column.title for column in columns]
    widths = [max(map(cell_len, cells)) for cells in zip(titles, *rows, strict=True)]
    too_much = sum(widths) + _GAP * len(widths) - width
    for whole in (False, True):
        numbers = [number for number, column in enumerate(columns) if column.whole is whole]
        while too_much > 0:
            widest = max(numbers, key=lambda number: widths[number], default=None)
            if widest is None or widths[widest] <= _NARROWEST:
                break
            widths[widest] -= 1
            too_much -= 1
    return widths


def plain_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], has_titles: bool = True
) -> str:
    """Return the table as plain text, with nothing cut."""
    table = [[column.title.upper() for column in columns]]
    table += [[cell.replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(_length, cells)) for cells in zip(*table, strict=True)]
    lines = []
    for row in table if has_titles else table[1:]:
        cells = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            room = " " * (width - _length(cell))
            cells.append(room + cell if column.right else cell + room)
        lines.append((" " * _GAP).join(cells).rstrip() + "\n")
    return "".join(lines)


def _length(text: str) -> int:
    """Return the width on a terminal: a Chinese character, for example, takes two columns."""
    return sum(1 + (east_asian_width(one) in "WF") for one in text if not combining(one))
