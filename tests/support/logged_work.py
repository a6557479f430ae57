"""Work of a run that notes entries of every kind."""

from __future__ import annotations

from celery_ckpt import CheckpointStore
from celery_ckpt.event_log import LogEntry
from celery_ckpt.records import CurrentCall, RunStatus
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step

_DATA = {"run_id": "run", "call": "llm", "name": "ask", "took": 1}
#: The entry of a call.
CALL = LogEntry("call", FakeClock().now(), _DATA)


def work_with_log(store: CheckpointStore, run_id: str) -> None:
    """Run with every write that notes something."""
    now = FakeClock().now()
    start = store.start_run(make_run("agent", run_id), "owner", 60, worker="w")
    assert start.lease is not None
    store.follow("agent", 60)
    store.record_step(make_step("agent", run_id, "a"), start.lease, log=[CALL])
    store.record_step(make_step("agent", run_id, "b"), start.lease, log=[CALL] * 2)
    checkpoint = make_checkpoint("agent", run_id=run_id)
    store.record_and_save(make_step("agent", run_id, "c"), checkpoint, start.lease, log=[CALL])
    store.renew(start.lease, 60, call=CurrentCall(kind="llm", name="x", began_at=now))
    store.stream(start.lease, [LogEntry("token", now, "a")])
    store.note("agent", [CALL])
    done = start.run.model_copy(update={"status": RunStatus.SUCCEEDED})
    end = LogEntry("ended", now, {"run_id": run_id, "how": "succeeded"})
    store.save(make_checkpoint("agent", run_id=run_id), start.lease, run=done, log=[end])
    store.settle_run(done, start.lease)
    store.release(start.lease)
    record = store.run("agent", run_id)
    assert record is not None
    assert record.is_settled
