"""What remains of a campaign that was not clean: the logs of its workers, and the stack of each
of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.fleet import Fleet, fleet
from tests.chaos.judge import Verdict


@contextmanager
def examined(verdict: Verdict, **options: Any) -> Iterator[Fleet]:
    """Provide a fleet. Failures are in the verdict, not raised, and the fleet's files are then kept."""
    directory = Path(tempfile.mkdtemp(prefix="ckpt-chaos-"))
    with fleet(directory, Random(f"{verdict.name} {verdict.seed}"), **options) as made:
        try:
            yield made
        except Exception as error:
            verdict.problems.append(f"{type(error).__name__}: {error}")
        if verdict.problems:
            _take_down(made, directory)
    if verdict.problems:
        verdict.remarks.append(f"worker logs, each with its stack at the end: {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _take_down(made: Fleet, directory: Path) -> None:
    for worker in made.workers:
        with suppress(AssertionError):  # a stopped process cannot write its stack
            worker.dump_stacks()
    left = [f"{key}: {value}" for key, value in made.broker.left().items()]
    (directory / "left").write_text("\n".join([*left, *made.broker.unacked_messages()]))
