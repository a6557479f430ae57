"""The findings of ``doctor``, in the same words for every store."""

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
from celery_ckpt.event_log import LogEntry
from celery_ckpt.records import Finding, Schedule
from celery_ckpt.store import CheckpointStore

#: A process that writes an index entry writes the data of the entry within this time, in seconds.
PATIENCE = 1.0
_SCHEDULES = {Schedule.WATCHDOG: "the watchdog", Schedule.SWEEP: "sweeps"}


def scheduled_without_agent(agent_id: str, on: Schedule, repaired: bool) -> Finding:
    """Report that an agent is scheduled and does not exist."""
    what = f"it is on the schedule of {_SCHEDULES[on]}, but the agent does not exist"
    return Finding("left over", agent_id, what, "Delete the entry.", True, repaired)


def not_scheduled(agent_id: str, on: Schedule, repaired: bool) -> Finding:
    """Report that an agent is not on a schedule that it must be on."""
    reason = {Schedule.WATCHDOG: "it has an open run", Schedule.SWEEP: "it was saved"}[on]
    what = f"{reason}, but it is not on the schedule of {_SCHEDULES[on]}"
    return Finding("not listed", agent_id, what, "Schedule it.", True, repaired)


def damage_in(store: CheckpointStore) -> Iterator[Finding]:
    """Yield the agents that cannot be read completely. Reads every message in the store."""
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
        if "log" in store.features:
            yield from _damage_of_log(agent_id, store.event_log(agent_id))
    except StoreUnavailable:
        raise
    except (EncryptionKeyMissing, NotEncrypted, SchemaTooNew):
        return  # the right key, or a newer version, can read it
    except StoreError as error:
        yield damaged(agent_id, str(error))


def _damage_of_log(agent_id: str, log: list[LogEntry]) -> Iterator[Finding]:
    count = sum(entry.kind == "damaged" for entry in log)
    if count:
        what = f"{count} entries of its event log cannot be read; its runs are not affected"
        yield Finding("damaged", agent_id, what, "Ignore it: new entries replace old ones.")


def damaged(agent_id: str, what: str) -> Finding:
    """Report that something of an agent cannot be read."""
    return Finding("damaged", agent_id, what, "Delete it, or restore a backup.")


def leftover(subject: str, what: str, repaired: bool) -> Finding:
    """Report a leftover."""
    return Finding("left over", subject, what, "Delete it.", True, repaired)


def misplaced(agent_id: str, repaired: bool) -> Finding:
    """Report that the index of changes shows an agent at a wrong place, or not at all."""
    what = "its entries in the index of changes do not agree with its record"
    return Finding("not listed", agent_id, what, "Write the entries again.", True, repaired)


def not_indexed(agent_id: str, repaired: bool) -> Finding:
    """Report that an agent is missing from the index of agents."""
    what = "it is missing from the index of agents"
    return Finding("not listed", agent_id, what, "Add it to the index.", True, repaired)
