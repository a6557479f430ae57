"""A type checker knows what a step returns and which arguments its function takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_bodies_are_typed() -> None:
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--warn-unused-ignores",
            str(HERE / "typed_bodies.py"),
        ],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
