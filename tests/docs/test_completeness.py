"""Nothing is missing: names, options, errors, commands and targets are documented, and links work."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import click
import pytest
import yaml

import celery_ckpt
from celery_ckpt import errors
from celery_ckpt.runtime.task.options import OPTIONS
from tests.docs.pages import DOCS, PAGES, ROOT, Page, page

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_error_is_in_the_table() -> None:
    names = [
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    ]
    assert len(names) > 10
    rows = page("docs/reference/errors.md").text
    assert [name for name in names if f"| `{name}`" not in rows and name != "CheckpointError"] == []


TEMPLATE = (ROOT / "docs/.api/template.md").read_text(encoding="utf-8")


def test_the_reference_matches_the_docstrings() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "docs/.api", "--check"], capture_output=True, text=True, timeout=120
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_public_name_is_in_the_reference() -> None:
    api = page("docs/reference/api.md").text
    shown = set(re.findall(r"^::: celery_ckpt\.(\w+)$", TEMPLATE, re.MULTILINE))
    assert shown == set(celery_ckpt.__all__) - {"signals"}
    assert [name for name in sorted(shown) if f"\n### `{name}`\n" not in api] == []
    assert "`celery_ckpt.signals`" in api


def test_inherited_members_of_public_classes_are_in_the_reference() -> None:
    blocks = dict(re.findall(r"^::: celery_ckpt\.(\w+)\n((?:    .*\n)*)", TEMPLATE, re.MULTILINE))
    inheriting = [name for name in blocks if inherited(getattr(celery_ckpt, name), blocks)]
    assert [name for name in inheriting if not re.search("members:|inherited:", blocks[name])] == []


def inherited(kind: Any, explained: Iterable[str]) -> list[str]:
    """Return what a class inherits from other classes of the package that the page does not
    document.
    """
    bases = inspect.getmro(kind)[1:] if inspect.isclass(kind) else ()
    ours = [base for base in bases if base.__module__.startswith("celery_ckpt")]
    unknown = [base for base in ours if base.__name__ not in explained]
    return [name for base in unknown for name in vars(base) if not name.startswith(("_", "model_"))]


def test_every_task_option_is_in_the_table() -> None:
    rows = page("docs/reference/api.md").text
    assert [option for option in (*OPTIONS, "max_age") if f"| `{option}` |" not in rows] == []


def test_every_command_is_in_the_reference() -> None:
    # Loaded through Celery's own entry point. Without the entry point there is nothing to document.
    groups = PROJECT.get("entry-points", {}).get("celery.commands", {})
    names = [name for where in groups.values() for name in commands(where)]
    assert bool(names) == bool(groups)
    assert [name for name in names if f"`{name}" not in page("docs/reference/cli.md").text] == []


def commands(where: str) -> list[str]:
    module, _, name = where.partition(":")
    group = getattr(import_module(module), name)
    # A lazy group knows its commands before it has imported any.
    return group.list_commands(click.Context(group))


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    explained = re.findall(r"^([a-z-]+):.*## \w", makefile, re.MULTILINE)
    assert targets == explained


def test_every_page_is_in_the_navigation_once() -> None:
    class Loader(yaml.SafeLoader):
        """A loader that ignores the one tag that names a function."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    assert sorted(leaves(site["nav"])) == sorted(one.name.removeprefix("docs/") for one in DOCS)


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    branches = nav.values() if isinstance(nav, dict) else nav
    return [leaf for branch in branches for leaf in leaves(branch)]


def test_no_diagram_needs_an_external_script() -> None:
    # The site would download it. Without a network, a reader would see the text instead.
    assert [one.name for one in PAGES if "```mermaid" in one.text] == []


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_links_resolve(one: Page) -> None:
    assert [link for link in one.links if not leads_somewhere(one, link)] == []


#: The addresses under which the README, which PyPI shows too, links to files of the repository.
REPOSITORY = re.compile(
    r"https://(?:github\.com/celery-ckpt/celery-ckpt/(?:blob|tree)"
    r"|raw\.githubusercontent\.com/celery-ckpt/celery-ckpt)/main/"
)


def leads_somewhere(one: Page, link: str) -> bool:
    of_repository = REPOSITORY.match(link)
    if not of_repository and link.startswith(("http://", "https://")):
        return True
    start = ROOT if of_repository else one.path.parent
    path, _, anchor = REPOSITORY.sub("", link).partition("#")
    target = (start / path).resolve() if path else one.path
    if not target.exists():
        return False
    return not anchor or anchor in Page(target).anchors


def test_no_file_that_readers_create_shadows_a_library() -> None:
    # The OpenAI Agents SDK is imported as "agents".
    written = {block.title for one in PAGES for block in one.blocks if block.title}
    examples = {path.name for path in (ROOT / "examples").rglob("*.py")}
    served = set(re.findall(r"celery -A (\w+)", "".join(one.text for one in PAGES)))
    names = {*written, *examples, *(f"{module}.py" for module in served)}
    assert names & {"agents.py", "agent.py", "openai.py", "anthropic.py"} == set()
