"""The event log of an agent in the file ``events``: one line for each entry, in order.

    <crc> <number> <part> <entry as JSON>

It is written after everything else and is not synced: no promise depends on it. A line whose checksum
is wrong is skipped. A crash can leave an incomplete last line, which the next entry replaces. Now and
then the file is replaced by one without the entries that are no longer kept. The part of a line is
``-`` if its entry is gone: the last line stays, so that no number is used twice. The caller holds the
lock of the agent.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from celery_ckpt.event_log import Part, kept
from celery_ckpt.stores.file.filesystem import overwrite, read, replace

#: How many bytes at the end of the file are read to find its last line.
_TAIL = 8192
_GONE = "-"
Line = tuple[int, Part, bytes]


class EventFile:
    """The event log in a directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "events"

    def append(self, lines: Iterable[tuple[Part, bytes]], limit: int) -> None:
        """Append entries. ``limit`` is the limit of the part ``entries``. Raises ``OSError``."""
        number, size = self._end()
        first, text = number, b""
        for part, entry in lines:
            number += 1
            text += _line(number, part.value, entry)
        overwrite(self._path, text, size)
        if number // limit > first // limit:
            last, stored = self.lines()
            self.write(last, kept(stored, limit))

    def _end(self) -> tuple[int, int]:
        """Return the last number, and the size of the file without an incomplete last line."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(size - _TAIL, 0)
                file.seek(start)
                tail = file.read()
        except FileNotFoundError:
            return 0, 0
        whole = tail.rfind(b"\n") + 1
        numbers = [line[0] for line in map(_parsed, tail[:whole].splitlines()) if line is not None]
        if numbers:
            return numbers[-1], start + whole
        last, _ = self.lines()  # the last line is a long one, or damaged
        data = read(self._path) or b""
        return last, data.rfind(b"\n") + 1

    def lines(self) -> tuple[int, list[Line]]:
        """Return the last number, and the entries in order; an empty one for each damaged line.

        A file that cannot be read is one damaged line.
        """
        try:
            data = read(self._path) or b""
        except OSError:
            return 0, [(0, Part.ENTRIES, b"")]
        last, found = 0, list[Line]()
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            number, part, text = _parsed(line) or (last, Part.ENTRIES.value, b"")
            last = number
            if part != _GONE:
                found.append((number, Part(part), text))
        return last, found

    def write(self, last: int, lines: list[Line]) -> None:
        """Replace all entries; ``last`` is the last number that was given. Raises ``OSError``."""
        text = b"".join(_line(number, part.value, entry) for number, part, entry in lines if entry)
        if last > (lines[-1][0] if lines else 0):
            text += _line(last, _GONE, b"")
        if text or self._path.exists():
            replace(self._path, text)


def _line(number: int, part: str, entry: bytes) -> bytes:
    content = b"%d %b %b" % (number, part.encode(), entry)
    return b"%08x %b\n" % (zlib.crc32(content), content)


def _parsed(line: bytes) -> tuple[int, str, bytes] | None:
    crc, _, content = line.partition(b" ")
    if crc != b"%08x" % zlib.crc32(content):
        return None
    number, part, text = content.split(b" ", 2)
    return int(number), part.decode(), text
