"""What a failed test shows of its workers, and what is left of a worker when the tests are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.forks import ROOT
from tests.support.wait import until
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Worker

FAILING = """
from __future__ import annotations
from tests.support.workers.fixtures import *
from tests.support.tasks.plain import slow

def test_that_fails(start_worker, celery_app, ledger):
    start_worker(pool="solo", name="witness")
    slow.delay(1, 0).get(timeout=120)
    assert ledger.calls("step 7")
"""
STARTING = """
import sys
from pathlib import Path
from tests.support.workers.configuration import Configuration
from tests.support.workers.processes import Worker

environment = Configuration.from_environment().environment()
worker = Worker(Path(sys.argv[1]), environment, forked=sys.argv[2] == "forked").start().wait_ready()
print(*worker.tree(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def environment(configuration: Configuration) -> dict[str, str]:
    path = str(ROOT)
    return {**os.environ, **configuration.environment(), "PYTHONPATH": path}


def test_a_failed_test_shows_the_log_and_the_ledger(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "conftest.py").write_text("from tests.support.workers.fixtures import *\n")
    (tmp_path / "test_it.py").write_text(FAILING)
    options = ["-p", "no:cacheprovider", "-c", os.devnull]
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)

    assert run.returncode == 1, run.stdout + run.stderr
    assert "log of witness" in run.stdout
    assert "Task tests.support.tasks.plain.slow" in run.stdout
    assert "call name='step 0'" in run.stdout


@pytest.fixture(params=["forked", "executed"])
def killed_tests(
    request: pytest.FixtureRequest, tmp_path: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", STARTING, str(tmp_path), request.param]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        yield process
        process.kill()


def test_no_process_of_a_worker_outlives_killed_tests(killed_tests: subprocess.Popen[str]) -> None:
    assert killed_tests.stdout is not None
    pids = [int(pid) for pid in killed_tests.stdout.readline().split()]
    assert len(pids) == 2

    os.kill(killed_tests.pid, signal.SIGKILL)

    until(lambda: not any(map(_is_alive, pids)), 5, "the worker and its child have died")


def _is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_worker_that_cannot_start_reports_why(start_worker: StartWorker) -> None:
    with pytest.raises(AssertionError, match="The module no_such_app was not found"):
        start_worker(app="no_such_app")


def test_an_error_raised_while_a_worker_runs_includes_its_log(
    tmp_path: Path, configuration: Configuration
) -> None:
    worker = Worker(tmp_path, configuration.environment(), pool="solo")

    with pytest.raises(ZeroDivisionError) as caught, worker:
        1 / 0  # noqa: B018

    assert "ready." in caught.value.__notes__[0]
    assert not worker.is_running()
