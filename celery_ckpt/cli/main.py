"""The group ``celery ckpt``: its commands, and what they have in common."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click_didyoumean import DYMGroup

#: Each command with its module, in the order in which a new user needs them.
COMMANDS = {
    "list": "list",
    "show": "show",
    "tail": "tail",
    "diff": "diff",
    "resume": "control",
    "cancel": "control",
    "fork": "control",
    "pin": "retention",
    "prune": "retention",
    "delete": "control",
    "export": "transfer",
    "import": "transfer",
    "rekey": "rekey",
    "doctor": "retention",
    "bench": "bench",
}


class CkptGroup(DYMGroup):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of ``COMMANDS``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"celery_ckpt.cli.commands.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_")
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the group's own options. Without arguments, click shows the help."""
        from celery_ckpt.cli.errors import one_line_errors

        _replace_closed_streams()
        if not args:
            return super().parse_args(ctx, args)
        with one_line_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. An error becomes one line, see ``celery_ckpt.cli.errors``."""
        from celery_ckpt.cli.errors import one_line_errors

        with one_line_errors():
            return super().invoke(ctx)


def _replace_closed_streams() -> None:
    """Replace streams that the shell closed (``>&-``), which are None in Python, by ``/dev/null``."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


@click.group(cls=CkptGroup, name="ckpt", cutoff=0.6)
@click.option(
    "--store",
    metavar="URL",
    help="Use this store instead of the app's ckpt_store_url.",
)
@click.pass_context
def ckpt(ctx: click.Context, /, store: str | None, **preloaded: Any) -> None:
    """Inspect and control agents.

    Exit codes: 0 done; 1 the answer is no; 2 wrong usage; 65 damaged data; 66 not found; 69 the store
    or the broker is unavailable; 75 the agent is busy; 78 wrong configuration.
    """
    if store is not None:
        ctx.obj.app.conf.ckpt_store_url = store
