from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tests.support.lowest_versions import ROOT, lowest_versions


def project(*dependencies: str, **extras: list[str]) -> dict[str, Any]:
    return {"name": "own", "dependencies": list(dependencies), "optional-dependencies": extras}


def test_a_lower_bound_becomes_a_pin_and_extras_are_omitted() -> None:
    assert list(lowest_versions(project("celery[redis]>=5.7", "rich>=14,<16"), set())) == [
        "celery==5.7",
        "rich==14",
    ]


def test_extras_that_name_other_extras_are_followed() -> None:
    announced = project("a>=1", dev=["own[kit]", "c==3.*"], kit=["b>=2"], other=["d>=4"])
    assert list(lowest_versions(announced, {"dev"})) == ["a==1", "b==2", "c==3.*"]


@pytest.mark.parametrize("requirement", ["a", "a<2", "a!=1"])
def test_a_dependency_without_a_lower_bound_is_refused(requirement: str) -> None:
    with pytest.raises(ValueError, match="needs one lower bound"):
        list(lowest_versions(project(requirement), set()))


def test_every_dependency_of_the_package_and_all_its_extras_has_a_lower_bound() -> None:
    announced = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(lowest_versions(announced, set(announced["optional-dependencies"])))
