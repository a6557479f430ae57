"""The directories of the agents: found by name, locked, and what is in them."""

from __future__ import annotations

import hashlib
import os
import threading
from base64 import b32encode
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from celery_ckpt.codec import FORMAT_VERSION, refuse_newer
from celery_ckpt.errors import StoreDamaged
from celery_ckpt.jsonvalues import decode, encode
from celery_ckpt.names import LOCATOR_LENGTH, checked_name
from celery_ckpt.stores.file.disk import locked, make_directory, read, replace, translated
from celery_ckpt.stores.file.journal import Journal
from celery_ckpt.stores.leases import LeaseState

#: How many journals a process remembers, so as not to read them again from the beginning.
_REMEMBERED = 64
#: What a directory has that holds nothing.
_FRAME = {"name", "lock"}


class Agent:
    """One agent's directory, while its lock is held."""

    def __init__(self, agent_id: str, directory: Path, journals: Journals, identity: int) -> None:
        self.agent_id = agent_id
        self.directory = directory
        self._journals = journals
        self._identity = identity

    @cached_property
    def journal(self) -> Journal:
        """Its journal, as it is now."""
        return self._journals.of(self.directory, self._identity)

    def lease(self) -> LeaseState:
        """Its lease, as it is now."""
        path = self.directory / "lease"
        stored = read(path)
        if stored is None:
            return LeaseState()
        try:
            fields = decode(stored)
            expires_at = datetime.fromisoformat(fields.pop("expires_at"))
            return LeaseState(**fields, expires_at=expires_at.astimezone(UTC))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreDamaged(where=str(path), reason=str(error)) from error

    def set_lease(self, state: LeaseState) -> None:
        """Change its lease."""
        fields = {
            "token": state.token,
            "nonce": state.nonce,
            "owner": state.owner,
            "expires_at": state.expires_at.isoformat(),
        }
        replace(self.directory / "lease", encode(fields))


class Journals:
    """The journals that were used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Path, int], Journal] = OrderedDict()

    def of(self, directory: Path, identity: int) -> Journal:
        """The journal in a directory, read as far as it has grown. For one user at a time."""
        with self._lock:
            journal = self._known.pop((directory, identity), None)
        if journal is None:
            journal = Journal(directory)
        else:
            journal.refresh()
        with self._lock:
            self._known[directory, identity] = journal
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return journal


class Agents:
    """All agents below a root directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._journals = Journals()

    def _turn(self, agent_id: str) -> threading.Lock:
        """Threads of this process use an agent one after the other; a child begins with new locks."""
        if self._process != os.getpid():
            self._start()
        with self._lock:
            if len(self._turns) > 10 * _REMEMBERED:
                self._turns = {k: lock for k, lock in self._turns.items() if lock.locked()}
            return self._turns.setdefault(agent_id, threading.Lock())

    def directory(self, agent_id: str) -> Path:
        """Where an agent is, or would be."""
        name = _digest(agent_id)
        return self._root / "agents" / name[:2] / name

    def id_file(self, checkpoint_id: str) -> Path:
        """Where it says whose an id is that does not name its agent."""
        name = _digest(checkpoint_id)
        return self._root / "ids" / name[:2] / name

    @contextmanager
    def _held(self, agent_id: str, *, exclusive: bool) -> Iterator[Agent | None]:
        directory = self.directory(checked_name(agent_id))
        with (
            self._turn(agent_id),
            translated(directory),
            locked(directory, exclusive=exclusive) as identity,
        ):
            yield None if identity is None else Agent(agent_id, directory, self._journals, identity)

    def reading(self, agent_id: str) -> AbstractContextManager[Agent | None]:
        """Look at an agent; ``None`` if there is none."""
        return self._held(agent_id, exclusive=False)

    def changing(self, agent_id: str) -> AbstractContextManager[Agent | None]:
        """Change an agent; ``None`` if there is none."""
        return self._held(agent_id, exclusive=True)

    @contextmanager
    def writing(self, agent_id: str) -> Iterator[Agent]:
        """Change an agent, making its directory if need be."""
        while True:
            self._make(agent_id)
            with self.changing(agent_id) as agent:
                if agent is not None:
                    yield agent
                    return

    def _make(self, agent_id: str) -> None:
        path = self.directory(checked_name(agent_id)) / "name"
        with translated(path):
            if not path.exists():
                make_directory(path.parent)
                replace(path, encode({"format": FORMAT_VERSION, "agent_id": agent_id}))

    def names(self) -> Iterator[str]:
        """The names of all agents that have anything."""
        for directory in self._directories("*"):
            if any(entry.name not in _FRAME for entry in directory.iterdir()):
                yield self._name_in(directory)

    def with_locator(self, place: str) -> list[str]:
        """The names of the agents whose locator that is."""
        is_one = len(place) == LOCATOR_LENGTH and place.isalnum()
        return [self._name_in(found) for found in self._directories(f"{place}*")] if is_one else []

    def _directories(self, pattern: str) -> Iterator[Path]:
        parent = "*" if pattern == "*" else pattern[:2]
        return (self._root / "agents").glob(f"{parent}/{pattern}")

    def _name_in(self, directory: Path) -> str:
        try:
            fields = decode(read(directory / "name") or b"")
            refuse_newer(fields["format"], f"The agent in {directory}")
            return str(fields["agent_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(where=f"{directory / 'name'}", reason=str(error)) from error


def _digest(name: str) -> str:
    """The name of a file for any name; it begins with the locator."""
    return b32encode(hashlib.sha256(name.encode()).digest()[:20]).decode().lower()
