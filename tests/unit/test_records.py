"""What is kept beside checkpoints is immutable JSON as well."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from celery_ckpt import CheckpointEvent
from celery_ckpt.records import CheckpointInfo, Lease, RunRecord, RunStatus, Step

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)

RECORDS: dict[str, BaseModel] = {
    "lease": Lease(agent_id="a", token=1, nonce="n", owner="o", expires_at=NOW),
    "step": Step(agent_id="a", run_id="r", key="call_1", iteration=2, name="f", value={"x": [1e22]}),
    "run": RunRecord(agent_id="a", run_id="r", envelope={"args": [1]}, result=[{}], created_at=NOW),
    "info": CheckpointInfo(
        id="c",
        seq=1,
        iteration=2,
        messages=3,
        created_at=NOW,
        event=CheckpointEvent.ITERATION,
        metadata={"k": "v"},
    ),
}
EVERY_RECORD = pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)


@EVERY_RECORD
def test_a_record_round_trips_through_json_and_pickle(record: BaseModel) -> None:
    assert type(record).model_validate_json(record.model_dump_json()) == record
    assert pickle.loads(pickle.dumps(record)) == record


@EVERY_RECORD
def test_no_field_of_a_record_can_be_set(record: BaseModel) -> None:
    for field in type(record).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(record, field, None)


@EVERY_RECORD
def test_an_unknown_field_is_refused(record: BaseModel) -> None:
    with pytest.raises(ValidationError, match="odd"):
        type(record)(**{**record.__dict__, "odd": 1})


@pytest.mark.parametrize(
    ("record", "field"),
    [("step", "value"), ("run", "envelope"), ("run", "result"), ("info", "metadata")],
)
def test_changing_what_was_read_from_a_record_does_not_change_it(record: str, field: str) -> None:
    before = RECORDS[record].model_dump_json()
    getattr(RECORDS[record], field).clear()
    assert RECORDS[record].model_dump_json() == before


def test_changing_what_a_step_was_created_from_does_not_change_it() -> None:
    value = {"x": [1]}
    step = Step(agent_id="a", run_id="r", key="k", value=value)
    value["x"].append(2)
    assert step.value == {"x": [1]}


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, 1.5, "text", [None], {"a": {}}])
def test_a_step_result_can_be_any_json_value(value: Any) -> None:
    step = Step(agent_id="a", run_id="r", key="k", value=value)
    assert repr(step.value) == repr(value)


@pytest.mark.parametrize(
    ("record", "fields", "message"),
    [
        ("lease", {"token": 0}, "token"),
        ("lease", {"agent_id": ""}, "An agent_id must be text of 1 to 512 characters"),
        ("lease", {"expires_at": datetime(2026, 1, 1)}, "timezone"),
        ("step", {"key": ""}, "A step's key must be text of 1 to 512 characters"),
        ("step", {"run_id": b"r"}, "A run_id must be text"),
        ("step", {"iteration": -1}, "iteration"),
        ("step", {"value": {"x": (1,)}}, r"value\.x is of type tuple"),
        ("run", {"envelope": {"x": b""}}, r"envelope\.x is of type bytes"),
        ("run", {"envelope": {b"x": 1}}, "envelope has a key of type bytes"),
        ("run", {"envelope": [1]}, "envelope"),
        ("run", {"result": float("inf")}, "result is inf"),
        ("run", {"status": "lost"}, "status"),
        ("run", {"attempts": -1}, "attempts"),
        ("info", {"id": "x" * 513}, "A checkpoint id must be text of 1 to 512 characters"),
    ],
)
def test_an_invalid_field_is_an_error_that_names_it(
    record: str, fields: dict[str, Any], message: str
) -> None:
    good = RECORDS[record]
    with pytest.raises(ValueError, match=message):
        type(good)(**{**good.__dict__, **fields})


def test_a_new_run_is_queued() -> None:
    run = RunRecord(agent_id="a", run_id="r", created_at=NOW)
    assert (run.status, run.attempts, run.retries) == (RunStatus.QUEUED, 0, 0)
    assert (run.envelope, run.result, run.error) == ({}, None, None)


def test_only_an_ended_run_is_final() -> None:
    final = {status for status in RunStatus if status.is_final}
    assert final == {RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED}


def test_every_time_is_stored_in_utc() -> None:
    there = datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    kept = RunRecord(agent_id="a", run_id="r", created_at=there).created_at
    assert kept == NOW
    assert kept.tzinfo is UTC
