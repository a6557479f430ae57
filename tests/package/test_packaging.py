"""What users download: the sdist contains everything that the README names, and the metadata is
true.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from trove_classifiers import classifiers

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
IN_REPOSITORY = re.compile(
    rf"{re.escape(REPOSITORY)}/(?:blob|tree)/main/([^)#\s]+)"
    r"|https://raw\.githubusercontent\.com/celery-ckpt/celery-ckpt/main/([^)#\s]+)"
)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the paths in the sdist, relative to the repository."""
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", directory],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    [archive] = directory.iterdir()
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


def named_in_the_readme() -> set[str]:
    """Return every file or directory of the repository that the README links to, shows or needs."""
    linked = {path.rstrip("/") for found in IN_REPOSITORY.findall(README) for path in found if path}
    return linked | ({"Makefile"} if "make " in README else set())


def test_the_sdist_contains_every_file_that_the_readme_names(sdist: set[str]) -> None:
    named = named_in_the_readme()
    assert len(named) > 20
    assert {path for path in named if not is_in(path, sdist)} == set()


def test_the_sdist_contains_what_is_needed_to_test_and_build_it(sdist: set[str]) -> None:
    needed = [
        "Makefile",
        "CONTRIBUTING.md",
        ".ci/run",
        "pyproject.toml",
        "mkdocs.yml",
        "tests/conftest.py",
    ]
    assert [path for path in needed if not is_in(path, sdist)] == []


def test_the_sdist_contains_no_local_build_artifacts(sdist: set[str]) -> None:
    made = (".venv", "site", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis")
    assert {path for path in sdist if path.split("/")[0] in made or "__pycache__" in path} == set()


def is_in(path: str, sdist: set[str]) -> bool:
    return path in sdist or any(one.startswith(f"{path}/") for one in sdist)


def test_readme_links_and_pictures_work_outside_the_repository() -> None:
    # PyPI shows the README as well, without the other files.
    targets = re.findall(r"\]\(([^)\s]+)\)", README)
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    pictures = re.findall(r"!\[[^]]*\]\(([^)\s]+)\)", README)
    assert [one for one in pictures if "/blob/" in one] == []


def test_the_readme_names_only_files_in_the_repository() -> None:
    assert [path for path in sorted(named_in_the_readme()) if not (ROOT / path).exists()] == []


def test_a_directory_is_linked_as_a_tree_and_a_file_as_a_blob() -> None:
    found = re.findall(rf"{re.escape(REPOSITORY)}/(blob|tree)/main/([^)#\s]+)", README)
    assert [(kind, path) for kind, path in found if (kind == "tree") != (ROOT / path).is_dir()] == []


def test_the_oldest_python_in_the_classifiers_is_the_required_one() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert claimed == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_the_classifiers_exist() -> None:
    assert set(PROJECT["classifiers"]) <= classifiers
