"""``ckpt pin``, ``prune`` and ``doctor``: what the store keeps, and whether it is intact."""

from __future__ import annotations

from dataclasses import asdict

import click

from celery_ckpt.cli.errors import Code, Tally
from celery_ckpt.cli.options import (
    agents_of,
    any_agents_argument,
    checkpoint_id_at,
    json_option,
    screen_of,
)
from celery_ckpt.cli.output.progress import bar
from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.cli.output.tables import Column
from celery_ckpt.cli.output.text import bytes_of, counted, one_line
from celery_ckpt.retention.report import PruneResult

_PRUNED = (
    Column("agent", whole=True),
    Column("checkpoints", right=True),
    Column("runs", right=True),
    Column("bytes", right=True),
    Column("note"),
)
#: The label of a pin without ``--label``.
_LABEL = "pinned"


@click.command("pin")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.option(
    "--label", default=_LABEL, show_default=True, help="Why the checkpoint is kept, in a word or two."
)
@click.option("--off", is_flag=True, help="Remove the pin.")
@json_option
@click.pass_context
def pin_(ctx: click.Context, checkpoint_id: str, label: str, off: bool, as_json: bool) -> None:
    """Protect a checkpoint from pruning."""
    agents, screen = agents_of(ctx), screen_of(ctx, as_json=as_json)
    checkpoint_id = checkpoint_id_at(agents, checkpoint_id)
    if off:
        was_pinned = agents.unpin(checkpoint_id)
        outcome = "no longer pinned" if was_pinned else "was not pinned"
    else:
        agents.pin(checkpoint_id, label)
        outcome = "pinned" if label == _LABEL else f"pinned as {label}"
    if as_json:
        screen.json({"id": checkpoint_id, "pin": None if off else label})
    else:
        screen.line(f"{one_line(checkpoint_id)}: {one_line(outcome)}.")


@click.command("prune")
@any_agents_argument
@click.option(
    "--keep", type=click.IntRange(0), help="How many checkpoints of each named agent to keep."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@json_option
@click.pass_context
def prune_(
    ctx: click.Context, agent_ids: tuple[str, ...], keep: int | None, dry_run: bool, as_json: bool
) -> None:
    """Delete old checkpoints and the records of old runs.

    Without arguments, applies the retention limits to all agents. With agents and --keep, deletes all
    but the newest checkpoints of these agents.

    Pinned checkpoints and the latest checkpoint of an agent with an open run are never deleted.
    """
    if bool(agent_ids) != (keep is not None):
        raise click.UsageError("Give agents together with --keep, or neither to prune all agents.")
    screen = screen_of(ctx, as_json=as_json)
    if agent_ids and keep is not None:
        if dry_run:
            raise click.UsageError("--dry-run needs all agents: leave out the names and --keep.")
        _prune_named(ctx, screen, agent_ids, keep)
    else:
        _prune_all(ctx, screen, dry_run)


def _prune_named(ctx: click.Context, screen: Screen, agent_ids: tuple[str, ...], keep: int) -> None:
    agents, tally = agents_of(ctx), Tally()
    for agent_id in agent_ids:
        with tally.one():
            agents.status(agent_id)  # raises AgentNotFound
            count = agents.prune(agent_id, keep)
            if screen.as_json:
                screen.json({"agent_id": agent_id, "checkpoints": count})
            else:
                screen.line(f"{one_line(agent_id)}: deleted {counted(count, 'checkpoint')}.")
    tally.end()


def _prune_all(ctx: click.Context, screen: Screen, dry_run: bool) -> None:
    agents, pruned = agents_of(ctx), list[PruneResult]()

    def collect(result: PruneResult) -> None:
        advance(what=result.agent_id)
        if result.is_any:
            pruned.append(result)

    with bar("checking agents") as advance:
        report = agents.prune_all(dry_run=dry_run, on_result=collect)
    if screen.as_json:
        screen.json({**asdict(report), "pruned_agents": [one._asdict() for one in pruned]})
        return
    rows = [
        [
            one.agent_id,
            one.checkpoints,
            one.runs,
            bytes_of(one.bytes),
            "whole agent" if one.forgotten else "",
        ]
        for one in pruned
    ]
    with screen.paged():
        if rows:
            screen.table(_PRUNED, rows)
        deleted = "Would delete" if dry_run else "Deleted"
        checkpoints, runs = counted(report.checkpoints, "checkpoint"), counted(report.runs, "old run")
        affected, size = counted(report.pruned, "agent"), bytes_of(report.bytes)
        screen.line(
            f"{deleted} {checkpoints}, {runs} and {counted(report.forgotten, 'whole agent')} "
            f"({affected} affected, {size}). Checked {counted(report.agents, 'agent')}."
        )


@click.command("doctor")
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@json_option
@click.pass_context
def doctor_(ctx: click.Context, repair: bool, as_json: bool) -> None:
    """Check the store for problems.

    Looks for risky settings of the store, leftovers of crashes, and damaged data. Exits with 1 if a
    problem remains.
    """
    screen, found = screen_of(ctx, as_json=as_json), []
    with bar("checking the store") as advance:
        for finding in agents_of(ctx).doctor(repair=repair):
            advance(what=finding.subject)
            found.append(finding)
    if as_json:
        screen.json([asdict(finding) for finding in found])
    else:
        for finding in found:
            kind = "ok" if finding.repaired else finding.kind
            what = f"{one_line(finding.subject)}: {one_line(finding.what)}"
            screen.labelled(finding.kind, what, kind=kind)
            next_step = "Repaired." if finding.repaired else one_line(finding.remedy)
            screen.labelled("", next_step, kind="other")
        repairable = sum(finding.can_repair and not finding.repaired for finding in found)
        if repairable:
            problems = counted(repairable, "problem")
            screen.line(f"{problems} can be repaired: celery ckpt doctor --repair")
        elif not found:
            screen.line("No problems found.", "green")
    ctx.exit(Code.DONE if all(finding.repaired for finding in found) else Code.NO)
