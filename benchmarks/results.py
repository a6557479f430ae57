"""The results of one run of the benchmarks, and the machine and versions it ran on."""

from __future__ import annotations

import os
import platform
import sqlite3
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.budgets import Budget
from benchmarks.contenders import Place
from benchmarks.fleet import Fleet
from benchmarks.measure import Figures, Plan

_PACKAGES = (
    "celery-ckpt",
    "celery",
    "pydantic",
    "redis",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
)


@dataclass
class Results:
    """The results of one run."""

    plan: Plan
    versions: dict[str, str]
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))
    machine: str = field(default_factory=lambda: _machine())
    figures: list[Figures] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    fleets: list[Fleet] = field(default_factory=list)
    #: Why a contender is missing.
    missing: list[str] = field(default_factory=list)
    seconds: float = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON."""
        whole = asdict(self)
        for shown, budget in zip(whole["budgets"], self.budgets, strict=True):
            shown["holds"] = budget.holds
        return whole


def versions(place: Place) -> dict[str, str]:
    """Return the versions of everything that affects the numbers."""
    found = {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
    with place.client() as client:
        info = client.info("server")
    name = str(info.get("server_name", "redis")).capitalize()
    found[name] = info.get(f"{name.lower()}_version", info["redis_version"])
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> str:
    load = os.getloadavg()[0]
    return f"{platform.system()} {platform.machine()}, {_cores()} cores, load {load:.1f} at the start"


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
