"""The times that tail prints."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.records import RunStatus
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step
from celery_ckpt.views.follower import Follower, Happening
from tests.support.cli import Commands

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENDED = {"status": RunStatus.SUCCEEDED, "delivered": True, "attempts": 1}


def minutes(count: int) -> datetime:
    return NOON + timedelta(minutes=count)


def local(time: datetime, layout: str = "%m-%d %H:%M:%S") -> str:
    """Return a time as tail prints it on this machine."""
    return time.astimezone().strftime(layout)


def times(output: list[Happening]) -> list[tuple[str, datetime | None]]:
    return [(one.kind, one.at) for one in output]


def test_tail_prints_the_time_of_the_event_not_of_the_check(
    commands: Commands,
) -> None:
    run = make_run("old", "r", created_at=minutes(1), ended_at=minutes(3), **ENDED)
    commands.store.add_run(run)
    checkpoint = make_checkpoint("old", created_at=FakeClock(minutes(2)).now(), run_id="r")
    commands.store.save(checkpoint)

    [saved, ended] = commands("tail", "old", "-n", "0").stdout.splitlines()

    assert saved == f"{local(minutes(2))}    checkpoint {checkpoint.id}, iteration 1"
    assert ended == f"{local(minutes(3))}    run r succeeded, attempt 1"
    objects = [json.loads(line) for line in commands("tail", "old", "--json").stdout.splitlines()]
    assert [(one["kind"], one["at"]) for one in objects] == [
        ("messages", "2026-01-01T12:02:00Z"),
        ("checkpoint", "2026-01-01T12:02:00Z"),
        ("run", "2026-01-01T12:03:00Z"),
    ]


def test_events_of_today_are_printed_without_a_date(commands: Commands) -> None:
    checkpoint = make_checkpoint("young")
    commands.store.save(checkpoint)
    [line] = commands("tail", "young", "-n", "0").stdout.splitlines()
    # The day may end between the save and the check.
    assert line.split("  ")[0] in {
        local(checkpoint.created_at, layout) for layout in ("%H:%M:%S", "%m-%d %H:%M:%S")
    }


def test_an_event_without_a_stored_time_has_none_if_it_precedes_tail(
    commands: Commands,
) -> None:
    commands.store.add_run(make_run("busy", "r", status="failed", delivered=True, created_at=NOON))
    for key in ("one", "two"):
        commands.store.record_step(make_step("busy", "r", key, name=key))
    commands.store.update_run(make_run("busy", "r", status="running", attempts=1, created_at=NOON))
    follower = Follower(commands.store, "busy", 10)

    assert times(follower.look()) == [("step", None), ("step", None), ("run", None)]

    commands.store.update_run(make_run("busy", "r", delivered=True, status="failed", created_at=NOON))
    [line] = commands("tail", "busy", code=1).stdout.splitlines()
    assert line == "-                 run r failed, attempt 0"
    [line] = commands("tail", "busy", "--json", code=1).stdout.splitlines()
    assert json.loads(line)["at"] is None


def test_an_event_without_a_stored_time_gets_the_time_when_tail_saw_it() -> None:
    store, clock = MemoryCheckpointStore(), FakeClock(NOON)
    store.add_run(make_run("busy", "r", created_at=minutes(-5)))
    follower = Follower(store, "busy", 10, clock)
    assert times(follower.look()) == [("run", minutes(-5))]  # a queued run: when it was sent

    clock.advance(60)
    store.record_step(make_step("busy", "r"))
    store.update_run(make_run("busy", "r", status="running", attempts=1, created_at=minutes(-5)))
    assert times(follower.look()) == [("step", minutes(1)), ("run", minutes(1))]


def test_runs_that_ended_before_a_checkpoint_are_printed_before_it() -> None:
    store = MemoryCheckpointStore()
    store.add_run(make_run("named", "first", created_at=NOON, ended_at=minutes(1), **ENDED))
    store.add_run(make_run("named", "second", created_at=NOON, ended_at=minutes(9), **ENDED))
    store.save(make_checkpoint("named", created_at=FakeClock(minutes(8)).now(), run_id="second"))

    output = Follower(store, "named", 0).look()

    assert times(output) == [("run", minutes(1)), ("checkpoint", minutes(8)), ("run", minutes(9))]


def test_a_run_that_ended_is_printed_after_its_last_checkpoint() -> None:
    store = MemoryCheckpointStore()
    store.add_run(make_run("agent", "r", created_at=NOON, ended_at=minutes(1), **ENDED))
    store.save(make_checkpoint("agent", created_at=FakeClock(minutes(2)).now(), run_id="r"))

    assert [one.kind for one in Follower(store, "agent", 0).look()] == ["checkpoint", "run"]
