"""The budgets of waiting: the scripts that idle workers and waiting agents cost the store."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from benchmarks.budgets import Budget
from benchmarks.contenders import Place
from benchmarks.measure import Plan
from benchmarks.workers import URL, workers

_AGENTS = 200
_DEADLINE = 60.0
#: The duration of a lease by default, in seconds. The leases of the benchmark are shorter.
_DEFAULT_LEASE = 30.0


def idle_worker(place: Place, plan: Plan) -> Budget:
    """Count the scripts of a worker that has nothing to do."""
    os.environ[URL] = place.redis_url
    with workers(place.directory, 2):
        rate = _scripts_per_second(place, plan.waiting_seconds)
    return Budget("scripts of an idle worker, each second", "one script", rate, 1, rate, 2, unit="")


def waiting_agents(place: Place, plan: Plan) -> Budget:
    """Count the scripts of agents that wait for a model, without those of an idle worker."""
    os.environ[URL] = place.redis_url
    with workers(place.directory, _AGENTS, pool="threads"), tempfile.NamedTemporaryFile() as file:
        from benchmarks import agents

        idle = _scripts_per_second(place, plan.waiting_seconds)
        for _ in range(_AGENTS):
            agents.waiting.delay(file.name)
        _wait_for_lines(Path(file.name))
        busy = _scripts_per_second(place, plan.waiting_seconds)
        share = agents.LEASE_SECONDS / _DEFAULT_LEASE
    each = max(0.0, busy - idle) * 60 / _AGENTS * share
    what = f"scripts of each of {_AGENTS} waiting agents, each minute (lease {_DEFAULT_LEASE:g} s)"
    return Budget(what, "one script", each, 1, each, 0.3, unit="")


WAITING = (idle_worker, waiting_agents)


def _scripts_per_second(place: Place, seconds: float) -> float:
    with place.client() as client:
        before, start = _scripts(client), monotonic()
        sleep(seconds)
        return (_scripts(client) - before) / (monotonic() - start)


def _scripts(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def _wait_for_lines(path: Path) -> None:
    end = monotonic() + _DEADLINE
    while len(path.read_text().splitlines()) < _AGENTS:
        if monotonic() > end:
            raise RuntimeError("the agents did not start in time")
        sleep(0.05)
