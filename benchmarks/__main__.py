"""Runs all benchmarks: ``python -m benchmarks [--quick] [--json] [--out DIRECTORY]``."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from rich.console import Console

from benchmarks import report
from benchmarks.budgets import BUDGETS, Budget
from benchmarks.contenders import Contender, Place, our_file, our_memory, our_redis, our_sqlite
from benchmarks.event_logs import EVENT_LOGS
from benchmarks.fleet import Fleet, fleet
from benchmarks.iterations import ITERATIONS
from benchmarks.limits import NaiveJson, RedisCommands, SqliteInsert
from benchmarks.listing import LISTING
from benchmarks.measure import QUICK, Figures, Plan, measure
from benchmarks.peers import peers
from benchmarks.progress import Steps, steps
from benchmarks.results import Results, versions
from benchmarks.running import RUNNING
from benchmarks.servers import valkey
from benchmarks.waiting import WAITING

_DOCS = Path(__file__).resolve().parent.parent / "docs"
#: The width that the tables need.
_MIN_WIDTH = 132
_OURS = (our_redis, our_sqlite, our_file, our_memory)
_OTHERS = (RedisCommands, SqliteInsert, NaiveJson)


def main() -> None:
    """Measure, print, and write the page and the picture. An exceeded budget is not a failure."""
    arguments = _arguments()
    with valkey() as url:
        results = run(url, QUICK if arguments.quick else Plan())
    if arguments.json:
        json.dump(results.to_dict(), sys.stdout, indent=2)
    else:
        report.show(results, Console(width=max(_MIN_WIDTH, Console().width)))
    out = arguments.out or (None if arguments.quick else _DOCS)
    if out is not None:
        _write(results, out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer iterations, seconds; writes no page"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON, not as tables")
    parser.add_argument("--out", type=Path, help="where to write benchmarks.md and .png (docs)")
    return parser.parse_args()


def run(url: str, plan: Plan) -> Results:
    """Measure everything against one server."""
    start = monotonic()
    found, missing = peers()
    with _fresh(url) as place:
        results = Results(plan, versions(place), missing=missing)
    budgets = (*BUDGETS, *EVENT_LOGS, *ITERATIONS, *LISTING, *RUNNING, *WAITING)
    with steps(1 + len(budgets) + len(_OURS) + len(_OTHERS) + len(found)) as progress:
        for budget in budgets:
            with progress.step(f"budget: {budget.__name__}"), _fresh(url) as place:
                results.budgets.append(budget(place, plan))
        with progress.step(f"a fleet of {plan.fleet:,} agents"):
            results.fleets = fleet(plan.fleet)
            results.budgets += [_of_fleet(one) for one in results.fleets]
        for make in (*_OURS, *_OTHERS):
            results.figures.append(_measured(make, url, plan, progress))
        for peer in found:
            try:
                results.figures.append(_measured(peer, url, plan, progress))
            except Exception as error:  # one broken peer must not lose the other results
                results.missing.append(f"{peer.__name__} could not be measured: {_first_line(error)}")
    results.seconds = monotonic() - start
    return results


def _of_fleet(one: Fleet) -> Budget:
    what = f"sweep of {one.agents:,} agents, {one.where}: for each checkpoint removed"
    return Budget(what, "one pipelined HDEL for each", one.each, one.bare_each, one.ratio, 1.7)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _measured(make: Callable[[Place], Contender], url: str, plan: Plan, progress: Steps) -> Figures:
    with (
        progress.step(make.__name__) as show_progress,
        _fresh(url) as place,
        closing(make(place)) as contender,
    ):
        return measure(contender, plan, show_progress)


@contextmanager
def _fresh(url: str) -> Iterator[Place]:
    """Yield an empty server and an empty directory, and empty both afterwards."""
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-", ignore_cleanup_errors=True) as directory:
        place = Place(url, Path(directory))
        place.clear_redis()
        yield place
        place.clear_redis()
    gc.collect()


def _write(results: Results, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    picture = None
    if find_spec("matplotlib"):
        from benchmarks.picture import draw

        picture = "benchmarks.png"
        draw(results, out / picture)
    report.write(results, out / "benchmarks.md", picture)
    print(f"Written: {os.path.relpath(out / 'benchmarks.md')}", file=sys.stderr)


if __name__ == "__main__":
    main()
