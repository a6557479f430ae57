"""``celery-ckpt``: the commands that need no app."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from celery_ckpt import __version__
from celery_ckpt.demo import Stopped

if TYPE_CHECKING:
    from rich.console import Console

    from celery_ckpt.demo.stage import Side


@click.group()
@click.version_option(__version__, package_name="celery-ckpt")
def main() -> None:
    """Durable LLM agents on Celery. To inspect the agents of your app: celery -A proj ckpt --help."""


@main.command(short_help="Kill an agent's worker, deploy the next one, compare the bills.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the last screen to this file as SVG.",
)
def demo(picture: Path | None) -> None:
    """Kill an agent's worker, deploy the next one, and compare the bills.

    Runs the same agent with celery_ckpt and as a plain Celery task. Takes half a minute. Starts its own
    Valkey server and Celery workers, and leaves nothing behind.
    """
    # Imported late: --help does not need them, and they take a second.
    from rich.console import Console

    from celery_ckpt.demo.processes import server_binary
    from celery_ckpt.demo.screen import print_bill, write_svg

    if picture and not picture.parent.is_dir():
        raise click.BadParameter(f"there is no directory {picture.parent}", param_hint="--picture")
    server_binary()
    # Celery prefers these variables to what the demo configures.
    for name in [name for name in os.environ if name.startswith("CELERY_")]:
        del os.environ[name]
    console = Console()
    try:
        sides = _shown(console)
    except Stopped as stopped:
        click.echo(str(stopped), err=True)
        sys.exit(stopped.code)
    print_bill(console, sides)
    if picture:
        write_svg(picture, sides)


def _shown(console: Console) -> list[Side]:
    from celery_ckpt.demo.screen import INTRODUCTION, LEAST_WIDTH, Lines, screen
    from celery_ckpt.demo.stage import show, signals_noted

    is_roomy = console.is_terminal and not console.is_dumb_terminal and console.width >= LEAST_WIDTH
    if is_roomy and not console.options.ascii_only:
        # In this order: however the show ends, the terminal is restored.
        with signals_noted() as check, screen(console) as look:
            return show(look, check)
    console.print(INTRODUCTION, highlight=False, soft_wrap=True)
    with signals_noted() as check:
        return show(Lines(console), check)
