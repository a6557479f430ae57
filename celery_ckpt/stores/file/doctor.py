"""What crashes leave behind in a file store. Each is harmless; here it is found, and removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from celery_ckpt.errors import StoreDamaged, StoreError
from celery_ckpt.records import Finding, Schedule
from celery_ckpt.stores.file.directory import Agent, has_data, name_in
from celery_ckpt.stores.file.trash import FileDropping
from celery_ckpt.stores.findings import PATIENCE, damaged, moment_for_nobody, overlooked, unneeded

#: A file that is about to be renamed, or a directory that is being made, is older than this only if its
#: process died.
_OLD_SECONDS = 60.0


def findings_of(store: FileDropping, repair: bool) -> Iterator[Finding]:
    """See ``CheckpointStore.ailments``."""
    root = store._root
    for path in sorted((root / "trash").glob("*")):
        yield unneeded(str(path), "an agent whose deletion was cut off", repair)
    if repair:
        store._empty_trash()
    yield from _temporary_files(root, repair)
    yield from _directories(store, repair)
    yield from _agents(store, repair)
    yield from _moments(store, repair)
    yield from _ids(store, repair)


def _temporary_files(root: Path, repair: bool) -> Iterator[Finding]:
    for path in sorted(root.rglob(".*")):
        if _is_old(path):
            if repair:
                path.unlink(missing_ok=True)
            yield unneeded(str(path), "a file that was about to be renamed", repair)


def _directories(store: FileDropping, repair: bool) -> Iterator[Finding]:
    """Those of agents of which there is nothing, not even a lease."""
    for directory in sorted((store._root / "agents").glob("*/*")):
        if not has_data(directory) and _is_old(directory):
            if repair:
                _remove_empty(store, directory)
            yield unneeded(str(directory), "a directory without an agent", repair)
    if repair:
        store._empty_trash()


def _remove_empty(store: FileDropping, directory: Path) -> None:
    name = name_in(directory)
    if name is None:  # it is nobody's; whoever makes an agent here just now makes it again
        store._throw_away(directory)
        return
    with store._agents.changing(name.agent_id) as agent:
        if agent is not None and not has_data(directory):
            store._throw_away(directory)


def _agents(store: FileDropping, repair: bool) -> Iterator[Finding]:
    for agent_id in _listed(store):
        with store._agents.changing(agent_id) as agent:
            if agent is None:
                continue
            try:
                found = list(_of_agent(store, agent, repair))
            except StoreError as error:
                found = [damaged(agent_id, str(error))]
        yield from found


def _listed(store: FileDropping) -> list[str]:
    names: list[str] = []
    # Whoever reads all that there is comes upon a name that is damaged, and tells it.
    with suppress(StoreDamaged):
        for agent_id in store.agents():
            names.append(agent_id)
    return names


def _of_agent(store: FileDropping, agent: Agent, repair: bool) -> Iterator[Finding]:
    agent_id, live = agent.agent_id, agent.journal.live
    pins = [name for name in agent.policy().pins if name not in live]
    leftovers = {
        "a part of its journal that nobody needs": bool(agent.journal.needless()),
        "the end of a run that is noted elsewhere": (agent.directory / "end").exists(),
        f"pins of checkpoints that are gone: {', '.join(pins)}": bool(pins),
    }
    found = [what for what, is_there in leftovers.items() if is_there]
    if found and repair:
        store._remove(agent, pins)
    yield from (unneeded(agent_id, what, repair) for what in found)
    waits = {
        Schedule.WATCHDOG: bool(store._desk(agent).open_runs()),
        Schedule.SWEEP: agent.listed.exists(),
    }
    for on, is_waiting in waits.items():
        if is_waiting and not store._moments[on].has(agent_id):
            if repair:
                store.schedule(agent_id, 0, on)
            yield overlooked(agent_id, on, repair)


def _moments(store: FileDropping, repair: bool) -> Iterator[Finding]:
    given = [(on, *one) for on in Schedule for one in store._moments[on].all()]
    suspects = [one for one in given if not _is_there(store, one[1])]
    if suspects:
        time.sleep(PATIENCE)  # somebody may be about to write the agent
    for on, agent_id, due_at in suspects:
        if _is_there(store, agent_id):
            continue
        if repair and store.unschedule({agent_id: due_at}, on) and _is_there(store, agent_id):
            store.schedule(agent_id, 0, on)
        yield moment_for_nobody(agent_id, on, repair)


def _is_there(store: FileDropping, agent_id: str) -> bool:
    return has_data(store._agents.directory(agent_id))


def _ids(store: FileDropping, repair: bool) -> Iterator[Finding]:
    for path in sorted((store._root / "ids").glob("*/[!.]*")):
        if not _is_old(path):
            continue
        checkpoint_id, agent_id = store._entry(path)
        with store._agents.reading(agent_id) as agent:
            is_needed = agent is not None and checkpoint_id in agent.journal.live
        if not is_needed:
            if repair:
                path.unlink(missing_ok=True)
            yield unneeded(str(path), f"an entry for checkpoint {checkpoint_id}, which is gone", repair)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _OLD_SECONDS
    except FileNotFoundError:
        return False
