"""Checks that the store agrees with Celery and with the ledger about a run that has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from celery_ckpt import CheckpointStore
from celery_ckpt.records import RunStatus
from tests.support.ledger import Note


def judge_record(
    store: CheckpointStore, run_id: str, value: list[Any], begins: Sequence[Note]
) -> Iterator[str]:
    """Return what is wrong with the records of a run that returned this value, given how its
    bodies began.
    """
    return (f"run {run_id}: {wrong}" for wrong in _problems(store, run_id, value, begins))


def _problems(
    store: CheckpointStore, run_id: str, value: list[Any], begins: Sequence[Note]
) -> Iterator[str]:
    record, latest, history = (
        store.run(run_id, run_id),
        store.load_latest(run_id),
        store.history(run_id),
    )
    if record is None or latest is None:
        yield f"its record and its latest checkpoint are {record} and {latest}"
        return
    if (record.status, record.delivered, record.result) != (RunStatus.SUCCEEDED, True, value):
        yield f"it is recorded as {record.status}, delivered: {record.delivered}, with {record.result}"
    if [latest.state["sum"], len(latest.conversation), latest.conversation.digest] != value:
        yield f"its latest checkpoint is of iteration {latest.iteration}, which is not its end"
    if [info.seq for info in history] != sorted({info.seq for info in history}, reverse=True):
        yield "its checkpoints are not in order"
    if store.holder(run_id) or store.steps(run_id, run_id):
        yield f"it still has a lease or steps: {store.holder(run_id)}, {store.steps(run_id, run_id)}"
    yield from _not_growing(begins, record.attempts)


def _not_growing(begins: Sequence[Note], attempts: int) -> Iterator[str]:
    """Return the bodies without a larger token than the body before, and attempts that were not
    counted.
    """
    in_order = sorted(begins, key=lambda begin: begin.at)
    for before, after in pairwise(in_order):
        if after["token"] <= before["token"] or after["attempt"] <= before["attempt"]:
            yield f"a body began with {after.facts}, after one with {before.facts}"
    if in_order and in_order[-1]["attempt"] > attempts:
        yield f"attempt {in_order[-1]['attempt']} began, but {attempts} were counted"
