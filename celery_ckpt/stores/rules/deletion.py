"""What a deletion leaves of runs: the rules of the stores that decide in Python.

    the run has a record                           it starts, if it is its turn
    no record, and it was never recorded           it is added, and starts
    no record, but a marker                        it was deleted: it does not start
    no record and no marker, although recorded     the store lost the record: it is added, and starts

A marker is a digest of the id of a run whose message may still arrive when its agent is deleted: the
run is open; or it was cancelled, and its message may be queued or its attempt may still be working. A
run that succeeded or failed is settled after Celery has its outcome. A marker expires by itself.
``lua/agent_delete.lua`` and ``redis/markers.py`` are the same rules for Redis.
"""

from __future__ import annotations

from celery_ckpt.names import digest_of_run
from celery_ckpt.records import RunRecord, RunStatus, StartResult
from celery_ckpt.stores.rules.transaction import AgentTransaction


class RunWasDeleted(Exception):
    """Ends the transaction of a start, so that it changes nothing. No caller of a store sees it."""


def checked_remember(seconds: float) -> float:
    """Return how long markers last. Raises ``ValueError`` if it is negative, or not a number."""
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"delete(remember={seconds}): remember is 0 or more seconds")
    return seconds


def needs_marker(run: RunRecord) -> bool:
    """Return True if a message of the run may still arrive after its agent was deleted."""
    return not run.is_settled or run.status is RunStatus.CANCELLED


def delete(agent: AgentTransaction, remember: float) -> int:
    """Delete an agent, as ``CheckpointStore.delete`` promises."""
    if remember:
        agent.mark_deleted([digest_of_run(run_id) for run_id in agent.runs_to_mark()], remember)
    return agent.delete()


def refuse_deleted(agent: AgentTransaction, run_id: str) -> None:
    """Raise ``RunWasDeleted`` if the run has no record, but a marker."""
    if not agent.has_run(run_id) and agent.is_marked(digest_of_run(run_id)):
        raise RunWasDeleted


def deleted_start(run: RunRecord) -> StartResult:
    """Return the result of ``start_run`` for a run that was deleted."""
    ended = {"status": RunStatus.CANCELLED, "delivered": True}
    return StartResult(run=run.model_copy(update=ended), is_deleted=True)
