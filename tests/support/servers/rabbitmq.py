"""A RabbitMQ node for the tests, with ports and a home directory of its own.

It is the only server that may be missing. The node has its own Erlang port mapper. Both run in the
foreground, so that they end with the process that started them. The tests query the node with
``erl_call``, a part of Erlang that answers at once; ``rabbitmqctl`` takes seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

from tests.support.servers.valkey import LAUNCHER, LOOPBACK, free_port
from tests.support.wait import until

#: Debian wraps it in a script that works only as another user, in the home directory of that user.
_BEHIND_DEBIANS = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
#: Seconds. Erlang starts slowly on a busy machine.
_START_DEADLINE = 100.0
_COOKIE = "thetests"


def missing_programs() -> list[str]:
    """Return the names of the required programs that are not installed."""
    return [name for name in ("rabbitmq-server", "epmd", "erl_call") if shutil.which(name) is None]


class RabbitMq:
    """One node and its port mapper."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._running = directory, ExitStack()
        self._port, self._mapper_port = free_port(), free_port()
        self._node = f"tests{self._port}@localhost"
        cookie = directory / ".erlang.cookie"
        cookie.write_text(_COOKIE)
        cookie.chmod(0o400)

    def url(self, vhost: str) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self._port}/{vhost}"

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            mapper = starting.enter_context(self._started("epmd", "-port", str(self._mapper_port)))
            starting.callback(mapper.kill)
            server = _BEHIND_DEBIANS if _BEHIND_DEBIANS.exists() else shutil.which("rabbitmq-server")
            node = starting.enter_context(self._started(str(server), "-noinput"))
            starting.callback(node.kill)
            until(lambda: self._answers(node), _START_DEADLINE, "RabbitMQ answers")
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _started(self, *command: str) -> subprocess.Popen[bytes]:
        program = shutil.which(command[0])
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(program), *command[1:]]
        with (self._directory / "output").open("ab") as output:
            return subprocess.Popen(launcher, stdout=output, stderr=output, env=self._environment)

    @cached_property
    def _environment(self) -> dict[str, str]:
        home = self._directory
        return {
            **os.environ,
            "HOME": str(home),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            # The script replaces itself with the node instead of waiting for it.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(home / "config"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            # Without this, idle schedulers spin and take the cores from the workers.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def _answers(self, node: subprocess.Popen[bytes]) -> bool:
        said = (self._directory / "output").read_text
        assert node.poll() is None, f"RabbitMQ ended: {said()}"
        asked = self._asked("rabbit:is_running()")
        return asked is not None and _answer(asked) == "true"

    @contextmanager
    def consumer_timeout(self, milliseconds: int) -> Iterator[None]:
        """Disconnect workers that hold a message for longer, inside the block. (Default: 30 min.)"""
        settings = {"consumer_timeout": milliseconds, "channel_tick_interval": 200}
        before = {name: self.evaluate(f"application:get_env(rabbit, {name})") for name in settings}
        self._set(settings)
        try:
            yield
        finally:
            self._set({name: int(re.sub(r"\D", "", value)) for name, value in before.items()})

    def _set(self, settings: dict[str, int]) -> None:
        for name, value in settings.items():
            self.evaluate(f"application:set_env(rabbit, {name}, {value})")

    def evaluate(self, expression: str) -> str:
        """Return the value of an Erlang expression in the node."""
        # On a busy machine erl_call may give up before it is connected. Then nothing was evaluated.
        return _answer(until(lambda: self._asked(expression), 15, f"RabbitMQ answers {expression}"))

    def _asked(self, expression: str) -> str | None:
        """Return the output of ``erl_call``, or None if it could not connect."""
        done = subprocess.run(
            ["erl_call", "-sname", self._node, "-c", _COOKIE, "-e"],
            input=f"{expression}.\n".encode(),
            capture_output=True,
            env=self._environment,
            timeout=240,
        )
        is_connected = b"failed to connect" not in done.stderr
        assert not (done.returncode and is_connected), done.stderr.decode()
        return done.stdout.decode() if is_connected else None


def _answer(printed: str) -> str:
    answer = re.fullmatch(r"\{ok, (.*)\}", printed.strip(), re.DOTALL)
    assert answer, printed
    return answer[1]
