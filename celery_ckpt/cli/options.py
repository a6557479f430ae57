"""What several commands take, and what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_ckpt.cli.completing import agent_names
from celery_ckpt.cli.exits import Code, Failure
from celery_ckpt.cli.screen import Screen

if TYPE_CHECKING:
    from celery_ckpt.runtime.agents import Agents

agent_argument = click.argument("agent_id", metavar="AGENT", shell_complete=agent_names)
agents_argument = click.argument(
    "agent_ids", metavar="AGENT...", nargs=-1, required=True, shell_complete=agent_names
)
_NO_APP = "Which app? Name it: celery -A proj ckpt ...; or a store: celery ckpt --store URL ..."
json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")


def agents_of(ctx: click.Context) -> Agents:
    """The agents of the app that Celery's command line has found."""
    from celery_ckpt.runtime.agents import Agents
    from celery_ckpt.runtime.settings import Settings, is_nobodys

    app = ctx.obj.app
    if is_nobodys(app) and Settings.of(app).store_url is None:
        raise Failure(_NO_APP, Code.CONFIGURATION)
    return Agents(app)


def screen_of(ctx: click.Context, *, as_json: bool = False) -> Screen:
    """Where the output goes."""
    return Screen(as_json=as_json, colour=not ctx.obj.no_color)
