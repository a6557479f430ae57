"""A small table in a file: values by key, in the order in which they were added.

Each line is ``<crc> <key> <value>``: the key percent-encoded, the value JSON. A later line replaces an
earlier one with the same key. A crash can leave an incomplete last line, which does not count. The
caller holds the lock of the agent.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.records import Step
from celery_ckpt.stores.encoding import decoded_step, encoded
from celery_ckpt.stores.file.filesystem import append, read, replace


class Table:
    """The values in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = read(path) or b""
        self._size = data.rfind(b"\n") + 1
        self.values = dict(_entry(path, line) for line in data[: self._size].splitlines())

    def put(self, key: str, value: bytes) -> None:
        """Add a value or replace it."""
        line = _line(key, value)
        append(self._path, line, self._size)
        self._size += len(line)
        self.values[key] = value

    def drop(self, keys: Iterable[str]) -> None:
        """Delete values."""
        unwanted = set(keys)
        if unwanted:
            self.replace({key: value for key, value in self.values.items() if key not in unwanted})

    def replace(self, values: dict[str, bytes]) -> None:
        """Replace all values."""
        data = b"".join(_line(key, value) for key, value in values.items())
        replace(self._path, data)
        self.values, self._size = values, len(data)


class StepTable:
    """The recorded steps of an agent's runs, in the file ``steps``."""

    def __init__(self, directory: Path, agent_id: str) -> None:
        self._agent_id = agent_id
        self._table = Table(directory / "steps")

    def __len__(self) -> int:
        return len(self._table.values)

    def get(self, run_id: str, key: str) -> Step | None:
        """Return a step, or ``None`` if it is not recorded."""
        stored = self._table.values.get(_step_key(run_id, key))
        return None if stored is None else decoded_step(self._agent_id, run_id, stored)

    def of(self, run_id: str) -> list[Step]:
        """Return the steps of a run in order."""
        return [self._decoded(key) for key in self.keys_of(run_id)]

    def all(self) -> list[Step]:
        """Return the steps of all runs in order."""
        return [self._decoded(key) for key in self._table.values]

    def _decoded(self, key: str) -> Step:
        length, _, rest = key.partition(" ")
        return decoded_step(self._agent_id, rest[: int(length)], self._table.values[key])

    def keys_of(self, run_id: str, first: int = 0, last: int | None = None) -> list[str]:
        """Return the keys, in this table, of the run's steps of iterations ``first`` to ``last``."""
        prefix = _step_key(run_id, "")
        keys = [key for key in self._table.values if key.startswith(prefix)]
        if first <= 0 and last is None:
            return keys  # without reading the steps: a damaged one can be dropped
        steps = ((key, self._decoded(key).iteration) for key in keys)
        return [key for key, at in steps if first <= at and (last is None or at <= last)]

    def add(self, step: Step, value: bytes) -> None:
        """Record a step. ``value`` is the encoded step."""
        self._table.put(_step_key(step.run_id, step.key), value)

    def drop(self, keys: Iterable[str]) -> None:
        """Drop the steps with these keys of ``keys_of``."""
        self._table.drop(keys)

    def replace(self, steps: list[Step], limit: int) -> None:
        """Replace all steps."""
        values = {_step_key(step.run_id, step.key): encoded(step, limit) for step in steps}
        self._table.replace(values)


def _step_key(run_id: str, key: str) -> str:
    # The length distinguishes run "a b" with key "c" from run "a" with key "b c".
    return f"{len(run_id)} {run_id} {key}"


def _line(key: str, value: bytes) -> bytes:
    entry = quote(key, safe="").encode() + b" " + value
    return b"%08x %b\n" % (zlib.crc32(entry), entry)


def _entry(path: Path, line: bytes) -> tuple[str, bytes]:
    crc, _, entry = line.partition(b" ")
    if crc != b"%08x" % zlib.crc32(entry):
        raise StoreDamaged(where=str(path), reason="the checksum of a line is wrong")
    key, _, value = entry.partition(b" ")
    return unquote(key.decode()), value
