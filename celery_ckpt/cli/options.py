"""What several commands take: agents, checkpoints, ``--json``, and the store that they work on.

A checkpoint can be named in five ways:

nweuvi7oqasutv7t-06gu8qjh0ue3b0pb938cp6e8    its id
nweuvi7oqasutv7t-06gu8qjh0                   the beginning of its id, if no other id begins with it
user-42@latest                               the latest checkpoint of the agent
user-42@12                                   the latest checkpoint of iteration 12
user-42@06gu8qjh0                            the beginning of its id, with or without the first part
"""

from __future__ import annotations

import getpass
import re
import threading
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from celery_ckpt.cli.errors import Code, Failure
from celery_ckpt.cli.output.progress import counting
from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.cli.output.text import counted
from celery_ckpt.names import locator, locator_in

if TYPE_CHECKING:
    from celery_ckpt.runtime.agents.agents import Agents

_NO_APP = "No app and no store given. Use celery -A proj ckpt ... or celery ckpt --store URL ..."
_NO_STORE = "There is no store at {path}. Check the path; a worker or an import creates the store."
#: How long completion waits for the store: no completion is better than a shell that hangs.
_COMPLETION_SECONDS = 1.0
_MOST_COMPLETIONS = 200
#: An id that this library made. Other ids are possible.
_ID = re.compile("[a-z2-7]{16}-[0-9a-v]{24}")


# -- arguments and options ---------------------------------------------------------------------------


def complete_agents(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the names that begin with what was typed; none if the store is slow or unavailable."""
    found: list[str] = []

    def read_names(app: Any) -> None:
        from celery_ckpt.runtime.agents.agents import Agents
        from celery_ckpt.runtime.settings import Settings
        from celery_ckpt.stores.registry import missing_path

        with suppress(Exception):  # the command itself reports the error
            if missing_path(Settings.of(app).store_url or ""):
                return
            names = Agents(app).names()
            wanted = (name for name in names if name.startswith(incomplete) and name.isprintable())
            found.extend(islice(wanted, _MOST_COMPLETIONS))

    with suppress(Exception):
        # A daemon thread: one that is still waiting ends with the process.
        thread = threading.Thread(target=read_names, args=[_app_of(ctx)], daemon=True)
        thread.start()
        thread.join(_COMPLETION_SECONDS)
    return [CompletionItem(name) for name in sorted(list(found))]


def _app_of(ctx: click.Context) -> Any:
    """Return the app. During completion, Celery's own command has not looked for it."""
    from celery import current_app
    from celery.app.utils import find_app

    name = ctx.find_root().params.get("app")
    app = find_app(name) if name else current_app._get_current_object()
    level: click.Context | None = ctx
    while level is not None:
        if store := level.params.get("store"):
            app.conf.ckpt_store_url = store
            break
        level = level.parent
    return app


agent_argument = click.argument("agent_id", metavar="AGENT", shell_complete=complete_agents)
agents_argument = click.argument(
    "agent_ids", metavar="AGENT...", nargs=-1, required=True, shell_complete=complete_agents
)
any_agents_argument = click.argument(
    "agent_ids", metavar="[AGENT]...", nargs=-1, shell_complete=complete_agents
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


# -- what a command works with -----------------------------------------------------------------------


def agents_of(ctx: click.Context, *, may_make_store: bool = False) -> Agents:
    """Return the agents of the app that Celery's command line has loaded.

    Only commands that write to a new store create one on this disk: a misspelt path, or the wrong
    working directory, must not look like a store without agents.
    """
    from celery_ckpt.runtime.agents.agents import Agents
    from celery_ckpt.runtime.settings import Settings, is_default_app
    from celery_ckpt.stores.registry import missing_path

    app = ctx.obj.app
    url = Settings.of(app).store_url
    if is_default_app(app) and url is None:
        raise Failure(_NO_APP, Code.CONFIGURATION)
    if not may_make_store and (path := missing_path(url or "")):
        raise Failure(_NO_STORE.format(path=path.absolute()), Code.NOT_FOUND)
    return Agents(app, by=_user())


def _user() -> str | None:
    """Return the name of the user of the operating system, which event logs show; if it has one."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


def screen_of(ctx: click.Context, *, as_json: bool = False) -> Screen:
    """Return the screen that the command writes to."""
    return Screen(as_json=as_json, colour=not ctx.obj.no_color)


# -- checkpoints by name -----------------------------------------------------------------------------


def checkpoint_id_at(agents: Agents, name: str) -> str:
    """Return the id of the checkpoint with this name, or the name itself if there is none.

    Raises:
        click.UsageError: several checkpoints match.
    """
    if _ID.fullmatch(name) or agents.store.load(name) is not None:
        return name
    agent_id, has_agent, which = name.rpartition("@")
    found = _in_agent(agents, agent_id, which) if has_agent else _in_store(agents, name)
    if len(found) > 1:
        many = counted(len(found), "checkpoint")
        raise click.UsageError(f"{name!r} matches {many}: {', '.join(found)}. Give more of the id")
    return found[0] if found else name


def checkpoint_id_of(agents: Agents, agent_id: str, name: str) -> str:
    """Return the id of a checkpoint of this agent: ``latest``, ``12`` or part of an id is enough."""
    full = f"{agent_id}@{name}"
    found = checkpoint_id_at(agents, full)
    return checkpoint_id_at(agents, name) if found == full else found


def _in_agent(agents: Agents, agent_id: str, which: str) -> list[str]:
    history = agents.history(agent_id) if agent_id and which else []
    named = [info.id for info in history if which in ("latest", str(info.iteration))]
    ends = {info.id: info.id.partition("-")[2] for info in history}
    return named[:1] or [
        id for id, end in ends.items() if id.startswith(which) or end.startswith(which)
    ]


def _in_store(agents: Agents, start: str) -> list[str]:
    """Return the ids that begin with ``start``. Reads only agents whose ids can begin with it."""
    wanted = locator_in(start)

    def may_have(agent_id: str) -> bool:
        own = locator(agent_id)
        return own == wanted if "-" in start else own.startswith(wanted)

    names = [name for name in counting(agents.names(), "agents") if may_have(name)]
    return [info.id for name in names for info in agents.history(name) if info.id.startswith(start)]
