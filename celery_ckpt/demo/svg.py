"""The last screen as a picture in a file, which needs nothing from elsewhere to be shown."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from celery_ckpt.demo.bill import bill
from celery_ckpt.demo.screen import LEAST_WIDTH, drawn
from celery_ckpt.demo.sides import Side

#: Rich would have fonts fetched.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def write_svg(path: Path, sides: list[Side]) -> None:
    """Draw both sides and their bill, as they are now."""
    console = Console(record=True, file=io.StringIO(), width=LEAST_WIDTH, force_terminal=True)
    console.print(drawn(sides, LEAST_WIDTH), bill(sides))
    svg = console.export_svg(title="celery-ckpt demo", unique_id="demo")
    path.write_text(_FONTS.sub("", svg), encoding="utf-8")
