"""Run commands as users do: in this process, as a real process, and in a pseudo terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_ckpt import CheckpointEvent, CheckpointStore, Conversation, Message
from celery_ckpt.cli import ckpt
from celery_ckpt.records import RunStatus
from celery_ckpt.runtime.process.context import AppContext, _contexts
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step
from tests.support.forks import ROOT, ForkServer

DEADLINE = 240
#: What most commands import. Not ``celery.bin.celery``, which looks for entry points at import.
_IMPORTED = (
    "celery.bin.beat",
    "celery.bin.control",
    "celery.bin.events",
    "celery.bin.logtool",
    "celery.bin.migrate",
    "celery.bin.multi",
    "celery.bin.purge",
    "celery.bin.shell",
    "celery.bin.upgrade",
    "celery.bin.worker",
    "celery_ckpt.cli.commands.control",
    "celery_ckpt.cli.commands.diff",
    "celery_ckpt.cli.commands.list",
    "celery_ckpt.cli.commands.rekey",
    "celery_ckpt.cli.commands.retention",
    "celery_ckpt.cli.commands.show",
    "celery_ckpt.cli.commands.transfer",
    "celery_ckpt.stores.sqlite",
    "rich.progress",
    "rich.table",
)


@dataclass
class Commands:
    """``ckpt`` commands for one app, in this process."""

    app: Celery

    @property
    def store(self) -> CheckpointStore:
        return AppContext.of(self.app).store

    def __call__(self, *arguments: str, code: int = 0, **options: Any) -> Result:
        """Run a command, and assert that it exits with that code and without a traceback."""
        context = CLIContext(app=self.app, no_color=False, workdir=None)
        result = CliRunner().invoke(ckpt, arguments, obj=context, prog_name="celery ckpt", **options)
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        return result

    def fails(self, *arguments: str, code: int) -> str:
        """Run a command that must fail with a message of one line; return the line."""
        result = self(*arguments, code=code)
        [line] = result.stderr.splitlines()
        assert line.startswith("Error: ")
        return line


def commands_for(store: CheckpointStore | str | None, **conf: Any) -> Commands:
    """Return commands on a store, or on the store that a URL names."""
    app = Celery("cli", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(conf)
    if isinstance(store, CheckpointStore):
        app.conf.ckpt_store_url = "memory://"
        _contexts[app] = AppContext(app, store)
    elif store is not None:
        app.conf.ckpt_store_url = store
    return Commands(app)


def add_agent(
    store: CheckpointStore, agent_id: str = "user-42", iterations: int = 3, **run: Any
) -> list[str]:
    """Add an agent with a failed run, and a checkpoint and a step per iteration; return the ids."""
    conversation = Conversation().with_system_prompt("You are careful.")
    conversation.append(Message.user("Why is the sky blue?"))
    fields = {"status": RunStatus.FAILED, "attempts": 2, "delivered": True, "error": "no model", **run}
    record = make_run(agent_id, f"run-of-{agent_id}", **fields)
    store.add_run(record)
    ids = []
    for number in range(1, iterations + 1):
        call = {"name": "look_up", "arguments": f'{{"what": "wave {number}"}}'}
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        conversation.append(Message.assistant(None, tool_calls=calls))
        conversation.append(Message.tool(f"result {number}", f"c{number}"))
        key = f"{number}:call:c{number}"
        store.record_step(make_step(agent_id, record.run_id, key, name="look_up", iteration=number))
        checkpoint = make_checkpoint(
            agent_id,
            conversation,
            number,
            event=CheckpointEvent.ITERATION,
            run_id=record.run_id,
            state={"asked": number},
            metadata={"cost": f"0.0{number}"},
        )
        store.save(checkpoint)
        ids.append(checkpoint.id)
    return ids


def with_entry_points(directory: Path) -> dict[str, str]:
    """Return an environment in which the entry points of pyproject.toml work without an install."""
    announced = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = directory / "celery_ckpt-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-ckpt\nVersion: 0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{name} = {what}" for name, what in found.items())])
        for group, found in announced.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    path = os.pathsep.join(map(str, (directory, ROOT)))
    return {**os.environ, "PYTHONPATH": path, "PAGER": "cat", "TERM": "xterm-256color"}


@dataclass
class Process:
    """``celery ckpt`` as a real process; on a terminal, forked from one that has its imports."""

    environment: dict[str, str]
    app: str = "tests.support.workers.app"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", self.app, "ckpt", *arguments]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(self.command(*arguments), env=self.environment, **{**pipes, **options})

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command, and assert that it exits with that code and without a traceback."""
        finished = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert finished.returncode == code, (finished.returncode, finished.stdout, finished.stderr)
        assert "Traceback" not in finished.stderr
        return finished

    def on_a_terminal(
        self, *arguments: str, lines: int = 50, columns: int = 100, answer: bytes = b""
    ) -> tuple[int, str]:
        """Run a command on a pseudo terminal of that size; return its exit code and its output."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {k: v for k, v in self.environment.items() if k not in ("COLUMNS", "LINES")}
        script = str(Path(sys.executable).with_name("celery"))
        process = ForkServer.with_imports(*_IMPORTED).fork(
            "celery.__main__:main",
            [script, "-A", self.app, "ckpt", *arguments],
            environment,
            directory=Path.cwd(),
            files=[os.ttyname(slave)] * 3,
        )
        os.close(slave)
        with os.fdopen(master, "r+b", buffering=0) as terminal:
            terminal.write(answer)
            written = _all_of(terminal.fileno())
        return process.wait(DEADLINE), written.decode().replace("\r\n", "\n")


def _all_of(terminal: int) -> bytes:
    written = b""
    while select.select([terminal], [], [], DEADLINE)[0]:
        try:
            more = os.read(terminal, 65_536)
        except OSError:  # on Linux: the other end is closed
            return written
        if not more:
            return written
        written += more
    raise AssertionError(f"nothing for {DEADLINE} s after {written[-500:]!r}")
