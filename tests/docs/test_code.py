"""The code in README and docs runs, against real servers and workers where it needs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.docs.pages import PAGES, Page, page
from tests.docs.projects import Project
from tests.support.servers.valkey import Valkey, wait_until

#: By page: why a block is not run. Please keep it empty.
NOT_RUN: dict[str, list[str]] = {}
#: These pages have their own tests: one kills the worker, one monitors it, one runs twice, one must
#: come first, and two show their output.
QUICKSTART, MONITOR = "docs/quickstart.md", "docs/howto/monitor.md"
ALONE, README = "docs/howto/use-a-store-alone.md", "README.md"
TOOLS, MIGRATE = "docs/howto/tools.md", "docs/howto/migrate.md"

OWN = {QUICKSTART, MONITOR, ALONE, README, TOOLS, MIGRATE}
WITH_CODE = [one for one in PAGES if one.python and one.name not in OWN]


@pytest.mark.parametrize("one", WITH_CODE, ids=lambda one: one.name)
def test_the_code_of_a_page_runs(one: Page, tmp_path: Path, valkey: Valkey) -> None:
    Project(one, tmp_path, valkey).run_program()


def test_only_blocks_with_a_known_reason_are_not_run() -> None:
    reasons = {one.name: [block.reason_not_to_run for block in one.blocks] for one in PAGES}
    left_out = {name: [why for why in those if why] for name, those in reasons.items()}
    assert {name: those for name, those in left_out.items() if those} == NOT_RUN


def test_the_commands_a_page_needs_first_are_shown_on_the_page() -> None:
    shown = {
        one.name: [line for block in one.blocks_of("console") for line in block.lines] for one in PAGES
    }
    hidden = {
        one.name: [own for own in one.commands("before") if f"$ {own}" not in shown[one.name]]
        for one in PAGES
    }
    assert {name: commands for name, commands in hidden.items() if commands} == {}


def test_python_blocks_are_labelled_python_so_that_they_run() -> None:
    languages = {block.language for one in PAGES for block in one.blocks}
    assert languages & {"py", "python3", "pycon", "Python"} == set()


def test_the_store_only_program_continues_where_it_stopped(tmp_path: Path, valkey: Valkey) -> None:
    project = Project(page(ALONE), tmp_path, valkey)
    assert [project.run_program(), project.run_program()] == [
        "3 7 {'asked': 3}\n[3, 2, 1]\nanswer 3 is message 7 of 7\n",
        "6 13 {'asked': 6}\n[6, 5, 4, 3, 2]\nanswer 6 is message 13 of 13\n",
    ]


def test_the_tools_page_shows_the_output_of_its_program(tmp_path: Path, valkey: Valkey) -> None:
    [shown] = page(TOOLS).blocks_of("text")
    assert Project(page(TOOLS), tmp_path, valkey).run_program() == shown.code


def test_the_migration_program_prints_the_errors_shown_on_the_page(
    tmp_path: Path, valkey: Valkey
) -> None:
    [printed] = page(MIGRATE).blocks_of("text")
    assert Project(page(MIGRATE), tmp_path, valkey).run_program() == printed.code


def test_the_monitor_of_the_page_sees_its_agents(tmp_path: Path, valkey: Valkey) -> None:
    project = Project(page(MONITOR), tmp_path, valkey)

    def is_shown() -> bool:
        return project.run_program() != "" and "agent-finished monitored 1 3 succeeded" in watch.log

    with project.beside("python watch.py") as watch:
        # It does not receive events that were sent before it was connected.
        wait_until("the end of an agent is shown", is_shown)
    shown = [block.lines[2:] for block in page(MONITOR).blocks_of("console")]
    assert set(shown[0]) <= set(watch.log.splitlines())


def test_the_pod_grace_period_exceeds_the_soft_shutdown_timeout() -> None:
    kubernetes = page("docs/howto/kubernetes.md")
    [block] = kubernetes.blocks_of("yaml")
    pod = yaml.safe_load(block.code)["spec"]["template"]["spec"]
    [timeout] = [line for line in kubernetes.program.splitlines() if "soft_shutdown" in line]
    seconds = int(timeout.partition("#")[0].rpartition("=")[2])
    assert pod["terminationGracePeriodSeconds"] >= seconds + 10
    assert {"name": "REMAP_SIGTERM", "value": "SIGQUIT"} in pod["containers"][0]["env"]
