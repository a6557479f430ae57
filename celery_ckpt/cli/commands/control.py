"""``ckpt resume``, ``cancel``, ``fork`` and ``delete``: the commands that act on agents."""

from __future__ import annotations

import sys

import click

from celery_ckpt.cli.errors import Tally
from celery_ckpt.cli.options import (
    agents_argument,
    agents_of,
    checkpoint_id_at,
    json_option,
    screen_of,
)
from celery_ckpt.cli.output.text import counted, one_line


@click.command("resume")
@agents_argument
@json_option
@click.pass_context
def resume_(ctx: click.Context, agent_ids: tuple[str, ...], as_json: bool) -> None:
    """Resume an agent's run.

    Requeues a run that failed, was cancelled, or appears to be stuck. It continues from its latest
    checkpoint, under the same task id, with its full number of retries.
    """
    agents, screen, tally = agents_of(ctx), screen_of(ctx, as_json=as_json), Tally()
    for agent_id in agent_ids:
        with tally.one():
            run_id = agents.resume(agent_id).id
            if as_json:
                screen.json({"agent_id": agent_id, "run_id": run_id})
            else:
                screen.line(f"{one_line(agent_id)}: resumed run {run_id}.")
    tally.end()


@click.command("cancel")
@agents_argument
@json_option
@click.pass_context
def cancel_(ctx: click.Context, agent_ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel all open runs of an agent.

    An active run stops at its next event: a model reply, a tool call or the end of an iteration.
    """
    agents, screen, tally = agents_of(ctx), screen_of(ctx, as_json=as_json), Tally()
    for agent_id in agent_ids:
        with tally.one():
            agents.status(agent_id)  # raises AgentNotFound
            was_open = agents.cancel(agent_id)
            if as_json:
                screen.json({"agent_id": agent_id, "cancelled": was_open})
            else:
                done = "cancelled." if was_open else "no open run to cancel."
                screen.line(f"{one_line(agent_id)}: {done}")
    tally.end()


@click.command("fork")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.option("--as", "agent_id", metavar="NAME", help="The name of the new agent; random by default.")
@json_option
@click.pass_context
def fork_(ctx: click.Context, checkpoint_id: str, agent_id: str | None, as_json: bool) -> None:
    """Start a new agent from a checkpoint.

    The new agent has the conversation, state and metadata of the checkpoint. The original does not
    change.
    """
    agents = agents_of(ctx)
    checkpoint_id = checkpoint_id_at(agents, checkpoint_id)
    name = agents.fork(checkpoint_id, agent_id)
    screen = screen_of(ctx, as_json=as_json)
    if as_json:
        screen.json({"agent_id": name, "forked_from": checkpoint_id})
    else:
        screen.line(name)


@click.command("delete")
@agents_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@click.pass_context
def delete_(ctx: click.Context, agent_ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete agents.

    Cancels the open runs of each agent, and deletes its checkpoints, steps and run records.
    """
    agents, screen, tally = agents_of(ctx), screen_of(ctx, as_json=as_json), Tally()
    for agent_id in agent_ids:
        with tally.one():
            [snapshot] = agents.store.snapshots([agent_id])  # reports damage instead of raising
            if not snapshot.seen and not snapshot.damage:
                agents.status(agent_id)  # raises AgentNotFound
            if not yes:
                kept = counted(len(snapshot.checkpoints), "checkpoint")
                found = "which is damaged" if snapshot.damage else f"with {kept}"
                if not sys.stdin.isatty():
                    raise click.UsageError("Cannot ask for confirmation without a terminal: add --yes.")
                click.confirm(
                    f"Permanently delete {one_line(agent_id)}, {found}?", abort=True, err=True
                )
            count = agents.delete(agent_id)
            if as_json:
                screen.json({"agent_id": agent_id, "checkpoints": count})
            else:
                screen.line(f"{one_line(agent_id)}: deleted ({counted(count, 'checkpoint')}).")
    tally.end()
