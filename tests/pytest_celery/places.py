"""Where these tests run: on containers where a Docker engine answers, else on processes.

``CKPT_TEST_CONTAINERS=no`` keeps them on processes. ``PYTHON_IMAGE`` and ``VALKEY_IMAGE`` name other
images, as they do for ``docker-compose.yml``.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

import docker
from docker.errors import APIError, ImageNotFound

PYTHON_IMAGE = os.environ.get("PYTHON_IMAGE", "python:3.13-slim")
VALKEY_IMAGE = os.environ.get("VALKEY_IMAGE", "valkey/valkey:9")
#: An engine is on this machine, or near; one that is stuck must not hold up the tests.
_ENGINE_SECONDS = 5
#: The name under which a test's report says where it ran; ``tests/conftest.py`` prints it at the end.
PROPERTY = "pytest-celery ran"


class _NoImage(Exception):
    """Which, and why."""


@dataclass(frozen=True)
class Place:
    """Where, and why there."""

    has_containers: bool
    said: str


def found_place() -> Place:
    """The place that can be had here. May pull images, which takes its time."""
    if os.environ.get("CKPT_TEST_CONTAINERS") == "no":
        return Place(False, "on processes: CKPT_TEST_CONTAINERS=no")
    if not _has_engine():
        return Place(False, "on processes: no Docker engine answers")
    engine = docker.from_env()
    try:
        for image in (PYTHON_IMAGE, VALKEY_IMAGE):
            _have(engine, image)
    except _NoImage as error:
        return Place(False, f"on processes: a Docker engine answers, but {error}")
    finally:
        engine.close()
    return Place(True, "on containers")


def _has_engine() -> bool:
    # Not through the library: it leaves a socket open if nobody answers.
    try:
        asked = subprocess.run(["docker", "version"], capture_output=True, timeout=_ENGINE_SECONDS)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return not asked.returncode


def _have(engine: docker.DockerClient, image: str) -> None:
    try:
        engine.images.get(image)
    except ImageNotFound:
        try:
            engine.images.pull(image)
        except APIError as error:
            reason = error.explanation or str(error)
            raise _NoImage(f"image {image} is not there and cannot be pulled: {reason}") from error
