"""``ckpt diff``: the differences between two checkpoints."""

from __future__ import annotations

from typing import Any

import click

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.cli.errors import Code
from celery_ckpt.cli.options import agents_of, checkpoint_id_at, json_option, screen_of
from celery_ckpt.cli.output.screen import EXCERPT, Screen
from celery_ckpt.cli.output.text import as_json_line, counted, one_line
from celery_ckpt.views.diff import Difference, difference
from celery_ckpt.views.transcript import speaker


@click.command("diff")
@click.argument("old", metavar="CHECKPOINT")
@click.argument("new", metavar="CHECKPOINT")
@click.option("--full", is_flag=True, help="Show messages in full.")
@json_option
@click.pass_context
def diff_(ctx: click.Context, old: str, new: str, full: bool, as_json: bool) -> None:
    """Compare two checkpoints.

    Shows the messages, state and metadata that differ. Like diff, exits with 1 if there are any.
    """
    agents, screen = agents_of(ctx), screen_of(ctx, as_json=as_json)
    before, after = (agents.checkpoint(checkpoint_id_at(agents, one)) for one in (old, new))
    found = difference(before, after)
    if as_json:
        screen.json(_as_object(found))
    else:
        with screen.paged():
            _show(screen, before, after, found, None if full else EXCERPT)
    ctx.exit(Code.NO if found else Code.DONE)


def _show(
    screen: Screen, old: Checkpoint, new: Checkpoint, found: Difference, limit: int | None
) -> None:
    for mark, one in (("-", old), ("+", new)):
        when = one.created_at.strftime("%Y-%m-%d %H:%M:%S")
        many = counted(len(one.conversation), "message")
        screen.labelled(mark, f"{one.id}  iteration {one.iteration}, {many}, {when} UTC", width=1)
    for change in found.changes:
        old_value = one_line(as_json_line(change.old), 60) if change.has_old else "-"
        new_value = one_line(as_json_line(change.new), 60) if change.has_new else "-"
        screen.labelled("~", f"{change.path}: {old_value} → {new_value}", width=1)
    screen.line(f"  {counted(found.shared, 'message')} in common", "dim")
    for edit in found.edits:
        for mark, at, messages in (("-", edit.old_at, edit.removed), ("+", edit.new_at, edit.added)):
            for number, message in enumerate(messages, at + 1):
                label = f"{mark} {number:>3} {speaker(message)[:11]}"
                screen.message(label, message, limit=limit, kind=mark)


def _as_object(found: Difference) -> dict[str, Any]:
    return {
        "differ": bool(found),
        "shared_messages": found.shared,
        "changes": [
            {
                "path": change.path,
                **({"old": change.old} if change.has_old else {}),
                **({"new": change.new} if change.has_new else {}),
            }
            for change in found.changes
        ],
        "messages": [
            {
                "old_at": edit.old_at,
                "new_at": edit.new_at,
                "removed": [message.to_dict() for message in edit.removed],
                "added": [message.to_dict() for message in edit.added],
            }
            for edit in found.edits
        ],
    }
