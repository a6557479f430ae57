"""What several commands take, and what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_ckpt.cli.completing import agent_names
from celery_ckpt.cli.errors import Code, Failure
from celery_ckpt.cli.output.screen import Screen

if TYPE_CHECKING:
    from celery_ckpt.runtime.agents.agents import Agents

agent_argument = click.argument("agent_id", metavar="AGENT", shell_complete=agent_names)
agents_argument = click.argument(
    "agent_ids", metavar="AGENT...", nargs=-1, required=True, shell_complete=agent_names
)
_NO_APP = "No app and no store given. Use celery -A proj ckpt ... or celery ckpt --store URL ..."
_NO_STORE = "There is no store at {path}. Check the path; a worker or an import creates the store."
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def agents_of(ctx: click.Context, *, may_make_store: bool = False) -> Agents:
    """The agents of the app that Celery's command line has found.

    A store on this disk that is not there is made only by what is to fill it: a misspelt path, or the
    wrong working directory, must not look like a store without agents.
    """
    from celery_ckpt.runtime.agents.agents import Agents
    from celery_ckpt.runtime.settings import Settings, is_nobodys
    from celery_ckpt.stores.registry import missing_path

    app = ctx.obj.app
    url = Settings.of(app).store_url
    if is_nobodys(app) and url is None:
        raise Failure(_NO_APP, Code.CONFIGURATION)
    if not may_make_store and (path := missing_path(url or "")):
        raise Failure(_NO_STORE.format(path=path.absolute()), Code.NOT_FOUND)
    return Agents(app)


def screen_of(ctx: click.Context, *, as_json: bool = False) -> Screen:
    """Where the output goes."""
    return Screen(as_json=as_json, colour=not ctx.obj.no_color)
