"""Does docker-compose.yml keep its promises? Brings it up, kills the worker, sees the agent go on.

It needs Python, a Docker engine and Compose, old (docker-compose) or new (docker compose). Exit status:
0, it does; 77, it could not be tried, and why; anything else, it does not.
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
#: What the model is to say. About its third answer it thinks for long: meanwhile the worker is killed.
SCENARIO = [
    {"type": "delay", "seconds": 0.1, "times": 2},
    {"type": "delay", "seconds": 15},
    {"type": "reply", "tool_calls": [{"name": "look_up", "arguments": {"topic": "sky"}}]},
    {"type": "reply", "tool_calls": [{"name": "look_up", "arguments": {"topic": "sunset"}}]},
    {"type": "reply", "text": ANSWER, "times": None},
]
#: Python for inside a container: asks the model's control API, prints what it says.
CONTROL = """
import sys, urllib.request
path, body = sys.argv[1], sys.argv[2].encode() or None
print(urllib.request.urlopen("http://localhost:8000/_llmock/" + path, body).read().decode())
"""


class Skip(Exception):
    """It cannot be tried here."""


class Broken(Exception):
    """It does not do what it should."""


def run(command: Sequence[str], **options: Any) -> str:
    """What a command prints; ``Broken`` if it fails."""
    done: subprocess.CompletedProcess[str]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)
    if done.returncode:
        raise Broken(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def works(*command: str) -> bool:
    """Does it end well?"""
    try:
        return not subprocess.run(command, capture_output=True).returncode
    except FileNotFoundError:
        return False


def wait(what: str, condition: Callable[[], Any], deadline: float) -> None:
    """Ask until it is true, and say so."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + deadline:
            raise Broken(f"waited {deadline:.0f} s in vain: {what}")
        time.sleep(0.2)
    say(f"{what} ({time.monotonic() - began:.1f} s)")


def say(text: str) -> None:
    """One line, at once."""
    print(f"compose-check: {text}", flush=True)


def compose_command() -> list[str]:
    """How Compose is called here, if all that is needed is here."""
    if not works("docker", "version"):
        raise Skip("no Docker engine answers")
    known = (["docker", "compose"], ["docker-compose"])
    found = next((command for command in known if works(*command, "version")), None)
    if found is None:
        raise Skip("there is an engine, but neither 'docker compose' nor 'docker-compose'")
    for variable, official in IMAGES.items():
        image = os.environ.get(variable, official)
        if not works("docker", "image", "inspect", image) and not works("docker", "pull", image):
            raise Skip(f"image {image} is not here and cannot be pulled; {variable} may name another")
    return [*found, "--project-name", PROJECT]


class Stack:
    """The services of the file, under a project name of their own."""

    def __init__(self, compose: Sequence[str]) -> None:
        self._compose = compose

    def __call__(self, *arguments: str, **environment: str) -> str:
        """Run Compose."""
        return run([*self._compose, *arguments], env={**os.environ, **environment})

    def state(self, service: str) -> dict[str, Any]:
        """What the engine knows of the container of a service."""
        # Compose's own ps does not list what is not running.
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        found = run(["docker", "ps", "--all", "--quiet", *filters]).split()
        return dict(json.loads(run(["docker", "inspect", *found]))[0]) if found else {}

    def health(self, service: str) -> str:
        """healthy, unhealthy, starting, or what else the container is."""
        state = self.state(service).get("State", {})
        return str(state.get("Health", state).get("Status"))

    def is_healthy(self, service: str) -> bool:
        """Does its health check succeed?"""
        return self.health(service) == "healthy"

    def control(self, path: str, body: str = "") -> Any:
        """Ask the model's control API."""
        return json.loads(self("exec", "-T", "model", "python", "-c", CONTROL, path, body))

    def questions(self) -> list[int]:
        """How often each question was put to the model."""
        requests = self.control("requests")["requests"]
        return list(Counter(request["fingerprint"] for request in requests).values())

    def ask(self) -> subprocess.Popen[str]:
        """An agent's client. It is not in the container that will be killed."""
        command = [*self._compose, "exec", "-T", "model", "python", "ask.py", "Why?"]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def check_health(stack: Stack) -> None:
    """All services become healthy."""
    stack("up", "--detach", "--build")
    for service in SERVICES:
        wait(f"{service} is healthy", partial(stack.is_healthy, service), 120)


def check_resume(stack: Stack) -> None:
    """An agent whose worker's container is killed goes on in the next one."""
    stack.control("scenario", json.dumps({"behaviors": SCENARIO}))
    asking = stack.ask()
    wait("the agent has had two answers", lambda: stack.questions() == [1, 1], 60)
    stack("kill", "-s", "SIGKILL", "worker")
    wait(
        "the worker's container is dead", lambda: stack.state("worker")["State"]["ExitCode"] == 137, 10
    )
    stack("up", "--detach", "worker")
    told, _ = asking.communicate(timeout=120)
    if told.splitlines()[-1:] != [ANSWER]:
        raise Broken(f"the agent's answer should be {ANSWER!r}: {told!r}")
    say("the agent went on and answered")
    # The model knows of a question once it is done with it, also if nobody waits for the answer.
    wait("only the question in flight was asked twice", lambda: stack.questions() == [1, 1, 2], 60)


def check_crashing(stack: Stack) -> None:
    """A worker that crashes is not taken to be well."""
    stack("up", "--detach", "worker", AGENT_APP="there_is_no_such_module")
    wait(
        "a worker that crashes is started again", lambda: stack.state("worker")["RestartCount"] > 1, 60
    )
    if stack.is_healthy("worker"):
        raise Broken("it is said to be healthy all the same")
    say(f"and is not said to be healthy, but {stack.health('worker')}")


def main() -> int:
    """Check everything, and leave nothing behind."""
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
    say("all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
