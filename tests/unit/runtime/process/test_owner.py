"""Which owners of leases are known to be dead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from celery_ckpt.runtime.process.owner import is_dead, is_known_dead, this_process
from tests.support.wait import until

PROGRAM = (
    "from celery_ckpt.runtime.process.owner import this_process\n"
    "print(this_process(), flush=True); input()"
)


@pytest.fixture
def process() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def test_a_live_process_is_not_dead(process: subprocess.Popen[str]) -> None:
    owner = process.stdout.readline().strip()

    assert not is_known_dead(owner)
    assert not is_known_dead(this_process())
    assert not is_dead(process.pid)


def test_a_killed_process_is_dead_even_while_it_is_a_zombie(
    process: subprocess.Popen[str],
) -> None:
    owner = process.stdout.readline().strip()
    process.kill()
    process.stdout.read()  # ends when the process has ended

    until(lambda: is_dead(process.pid), 5, "it is dead")
    assert is_known_dead(owner)
    process.wait()
    assert is_known_dead(owner)


def test_a_later_process_with_the_same_pid_is_another_process() -> None:
    before, _, started = this_process().rpartition("/")

    assert is_known_dead(f"{before}/{int(started) - 1}")


@pytest.mark.parametrize("part", [0, 1, 2], ids=["host", "boot", "pid namespace"])
def test_a_process_of_another_host_is_not_known_to_be_dead(part: int) -> None:
    parts = this_process().split("/")
    parts[part] = "another"
    parts[3] = "999999"

    assert not is_known_dead("/".join(parts))


@pytest.mark.parametrize("owner", ["", "me", "a/b/c/d/e", "a/b/c/1/-"])
def test_a_tool_is_not_known_to_be_dead(owner: str) -> None:
    assert not is_known_dead(owner)
