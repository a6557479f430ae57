"""``ckpt tail``: follows an agent at work."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import Any

import click

from celery_ckpt.cli.errors import Code
from celery_ckpt.cli.options import agent_argument, agents_of, json_option, screen_of
from celery_ckpt.cli.output.text import one_line
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.views.follower import Follower, Happening

#: How long tail waits for a store that is unavailable.
_PATIENCE_SECONDS = 60.0


@click.command("tail")
@agent_argument
@click.option("-n", "--last", type=click.IntRange(0), default=10, show_default=True,
              help="How many earlier messages to print first.")  # fmt: skip
@click.option("--every", type=click.FloatRange(0.05), default=0.5, show_default=True,
              help="Seconds between two checks of the store.")  # fmt: skip
@click.option("--forever", is_flag=True, help="Keep following when the agent has no open run.")
@json_option
@click.pass_context
def tail_(
    ctx: click.Context, agent_id: str, last: int, every: float, forever: bool, as_json: bool
) -> None:
    """Follow an agent until its runs have ended.

    Prints messages, steps, checkpoints and runs as they appear. Exits with 0 if the last run succeeded,
    otherwise with 1. With --json, prints one object per line.
    """
    agents, screen = agents_of(ctx), screen_of(ctx, as_json=as_json)
    agents.status(agent_id)  # raises AgentNotFound
    follower = Follower(agents.store, agent_id, last)
    while True:
        for happening in _look(follower, every):
            if as_json:
                screen.json(_as_object(happening))
            elif happening.messages:
                screen.messages(happening.messages, first=happening.first)
            else:
                label, what = _local_time(happening.at), one_line(happening.what)
                kind = happening.facts.get("status", happening.kind)
                screen.labelled(label, what, kind=kind, width=17)
        sys.stdout.flush()
        if not (forever or follower.is_open):
            break
        time.sleep(every)
    ctx.exit(Code.DONE if follower.has_succeeded else Code.NO)


def _look(follower: Follower, every: float) -> list[Happening]:
    """Return what is new. Wait for a store that is unavailable."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return follower.look()
        except StoreUnavailable as error:
            if time.monotonic() > end:
                raise
            click.echo(f"{one_line(str(error))} Retrying.", err=True)
            time.sleep(every)


def _local_time(at: datetime | None) -> str:
    """Return the local time, with the day unless it is today."""
    if at is None:
        return "-"
    local = at.astimezone()
    is_today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M:%S")


def _as_object(happening: Happening) -> dict[str, Any]:
    at = happening.at and happening.at.isoformat().replace("+00:00", "Z")
    shown: dict[str, Any] = {"kind": happening.kind, "at": at, **happening.facts}
    if happening.messages:
        messages = [message.to_dict() for message in happening.messages]
        shown |= {"first": happening.first, "messages": messages}
    return shown
