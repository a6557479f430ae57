"""The directories of a file store: found by name, locked, and what is in them.

agents/k3/k3f9...   an agent, named by the digest of its name, so that every name is safe:
    name            {"format": 1, "agent_id": ..., "generation": ...}
    lock            held shared to read, exclusively to write
    journal-*, tip  checkpoints and messages (see journal.py)
    lease, runs, steps, policy, listed, changed, pending-run, events, attempt, followed (see
                    transaction.py)
watchdog/, sweep/   when the watchdog, or a sweep, looks at which agent (see schedule.py)
deleted/            markers of runs whose agents were deleted (see markers.py)
ids/                the agents of checkpoint ids that do not name their agent
trash/              deleted agents whose files are being removed
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.format_version import FORMAT_VERSION, refuse_newer
from celery_ckpt.json_values import decode, encode
from celery_ckpt.names import LOCATOR_LENGTH, checked_name, file_name, names_its_agent
from celery_ckpt.records import Schedule
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.stores.file.filesystem import (
    add,
    locked,
    make_directory,
    read,
    replace,
    replace_unsynced,
    translated,
)
from celery_ckpt.stores.file.journal import Journal
from celery_ckpt.stores.file.markers import MarkerDirectory
from celery_ckpt.stores.file.schedule import ScheduleDirectory
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.stores.rules.transaction import TurnState

#: How many journals a process remembers, so that it does not read them again from the beginning.
_REMEMBERED = 64
#: What the directory of an agent without data has.
_FRAME = {"name", "lock", "listed", "changed"}


class AgentDirectory:
    """One agent's directory, while its lock is held."""

    def __init__(self, agent_id: str, path: Path, journals: Journals, generation: str) -> None:
        self.agent_id = agent_id
        self.path = path
        self.exists = bool(generation)
        self._journals = journals
        self._generation = generation
        self._journal: Journal | None = None

    @classmethod
    def missing(cls, agent_id: str, path: Path) -> AgentDirectory:
        """Return the directory of an agent that does not exist: a path that no process creates."""
        return cls(agent_id, path / ".missing", Journals(), "")

    @property
    def journal(self) -> Journal:
        """The agent's journal, read to its end."""
        # Not a cached_property: before Python 3.12 that has a lock, which a fork could leave held.
        if self._journal is None:
            self._journal = self._journals.of(self.path, self._generation)
        return self._journal

    def lease(self) -> tuple[LeaseState, TurnState]:
        """Return the lease, and which run has the turn."""
        path = self.path / "lease"
        stored = read(path)
        if stored is None:
            return LeaseState(), TurnState()
        try:
            fields = decode(stored)
            given_at = fields.pop("given_at", None)
            turn = TurnState(
                fields.pop("active"),
                given_at and datetime.fromisoformat(given_at).astimezone(UTC),
                fields.pop("youngest_blocked", ""),
            )
            expires_at = datetime.fromisoformat(fields.pop("expires_at"))
            return LeaseState(**fields, expires_at=expires_at.astimezone(UTC)), turn
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreDamaged(where=str(path), reason=str(error)) from error

    def set_lease(self, state: LeaseState, turn: TurnState) -> None:
        """Replace the lease, and which run has the turn."""
        fields = {
            "token": state.token,
            "nonce": state.nonce,
            "owner": state.owner,
            "expires_at": state.expires_at.isoformat(),
            "active": turn.active,
        }
        if turn.given_at is not None:
            fields["given_at"] = turn.given_at.isoformat()
        if turn.youngest_blocked:
            fields["youngest_blocked"] = turn.youngest_blocked
        replace(self.path / "lease", encode(fields))

    def policy(self) -> AgentPolicy:
        """Return the agent's policy."""
        path = self.path / "policy"
        try:
            return AgentPolicy.from_bytes(read(path) or b"")
        except ValueError as error:
            raise StoreDamaged(where=str(path), reason=str(error)) from error

    def set_policy(self, policy: AgentPolicy) -> None:
        """Replace the agent's policy."""
        path, stored = self.path / "policy", policy.to_bytes()
        if stored:
            replace(path, stored)
        else:
            path.unlink(missing_ok=True)

    def changed_at(self) -> int:
        """Return when the agent last changed, in microseconds; 0 if that is not known."""
        return _change_in(self.path)

    def set_changed_at(self, at: int) -> None:
        """Note when the agent last changed. A power failure may undo it."""
        replace_unsynced(self.path / "changed", b"%d" % at)

    @property
    def listed(self) -> Path:
        """The file that exists while the agent is certain to be on the schedule of sweeps."""
        return self.path / "listed"


