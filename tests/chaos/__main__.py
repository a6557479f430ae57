"""``python -m tests.chaos [--seed N] [--faults N] [--json] [--page FILE] [campaign ...]``."""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos.campaigns import CAMPAIGNS, Campaign, run
from tests.chaos.judge import Verdict
from tests.chaos.report import table, write

#: The minimum width of the table, in columns.
_MIN_WIDTH = 120


def main() -> int:
    """Run the campaigns. The exit status is 0 if every promise was kept."""
    arguments = _arguments()
    wanted = [one for one in CAMPAIGNS if not arguments.campaign or one.name in arguments.campaign]
    verdicts = _run_all(wanted, arguments.seed, arguments.faults)
    if arguments.json:
        json.dump([asdict(verdict) for verdict in verdicts], sys.stdout, indent=2)
    else:
        Console(width=max(_MIN_WIDTH, Console().width)).print(table(verdicts))
    for verdict in verdicts:
        for remark in verdict.remarks:
            sys.stderr.write(f"{verdict.name}: {remark}\n")
        for problem in verdict.problems:
            sys.stderr.write(f"{verdict.name}, seed {verdict.seed}: {problem}\n")
    if arguments.page:
        write(verdicts, arguments.page)
    return 1 if any(verdict.problems for verdict in verdicts) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("campaign", nargs="*", choices=[[], *(one.name for one in CAMPAIGNS)])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--faults", type=int, help="how many faults each campaign has")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, not as a table")
    parser.add_argument("--page", type=Path, help="write the figures into this page")
    return parser.parse_args()


def _run_all(wanted: list[Campaign], seed: int, times: int | None) -> list[Verdict]:
    columns = TextColumn("{task.description:32}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TextColumn("{task.fields[fault]}"), console=Console(stderr=True)) as shown:
        verdicts = []
        for campaign in wanted:
            bar = shown.add_task(f"{campaign.name} ({seed})", total=times or campaign.times, fault="")
            started = False

            def report_fault(fault: str, bar: int = bar) -> None:
                nonlocal started
                shown.update(bar, advance=1 if started else 0, fault=fault)
                started = True

            verdicts.append(run(campaign, seed, times, report_fault))
            shown.update(bar, completed=verdicts[-1].faults, fault="")
        return verdicts


if __name__ == "__main__":
    sys.exit(main())
