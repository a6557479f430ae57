"""What crashes leave behind in a file store. All of it is harmless; ``doctor`` finds and removes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from celery_ckpt.errors import StoreDamaged, StoreError
from celery_ckpt.records import Finding, Schedule
from celery_ckpt.stores.file.directory import StoreDirectory, has_data, id_entry, name_in
from celery_ckpt.stores.file.transaction import FileTransaction
from celery_ckpt.stores.findings import (
    PATIENCE,
    damaged,
    leftover,
    not_scheduled,
    scheduled_without_agent,
)

#: A temporary file or an empty directory that is older than this was left by a process that died.
_OLD_SECONDS = 60.0

Transaction = Callable[[str], AbstractContextManager[FileTransaction]]


def findings_of(
    store: StoreDirectory, transaction: Transaction, now: Callable[[], int], repair: bool
) -> Iterator[Finding]:
    """Yield the leftovers in a store; with ``repair``, remove them."""
    for path in sorted((store.root / "trash").glob("*")):
        yield leftover(str(path), "an agent whose deletion was interrupted", repair)
    if repair:
        store.empty_trash()
    for path in sorted(store.root.rglob(".*")):
        if _is_old(path):
            if repair:
                path.unlink(missing_ok=True)
            yield leftover(str(path), "a temporary file", repair)
    if repair:
        store.markers.remove_expired(now())
    yield from _empty_directories(store, repair)
    yield from _agents(store, transaction, repair)
    yield from _due_times(store, now, repair)
    yield from _ids(store, repair)


def _empty_directories(store: StoreDirectory, repair: bool) -> Iterator[Finding]:
    for path in sorted((store.root / "agents").glob("*/*")):
        if not has_data(path) and _is_old(path):
            if repair:
                _remove_empty(store, path)
            yield leftover(str(path), "a directory without an agent", repair)
    if repair:
        store.empty_trash()


def _remove_empty(store: StoreDirectory, path: Path) -> None:
    name = name_in(path)
    if name is None:  # a process that creates an agent here creates the directory again
        store.move_to_trash(path)
        return
    with store.changing(name.agent_id) as agent:
        if agent.exists and not has_data(path):
            store.move_to_trash(path)


def _agents(store: StoreDirectory, transaction: Transaction, repair: bool) -> Iterator[Finding]:
    names: list[str] = []
    with suppress(StoreDamaged):  # ``damage_in`` reports a damaged name
        for agent_id in store.names():
            names.append(agent_id)
    for agent_id in names:
        with transaction(agent_id) as agent:
            try:
                found = list(_of_agent(store, agent, repair)) if agent.exists else []
            except StoreError as error:
                found = [damaged(agent_id, str(error))]
        yield from found


def _of_agent(store: StoreDirectory, agent: FileTransaction, repair: bool) -> Iterator[Finding]:
    pins = [name for name in agent.policy.pins if name not in agent.journal.live]
    leftovers = {
        "a file of its journal that no checkpoint needs": bool(agent.journal.needless()),
        "a pending run record": (agent.directory.path / "pending-run").exists(),
        f"pins of checkpoints that do not exist: {', '.join(pins)}": bool(pins),
    }
    found = [what for what, exists in leftovers.items() if exists]
    if found and repair:
        agent.remove(pins)
    yield from (leftover(agent.agent_id, what, repair) for what in found)
    must_be_scheduled = {
        Schedule.WATCHDOG: bool(agent.open_runs()),
        Schedule.SWEEP: agent.directory.listed.exists(),
    }
    for on, is_required in must_be_scheduled.items():
        if is_required and not store.schedules[on].has(agent.agent_id):
            if repair:
                agent.schedule(0, on)
            yield not_scheduled(agent.agent_id, on, repair)


def _due_times(store: StoreDirectory, now: Callable[[], int], repair: bool) -> Iterator[Finding]:
    scheduled = [(on, *entry) for on in Schedule for entry in store.schedules[on].all()]
    suspects = [entry for entry in scheduled if not has_data(store.path_of(entry[1]))]
    if suspects:
        time.sleep(PATIENCE)  # an agent is scheduled before it is written
    for on, agent_id, due_at in suspects:
        path, schedule = store.path_of(agent_id), store.schedules[on]
        if has_data(path):
            continue
        if repair and schedule.remove(agent_id, due_at) and has_data(path):
            schedule.set(agent_id, now(), 0)
        yield scheduled_without_agent(agent_id, on, repair)


def _ids(store: StoreDirectory, repair: bool) -> Iterator[Finding]:
    for path in sorted((store.root / "ids").glob("*/[!.]*")):
        if not _is_old(path):
            continue
        checkpoint_id, agent_id = id_entry(path)
        if not agent_id:  # another process has just deleted the entry
            continue
        with store.reading(agent_id) as agent:
            is_needed = checkpoint_id in agent.journal.live
        if not is_needed:
            if repair:
                path.unlink(missing_ok=True)
            what = f"an entry for checkpoint {checkpoint_id}, which does not exist"
            yield leftover(str(path), what, repair)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _OLD_SECONDS
    except FileNotFoundError:
        return False