class Journals:
    """The journals that this process used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Path, str], Journal] = OrderedDict()

    def of(self, path: Path, generation: str) -> Journal:
        """Return the journal in a directory, read to its end. The caller holds the agent's lock."""
        with self._lock:
            journal = self._known.pop((path, generation), None)
        if journal is None:
            journal = Journal(path)
        else:
            journal.refresh()
        with self._lock:
            self._known[path, generation] = journal
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return journal


class StoreDirectory:
    """The root directory of a store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.schedules = {on: ScheduleDirectory(root, on) for on in Schedule}
        self.markers = MarkerDirectory(root)
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._thread_locks: dict[str, threading.Lock] = {}
        self._journals = Journals()

    # -- agents --------------------------------------------------------------------------------------

    def path_of(self, agent_id: str) -> Path:
        """Return the path of an agent's directory, which need not exist."""
        name = file_name(agent_id)
        return self.root / "agents" / name[:2] / name

    def reading(self, agent_id: str) -> AbstractContextManager[AgentDirectory]:
        """Hold an agent's lock to read. Other readers can hold it too."""
        return self._held(agent_id, exclusive=False)

    def changing(self, agent_id: str) -> AbstractContextManager[AgentDirectory]:
        """Hold an agent's lock to change the agent."""
        return self._held(agent_id, exclusive=True)

    @contextmanager
    def writing(self, agent_id: str) -> Iterator[AgentDirectory]:
        """Hold an agent's lock to change the agent. Creates its directory if it does not exist.

        A directory that was created for nothing, because the store refuses the write for instance, is
        removed again.
        """
        while True:
            is_new = self._make(agent_id)
            with self._held(agent_id, exclusive=True) as agent:
                if not agent.exists:
                    continue
                try:
                    yield agent
                finally:
                    if is_new and not has_data(agent.path):
                        self.move_to_trash(agent.path)
                        self.empty_trash()
                return

    @contextmanager
    def _held(self, agent_id: str, *, exclusive: bool) -> Iterator[AgentDirectory]:
        path = self.path_of(checked_name(agent_id))
        with (
            self._thread_lock(agent_id),
            translated(path),
            locked(path, exclusive=exclusive) as is_locked,
        ):
            name = name_in(path) if is_locked else None
            if name is None:
                yield AgentDirectory.missing(agent_id, path)
            else:
                yield AgentDirectory(agent_id, path, self._journals, name.generation)

    def _thread_lock(self, agent_id: str) -> threading.Lock:
        """Return the lock by which the threads of this process take turns. A child gets new locks."""
        if self._process != os.getpid():
            self._start()
        with self._lock:
            if len(self._thread_locks) > 10 * _REMEMBERED:
                held = {name: lock for name, lock in self._thread_locks.items() if lock.locked()}
                self._thread_locks = held
            return self._thread_locks.setdefault(agent_id, threading.Lock())

    def _make(self, agent_id: str) -> bool:
        """Create an agent's directory unless it exists. Return True if this call created it."""
        path = self.path_of(checked_name(agent_id)) / "name"
        generation = secrets.token_hex(8)
        fields = {"format": FORMAT_VERSION, "agent_id": agent_id, "generation": generation}
        is_new = False
        with translated(path):
            # If another process deletes the directory at the same time, it is created again.
            while not path.exists():
                with suppress(FileNotFoundError):
                    make_directory(path.parent)
                    replace(path, encode(fields))
                    is_new = True
        return is_new

    def names(self) -> Iterator[str]:
        """Yield the names of all agents that have data.

        Raises:
            StoreDamaged: a name cannot be read. Raised at the end, after all other names.
        """
        return (name for _, name in self.changes())

    def changes(self) -> Iterator[tuple[int, str]]:
        """Yield when each agent with data last changed, and its name. Raises what ``names`` does."""
        damage: StoreDamaged | None = None
        for path in self._agent_paths("*"):
            with translated(path):
                try:
                    name = name_in(path)
                except StoreDamaged as error:
                    damage = error
                    continue
                if name is not None and has_data(path):
                    yield _change_in(path), name.agent_id
        if damage is not None:
            raise damage

    def with_locator(self, locator: str) -> list[str]:
        """Return the names of the agents that have this locator."""
        if len(locator) != LOCATOR_LENGTH or not (locator.isascii() and locator.isalnum()):
            return []
        found = (name_in(path) for path in self._agent_paths(f"{locator}*"))
        return [name.agent_id for name in found if name is not None]

    def _agent_paths(self, pattern: str) -> Iterator[Path]:
        parent = "*" if pattern == "*" else pattern[:2]
        return (self.root / "agents").glob(f"{parent}/{pattern}")

    # -- trash ---------------------------------------------------------------------------------------

    def move_to_trash(self, path: Path) -> None:
        """Delete an agent's directory in one step."""
        trash = self.root / "trash" / secrets.token_hex(8)
        while path.exists():
            with suppress(FileNotFoundError):  # another deletion may have emptied the trash
                make_directory(trash.parent)
                path.rename(trash)
                break  # a directory that exists now is a new agent of that name

    def empty_trash(self) -> None:
        """Remove the files of deleted agents, also those of interrupted deletions."""
        for path in (self.root / "trash").glob("*"):
            shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            (self.root / "trash").rmdir()

    # -- checkpoint ids that do not name their agent -------------------------------------------------

    def register(self, checkpoint_id: str, agent_id: str) -> str:
        """Note whose a checkpoint id is, unless that is known. Return the name of its agent."""
        path = self._id_file(checkpoint_id)
        with translated(path):
            make_directory(path.parent)
            is_new = add(path, encode({"id": checkpoint_id, "agent_id": agent_id}))
        return agent_id if is_new else id_entry(path)[1]

    def registered(self, checkpoint_id: str) -> str:
        """Return the name of the agent that a checkpoint id is registered for, or an empty string."""
        return id_entry(self._id_file(checkpoint_id))[1]

    def unregister(self, checkpoint_ids: list[str], agent_id: str) -> None:
        """Delete the entries of an agent's checkpoint ids."""
        for checkpoint_id in checkpoint_ids:
            is_native = names_its_agent(checkpoint_id, agent_id)
            if not is_native and self.registered(checkpoint_id) == agent_id:
                self._id_file(checkpoint_id).unlink(missing_ok=True)

    def _id_file(self, checkpoint_id: str) -> Path:
        name = file_name(checkpoint_id)
        return self.root / "ids" / name[:2] / name


