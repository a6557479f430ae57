"""Import of the agents of an export into a store: each completely or not at all, or it is reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from celery_ckpt.checkpoint import Checkpoint, is_same
from celery_ckpt.errors import AlreadyExists, CheckpointError, StoreUnavailable
from celery_ckpt.records import CheckpointInfo
from celery_ckpt.store import CheckpointStore
from celery_ckpt.transfer.sections import Section, sections

#: How long the lease keeps others from writing, if the import dies.
_LEASE_SECONDS = 60.0
_OWNER = "import"
_TAKEN = (
    "Agent {agent_id!r} {how} and was not imported. Delete the agent there first, or import into "
    "another store."
)
_OUTLINE = ("iteration", "created_at", "event", "run_id", "metadata")


@dataclass(frozen=True)
class Imported:
    """The outcome of importing one agent."""

    agent_id: str
    #: The number of checkpoints and runs that were written. Both are 0 if all of them existed.
    checkpoints: int = 0
    runs: int = 0
    #: The number of its runs that have not ended.
    open_runs: int = 0
    #: Why nothing, or not everything, was written.
    error: CheckpointError | None = None
    #: True if the store failed halfway. Importing the agent again completes it.
    in_part: bool = False
    #: How many entries of its event log were skipped, because they are damaged or of an unknown kind.
    skipped_entries: int = 0


def import_agents(store: CheckpointStore, lines: Iterable[bytes]) -> Iterator[Imported]:
    """Write the agents of an export into a store, and yield the outcome of each.

    What the store has already is skipped. An agent that has another history there is refused.

    Raises:
        NotAnExport: a line is not what was written; nothing of its agent was imported.
        StoreUnavailable: the store does not answer; an agent that was imported in part was yielded
            before.
    """
    for section in sections(lines):
        try:
            imported = _imported(store, section)
        except StoreUnavailable:
            raise
        except CheckpointError as error:
            imported = Imported(section.agent_id, error=error)
        yield imported
        if imported.in_part and isinstance(imported.error, StoreUnavailable):
            raise imported.error


def _imported(store: CheckpointStore, section: Section) -> Imported:
    present = store.history(section.agent_id)[::-1]
    known_runs = [run.run_id for run in store.run_outlines(section.agent_id)][::-1]
    own_runs = [run.run_id for run in section.runs]
    is_all_there = {*section.ids} <= {info.id for info in present} and {*own_runs} <= {*known_runs}
    if not is_all_there:
        begins_alike = [info.id for info in present] == [*section.ids][: len(present)]
        if not begins_alike or known_runs != own_runs[: len(known_runs)]:
            # Adding the rest would make an old checkpoint the latest one, or an old run the last.
            raise _taken(section, "already has a different history in this store")
    _refuse_different(store, section, present)
    open_runs = sum(not run.is_settled for run in section.runs)
    if is_all_there:
        return Imported(section.agent_id, open_runs=open_runs)
    done, error = _write(store, section, skip=len(present))
    runs = 0 if error else len(own_runs) - len(known_runs)
    return Imported(
        section.agent_id,
        done,
        runs,
        open_runs,
        error,
        in_part=error is not None,
        skipped_entries=section.skipped_entries,
    )


def _refuse_different(store: CheckpointStore, section: Section, present: list[CheckpointInfo]) -> None:
    """Raise ``AlreadyExists`` if a stored checkpoint with the same id has another content.

    Compares the outlines of all checkpoints, and the whole newest one, which has nearly all messages.
    """
    if not present:
        return
    outlines = {info.id: info for info in present}
    common = [checkpoint for checkpoint in section.checkpoints() if checkpoint.id in outlines]
    for checkpoint in common:
        if _outline(checkpoint) != _outline(outlines[checkpoint.id]):
            raise _taken(section, f"has a different checkpoint {checkpoint.id} in this store")
    stored = store.load(common[-1].id) if common else None
    if stored is not None and not is_same(stored, common[-1]):
        raise _taken(section, f"has a different checkpoint {stored.id} in this store")


def _taken(section: Section, how: str) -> AlreadyExists:
    return AlreadyExists(_TAKEN.format(agent_id=section.agent_id, how=how), agent_id=section.agent_id)


def _outline(one: Checkpoint | CheckpointInfo) -> list[object]:
    return [getattr(one, name) for name in _OUTLINE]


def _write(store: CheckpointStore, section: Section, skip: int) -> tuple[int, CheckpointError | None]:
    """Write all but the first ``skip`` checkpoints. Return how many were written, and the error."""
    lease, done = store.acquire(section.agent_id, _OWNER, _LEASE_SECONDS), 0
    try:
        for checkpoint in islice(section.checkpoints(), skip, None):
            store.save(checkpoint, lease)
            done += 1
        store.set_policy(section.agent_id, store.policy(section.agent_id), section.policy)
        for step in section.steps:
            store.record_step(step, lease)
        _write_log(store, section)
        # Last: an agent with all its runs is complete.
        for run in section.runs:
            store.add_run(run)
    except CheckpointError as error:
        return done, error
    finally:
        with suppress(CheckpointError):  # otherwise the lease expires
            store.release(lease)
    return done, None


def _write_log(store: CheckpointStore, section: Section) -> None:
    """Write the event log, unless the agent has one: of an import that was interrupted, or its own."""
    if section.log and "log" in store.features and not store.event_log(section.agent_id, limit=1):
        store.note(section.agent_id, section.log, copied=True)
