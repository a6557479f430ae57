"""Completion of agents' names in the shell, if the store answers before anybody notices."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import islice
from typing import Any

import click
from click.shell_completion import CompletionItem

#: A shell that hangs is worse than one that does not complete.
_PATIENCE_SECONDS = 1.0
_MOST = 200


def agent_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names that begin with what was typed; none, if the store is slow or away."""
    found: list[str] = []

    def look(app: Any) -> None:
        from celery_ckpt.runtime.agents.agents import Agents
        from celery_ckpt.runtime.settings import Settings
        from celery_ckpt.stores.registry import missing_path

        with suppress(Exception):  # whatever it is, the command itself will say it
            if missing_path(Settings.of(app).store_url or ""):
                return
            names = Agents(app).names()
            wanted = (name for name in names if name.startswith(incomplete) and name.isprintable())
            found.extend(islice(wanted, _MOST))

    with suppress(Exception):
        # A thread that is left behind, if need be: it ends with the process.
        thread = threading.Thread(target=look, args=[_app(ctx)], daemon=True)
        thread.start()
        thread.join(_PATIENCE_SECONDS)
    return [CompletionItem(name) for name in sorted(list(found))]


def _app(ctx: click.Context) -> Any:
    """The app; while completing, Celery's own command has not looked for it."""
    from celery import current_app
    from celery.app.utils import find_app

    name = ctx.find_root().params.get("app")
    app = find_app(name) if name else current_app._get_current_object()
    store = next((url for each in _lineage(ctx) if (url := each.params.get("store"))), None)
    if store:
        app.conf.ckpt_store_url = store
    return app


def _lineage(ctx: click.Context) -> list[click.Context]:
    return [ctx] if ctx.parent is None else [ctx, *_lineage(ctx.parent)]