def id_entry(path: Path) -> tuple[str, str]:
    """Return the checkpoint id and the agent in an entry of ``ids``, or two empty strings."""
    with translated(path):
        stored = read(path)
    try:
        fields = {"id": "", "agent_id": ""} if stored is None else decode(stored)
        return str(fields["id"]), str(fields["agent_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(where=str(path), reason=str(error)) from error


class Name(NamedTuple):
    """The content of the file ``name``."""

    agent_id: str
    #: Differs from the generation of every earlier directory of this agent.
    generation: str


def name_in(path: Path) -> Name | None:
    """Return the name in an agent's directory, or ``None`` while it is being created or deleted.

    Raises:
        StoreDamaged: the name does not belong to this directory.
        SchemaTooNew: a newer version created it.
    """
    file = path / "name"
    stored = read(file)
    if stored is None:
        return None
    try:
        fields = decode(stored)
        refuse_newer(fields["format"], f"The agent in {path}")
        name = Name(fields["agent_id"], fields["generation"])
        if file_name(name.agent_id) != path.name:
            raise ValueError("it does not belong to this directory")
        return name
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamaged(where=str(file), reason=str(error)) from error


def _change_in(path: Path) -> int:
    # It may be missing or empty: it is not synced. It says only where the agent is listed.
    stored = read(path / "changed") or b""
    return int(stored[:20]) if stored.isdigit() else 0


def has_data(path: Path) -> bool:
    """Return True if the directory of an agent has data."""
    with suppress(FileNotFoundError):
        return any(not e.name.startswith(".") and e.name not in _FRAME for e in path.iterdir())
    return False
