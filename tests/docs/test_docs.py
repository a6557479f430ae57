"""The documentation is true: its code runs, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from celery_ckpt import errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = [
    pytest.param(program, id=f"{page.name}-{number}")
    for page in PAGES
    for number, program in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_code_in_the_documentation_runs(program: str, tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr


def test_the_program_of_the_store_alone_goes_on_where_it_was(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/use-a-store-alone.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        for _ in range(2)
    ]
    assert [run.stdout for run in runs] == [
        "3 7 {'asked': 3}\n[3, 2, 1]\n",
        "6 13 {'asked': 6}\n[6, 5, 4, 3, 2]\n",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(((?!https?:)[^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_error_has_its_row() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    names = [
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    ]
    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in page and name != "CheckpointError"] == []


def test_every_make_target_is_explained() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    explained = re.findall(r"^([a-z-]+):.*## \w", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets == explained
