"""``ckpt list``: the agents of the store, and the status of each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from celery_ckpt.cli.errors import Code, Tally
from celery_ckpt.cli.options import agents_of, json_option, screen_of
from celery_ckpt.cli.output.progress import counting
from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.cli.output.tables import Column
from celery_ckpt.cli.output.text import age, cost_of, counted, one_line, status_of, tokens_of
from celery_ckpt.errors import EncryptionKeyMissing
from celery_ckpt.records import IDLE, RunStatus
from celery_ckpt.runtime.agents.agents import Agents, AgentStatus

#: How many agents are read at once, and how many have a common width of columns.
_PAGE, _PART = 100, 1000
_COLUMNS = (
    Column("agent", whole=True),
    Column("status", coloured=True),
    Column("iteration", right=True),
    Column("kept", right=True),
    Column("attempts", right=True),
    Column("tokens", right=True),
    Column("cost", right=True),
    Column("last saved", dim=True),
    Column("task", dim=True),
    Column("remark"),
)


@click.command("list")
@click.option(
    "--status",
    type=click.Choice([*(status.value for status in RunStatus), IDLE]),
    help="Only agents whose active or latest run has this status; idle agents never had a run.",
)
@click.option("--task", metavar="NAME", help="Only agents whose active or latest run is of this task.")
@click.option("--prefix", default="", metavar="TEXT", help="Only agents whose names begin with this.")
@click.option(
    "-n", "--last", type=click.IntRange(1), help="Only this many agents, the most recent ones."
)
@json_option
@click.pass_context
def list_(
    ctx: click.Context,
    status: str | None,
    task: str | None,
    prefix: str,
    last: int | None,
    as_json: bool,
) -> None:
    """List agents, the most recently changed first.

    An agent changes when it is created, and when a run is sent, started, released, ended or cancelled.
    A long list is printed while it is read.
    """
    agents, screen, tally = agents_of(ctx), screen_of(ctx, as_json=as_json), Tally()
    found = counting(_statuses(agents, status, task, prefix, last, tally), "agents")
    if as_json:
        screen.json_list(one.model_dump(mode="json") for one in found)
    elif not _show(screen, found) and not tally.has_failed:
        no_status = f"No agent is {status}." if status else "This store has no agents yet."
        screen.line("No agent matches." if task or prefix else no_status)
    tally.end()


def _statuses(
    agents: Agents, status: str | None, task: str | None, prefix: str, last: int | None, tally: Tally
) -> Iterator[AgentStatus]:
    """Yield the agents that can be read, page by page, and report why the others cannot."""
    left, after, reported = last, None, set[str]()
    while True:
        limit = _PAGE if left is None else min(left, _PAGE)
        page = agents.list(status, task=task, prefix=prefix, limit=limit, after=after)
        for agent_id in sorted(page.unreadable.keys() - reported):
            error = page.unreadable[agent_id]
            is_locked = isinstance(error, EncryptionKeyMissing)
            code = Code.CONFIGURATION if is_locked else Code.DAMAGED
            tally.failed(f"{agent_id}: {error}", code)
        # The end of a page is read again if it has more matches than were asked for.
        reported |= page.unreadable.keys()
        yield from page
        left, after = None if left is None else left - len(page), page.after
        if after is None or left == 0:
            return


def _show(screen: Screen, found: Iterator[AgentStatus]) -> bool:
    """Print a table, a part at a time. Return False if there is nothing to print."""
    is_first = True
    with screen.paged():
        while part := [_row(one) for one in islice(found, _PART)]:
            screen.table(_COLUMNS, part, has_titles=is_first)
            is_first = False
    return not is_first


def _row(one: AgentStatus) -> list[Any]:
    remarks = [one_line(one.error, 60)] if one.error else []
    remarks += [f"{counted(one.blocked, 'run')} blocked"] if one.blocked else []
    return [
        one.agent_id,
        status_of(one),
        one.iteration,
        one.checkpoints,
        one.attempts or None,
        tokens_of(one.usage),
        cost_of(one.usage),
        age(one.checkpointed_at),
        one.task,
        ", ".join(remarks),
    ]
