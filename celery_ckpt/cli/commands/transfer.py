"""``ckpt export`` and ``import``: agents as JSON lines, from one store to another."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import click

from celery_ckpt.cli.completing import agent_names
from celery_ckpt.cli.errors import Code, Failure, Tally, code_of
from celery_ckpt.cli.options import agents_of, json_option, screen_of
from celery_ckpt.cli.output.progress import bar
from celery_ckpt.cli.output.text import bytes_of, counted, one_line, visible_json
from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.runtime.agents.agents import Agents
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.transfer import Imported, export_agents, import_agents


@click.command("export")
@click.argument("agent_ids", metavar="[AGENT]...", nargs=-1, shell_complete=agent_names)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write to this file, readable only by you, instead of standard output.")  # fmt: skip
@click.option("--skip-damaged", is_flag=True, help="Skip checkpoints that cannot be read.")
@click.pass_context
def export_(
    ctx: click.Context, agent_ids: tuple[str, ...], output: Path | None, skip_damaged: bool
) -> None:
    """Export agents as JSON lines.

    Exports all agents, or those named. The export holds whole conversations and the arguments of tasks.
    """
    agents, tally = agents_of(ctx), Tally()
    if isinstance(agents.store, EncryptedStore):
        click.echo("Note: the store is encrypted, but the export is not. Keep it safe.", err=True)
    names = _existing(agents, agent_ids) if agent_ids else sorted(agents.names())

    def told(agent_id: str, damage: CheckpointDamaged | None) -> None:
        advance(what=agent_id)
        if damage is not None:
            tally.failed(f"Skipped: {damage}", Code.DAMAGED)

    # Lines on a terminal show the progress themselves, and would run into a bar.
    with _opened(output) as file, bar("exporting", len(names), hidden=file.isatty()) as advance:
        size = 0
        for line in export_agents(agents.store, names, skip_damaged=skip_damaged, told=told):
            size += file.write(visible_json(line) if file.isatty() else line)
    if output is not None:
        said = f"{counted(len(names), 'agent')}, {bytes_of(size)}: {one_line(str(output))}"
        click.echo(said, err=True)
    tally.end()


def _existing(agents: Agents, agent_ids: Iterable[str]) -> list[str]:
    for agent_id in agent_ids:
        agents.status(agent_id)  # raises AgentNotFound
    return list(dict.fromkeys(agent_ids))


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    """Where an export goes: to standard output, or to a file."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        # A device, a pipe or a link is written to; to rename a file to its name would replace it.
        is_special = path.is_symlink() or (path.exists() and not path.is_file())
        with path.open("wb") if is_special else _drafted(path) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"Cannot write {path}: {error.strerror}.", Code.NO) from error


@contextmanager
def _drafted(path: Path) -> Iterator[BinaryIO]:
    """A file that is there when it is complete, and not before."""
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

    FILE is what export wrote; - is standard input. What is already in the store is skipped. An agent
    that has a different history in the store is refused.
    """
    agents = agents_of(ctx, may_make_store=True)
    screen, tally = screen_of(ctx, as_json=as_json), Tally()
    with bar("importing bytes", _size(file)) as advance:
        for imported in import_agents(agents.store, _counted(file, advance)):
            if as_json:
                screen.json(_as_object(imported))
            elif imported.error is None:
                screen.line(_sentence(imported))
            if imported.error is not None:
                tally.failed(_what_is_wrong(imported), code_of(imported.error))
    tally.end()


def _size(file: BinaryIO) -> int | None:
    try:
        return os.fstat(file.fileno()).st_size or None
    except (OSError, ValueError):
        return None


def _counted(file: BinaryIO, advance: object) -> Iterator[bytes]:
    for line in file:
        yield line
        advance(len(line))  # type: ignore[operator]


def _sentence(imported: Imported) -> str:
    name = one_line(imported.agent_id)
    if not (imported.checkpoints or imported.runs):
        return f"{name}: already in the store."
    opened = f" ({imported.open_runs} open, see celery ckpt resume)" if imported.open_runs else ""
    written = f"{counted(imported.checkpoints, 'checkpoint')}, {counted(imported.runs, 'run')}"
    return f"{name}: {written}{opened}"


def _what_is_wrong(imported: Imported) -> str:
    if not imported.in_part:
        return str(imported.error)
    count = counted(imported.checkpoints, "checkpoint")
    name = f"Agent {imported.agent_id!r}"
    return f"{name} was imported only in part ({count}): {imported.error} Then import it again."


def _as_object(imported: Imported) -> dict[str, Any]:
    return {**asdict(imported), "error": imported.error and str(imported.error)}
