"""When the watchdog or a sweep looks at which agent: one small file for each scheduled agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.json_values import decode, encode
from celery_ckpt.names import file_name
from celery_ckpt.records import Schedule
from celery_ckpt.stores.file.filesystem import locked, make_directory, read, replace, translated


class ScheduleDirectory:
    """The directory ``watchdog`` or ``sweep``: due times in microseconds by agent.

    It has its own lock, which can be taken while the lock of an agent is held, and not the other way.
    """

    def __init__(self, root: Path, on: Schedule) -> None:
        self._path = root / on.value

    @contextmanager
    def _held(self) -> Iterator[None]:
        with translated(self._path):
            make_directory(self._path)
            with locked(self._path, exclusive=True):
                yield

    def set(self, agent_id: str, now: int, after: float) -> int:
        """Make an agent due; if it was due before, at another time, which is not later. Return it."""
        with self._held():
            due_at, before = now + round(after * 1_000_000), self._due_at(agent_id)
            return self._write(agent_id, due_at if before is None else min(due_at, before - 1))

    def _write(self, agent_id: str, due_at: int) -> int:
        replace(self._file(agent_id), encode({"agent_id": agent_id, "due_at": due_at}))
        return due_at

    def move(self, agent_id: str, due_at: int, now: int, after: float) -> int | None:
        """Change an agent's due time if it is ``due_at``. Return the new one, or ``None``."""
        with self._held():
            if self._due_at(agent_id) != due_at:
                return None
            moved = now + round(after * 1_000_000)
            return self._write(agent_id, moved - 1 if moved == due_at else moved)

    def remove(self, agent_id: str, due_at: int) -> bool:
        """Take an agent off the schedule if its due time is ``due_at``. Return True if it was."""
        with self._held():
            if self._due_at(agent_id) != due_at:
                return False
            self._file(agent_id).unlink()
            return True

    def delete(self, agent_id: str) -> None:
        """Take an agent off the schedule."""
        with self._held():
            self._file(agent_id).unlink(missing_ok=True)

    def has(self, agent_id: str) -> bool:
        """Return True if the agent is on the schedule."""
        return self._file(agent_id).exists()

    def due(self, now: int) -> Iterator[tuple[str, int]]:
        """Yield the agents that are due, with their due times."""
        return (found for found in self.all() if found[1] <= now)

    def all(self) -> Iterator[tuple[str, int]]:
        """Yield all agents on the schedule, with their due times."""
        for path in self._path.glob("[!.]*"):
            found = None if path.name == "lock" else _read(path)
            if found is not None:
                yield found

    def _file(self, agent_id: str) -> Path:
        return self._path / file_name(agent_id)

    def _due_at(self, agent_id: str) -> int | None:
        found = _read(self._file(agent_id))
        return None if found is None else found[1]


def _read(path: Path) -> tuple[str, int] | None:
    with translated(path):
        stored = read(path)
    try:
        fields = {} if stored is None else decode(stored)
        return (str(fields["agent_id"]), int(fields["due_at"])) if fields else None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(where=str(path), reason=str(error)) from error
