"""tail, resume, cancel and delete, for agents on a real worker, with commands as processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from celery_ckpt import Agents
from tests.support.cli import Process, with_entry_points
from tests.support.servers.valkey import free_port
from tests.support.tasks.operations import endless, needs_a_file, remember
from tests.support.wait import stored_result, until
from tests.support.workers.site import Site

SITE = {"include": ("tests.support.tasks.operations",), "conf": {"ckpt_lease_ttl": 10}}


@pytest.fixture
def live(site: Site, tmp_path: Path) -> Process:
    """Return commands for the app of the worker."""
    return Process({**with_entry_points(tmp_path), **site.configuration.environment()})


@pytest.fixture
def agents(site: Site) -> Agents:
    return Agents(site.app)


def test_tail_follows_a_run_to_its_end(site: Site, live: Process, agents: Agents) -> None:
    result = endless.apply_async((0.05,), agent_id="followed")
    with live.start("tail", "followed", "--every", "0.05") as running:
        assert running.stdout is not None
        begun = [running.stdout.readline() for _ in range(20)]
        agents.cancel("followed")
        # Not communicate(): it skips what was read ahead.
        rest = running.stdout.read()
        assert running.stderr is not None
        errors = running.stderr.read()
    output = [*begun, *rest.splitlines(keepends=True)]

    assert (running.returncode, errors) == (1, "")  # it did not succeed
    messages = [line.split(maxsplit=2)[1:] for line in output if " thought " in line]
    numbers = [int(text.split()[1]) for _, text in messages]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    run_record = [line.split() for line in output if line.split()[1:3] == ["run", result.id]]
    assert [words[3] for words in run_record] == ["running,", "cancelled,"]
    assert " step think, iteration 1, took " in "".join(output)
    assert f" checkpoint {agents.history('followed')[0].id}, iteration " in "".join(output)


def test_a_failed_run_is_resumed(site: Site, live: Process, agents: Agents, tmp_path: Path) -> None:
    path = tmp_path / "needed"
    result = needs_a_file.apply_async((str(path),), agent_id="phoenix")
    with pytest.raises(FileNotFoundError):
        result.get(timeout=60)
    until(lambda: agents.status("phoenix").status == "failed", 10, "the run has failed")
    path.touch()
    assert live.run("resume", "phoenix").stdout == f"phoenix: resumed run {result.id}.\n"
    output = [json.loads(line) for line in live.run("tail", "phoenix", "--json").stdout.splitlines()]
    assert {one["kind"] for one in output} >= {"checkpoint", "run"}
    assert (output[-1]["kind"], output[-1]["status"], output[-1]["attempts"]) == ("run", "succeeded", 2)
    assert stored_result(site.app, result.id, "SUCCESS") == "attempt 2"


def test_a_running_agent_is_cancelled_and_deleted(site: Site, live: Process, agents: Agents) -> None:
    result = endless.apply_async((0.05,), agent_id="unwanted")
    site.ledger.wait_for_call("think 2", 10, result.id)
    assert live.run("cancel", "unwanted").stdout == "unwanted: cancelled.\n"
    assert agents.status("unwanted").status == "cancelled"
    assert "deleted" in live.run("delete", "unwanted", "--yes").stdout
    assert "unwanted" not in list(agents.names())


def test_a_fork_continues_on_its_own(site: Site, live: Process, agents: Agents) -> None:
    remember.apply_async(("one",), agent_id="trunk").get(timeout=60)
    checkpoint = agents.history("trunk")[0].id
    assert live.run("fork", checkpoint, "--as", "branch").stdout == "branch\n"
    assert remember.apply_async(("two",), agent_id="branch").get(timeout=60) == ["one", "two"]
    shown = live.run("show", "branch").stdout
    assert '\nresult     ["one", "two"]\n' in shown
    latest = agents.history("branch")[0].id
    assert re.search(rf"^{latest} +\d+ +end ", shown, re.MULTILINE)


def test_an_unavailable_broker_is_reported_in_one_line(
    site: Site, live: Process, tmp_path: Path
) -> None:
    result = needs_a_file.apply_async((str(tmp_path / "no"),), agent_id="cut off")
    with pytest.raises(FileNotFoundError):
        result.get(timeout=60)
    live.environment["CKPT_TEST_BROKER_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    live.environment["CKPT_TEST_CONF"] = json.dumps({"task_publish_retry_policy": {"max_retries": 0}})
    output = live.run("resume", "cut off", code=69).stderr
    assert "The broker or the result backend did not answer" in output
    assert ".." not in output
    assert len(output.splitlines()) == 1
