"""docs/reference/cli.md documents every command, option and exit code."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from celery_ckpt.cli import ckpt
from celery_ckpt.cli.errors import Code
from celery_ckpt.cli.main import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()


def section(name: str) -> str:
    """Return the section about a command."""
    title = "export and import" if name in ("export", "import") else name
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"no section on {name}"
    return found[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    command = ckpt.get_command(click.Context(ckpt), name)
    assert command is not None
    assert command.name == name
    assert command.help
    assert f"[`{name}" in PAGE
    own = section(name)
    options = [param for param in command.params if isinstance(param, click.Option)]
    named = [word for option in options for word in [*option.opts, *option.secondary_opts]]
    assert [word for word in named if f"`{word}" not in own] == []
    assert all(option.help for option in options)


def test_every_exit_code_is_documented() -> None:
    assert [code for code in Code if not re.search(rf"^\| {code.value} \| ", PAGE, re.MULTILINE)] == []
