"""What can be wrong with a store, as all of them say it."""

from __future__ import annotations

from collections.abc import Iterator

from celery_ckpt.errors import (
    EncryptionKeyMissing,
    NotEncrypted,
    SchemaTooNew,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from celery_ckpt.records import Finding, Schedule
from celery_ckpt.store import CheckpointStore

#: Who writes an index entry writes what belongs to it within this time, in seconds.
PATIENCE = 1.0


def moment_for_nobody(agent_id: str, on: Schedule, repaired: bool) -> Finding:
    """A moment was given to an agent that is not there."""
    what = f"the {on.name.lower()} is to look at it, and there is no such agent"
    return Finding("left over", agent_id, what, "Its entry can go.", True, repaired)


def overlooked(agent_id: str, on: Schedule, repaired: bool) -> Finding:
    """An agent has something to be looked at, and no moment."""
    what = {
        Schedule.WATCHDOG: "a run of it is open, and no watchdog will look at it",
        Schedule.SWEEP: "it was saved, and no sweep will look at it",
    }[on]
    return Finding("not listed", agent_id, what, "Have one look at it.", True, repaired)


def damage_in(store: CheckpointStore) -> Iterator[Finding]:
    """The agents of which something cannot be read; reads every message there is."""
    try:
        for agent_id in store.agents():
            yield from _damage_of(store, agent_id)
    except StoreDamaged as error:
        yield damaged("the store", str(error))


def _damage_of(store: CheckpointStore, agent_id: str) -> Iterator[Finding]:
    try:
        store.list(agent_id)
        for run in store.runs(agent_id):
            store.steps(agent_id, run.run_id)
    except StoreUnavailable:
        raise
    except (EncryptionKeyMissing, NotEncrypted, SchemaTooNew):
        return  # it can be read by who has the key, or a newer version
    except StoreError as error:
        yield damaged(agent_id, str(error))


def damaged(agent_id: str, what: str) -> Finding:
    """Something of an agent cannot be read."""
    return Finding("damaged", agent_id, what, "Delete it, or restore a backup.")


def unneeded(subject: str, what: str, repaired: bool) -> Finding:
    """Something that was to be removed."""
    return Finding("left over", subject, what, "It can go.", True, repaired)


def unnoticed(agent_id: str, repaired: bool) -> Finding:
    """An agent is not among all agents."""
    what = "it is in no index, so that nobody finds it"
    return Finding("not listed", agent_id, what, "Enter it.", True, repaired)
