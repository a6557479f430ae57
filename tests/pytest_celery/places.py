"""Where these tests run: in containers if a Docker engine answers, otherwise in processes.

``CKPT_TEST_CONTAINERS=no`` always uses processes. ``PYTHON_IMAGE`` and ``VALKEY_IMAGE`` name other
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
#: Seconds. The engine is on this machine or near it. An engine that hangs must not delay the tests.
_ENGINE_SECONDS = 5
#: The key under which a test's report says where it ran; ``tests/conftest.py`` prints it at the end.
PROPERTY = "pytest-celery ran"


class _NoImage(Exception):
    """An image is missing. The message names it and the reason."""


@dataclass(frozen=True)
class Place:
    """Where the tests run, and why."""

    has_containers: bool
    said: str


def found_place() -> Place:
    """Return the place that is available here. This may pull images, which takes a while."""
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
    # Not through the library, which leaves a socket open if the engine does not answer.
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
            raise _NoImage(f"image {image} is missing and cannot be pulled: {reason}") from error
