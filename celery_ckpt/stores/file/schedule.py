"""When a watchdog, or a sweep, should look at which agent: one small file for each that is watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.json_values import decode, encode
from celery_ckpt.names import file_name
from celery_ckpt.records import Schedule
from celery_ckpt.stores.file.filesystem import locked, make_directory, read, replace, translated


class Moments:
    """The directory ``claim_due`` or ``sweep``: moments in microseconds by agent."""

    def __init__(self, root: Path, on: Schedule) -> None:
        self._directory = root / on.value

    @contextmanager
    def _held(self) -> Iterator[None]:
        with translated(self._directory):
            make_directory(self._directory)
            with locked(self._directory, exclusive=True):
                yield

    def _path(self, agent_id: str) -> Path:
        return self._directory / file_name(agent_id)

    def set(self, agent_id: str, now: int, after: float) -> int:
        """Give an agent another moment than it has."""
        with self._held():
            return self._set(agent_id, now, after)

    def _set(self, agent_id: str, now: int, after: float) -> int:
        due_at = now + round(after * 1_000_000)
        if self._moment_of(agent_id) == due_at:
            due_at -= 1
        replace(self._path(agent_id), encode({"agent_id": agent_id, "moment": due_at}))
        return due_at

    def remove(self, agent_id: str, due_at: int) -> bool:
        """Take an agent's moment away, if it is that one."""
        with self._held():
            if self._moment_of(agent_id) != due_at:
                return False
            self._path(agent_id).unlink()
            return True

    def move(self, agent_id: str, due_at: int, now: int, after: float) -> int | None:
        """Give an agent another moment, if it has that one; returns the new one."""
        with self._held():
            return self._set(agent_id, now, after) if self._moment_of(agent_id) == due_at else None

    def come(self, now: int) -> Iterator[tuple[str, int]]:
        """The agents whose moments have come."""
        return (found for found in self.all() if found[1] <= now)

    def all(self) -> Iterator[tuple[str, int]]:
        """All agents that have one."""
        for path in self._directory.glob("[!.]*"):
            found = None if path.name == "lock" else _read(path)
            if found is not None:
                yield found

    def has(self, agent_id: str) -> bool:
        """Has the agent one?"""
        return self._path(agent_id).exists()

    def forget(self, agent_id: str) -> None:
        """Take an agent's moment away, whichever it is."""
        with self._held():
            self._path(agent_id).unlink(missing_ok=True)

    def _moment_of(self, agent_id: str) -> int | None:
        found = _read(self._path(agent_id))
        return None if found is None else found[1]


def _read(path: Path) -> tuple[str, int] | None:
    with translated(path):
        stored = read(path)
    try:
        fields = {} if stored is None else decode(stored)
        return (str(fields["agent_id"]), int(fields["moment"])) if fields else None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(where=str(path), reason=str(error)) from error
