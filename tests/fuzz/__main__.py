"""``python -m tests.fuzz [--cases N] [--seed N] [check ...]``: many cases of every check, on all cores.

A case is a check, the seed and a number. The output about a failed case is enough to repeat it.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from random import SystemRandom

from rich.console import Console
from rich.progress import Progress

from tests.fuzz.checks import CHECKS, run_case

#: The number of cases that a process gets at once.
_BATCH = 500
#: The number of failures that are shown for each check.
_SHOWN = 3
Failure = tuple[str, int, str]


def main() -> int:
    """Run the cases. The exit status is 0 if none of them did harm."""
    arguments = _arguments()
    names = arguments.check or list(CHECKS)
    failures = list(_run_all(names, arguments.seed, arguments.cases, arguments.jobs))
    for name in names:
        of_it = [failure for failure in failures if failure[0] == name]
        for _, number, failure in of_it[:_SHOWN]:
            sys.stderr.write(f"\n{name}, seed {arguments.seed}, case {number}:\n{failure}")
    cases = len(names) * arguments.cases
    sys.stdout.write(f"{cases:,} cases, seed {arguments.seed}: {len(failures):,} did harm\n")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("check", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10_000))
    parser.add_argument("--cases", type=int, default=30_000, help="the number of cases for each check")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser.parse_args()


def _run_all(names: list[str], seed: int, cases: int, jobs: int) -> Iterator[Failure]:
    batches = [(name, seed, first, min(first + _BATCH, cases)) for name in names
               for first in range(0, cases, _BATCH)]  # fmt: skip
    with Progress(console=Console(stderr=True)) as shown, ProcessPoolExecutor(jobs) as pool:
        bar = shown.add_task("cases", total=cases * len(names))
        for done in as_completed([pool.submit(_batch, *batch) for batch in batches]):
            count, failures = done.result()
            shown.update(bar, advance=count)
            yield from failures


def _batch(name: str, seed: int, first: int, last: int) -> tuple[int, list[Failure]]:
    failures = []
    for number in range(first, last):
        try:
            run_case(name, seed, number)
        except Exception:
            failures.append((name, number, traceback.format_exc(limit=-8)))
    return last - first, failures


if __name__ == "__main__":
    sys.exit(main())
