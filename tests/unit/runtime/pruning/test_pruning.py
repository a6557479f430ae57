"""Sweeps, pins, limits and the doctor, used through an app. The tests compare the ids that remain."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_ckpt import AgentRun, Agents, AgentTask, agent_task, signals
from celery_ckpt.clock import system_clock
from celery_ckpt.errors import AgentNotFound, CheckpointNotFound, StoreError
from celery_ckpt.records import RunStatus, Schedule
from celery_ckpt.retention.policy import judge
from celery_ckpt.retention.report import PruneReport
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.pruning import tasks
from celery_ckpt.runtime.pruning.sweep import rules_of
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing import make_checkpoint, make_run

DAY = timedelta(days=1)


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Celery]:
    conf = getattr(request, "param", {})
    app = Celery("pruning", broker="memory://", set_as_current=False)
    app.conf.update({"ckpt_store_url": "memory://", "ckpt_keep": 3, **conf})
    app.finalize()
    yield app
    app.close()


@pytest.fixture
def store(app: Celery) -> CheckpointStore:
    return AppContext.of(app).store


@pytest.fixture
def agents(app: Celery) -> Agents:
    return Agents(app)


def configured(**conf: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("app", [conf], indirect=True, ids=[""])


def saved(store: CheckpointStore, agent_id: str, *ages: timedelta) -> list[str]:
    """Save a checkpoint of each age, oldest first. Return their ids."""
    now = system_clock.now()
    history = [make_checkpoint(agent_id).model_copy(update={"created_at": now - age}) for age in ages]
    for checkpoint in history:
        store.save(checkpoint)
    return [checkpoint.id for checkpoint in history]


def finished(store: CheckpointStore, agent_id: str, run_id: str, ago: timedelta, **fields: Any) -> None:
    """Record a run of an agent that ended this long ago."""
    status = fields.pop("status", RunStatus.SUCCEEDED)
    run = make_run(agent_id, run_id, **fields)
    lease = store.start_run(run, "me", 60).lease
    ended = {"status": status, "ended_at": system_clock.now() - ago}
    store.settle_run(run.model_copy(update=ended), lease)


def sweep(app: Celery) -> None:
    assert AgentTask.is_agent  # importing it adds the task
    app.tasks[tasks.PRUNE]()


def left(store: CheckpointStore, agent_id: str) -> list[str]:
    return [info.id for info in store.history(agent_id)][::-1]


NEW = timedelta(0)


def test_a_sweep_keeps_the_newest(app: Celery, store: CheckpointStore) -> None:
    three, four = saved(store, "three", *[NEW] * 3), saved(store, "four", *[NEW] * 4)
    sweep(app)

    assert left(store, "three") == three
    assert left(store, "four") == four[1:]


@configured(ckpt_keep=None, ckpt_max_age=timedelta(days=2))
def test_a_sweep_removes_old_checkpoints_and_is_due_again_when_more_are_old(
    app: Celery, store: CheckpointStore
) -> None:
    second, minute = timedelta(seconds=1), timedelta(minutes=1)
    ids = saved(store, "agent", 3 * DAY, 2 * DAY + second, 2 * DAY - minute, DAY)
    sweep(app)

    assert left(store, "agent") == ids[2:]
    [snapshot] = store.snapshots(["agent"])
    again = judge(snapshot, rules_of(AppContext.of(app).settings), system_clock.now()).again
    assert again is not None
    assert 55 < again <= 60


@configured(ckpt_keep=1, ckpt_max_age=1)
def test_the_latest_checkpoint_of_an_agent_with_an_open_run_is_never_removed(
    app: Celery, store: CheckpointStore
) -> None:
    alone = saved(store, "alone", 9 * DAY, 8 * DAY)
    running = saved(store, "running", 9 * DAY, 8 * DAY)
    store.start_run(make_run("running", "running"), "me", 60)
    failed = saved(store, "failed", 9 * DAY, 8 * DAY)
    finished(store, "failed", "failed", DAY, status=RunStatus.FAILED)
    named = saved(store, "named", 9 * DAY, 8 * DAY)
    finished(store, "named", "some task", DAY)
    over = saved(store, "over", 9 * DAY, 8 * DAY)
    finished(store, "over", "over", DAY)
    sweep(app)

    for agent_id, ids in {"alone": alone, "running": running, "failed": failed, "named": named}.items():
        assert left(store, agent_id) == ids[1:]
    assert (left(store, "over"), len(over)) == ([], 2)
    assert store.run("over", "over") is not None


@configured(ckpt_forget_finished_after=timedelta(days=7))
def test_agents_named_by_their_task_id_are_deleted_some_time_after_their_end(
    app: Celery, store: CheckpointStore
) -> None:
    minute = timedelta(minutes=1)
    for agent_id, run_id, ago in [
        ("just over", "just over", 7 * DAY + minute),
        ("not yet", "not yet", 7 * DAY - minute),
        ("with a name", "some task", 70 * DAY),
    ]:
        saved(store, agent_id, ago)
        finished(store, agent_id, run_id, ago)
    saved(store, "open", 70 * DAY)
    finished(store, "open", "open", 70 * DAY)
    store.add_run(make_run("open", "another"))
    pinned = make_checkpoint("pinned", metadata={"pin": "evidence"})
    store.save(pinned)
    finished(store, "pinned", "pinned", 70 * DAY)
    sweep(app)

    assert sorted(store.agents()) == ["not yet", "open", "pinned", "with a name"]
    assert store.runs("just over") == []


@configured(ckpt_forget_finished_after=timedelta(days=7))
def test_old_runs_of_named_agents_are_deleted_and_reported(
    app: Celery, store: CheckpointStore, agents: Agents, caplog: Any
) -> None:
    minute, received = timedelta(minutes=1), list[dict[str, Any]]()

    def on_pruned(**facts: Any) -> None:
        received.append(facts)

    signals.checkpoints_pruned.connect(on_pruned)
    for run_id, ago in {"old": 8 * DAY, "over": 7 * DAY + minute, "not yet": 7 * DAY - minute}.items():
        finished(store, "user-42", run_id, ago)
    finished(store, "user-42", "last", 6 * DAY)
    dry = agents.prune_all(dry_run=True)
    assert (dry.runs, dry.pruned, len(store.runs("user-42"))) == (2, 1, 4)
    with caplog.at_level("INFO"):
        sweep(app)

    assert [run.run_id for run in agents.runs("user-42")] == ["not yet", "last"]
    assert agents.status("user-42").run_id == "last"
    [facts] = received
    assert (facts["agent_id"], facts["count"], facts["runs"]) == ("user-42", 0, 2)
    assert "Pruned 0 checkpoints from 1 agent; deleted 0 agents and 2 old runs" in caplog.text
    assert agents.prune_all().runs == 0


@configured(ckpt_forget_finished_after=None)
def test_without_a_limit_all_runs_are_kept_unless_the_agent_has_one(
    app: Celery, store: CheckpointStore, agents: Agents
) -> None:
    for agent_id in ("user-1", "user-2"):
        for run_id, ago in {"old": 800 * DAY, "last": DAY}.items():
            finished(store, agent_id, run_id, ago)
    agents.retain("user-2", forget_after=timedelta(days=30))
    sweep(app)

    assert [len(store.runs(agent_id)) for agent_id in ("user-1", "user-2")] == [2, 1]


def test_unreadable_runs_do_not_stop_a_dry_run(
    app: Celery, store: CheckpointStore, agents: Agents, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in ("old", "last"):
        finished(store, "user-42", run_id, 800 * DAY)

    def damaged(_: str) -> None:
        raise StoreError(reason="The record of a run is damaged.")

    monkeypatch.setattr(store, "runs", damaged)
    assert (agents.prune_all(dry_run=True).runs, "is damaged" in caplog.text) == (0, True)


def test_limits_of_an_agent_override_its_task_which_overrides_the_settings(
    app: Celery, store: CheckpointStore, agents: Agents
) -> None:
    of_task, of_agent = saved(store, "task", *[NEW] * 6), saved(store, "agent", *[NEW] * 6)
    for agent_id in ("task", "agent"):
        finished(store, agent_id, "run", NEW, keep=5)
    agents.retain("agent", keep=1)
    plain = saved(store, "plain", *[NEW] * 6)
    sweep(app)

    assert left(store, "plain") == plain[3:]
    assert left(store, "task") == of_task[1:]
    assert left(store, "agent") == of_agent[5:]
    agents.retain("agent")
    saved(store, "agent", *[NEW] * 5)
    sweep(app)
    assert len(left(store, "agent")) == 5


@configured(ckpt_keep=None, ckpt_max_age=2 * DAY)
def test_age_limits_of_an_agent_override_its_task_which_overrides_the_settings(
    app: Celery, store: CheckpointStore, agents: Agents
) -> None:
    ages, second = (5 * DAY, 3 * DAY, DAY, NEW), timedelta(seconds=1)
    ids = {name: saved(store, name, *ages) for name in ("plain", "task", "agent")}
    for name in ("task", "agent"):
        finished(store, name, "run", NEW, max_age=(3 * DAY + timedelta(minutes=1)).total_seconds())
    agents.retain("agent", max_age=DAY - second)
    sweep(app)

    assert left(store, "plain") == ids["plain"][2:]
    assert left(store, "task") == ids["task"][1:]
    assert left(store, "agent") == ids["agent"][3:]


def test_the_limits_of_a_task_are_in_the_records_of_its_runs(
    app: Celery, store: CheckpointStore
) -> None:
    @agent_task(app=app, shared=False, keep=5, max_age=timedelta(hours=1))
    def research(run: AgentRun) -> None:
        """Do nothing."""

    @agent_task(app=app, shared=False)
    def plain(run: AgentRun) -> None:
        """Do nothing."""

    sent = [task.delay().id for task in (research, plain)]
    runs = [store.run(task_id, task_id) for task_id in sent]
    assert [(run.keep, run.max_age) for run in runs if run] == [(5, 3600), (None, None)]


def test_a_named_agent_with_forget_after_is_deleted(
    app: Celery, store: CheckpointStore, agents: Agents
) -> None:
    saved(store, "named", DAY)
    finished(store, "named", "task", DAY)
    agents.retain("named", forget_after=timedelta(hours=23))
    sweep(app)

    assert list(store.agents()) == []
    with pytest.raises(AgentNotFound):
        agents.retain("named", keep=1)
    with pytest.raises(ValueError, match="keep"):
        agents.retain("named", keep=0)
    with pytest.raises(ValueError, match="max_age"):
        agents.retain("named", max_age=float("inf"))


def test_pinned_checkpoints_are_kept_until_they_are_unpinned(
    app: Celery, store: CheckpointStore, agents: Agents
) -> None:
    ids = saved(store, "agent", *[NEW] * 6)
    agents.pin(ids[0], "before-deploy")
    sweep(app)
    assert left(store, "agent") == [ids[0], *ids[3:]]
    assert agents.history("agent")[-1].pin == "before-deploy"
    assert agents.prune("agent", 1) == 2
    assert left(store, "agent") == [ids[0], ids[5]]

    assert agents.unpin(ids[0])
    assert not agents.unpin(ids[0])
    assert agents.prune("agent", 1) == 1
    for act in (agents.unpin, lambda name: agents.pin(name, "x")):
        with pytest.raises(CheckpointNotFound):
            act(ids[0])


def test_a_fork_of_a_pinned_checkpoint_is_not_pinned(store: CheckpointStore, agents: Agents) -> None:
    pinned = make_checkpoint("agent", metadata={"pin": "mine", "also": "this"})
    store.save(pinned)
    [fork] = agents.history(agents.fork(pinned.id, "fork"))

    assert (fork.pin, fork.metadata["also"]) == (None, "this")


def test_a_dry_run_reports_what_would_be_deleted_and_deletes_nothing(
    app: Celery, store: CheckpointStore, agents: Agents
) -> None:
    ids = saved(store, "agent", *[NEW] * 5)
    saved(store, "small", NEW)
    saved(store, "old", 70 * DAY)
    finished(store, "old", "old", 70 * DAY)
    before = [store.list(agent_id) for agent_id in ("agent", "small", "old")]
    received = []

    dry = agents.prune_all(dry_run=True, on_result=received.append)

    assert (dry.agents, dry.pruned, dry.forgotten, dry.checkpoints, dry.dry_run) == (3, 2, 1, 3, True)
    assert {one.agent_id: set(one.ids) for one in received}["agent"] == set(ids[:2])
    assert [store.list(agent_id) for agent_id in ("agent", "small", "old")] == before
    assert store.count_due(Schedule.SWEEP) == 3
    wet = agents.prune_all()
    assert (wet.agents, wet.pruned, wet.forgotten, wet.checkpoints) == (3, 2, 1, 3)
    assert left(store, "agent") == ids[2:]
    assert store.count_due(Schedule.SWEEP) == 0


def test_pruning_all_also_checks_agents_that_are_not_due(
    app: Celery, store: CheckpointStore, agents: Agents
) -> None:
    ids = saved(store, "agent", *[NEW] * 3)
    sweep(app)
    app.conf.ckpt_keep = 1
    AppContext.of(app).settings = type(AppContext.of(app).settings).of(app)
    sweep(app)
    assert left(store, "agent") == ids

    agents.prune_all()
    assert left(store, "agent") == ids[2:]


def test_a_sweep_emits_what_it_deleted(app: Celery, store: CheckpointStore, caplog: Any) -> None:
    pruned: list[dict[str, Any]] = []
    totals: list[PruneReport] = []

    def on_pruned(sender: Any, **facts: Any) -> None:
        pruned.append({"sender": sender, **facts})

    def on_end(report: PruneReport, **_: Any) -> None:
        totals.append(report)

    signals.checkpoints_pruned.connect(on_pruned)
    signals.prune_finished.connect(on_end)
    saved(store, "agent", *[NEW] * 5)
    saved(store, "small", NEW)
    with caplog.at_level("INFO"):
        sweep(app)

    [facts] = pruned
    assert (facts["sender"], facts["agent_id"], facts["count"]) == (app, "agent", 2)
    assert (facts["bytes"], facts["forgotten"]) == (0, False)
    [total] = totals
    assert (total.agents, total.pruned, total.checkpoints) == (2, 1, 2)
    assert "Pruned 2 checkpoints from 1 agent" in caplog.text
    sweep(app)
    assert len(totals) == 1


def test_a_large_sweep_is_split_into_parts_that_continue(
    app: Celery, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_AGENTS_IN_A_PART", 10)
    monkeypatch.setattr("celery_ckpt.runtime.pruning.sweep._PAGE", 5)
    monkeypatch.setattr(tasks, "_PARTS_AT_ONCE", 3)
    sent: list[tuple[str, Any, Any]] = []
    monkeypatch.setattr(
        app, "send_task", lambda name, args, **options: sent.append((name, args, options["expires"]))
    )
    for number in range(45):
        saved(store, f"agent-{number}", NEW)

    sweep(app)
    assert [(name, expires) for name, _, expires in sent] == [(tasks.PART, 300)] * 3
    assert [args[0]["agents"] for _, args, _ in sent] == [0, 0, 10]
    while sent:
        name, args, _ = sent.pop(0)
        app.tasks[name](*args)
    assert store.count_due(Schedule.SWEEP) == 0


def test_deleted_bytes_are_in_the_signals_the_totals_and_the_log(redis_url: str, caplog: Any) -> None:
    app = Celery("bytes", broker="memory://", set_as_current=False)
    app.conf.update(ckpt_store_url=redis_url, ckpt_keep=1)
    freed, totals = list[int](), list[PruneReport]()

    def on_pruned(bytes: int, **_: Any) -> None:
        freed.append(bytes)

    def on_end(report: PruneReport, **_: Any) -> None:
        totals.append(report)

    signals.checkpoints_pruned.connect(on_pruned)
    signals.prune_finished.connect(on_end)
    for number in range(150):  # more agents than a sweep decides about at once
        saved(AppContext.of(app).store, f"agent-{number}", *[NEW] * 3)
    with caplog.at_level("INFO"):
        sweep(app)
    app.close()

    [total] = totals
    assert (total.agents, total.checkpoints, len(freed)) == (150, 300, 150)
    assert (total.bytes, min(freed) > 100) == (sum(freed), True)
    assert "Pruned 300 checkpoints from 150 agents; deleted 0 agents and 0 old runs (" in caplog.text


@configured(ckpt_prune_every=None)
def test_a_disabled_sweep_does_nothing(app: Celery, store: CheckpointStore) -> None:
    ids = saved(store, "agent", *[NEW] * 5)
    sweep(app)

    assert left(store, "agent") == ids


def test_the_doctor_reports_risks_and_repairs(
    app: Celery, store: CheckpointStore, agents: Agents
) -> None:
    store.schedule("nobody", 60, Schedule.SWEEP)
    kinds = [(found.kind, found.subject, found.repaired) for found in agents.doctor()]
    assert kinds == [("risk", "the store", False), ("left over", "nobody", False)]

    assert [found.repaired for found in agents.doctor(repair=True)] == [False, True]
    assert [found.kind for found in agents.doctor()] == ["risk"]


@pytest.mark.parametrize("name", ["", "x" * 513])
def test_an_invalid_agent_name_is_refused_on_redis_too(redis_url: str, name: str) -> None:
    app = Celery("names", broker="memory://", set_as_current=False)
    app.conf.ckpt_store_url = redis_url
    with pytest.raises(ValueError, match="1 to 512 characters"):
        Agents(app).prune(name, 1)
    with pytest.raises(ValueError, match="1 to 512 characters"):
        Agents(app).retain(name, keep=1)
    app.close()
