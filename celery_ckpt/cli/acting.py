"""``ckpt resume``, ``cancel``, ``fork`` and ``delete``: acting on agents."""

from __future__ import annotations

import sys

import click

from celery_ckpt.cli.addresses import checkpoint_id_at
from celery_ckpt.cli.exits import Tally
from celery_ckpt.cli.options import agents_argument, agents_of, json_option, screen_of
from celery_ckpt.cli.safe import counted, one_line


@click.command("resume")
@agents_argument
@json_option
@click.pass_context
def resume_(ctx: click.Context, agent_ids: tuple[str, ...], as_json: bool) -> None:
    """Send an agent's run again: one that failed, was cancelled, or that nobody seems to work on.

    It goes on from its latest checkpoint, under its own task id, with all its retries before it.
    """
    agents, screen, tally = agents_of(ctx), screen_of(ctx, as_json=as_json), Tally()
    for agent_id in agent_ids:
        with tally.one():
            run_id = agents.resume(agent_id).id
            if as_json:
                screen.json({"agent_id": agent_id, "run_id": run_id})
            else:
                screen.line(f"{one_line(agent_id)}: run {run_id} was sent again.")
    tally.end()


@click.command("cancel")
@agents_argument
@json_option
@click.pass_context
def cancel_(ctx: click.Context, agent_ids: tuple[str, ...], as_json: bool) -> None:
    """End the runs of an agent, those that wait as well. A body at work stops at its next event."""
    agents, screen, tally = agents_of(ctx), screen_of(ctx, as_json=as_json), Tally()
    for agent_id in agent_ids:
        with tally.one():
            agents.status(agent_id)  # says so if there is none
            was_open = agents.cancel(agent_id)
            if as_json:
                screen.json({"agent_id": agent_id, "cancelled": was_open})
            else:
                done = "cancelled." if was_open else "nothing to cancel: it has no open run."
                screen.line(f"{one_line(agent_id)}: {done}")
    tally.end()


@click.command("fork")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.option("--as", "agent_id", metavar="NAME", help="The new agent's name; a random one without it.")
@json_option
@click.pass_context
def fork_(ctx: click.Context, checkpoint_id: str, agent_id: str | None, as_json: bool) -> None:
    """Begin another agent with what a checkpoint holds; the original is not touched."""
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
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def delete_(ctx: click.Context, agent_ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """End the runs of an agent and forget everything about it."""
    agents, screen, tally = agents_of(ctx), screen_of(ctx, as_json=as_json), Tally()
    for agent_id in agent_ids:
        with tally.one():
            [sight] = agents.store.sights([agent_id])  # which says so if something is damaged
            if not sight.seen and not sight.damage:
                agents.status(agent_id)  # raises AgentNotFound
            if not yes:
                found = "what is damaged" if sight.damage else counted(len(sight.marks), "checkpoint")
                _ask(f"{one_line(agent_id)} with {found}")
            count = agents.delete(agent_id)
            if as_json:
                screen.json({"agent_id": agent_id, "checkpoints": count})
            else:
                screen.line(f"{one_line(agent_id)}: deleted, with {counted(count, 'checkpoint')}.")
    tally.end()


def _ask(what: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on: add --yes to delete without asking.")
    click.confirm(f"Delete {what} for good?", abort=True, err=True)
