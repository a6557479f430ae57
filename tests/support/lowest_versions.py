"""The lowest versions that pyproject.toml allows, as constraints for pip.

    python -m tests.support.lowest_versions suite > constraints.txt

prints one line for each dependency of the package and of the named extras. A bound that no release
satisfies exactly makes pip fail: write the bound as a release that exists.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def lowest_versions(project: dict[str, Any], extras: set[str]) -> Iterator[str]:
    """Return the pins for the ``[project]`` table, these extras, and the extras that they name."""
    wanted = list(project["dependencies"])
    for extra in sorted(extras):
        wanted += project["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:
            yield from lowest_versions({**project, "dependencies": []}, requirement.extras)
        else:
            yield f"{requirement.name}=={_lowest(requirement)}"


def _lowest(requirement: Requirement) -> str:
    bounds = [part.version for part in requirement.specifier if part.operator in (">=", "==")]
    if len(bounds) != 1:
        raise ValueError(f"{requirement} needs one lower bound")
    return bounds[0]


if __name__ == "__main__":
    announced = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print(*sorted(set(lowest_versions(announced, set(sys.argv[1:])))), sep="\n")  # noqa: T201
