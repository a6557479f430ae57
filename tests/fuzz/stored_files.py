"""Tampered files and tables: what the store returns is right, or it raises one of our errors."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from celery_ckpt import CheckpointStore, MemoryCheckpointStore, open_store
from celery_ckpt.errors import CheckpointError, InvalidName
from celery_ckpt.records import Schedule
from celery_ckpt.testing import FakeClock, make_checkpoint
from tests.fuzz.exports import BYSTANDER, exported, fill, id_of
from tests.fuzz.mutations import any_text, mangled_bytes

READS: tuple[Callable[[CheckpointStore], Any], ...] = (
    lambda store: store.load_latest("first"),
    lambda store: store.load(id_of("first", 2)),
    lambda store: store.list("first"),
    lambda store: store.history("first"),
    lambda store: store.runs("first"),
    lambda store: store.steps("first", "run of first"),
    lambda store: store.activity("first"),
    lambda store: store.holder("first"),
    lambda store: store.policy("first"),
    lambda store: store.snapshots(["first"]),
    lambda store: list(store.agents()),
    lambda store: store.count_due(Schedule.SWEEP),
    lambda store: list(store.findings()),
    lambda store: store.prune("first", 1),
    lambda store: store.save(make_checkpoint("first")),
    lambda store: list(store.findings(repair=True)),
    lambda store: store.delete("first"),
)


def check_files(chance: Random) -> None:
    """Check a store after a file of an agent was changed, cut or removed."""
    with _copy("file") as directory:
        own = sorted(
            path for path in directory.rglob("*") if path.is_file() and "lock" not in path.name
        )
        target = chance.choice([path for path in own if _is_firsts(path, directory)])
        if chance.random() < 0.1:
            target.unlink()
        else:
            target.write_bytes(mangled_bytes(chance, target.read_bytes()))
        _look(open_store(f"file:///{directory}"))


def _is_firsts(path: Path, directory: Path) -> bool:
    """True if the file belongs only to the first agent. Files outside agents' directories
    belong to all.
    """
    name = directory / "agents" / path.relative_to(directory).parts[1] / path.parent.name / "name"
    return not name.exists() or b'"first"' in name.read_bytes()


def check_tables(chance: Random) -> None:
    """Check a store after a value in a table was replaced by one of another type."""
    with _copy("sqlite") as directory:
        path = directory / "store"
        with closing(sqlite3.connect(path)) as connection, connection:
            table = chance.choice(_tables(connection))
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            value = chance.choice((None, 7, -1, 2**62, 0.5, any_text(chance), chance.randbytes(9)))
            where = f"rowid IN (SELECT rowid FROM {table} ORDER BY random() LIMIT 1)"
            with suppress(sqlite3.IntegrityError):
                connection.execute(
                    f"UPDATE {table} SET {chance.choice(columns)} = ? WHERE {where}", [value]
                )
        try:
            store = open_store(f"sqlite:///{path}")
        except CheckpointError:
            return
        _look(store, is_shared=True)


def _tables(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in names if not name.startswith("sqlite_")]


def _look(store: CheckpointStore, *, is_shared: bool = False) -> None:
    """Perform every operation on the tampered agent. The other agent must be unchanged."""
    with store:
        for read in READS:
            with suppress(CheckpointError):
                read(store)
        if not is_shared:
            assert exported(store, BYSTANDER) == _neighbour()


@cache
def _neighbour() -> bytes:
    with _copy("file") as directory, open_store(f"file:///{directory}") as store:
        return exported(store, BYSTANDER)


@contextmanager
def _copy(kind: str) -> Iterator[Path]:
    # In memory if possible: nothing here depends on a disk.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="ckpt-hostile-") as directory:
        for name, content in _template(kind).items():
            path = Path(directory) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield Path(directory)


@cache
def _template(kind: str) -> dict[Path, bytes]:
    """Return the files of a store with two agents."""
    with tempfile.TemporaryDirectory(prefix="ckpt-hostile-") as directory:
        name = "" if kind == "file" else "/store"
        with open_store(f"{kind}:///{directory}{name}") as store:
            for agent_id in ("first", BYSTANDER):
                fill(store, agent_id)
        paths = [path for path in Path(directory).rglob("*") if path.is_file()]
        return {path.relative_to(directory): path.read_bytes() for path in paths}


def check_names(chance: Random) -> None:
    """Check that two names are two agents, whatever their characters, or are refused."""
    store = MemoryCheckpointStore(clock=FakeClock())
    with _copy("file") as directory, open_store(f"file:///{directory}") as files:
        for where in (store, files):
            _check_names(where, any_text(chance, 40), any_text(chance, 40))


def _check_names(store: CheckpointStore, one: str, other: str) -> None:
    try:
        saved = make_checkpoint(one)
        store.save(saved)
    except InvalidName:
        assert not 0 < len(one) <= 512
        return
    assert store.load_latest(one) == saved
    if one != other and 0 < len(other) <= 512:
        assert store.load_latest(other) is None
        store.save(make_checkpoint(other))
        assert store.delete(other) == 1
    assert store.list(one) == [saved]
    assert store.delete(one) == 1
    assert one not in set(store.agents())
