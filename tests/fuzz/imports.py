"""Whatever is imported: agents that are whole, or an error of ours, and nothing that was not told."""

from __future__ import annotations

from random import Random

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.errors import CheckpointError
from celery_ckpt.testing import FakeClock
from celery_ckpt.transfer import Imported, import_agents
from tests.fuzz.audit import nothing_executed
from tests.fuzz.exports import BYSTANDER, any_export, exported, fill


def store_with(*agent_ids: str, says: str = "hello") -> MemoryCheckpointStore:
    """A store in which these are."""
    store = MemoryCheckpointStore(clock=FakeClock())
    for agent_id in agent_ids:
        fill(store, agent_id, says)
    return store


def imported_into(store: MemoryCheckpointStore, export: bytes) -> tuple[list[Imported], str]:
    """What was told of each agent, and how it ended."""
    told: list[Imported] = []
    try:
        for one in import_agents(store, export.splitlines(keepends=True)):
            told.append(one)
    except CheckpointError as error:
        return told, str(error)
    return told, ""


def check_import(chance: Random) -> None:
    """An import is whole or refused, runs nothing, and touches nobody else."""
    store = store_with(BYSTANDER)
    before = exported(store, BYSTANDER)
    with nothing_executed():
        told, _ = imported_into(store, any_export(chance))

    good = {one.agent_id for one in told if one.error is None}
    # What is in the store was told of, and what was refused is not in it.
    assert set(store.agents()) <= good | {BYSTANDER} | {one.agent_id for one in told if one.in_part}
    if BYSTANDER not in {one.agent_id for one in told if one.checkpoints or one.runs}:
        assert exported(store, BYSTANDER) == before
    for agent_id in good - {BYSTANDER}:
        again = exported(store, agent_id)
        other = store_with()
        assert [one.error for one in import_agents(other, again.splitlines(keepends=True))] == [None]
        assert exported(other, agent_id) == again


def check_import_over(chance: Random) -> None:
    """An agent that has another history is left alone."""
    names = ("first", "second", BYSTANDER)
    store = store_with(*names, says="something else")
    before = exported(store, *names)
    imported_into(store, any_export(chance))
    assert exported(store, *names) == before
