"""A small table in a file: values by key, in the order in which they were added.

Each line is ``<crc> <key> <value>``, the key percent-encoded, the value JSON; a later line of the same
key stands in the place of the earlier one. An incomplete last line was cut off by a crash.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.stores.file.filesystem import append, read, replace


class Table:
    """The values in a file. Its caller holds the agent's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = read(path) or b""
        self._size = data.rfind(b"\n") + 1
        self.values = dict(_entry(path, line) for line in data[: self._size].splitlines())

    def put(self, key: str, value: bytes) -> None:
        """Add a value, or replace it."""
        line = _line(key, value)
        append(self._path, line, self._size)
        self._size += len(line)
        self.values[key] = value

    def drop(self, keys: Iterable[str]) -> None:
        """Take values out."""
        gone = set(keys)
        if not gone:
            return
        self.replace({key: value for key, value in self.values.items() if key not in gone})

    def replace(self, values: dict[str, bytes]) -> None:
        """Put others in the place of all values."""
        replace(self._path, b"".join(_line(key, value) for key, value in values.items()))


def _line(key: str, value: bytes) -> bytes:
    entry = quote(key, safe="").encode() + b" " + value
    return b"%08x %b\n" % (zlib.crc32(entry), entry)


def _entry(path: Path, line: bytes) -> tuple[str, bytes]:
    crc, _, entry = line.partition(b" ")
    if crc != b"%08x" % zlib.crc32(entry):
        raise StoreDamaged(where=str(path), reason="a line is not what was written")
    key, _, value = entry.partition(b" ")
    return unquote(key.decode()), value
