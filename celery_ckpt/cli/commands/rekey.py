"""``ckpt rekey``: encrypts everything that is stored with the first of the keys."""

from __future__ import annotations

import click

from celery_ckpt.cli.errors import Tally, code_of
from celery_ckpt.cli.options import agents_of, any_agents_argument, json_option, screen_of
from celery_ckpt.cli.output.progress import bar
from celery_ckpt.cli.output.text import counted, one_line


@click.command("rekey")
@any_agents_argument
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

    Without arguments, encrypts all agents. Agents that are at work are skipped, and the exit code is
    75: run the command again. Once it exits with 0, the other keys are no longer needed.
    """
    screen, tally = screen_of(ctx, as_json=as_json), Tally()
    checked = changed = 0
    options = {"from_plaintext": from_plaintext, "dry_run": dry_run}
    with bar("rekeying agents") as advance:
        for one in agents_of(ctx).rekey(agent_ids or None, **options):
            advance(what=one.agent_id)
            checked += 1
            has_changed = bool(one.checkpoints or one.steps or one.runs)
            changed += has_changed
            if as_json:
                screen.json({**one._asdict(), "error": one.error and str(one.error)})
            elif has_changed:
                checkpoints, steps = counted(one.checkpoints, "checkpoint"), counted(one.steps, "step")
                written = f"{checkpoints}, {steps}, {counted(one.runs, 'run')}"
                screen.line(f"{one_line(one.agent_id)}: {written}")
            if one.error is not None:
                tally.failed(str(one.error), code_of(one.error))
    if not as_json:
        would = "would change" if dry_run else "changed"
        screen.line(f"Checked {counted(checked, 'agent')}, {changed:,} {would}.")
    tally.end()
