"""``ckpt diff``: what changed between two checkpoints."""

from __future__ import annotations

from typing import Any

import click

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.cli.addresses import checkpoint_id_at
from celery_ckpt.cli.errors import Code
from celery_ckpt.cli.options import agents_of, json_option, screen_of
from celery_ckpt.cli.output.conversing import EXCERPT, show_message
from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.cli.output.text import as_json as written
from celery_ckpt.cli.output.text import counted, one_line
from celery_ckpt.messages import Message
from celery_ckpt.views.diff import Change, Difference, Edit, difference
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
        said = f"{one.id}  iteration {one.iteration}, {many}, {when} UTC"
        screen.labelled(mark, said, width=1)
    for change in found.changes:
        screen.labelled("~", _sentence(change), width=1)
    screen.line(f"  {counted(found.shared, 'message')} in common", "dim")
    for edit in found.edits:
        _show_side(screen, "-", edit.old_at, edit.removed, limit)
        _show_side(screen, "+", edit.new_at, edit.added, limit)


def _show_side(screen: Screen, mark: str, at: int, messages: list[Message], limit: int | None) -> None:
    for number, message in enumerate(messages, at + 1):
        label = f"{mark} {number:>3} {speaker(message)[:11]}"
        show_message(screen, label, message, limit=limit, kind=mark)


def _sentence(change: Change) -> str:
    old, new = (one_line(written(value), 60) for value in (change.old, change.new))
    return f"{change.path}: {old if change.has_old else '-'} → {new if change.has_new else '-'}"


def _as_object(found: Difference) -> dict[str, Any]:
    return {
        "differ": bool(found),
        "shared_messages": found.shared,
        "changes": [_change_as_object(change) for change in found.changes],
        "messages": [_edit_as_object(edit) for edit in found.edits],
    }


def _change_as_object(change: Change) -> dict[str, Any]:
    told: dict[str, Any] = {"path": change.path}
    if change.has_old:
        told["old"] = change.old
    if change.has_new:
        told["new"] = change.new
    return told


def _edit_as_object(edit: Edit) -> dict[str, Any]:
    removed, added = ([m.to_dict() for m in side] for side in (edit.removed, edit.added))
    return {"old_at": edit.old_at, "new_at": edit.new_at, "removed": removed, "added": added}
