"""A forked worker is the same as one that the command starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.forks import ROOT
from tests.support.workers.processes import WorkerProcess

#: An app that reports the properties of its process.
REPORTING = """
import json, os, signal, sys
from pathlib import Path

changed = (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)
report = {
    "argv": sys.argv,
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "files": sorted(os.listdir("/dev/fd")),
    "handlers": [str(signal.getsignal(number)) for number in changed],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "leads its session": os.getsid(0) == os.getpid(),
    "path": sys.path,
    "streams": [os.fstat(number).st_ino for number in range(3)],
}
Path("report").write_text(json.dumps(report))
from celery import Celery
app = Celery()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "reporting.py").write_text(REPORTING)
    path = os.pathsep.join(map(str, (tmp_path, ROOT)))
    return {"PYTHONPATH": path, "OF_ITS_OWN": "yes"}


def _report_of(tmp_path: Path, environment: dict[str, str], *, forked: bool) -> dict[str, Any]:
    arguments = ["-A", "reporting", "report"]
    process = WorkerProcess(tmp_path, arguments, environment, name="reporting", forked=forked).start()
    assert process.wait_exit(20) == 0, process.log()
    return json.loads((tmp_path / "report").read_text())


def test_a_forked_worker_is_configured_like_the_command(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    executed = _report_of(tmp_path, environment, forked=False)
    forked = _report_of(tmp_path, environment, forked=True)

    assert forked == executed


def test_the_exit_status_of_a_forked_worker_is_known(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    arguments = ["-A", "reporting", "no-such-command"]
    process = WorkerProcess(tmp_path, arguments, environment, name="reporting", forked=True).start()

    assert process.wait_exit(20) == 2
    assert "No such command 'no-such-command'" in process.log()
