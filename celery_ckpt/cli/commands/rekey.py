"""``ckpt rekey``: everything that is stored, under the first of the keys."""

from __future__ import annotations

from typing import Any

import click

from celery_ckpt.cli.completing import agent_names
from celery_ckpt.cli.errors import Tally, code_of
from celery_ckpt.cli.options import agents_of, json_option, screen_of
from celery_ckpt.cli.output.progress import bar
from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.cli.output.text import counted, one_line
from celery_ckpt.runtime.agents.upkeep import RekeyedAgent


@click.command("rekey")
@click.argument("agent_ids", metavar="[AGENT]...", nargs=-1, shell_complete=agent_names)
@click.option("--from-plaintext", is_flag=True, help="Also encrypt what is stored as plain text.")
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@json_option
@click.pass_context
def rekey_(
    ctx: click.Context,
    agent_ids: tuple[str, ...],
    from_plaintext: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Encrypt agents with the first of ckpt_encryption_keys.

    Takes all agents, or those named. Agents that are at work are skipped, and the exit code is 75: run
    the command again. Once it exits with 0, the other keys are no longer needed.
    """
    screen, tally, changed = screen_of(ctx, as_json=as_json), Tally(), 0
    options = {"from_plaintext": from_plaintext, "dry_run": dry_run}
    looked_at = 0
    with bar("rekeying agents") as advance:
        for one in agents_of(ctx).rekey(agent_ids or None, **options):
            advance(what=one.agent_id)
            looked_at += 1
            changed += _told(screen, one, dry_run)
            if one.error is not None:
                tally.failed(str(one.error), code_of(one.error))
    if not as_json:
        would = "would change" if dry_run else "changed"
        screen.line(f"Checked {counted(looked_at, 'agent')}, {changed:,} {would}.")
    tally.end()


def _told(screen: Screen, one: RekeyedAgent, dry_run: bool) -> bool:
    """Say what became of an agent; was there anything?"""
    is_any = bool(one.checkpoints or one.steps or one.runs)
    if screen.as_json:
        screen.json(_as_object(one))
    elif is_any:
        parts = [
            counted(one.checkpoints, "checkpoint"),
            counted(one.steps, "step"),
            counted(one.runs, "run"),
        ]
        screen.line(f"{one_line(one.agent_id)}: {', '.join(parts)}")
    return is_any


def _as_object(one: RekeyedAgent) -> dict[str, Any]:
    return {**one._asdict(), "error": one.error and str(one.error)}
