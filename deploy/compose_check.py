"""Checks docker-compose.yml: starts it, kills the worker, and checks that the agent resumes.

It needs Python, a Docker engine, and ``docker compose`` or ``docker-compose``. Exit status: 0, the
check passed; 77, it was skipped, with the reason; anything else, it failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROJECT = f"celery-ckpt-check-{os.getpid()}"
IMAGES = {"PYTHON_IMAGE": "python:3.13-slim", "VALKEY_IMAGE": "valkey/valkey:9"}
SERVICES = ("valkey", "model", "worker", "beat")
SKIPPED = 77
ANSWER = "Air scatters blue."
#: The replies of the model. The third one takes long, so that the worker can be killed during it.
SCENARIO = [
    {"type": "delay", "seconds": 0.1, "times": 2},
    {"type": "delay", "seconds": 15},
    {"type": "reply", "tool_calls": [{"name": "look_up", "arguments": {"topic": "sky"}}]},
    {"type": "reply", "tool_calls": [{"name": "look_up", "arguments": {"topic": "sunset"}}]},
    {"type": "reply", "text": ANSWER, "times": None},
]
#: Runs in a container: calls the model's control API, and prints the response.
CONTROL = """
import sys, urllib.request
path, body = sys.argv[1], sys.argv[2].encode() or None
print(urllib.request.urlopen("http://localhost:8000/_llmock/" + path, body).read().decode())
"""


class Skip(Exception):
    """The check cannot run here."""


class Broken(Exception):
    """The check failed."""


def run(command: Sequence[str], **options: Any) -> str:
    """Run a command and return its output. Raises ``Broken`` if it fails."""
    done: subprocess.CompletedProcess[str]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)
    if done.returncode:
        raise Broken(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def works(*command: str) -> bool:
    """True if the command exits with 0."""
    try:
        return not subprocess.run(command, capture_output=True).returncode
    except FileNotFoundError:
        return False


def wait(what: str, condition: Callable[[], Any], deadline: float) -> None:
    """Wait until the condition is true, and print how long it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + deadline:
            raise Broken(f"timed out after {deadline:.0f} s: {what}")
        time.sleep(0.2)
    say(f"{what} ({time.monotonic() - began:.1f} s)")


def say(text: str) -> None:
    """Print one line."""
    print(f"compose-check: {text}", flush=True)


def compose_command() -> list[str]:
    """Return the command for Compose. Raises ``Skip`` if something is missing."""
    if not works("docker", "version"):
        raise Skip("no Docker engine answers")
    known = (["docker", "compose"], ["docker-compose"])
    found = next((command for command in known if works(*command, "version")), None)
    if found is None:
        raise Skip("there is a Docker engine, but neither 'docker compose' nor 'docker-compose'")
    for variable, official in IMAGES.items():
        image = os.environ.get(variable, official)
        if not works("docker", "image", "inspect", image) and not works("docker", "pull", image):
            raise Skip(f"image {image} cannot be pulled; set {variable} to another image")
    return [*found, "--project-name", PROJECT]


class Stack:
    """The services of docker-compose.yml, under a separate project name."""

    def __init__(self, compose: Sequence[str]) -> None:
        self._compose = compose

    def __call__(self, *arguments: str, **environment: str) -> str:
        """Run Compose."""
        return run([*self._compose, *arguments], env={**os.environ, **environment})

    def state(self, service: str) -> dict[str, Any]:
        """Return what the engine knows about the container of a service."""
        # Not "compose ps": it does not list containers that have stopped.
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        found = run(["docker", "ps", "--all", "--quiet", *filters]).split()
        return dict(json.loads(run(["docker", "inspect", *found]))[0]) if found else {}

    def health(self, service: str) -> str:
        """Return the health of a service, or the status of its container if it has no health check."""
        state = self.state(service).get("State", {})
        return str(state.get("Health", state).get("Status"))

    def is_healthy(self, service: str) -> bool:
        """True if the health check of the service succeeds."""
        return self.health(service) == "healthy"

    def control(self, path: str, body: str = "") -> Any:
        """Call the control API of the model."""
        return json.loads(self("exec", "-T", "model", "python", "-c", CONTROL, path, body))

    def questions(self) -> list[int]:
        """Return how often the model received each request."""
        requests = self.control("requests")["requests"]
        return list(Counter(request["fingerprint"] for request in requests).values())

    def ask(self) -> subprocess.Popen[str]:
        """Start a client of the agent, outside of the container that will be killed."""
        command = [*self._compose, "exec", "-T", "model", "python", "ask.py", "Why?"]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def check_health(stack: Stack) -> None:
    """Check that all services become healthy."""
    stack("up", "--detach", "--build")
    for service in SERVICES:
        wait(f"{service} is healthy", partial(stack.is_healthy, service), 120)


def check_resume(stack: Stack) -> None:
    """Check that an agent resumes in the next container after its worker was killed."""
    stack.control("scenario", json.dumps({"behaviors": SCENARIO}))
    asking = stack.ask()
    wait("the agent has received two replies", lambda: stack.questions() == [1, 1], 60)
    stack("kill", "-s", "SIGKILL", "worker")
    wait(
        "the worker's container is dead", lambda: stack.state("worker")["State"]["ExitCode"] == 137, 10
    )
    stack("up", "--detach", "worker")
    output, _ = asking.communicate(timeout=120)
    if output.splitlines()[-1:] != [ANSWER]:
        raise Broken(f"the agent's answer should be {ANSWER!r}, not {output!r}")
    say("the agent resumed and answered")
    # The model counts a request when it has answered it, even if the client is dead.
    wait("only the request in flight was sent twice", lambda: stack.questions() == [1, 1, 2], 60)


def check_crashing(stack: Stack) -> None:
    """Check that a worker that crashes is not healthy."""
    stack("up", "--detach", "worker", AGENT_APP="there_is_no_such_module")
    wait("a worker that crashes is restarted", lambda: stack.state("worker")["RestartCount"] > 1, 60)
    if stack.is_healthy("worker"):
        raise Broken("the worker crashes, but is reported as healthy")
    say(f"it is not healthy, but {stack.health('worker')}")


def main() -> int:
    """Run all checks, and leave nothing behind."""
    try:
        stack = Stack(compose_command())
    except Skip as reason:
        say(f"SKIPPED: {reason}")
        return SKIPPED
    try:
        for check in (check_health, check_resume, check_crashing):
            check(stack)
    except Broken as error:
        say(f"BROKEN: {error}")
        print(stack("logs", "--tail", "50"), flush=True)
        return 1
    finally:
        stack("down", "--volumes", "--timeout", "5")
    say("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
