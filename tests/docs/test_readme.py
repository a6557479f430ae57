"""The README is true: its agent works exactly as printed, and its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from celery import Celery

from tests.support.workers.processes import FAST, WorkerProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "docs/benchmarks.md").read_text()
[AGENT] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
ANSWER = "Because of Rayleigh scattering."


def test_the_agent_runs_without_a_worker(tmp_path: Path) -> None:
    (tmp_path / "research.py").write_text(AGENT)
    run = subprocess.run(
        [sys.executable, "-W", "error", "research.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (run.stdout, run.stderr) == (f"{ANSWER}\n", "")


def test_a_worker_started_with_the_shown_command_runs_the_agent(tmp_path: Path, redis_url: str) -> None:
    server = redis_url.removesuffix("/0")
    (tmp_path / "research.py").write_text(AGENT.replace("redis://localhost:6379", server))
    [command] = re.findall(r"`celery (-A research worker)`", README)
    arguments = [*command.split(), "--concurrency", "1", "--loglevel", "INFO", *FAST]
    with (
        WorkerProcess(tmp_path, arguments, {"PYTHONPATH": f"{tmp_path}:{ROOT}"}, name="research"),
        Celery(broker=redis_url, backend=redis_url, set_as_current=False) as client,
    ):
        result = client.send_task("research.research", ("why is the sky blue?",))
        assert result.get(timeout=60) == ANSWER


def test_the_agent_is_short() -> None:
    assert len([line for line in AGENT.splitlines() if line.strip()]) <= 25


def test_the_commands_are_make_targets() -> None:
    promised = re.findall(r"^make (\w+)", README, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert promised == ["demo", "test"]
    assert set(promised) <= set(targets)


#: Rows of the README, with their names in the benchmarks.
MEASURED = {
    "celery_ckpt on Valkey": "celery_ckpt Redis",
    "celery_ckpt in SQLite": "celery_ckpt SQLite",
    "LangGraph in SQLite": "LangGraph SqliteSaver",
    "LangGraph in SQLite, `DeltaChannel`": "LangGraph SqliteSaver, DeltaChannel",
    "LangGraph in Postgres": "LangGraph PostgresSaver",
    "LangGraph in Postgres, `DeltaChannel`": "LangGraph PostgresSaver, DeltaChannel",
}


def test_the_quoted_numbers_match_the_benchmarks() -> None:
    quoted = re.findall(r"^\| (.+) \| (\S+ ms|not timed) \| (\S+) times \|$", README, re.MULTILINE)
    assert {row: (time, factor) for row, time, factor in quoted} == {
        row: measured(name) for row, name in MEASURED.items()
    }


def measured(name: str) -> tuple[str, str]:
    """Return the milliseconds of a save at iteration 1,000, and the stored bytes per byte of
    messages.
    """
    [row] = re.findall(rf"^\| {name} \|(.*)\|$", BENCHMARKS, re.MULTILINE)
    cells = [cell.strip() for cell in row.split("|")]
    number, _, unit = cells[2].partition(" ")
    milliseconds = f"{float(number) / (1000 if unit == 'µs' else 1):.2g} ms" if unit else "not timed"
    return milliseconds, f"{float(cells[-1]):.3g}"


def test_the_alt_text_of_the_picture_matches_its_content() -> None:
    [(text, path)] = re.findall(r"!\[(Two panels[^]]*)\]\(https://[^)]+/main/([^)]+)\)", README)
    numbers = re.findall(r"[\d.]*\d", text)
    drawn = " ".join(ElementTree.parse(ROOT / path).getroot().itertext())
    assert len(numbers) == 4
    assert [number for number in numbers if not re.search(rf"(?<![\d.]){number}(?![\d.])", drawn)] == []
