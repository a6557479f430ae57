"""The directories of the agents: found by name, locked, and what is in them."""

from __future__ import annotations

import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from celery_ckpt.codec import FORMAT_VERSION, refuse_newer
from celery_ckpt.errors import StoreDamaged
from celery_ckpt.json_values import decode, encode
from celery_ckpt.names import LOCATOR_LENGTH, checked_name, file_name
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.stores.file.filesystem import locked, make_directory, read, replace, translated
from celery_ckpt.stores.file.journal import Journal
from celery_ckpt.stores.rules.leases import LeaseState

#: How many journals a process remembers, so as not to read them again from the beginning.
_REMEMBERED = 64
#: What a directory has that holds nothing.
_FRAME = {"name", "lock", "listed"}


class Agent:
    """One agent's directory, while its lock is held."""

    def __init__(self, agent_id: str, directory: Path, journals: Journals, identity: str) -> None:
        self.agent_id = agent_id
        self.directory = directory
        self._journals = journals
        self._identity = identity
        self._journal: Journal | None = None

    @property
    def journal(self) -> Journal:
        """Its journal, as it is now."""
        # Not a cached_property: until Python 3.12 it has a lock, which a fork would carry over.
        if self._journal is None:
            self._journal = self._journals.of(self.directory, self._identity)
        return self._journal

    def lease(self) -> LeaseState:
        """Its lease, as it is now."""
        return self._lease_file()[0]

    def active(self) -> str:
        """The id of the run whose turn it is; empty: none's."""
        return self._lease_file()[1]

    def _lease_file(self) -> tuple[LeaseState, str]:
        path = self.directory / "lease"
        stored = read(path)
        if stored is None:
            return LeaseState(), ""
        try:
            fields = decode(stored)
            active = fields.pop("active")
            expires_at = datetime.fromisoformat(fields.pop("expires_at"))
            return LeaseState(**fields, expires_at=expires_at.astimezone(UTC)), active
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreDamaged(where=str(path), reason=str(error)) from error

    def policy(self) -> AgentPolicy:
        """What was decided about it."""
        path = self.directory / "notes"
        try:
            return AgentPolicy.from_bytes(read(path) or b"")
        except ValueError as error:
            raise StoreDamaged(where=str(path), reason=str(error)) from error

    def set_policy(self, policy: AgentPolicy) -> None:
        """Decide something else about it."""
        path, stored = self.directory / "notes", policy.to_bytes()
        if stored:
            replace(path, stored)
        else:
            path.unlink(missing_ok=True)

    @property
    def listed(self) -> Path:
        """A file that is there while a sweep is sure to look at the agent soon."""
        return self.directory / "listed"

    def set_lease(self, state: LeaseState, active: str | None = None) -> None:
        """Change its lease and, if given, whose turn it is."""
        fields = {
            "token": state.token,
            "nonce": state.nonce,
            "owner": state.owner,
            "expires_at": state.expires_at.isoformat(),
            "active": self.active() if active is None else active,
        }
        replace(self.directory / "lease", encode(fields))


class Journals:
    """The journals that were used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Path, str], Journal] = OrderedDict()

    def of(self, directory: Path, identity: str) -> Journal:
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
        name = file_name(agent_id)
        return self._root / "agents" / name[:2] / name

    def id_file(self, checkpoint_id: str) -> Path:
        """Where it says whose an id is that does not name its agent."""
        name = file_name(checkpoint_id)
        return self._root / "ids" / name[:2] / name

    @contextmanager
    def _held(self, agent_id: str, *, exclusive: bool) -> Iterator[Agent | None]:
        directory = self.directory(checked_name(agent_id))
        with (
            self._turn(agent_id),
            translated(directory),
            locked(directory, exclusive=exclusive) as is_there,
        ):
            name = name_in(directory) if is_there else None
            yield name and Agent(agent_id, directory, self._journals, name.generation)

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
        generation = secrets.token_hex(8)
        fields = {"format": FORMAT_VERSION, "agent_id": agent_id, "generation": generation}
        with translated(path):
            # Another process may be deleting the directory while it is made: then it is made again.
            while not path.exists():
                with suppress(FileNotFoundError):
                    make_directory(path.parent)
                    replace(path, encode(fields))

    def names(self) -> Iterator[str]:
        """The names of all agents that have anything.

        Raises:
            StoreDamaged: one has no name that can be read; at the end, when all others were named.
        """
        damage: StoreDamaged | None = None
        for directory in self._directories("*"):
            with translated(directory):
                try:
                    name = name_in(directory)
                except StoreDamaged as error:
                    damage = error
                    continue
                if name is not None and has_data(directory):
                    yield name.agent_id
        if damage is not None:
            raise damage

    def with_locator(self, place: str) -> list[str]:
        """The names of the agents whose locator that is."""
        if len(place) != LOCATOR_LENGTH or not (place.isascii() and place.isalnum()):
            return []
        found = (name_in(directory) for directory in self._directories(f"{place}*"))
        return [name.agent_id for name in found if name is not None]

    def _directories(self, pattern: str) -> Iterator[Path]:
        parent = "*" if pattern == "*" else pattern[:2]
        return (self._root / "agents").glob(f"{parent}/{pattern}")


class Name(NamedTuple):
    """What the file ``name`` says: whose directory it is, and which one of that name."""

    agent_id: str
    generation: str


def name_in(directory: Path) -> Name | None:
    """The name in a directory; ``None`` if it is being made or deleted.

    Raises:
        StoreDamaged: it is not the name that belongs there.
        SchemaTooNew: a newer version made it.
    """
    path = directory / "name"
    stored = read(path)
    if stored is None:
        return None
    try:
        fields = decode(stored)
        refuse_newer(fields["format"], f"The agent in {directory}")
        name = Name(fields["agent_id"], fields["generation"])
        if file_name(name.agent_id) != directory.name:
            raise ValueError("it is not the name of this directory")
        return name
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamaged(where=str(path), reason=str(error)) from error


def has_data(directory: Path) -> bool:
    """Is anything of an agent in a directory?"""
    with suppress(FileNotFoundError):
        return any(not e.name.startswith(".") and e.name not in _FRAME for e in directory.iterdir())
    return False
