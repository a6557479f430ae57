"""``ckpt export`` and ``import``: moves agents between stores as JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import click

from celery_ckpt.cli.errors import Code, Failure, Tally, code_of
from celery_ckpt.cli.options import agents_of, any_agents_argument, json_option, screen_of
from celery_ckpt.cli.output.progress import Advance, bar
from celery_ckpt.cli.output.text import bytes_of, counted, one_line, visible_json
from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.transfer import Imported, export_agents, import_agents


@click.command("export")
@any_agents_argument
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write to this file, readable only by you, instead of standard output.")  # fmt: skip
@click.option("--skip-damaged", is_flag=True, help="Skip checkpoints that cannot be read.")
@click.pass_context
def export_(
    ctx: click.Context, agent_ids: tuple[str, ...], output: Path | None, skip_damaged: bool
) -> None:
    """Export agents as JSON lines.

    Without arguments, exports all agents. An export contains whole conversations and task arguments.
    """
    agents, tally = agents_of(ctx), Tally()
    if isinstance(agents.store, EncryptedStore):
        click.echo("Note: the store is encrypted, but the export is not. Keep it safe.", err=True)
    for agent_id in agent_ids:
        agents.status(agent_id)  # raises AgentNotFound
    names = list(dict.fromkeys(agent_ids)) if agent_ids else sorted(agents.names())

    def report(agent_id: str, damage: CheckpointDamaged | None, unreadable_entries: int) -> None:
        advance(what=agent_id)
        _warn_of_entries(agent_id, unreadable_entries)
        if damage is not None:
            tally.failed(f"Skipped: {damage}", Code.DAMAGED)

    # On a terminal, the exported lines show the progress, and a bar would garble them.
    with _output(output) as file, bar("exporting", len(names), hidden=file.isatty()) as advance:
        size = 0
        for line in export_agents(agents.store, names, skip_damaged=skip_damaged, report=report):
            size += file.write(visible_json(line) if file.isatty() else line)
    if output is not None:
        written = f"{counted(len(names), 'agent')}, {bytes_of(size)}"
        click.echo(f"Exported {written} to {one_line(str(output))}.", err=True)
    tally.end()


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
    """Open the file that an export is written to, or standard output."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        # A device, a pipe or a link is written to directly: renaming a file to it would replace it.
        is_special = path.is_symlink() or (path.exists() and not path.is_file())
        with path.open("wb") if is_special else _complete_or_absent(path) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"Cannot write {path}: {error.strerror}.", Code.NO) from error


@contextmanager
def _complete_or_absent(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears only when it is complete."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@click.command("import")
@click.argument("file", metavar="FILE", type=click.File("rb"))
@json_option
@click.pass_context
def import_(ctx: click.Context, file: BinaryIO, as_json: bool) -> None:
    """Import agents from an export.

    FILE is the output of export; - means standard input. Checkpoints and runs that are already in the
    store are skipped. An agent that has a different history in the store is refused.
    """
    agents = agents_of(ctx, may_make_store=True)
    screen, tally = screen_of(ctx, as_json=as_json), Tally()
    with bar("importing bytes", _size(file)) as advance:
        for imported in import_agents(agents.store, _lines(file, advance)):
            if as_json:
                screen.json({**asdict(imported), "error": imported.error and str(imported.error)})
            elif imported.error is None:
                screen.line(_sentence(imported))
            _warn_of_entries(imported.agent_id, imported.skipped_entries)
            if imported.error is not None:
                reason = str(imported.error)
                if imported.in_part:
                    count = counted(imported.checkpoints, "checkpoint")
                    name = f"Agent {imported.agent_id!r}"
                    reason = (
                        f"{name} was imported only in part ({count}): {reason} Then import it again."
                    )
                tally.failed(reason, code_of(imported.error))
    tally.end()


def _warn_of_entries(agent_id: str, count: int) -> None:
    if count:
        entries = "1 entry" if count == 1 else f"{count} entries"
        what = f"{entries} of the event log of agent {agent_id!r}"
        click.echo(one_line(f"Warning: skipped {what}: damaged, or of an unknown kind."), err=True)


def _size(file: BinaryIO) -> int | None:
    try:
        return os.fstat(file.fileno()).st_size or None
    except (OSError, ValueError):
        return None


def _lines(file: BinaryIO, advance: Advance) -> Iterator[bytes]:
    for line in file:
        yield line
        advance(len(line))


def _sentence(imported: Imported) -> str:
    name = one_line(imported.agent_id)
    if not (imported.checkpoints or imported.runs):
        return f"{name}: already in the store."
    opened = f" ({imported.open_runs} open, see celery ckpt resume)" if imported.open_runs else ""
    written = f"{counted(imported.checkpoints, 'checkpoint')}, {counted(imported.runs, 'run')}"
    return f"{name}: {written}{opened}"
