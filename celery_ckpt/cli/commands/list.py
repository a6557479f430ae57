"""``ckpt list``: the agents of the store, and the status of each."""

from __future__ import annotations

from typing import Any

import click

from celery_ckpt.cli.errors import Code, Tally
from celery_ckpt.cli.options import agents_of, json_option, screen_of
from celery_ckpt.cli.output.progress import counting
from celery_ckpt.cli.output.tables import Column
from celery_ckpt.cli.output.text import IDLE, age, cost_of, counted, one_line, status_of, tokens_of
from celery_ckpt.errors import AgentNotFound, EncryptionKeyMissing, StoreError, StoreUnavailable
from celery_ckpt.records import RunStatus
from celery_ckpt.runtime.agents.agents import Agents, AgentStatus

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
    """List agents, most recent checkpoint first."""
    agents, screen, tally = agents_of(ctx), screen_of(ctx, as_json=as_json), Tally()
    found = [
        one
        for one in _statuses(agents, prefix, tally)
        if status in (None, status_of(one)) and task in (None, one.task)
    ]
    found.sort(key=lambda one: one.agent_id)
    found.sort(
        key=lambda one: one.checkpointed_at.timestamp() if one.checkpointed_at else 0, reverse=True
    )
    found = found[:last]
    if as_json:
        screen.json([one.model_dump(mode="json") for one in found])
    elif found:
        with screen.paged():
            screen.table(_COLUMNS, [_row(one) for one in found])
    elif not tally.has_failed:
        no_status = f"No agent is {status}." if status else "This store has no agents yet."
        screen.line("No agent matches." if task or prefix else no_status)
    tally.end()


def _statuses(agents: Agents, prefix: str, tally: Tally) -> list[AgentStatus]:
    """Return the agents that can be read, and report why the others cannot."""
    found, names = [], (name for name in agents.names() if name.startswith(prefix))
    for agent_id in counting(names, "agents"):
        try:
            found.append(agents.status(agent_id))
        except AgentNotFound:
            continue  # deleted since its name was read
        except StoreUnavailable:
            raise
        except StoreError as error:
            is_locked = isinstance(error, EncryptionKeyMissing)
            code = Code.CONFIGURATION if is_locked else Code.DAMAGED
            tally.failed(f"{agent_id}: {error}", code)
    return found


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
