"""``make compose-check`` on machines on which it cannot check anything. The rest needs a Docker
engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support.forks import ROOT

#: Replaces the command ``docker``: an engine that lacks one image.
ENGINE = """#!/bin/sh
case "$*" in *nowhere/image) exit 1;; esac
"""


def _check(tmp_path: Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "compose_check.py"],
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_missing_docker_engine_is_reported_as_skipped_not_as_success(tmp_path: Path) -> None:
    skipped = (77, "compose-check: SKIPPED: no Docker engine answers\n")

    assert _check(tmp_path, DOCKER_HOST=f"unix://{tmp_path}/nobody.sock") == skipped
    assert _check(tmp_path, PATH=str(tmp_path)) == skipped


@pytest.mark.parametrize("variable", ["PYTHON_IMAGE", "VALKEY_IMAGE"])
def test_an_unavailable_image_is_named(tmp_path: Path, variable: str) -> None:
    (tmp_path / "docker").write_text(ENGINE)
    (tmp_path / "docker").chmod(0o755)
    environment = {"PYTHON_IMAGE": "here", "VALKEY_IMAGE": "here", variable: "nowhere/image"}

    status, told = _check(tmp_path, **environment)

    assert status == 77
    assert "SKIPPED: image nowhere/image cannot be pulled" in told
    assert f"set {variable} to another image" in told


def test_each_image_is_built_by_one_service_alone() -> None:
    """Compose builds images in parallel. An engine may refuse a name that another build has
    just taken.
    """
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()

    builders = Counter(service["image"] for service in services if "build" in service)

    assert builders == {"celery-ckpt-example": 1}
