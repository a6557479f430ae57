"""An import of any bytes gives complete agents or one of our errors, and reports everything it
stores.
"""

from __future__ import annotations

from random import Random

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.errors import CheckpointError
from celery_ckpt.testing import FakeClock
from celery_ckpt.transfer import Imported, import_agents
from tests.fuzz.audit import nothing_executed
from tests.fuzz.exports import BYSTANDER, any_export, exported, fill


def store_with(*agent_ids: str, says: str = "hello") -> MemoryCheckpointStore:
    """Return a store with these agents."""
    store = MemoryCheckpointStore(clock=FakeClock())
    for agent_id in agent_ids:
        fill(store, agent_id, says)
    return store


def imported_into(store: MemoryCheckpointStore, export: bytes) -> tuple[list[Imported], str]:
    """Return what was reported for each agent, and the error that ended the import."""
    reported: list[Imported] = []
    try:
        for one in import_agents(store, export.splitlines(keepends=True)):
            reported.append(one)
    except CheckpointError as error:
        return reported, str(error)
    return reported, ""


def check_import(chance: Random) -> None:
    """Check that an import is complete or refused, executes nothing, and changes no other agent."""
    store = store_with(BYSTANDER)
    before = exported(store, BYSTANDER)
    with nothing_executed():
        reported, _ = imported_into(store, any_export(chance))

    good = {one.agent_id for one in reported if one.error is None}
    # Everything in the store was reported, and nothing that was refused is in it.
    assert set(store.agents()) <= good | {BYSTANDER} | {one.agent_id for one in reported if one.in_part}
    if BYSTANDER not in {one.agent_id for one in reported if one.checkpoints or one.runs}:
        assert exported(store, BYSTANDER) == before
    for agent_id in good - {BYSTANDER}:
        again = exported(store, agent_id)
        other = store_with()
        assert [one.error for one in import_agents(other, again.splitlines(keepends=True))] == [None]
        assert exported(other, agent_id) == again


def check_import_over(chance: Random) -> None:
    """Check that an agent with a different history is not changed."""
    names = ("first", "second", BYSTANDER)
    store = store_with(*names, says="something else")
    before = exported(store, *names)
    imported_into(store, any_export(chance))
    assert exported(store, *names) == before
