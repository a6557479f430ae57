"""``Agents(app)``: inspect, resume, fork, delete and prune agents."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_ckpt import Agents, Checkpoint, Conversation
from celery_ckpt.errors import AgentNotFound, AlreadyExists, CheckpointNotFound, RunOver, StoreError
from celery_ckpt.retention.report import PIN
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.testing.factories import make_run
from tests.support.ledger import names
from tests.support.tasks.operations import endless, needs_a_file, remember
from tests.support.wait import stored_result, until
from tests.support.workers.broker import STORE_DB
from tests.support.workers.site import Site

SITE = {"include": ("tests.support.tasks.operations",), "conf": {"ckpt_lease_ttl": 4}}


@pytest.fixture
def agents(site: Site) -> Agents:
    return Agents(site.app)


def has_status(agents: Agents, agent_id: str, status: str) -> None:
    until(lambda: agents.status(agent_id).status == status, 10, f"{agent_id} is {status}")


def test_a_running_agent_is_described(agents: Agents, site: Site) -> None:
    result = endless.apply_async((0.2,), agent_id="described")
    site.ledger.wait_for_call("think 2", 10, result.id)

    status = agents.status("described")
    assert (status.agent_id, status.run_id, status.status) == ("described", result.id, "running")
    assert (status.task, status.attempts, status.retries) == (endless.name, 1, 0)
    assert (status.blocked, status.error) == (0, None)
    assert status.owner is not None
    assert f"/{site.worker.pid}/" in status.owner
    until(lambda: agents.status("described").checkpoints >= 2, 5, "two iterations are saved")
    status, [latest, *_] = agents.status("described"), agents.history("described")
    assert status.iteration is not None
    assert status.iteration >= 2
    assert status.checkpointed_at is not None
    assert latest.run_id == result.id

    assert "described" in [one.agent_id for one in agents.list(status="running")]
    assert agents.cancel("described")
    assert "described" not in [one.agent_id for one in agents.list(status="running")]
    assert "described" in [one.agent_id for one in agents.list("cancelled")]
    assert "described" in [one.agent_id for one in agents.list()]


def test_an_invalid_status_is_refused(agents: Agents) -> None:
    with pytest.raises(ValueError, match="sleeping"):
        agents.list(status="sleeping")


def test_an_unknown_agent_is_not_found(agents: Agents) -> None:
    for ask in (agents.status, agents.resume):
        with pytest.raises(AgentNotFound, match="nobody"):
            ask("nobody")
    assert (agents.history("nobody"), agents.latest("nobody")) == ([], None)
    assert agents.delete("nobody") == 0
    with pytest.raises(CheckpointNotFound, match="nothing"):
        agents.fork("nothing")


def test_an_agent_with_only_a_lease_does_not_stop_the_others_from_being_listed(
    agents: Agents,
) -> None:
    remember.apply_async(("a",), agent_id="listed").get(timeout=60)
    agents.store.acquire("only a lease", "somebody", 30)
    assert {"listed", "only a lease"} <= set(agents.names())
    listed = [one.agent_id for one in agents.list()]
    assert "listed" in listed
    assert "only a lease" not in listed


def test_the_parts_of_an_agent_can_be_read(agents: Agents, tmp_path: Path) -> None:
    failed = needs_a_file.apply_async((str(tmp_path / "no"),), agent_id="in parts")
    with pytest.raises(FileNotFoundError):
        failed.get(timeout=60)
    assert [run.run_id for run in agents.runs("in parts")] == [failed.id]
    assert {step.run_id for step in agents.steps("in parts")} == {failed.id}
    [latest, *_] = agents.history("in parts")
    assert agents.checkpoint(latest.id) == agents.latest("in parts")
    with pytest.raises(CheckpointNotFound, match="nothing"):
        agents.checkpoint("nothing")


def test_a_run_without_a_recorded_message_cannot_be_resumed(agents: Agents) -> None:
    agents.store.add_run(make_run("no message", status="failed", delivered=True))
    with pytest.raises(StoreError, match="not on record"):
        agents.resume("no message")
    assert agents.status("no message").status == "failed"


@pytest.mark.parametrize("agent_id", [None, "phoenix"])
def test_a_failed_run_resumes_where_it_failed(
    agents: Agents, site: Site, tmp_path: Path, agent_id: str | None
) -> None:
    path = tmp_path / "needed"
    failed = needs_a_file.apply_async((str(path),), agent_id=agent_id)
    with pytest.raises(FileNotFoundError):
        failed.get(timeout=60)
    has_status(agents, agent_id or failed.id, "failed")
    path.touch()

    again = agents.resume(agent_id or failed.id)

    assert again.id == failed.id
    assert stored_result(site.app, failed.id, "SUCCESS") == "attempt 2"
    assert names(site.ledger.calls(run_id=failed.id)) == ["think 1", "think 2", "think 3", "think 4"]
    begins = site.ledger.notes(failed.id, "begin")
    assert [(note["attempt"], note["retries"]) for note in begins] == [(1, 0), (2, 0)]
    has_status(agents, agent_id or failed.id, "succeeded")
    with pytest.raises(RunOver, match="succeeded"):
        agents.resume(agent_id or failed.id)


def test_a_run_can_fail_and_be_resumed_more_than_once(
    agents: Agents, site: Site, tmp_path: Path
) -> None:
    path = tmp_path / "needed"
    result: AsyncResult = needs_a_file.delay(str(path))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            result.get(timeout=60)
        has_status(agents, result.id, "failed")
        result = agents.resume(result.id)
    has_status(agents, result.id, "failed")
    assert isinstance(stored_result(site.app, result.id, "FAILURE"), FileNotFoundError)
    assert len(site.ledger.bodies(result.id)) == 3


def test_resuming_a_running_agent_does_not_disturb_it(agents: Agents, site: Site) -> None:
    site.ledger.hold("think 2")
    result = endless.delay(0, 3)
    site.ledger.wait_for_call("think 2", 10, result.id)

    again = agents.resume(result.id)
    until(lambda: f"[{result.id}] ignored" in site.worker.log(), 10, "the second message is dropped")
    site.ledger.let_go()

    assert again.get(timeout=60) == 3

    assert len(site.ledger.bodies(result.id)) == 1
    site.broker.assert_clean(5)


def test_a_fork_continues_with_the_copied_history_under_its_own_name(agents: Agents) -> None:
    for word in ("one", "two", "three"):
        remember.apply_async((word,), agent_id="original").get(timeout=60)
    middle = next(info for info in agents.history("original") if info.metadata == {"word": "two"})

    assert agents.fork(middle.id, "copy") == "copy"

    assert remember.apply_async(("four",), agent_id="copy").get(timeout=60) == ["one", "two", "four"]
    original = remember.apply_async(("five",), agent_id="original").get(timeout=60)
    assert original == ["one", "two", "three", "five"]
    assert agents.history("copy")[-1].metadata == {"word": "two", "forked_from": middle.id}
    with pytest.raises(AlreadyExists, match="copy"):
        agents.fork(middle.id, "copy")
    assert agents.status(agents.fork(middle.id)).status is None


def test_a_fork_has_the_state_and_the_conversation_but_no_pin(agents: Agents) -> None:
    said = {"who": "me", PIN: "before-deploy"}
    original = Checkpoint.new("pinned", Conversation(), 3, state={"n": 1}, metadata=said)
    agents.store.save(original)

    fork = agents.latest(agents.fork(original.id))

    assert fork is not None
    assert (fork.iteration, fork.state) == (3, {"n": 1})
    assert fork.metadata == {"who": "me", "forked_from": original.id}


def test_pruning_keeps_the_latest_checkpoint_of_a_live_agent(agents: Agents, site: Site) -> None:
    result = endless.apply_async((0.3,), agent_id="pruned")
    until(lambda: len(agents.history("pruned")) >= 3, 10, "there is something to prune")

    assert agents.prune("pruned", keep=2) >= 1
    assert agents.prune("pruned", keep=0) >= 1
    assert agents.latest("pruned") is not None
    assert agents.cancel("pruned")
    site.ledger.wait_for(lambda note: note.what == "end" and note.run_id == result.id, 10)

    assert agents.prune("pruned", keep=0) >= 1
    assert agents.history("pruned") == []


@pytest.mark.parametrize("is_running", [False, True], ids=["finished", "running"])
def test_deleting_an_agent_deletes_everything_it_has(
    agents: Agents, site: Site, is_running: bool
) -> None:
    name = f"doomed {is_running}"
    remember.apply_async(("all of it",), agent_id=name).get(timeout=60)
    if is_running:
        result = endless.apply_async((0.05,), agent_id=name)
        site.ledger.wait_for_call("think 2", 10, result.id)
    else:
        has_status(agents, name, "succeeded")
        # If it were settled later, it would be listed for the next sweep, which removes that entry.
        until(lambda: not AppContext.of(site.app).store.activity(name).open, 10, "it is settled")
    assert traces(site, name) != []

    assert agents.delete(name) >= 1

    if is_running:
        site.ledger.wait_for(lambda note: note.what == "end" and note.run_id == result.id, 10)
        site.broker.assert_clean(5)
    until(lambda: traces(site, name) == [], 5, "nothing is left")
    with pytest.raises(AgentNotFound):
        agents.status(name)


def traces(site: Site, name: str) -> list[str]:
    """Return every place in the store's database that contains the agent's name or one of its words."""
    found = []
    with site.broker.server.client(db=STORE_DB) as client:
        for key in client.scan_iter():
            content = {
                b"none": lambda key: None,
                b"string": client.get,
                b"hash": client.hgetall,
                b"list": lambda key: client.lrange(key, 0, -1),
                b"zset": lambda key: client.zrange(key, 0, -1),
                b"set": client.smembers,
            }[client.type(key)](key)
            if name in f"{key!r} {content!r}":
                found.append(f"{key!r} {content!r}")
    return found


def test_agents_work_without_a_result_backend(agents: Agents, site: Site, tmp_path: Path) -> None:
    without = Celery("without", broker=site.configuration.broker_url, set_as_current=False)
    without.conf.ckpt_store_url = site.configuration.store_url
    operator, path = Agents(without), tmp_path / "needed"
    failed = needs_a_file.delay(str(path))
    has_status(operator, failed.id, "failed")
    path.touch()

    operator.resume(failed.id)

    has_status(operator, failed.id, "succeeded")
    running = endless.delay()
    site.ledger.wait_for_call("think 1", 10, running.id)
    assert operator.cancel(running.id)
    assert operator.delete(running.id) >= 0
    without.close()
