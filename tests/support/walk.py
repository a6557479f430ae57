"""How far a reader has to walk: the files and functions of the package that one operation visits.

``python -m tests.support.walk`` starts a Valkey server and prints a table of the operations that
matter. With ``--list WORDS`` it also lists the functions that the operations visit whose row contains
the words, in the order of the first call.

A walk counts the frames of the package itself (``sys.setprofile``), in the thread of the operation and
in every thread that was started under ``followed``:

    files       different files
    functions   different functions; a lambda or comprehension is part of the function around it
    hops        how often a call is in another file than the call before it in that thread
    depth       the most frames of the package on one stack, including those below the operation

Every operation is repeated, and its most frequent walk is shown: the first one also loads modules,
connections and scripts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mode
from types import CodeType, FrameType
from typing import Any, Self

from celery import Celery
from celery.app.trace import trace_task_ret
from celery.worker.request import Request

import celery_ckpt
from celery_ckpt import AgentRun, Agents, CheckpointEvent, CheckpointStore, agent_task, open_store
from celery_ckpt.testing import make_checkpoint, make_conversation, make_message
from tests.support.servers.valkey import Valkey

_PACKAGE = str(Path(celery_ckpt.__file__).parent) + "/"
#: The names of code objects that are part of another function.
_NAMELESS = frozenset({"<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"})
#: The queue of the app below.
_QUEUE = "walk"
#: The public name of the pruning task.
_PRUNE = "celery_ckpt.prune"
#: More than an agent keeps, so that pruning has something to remove.
_CHECKPOINTS = 30
#: How often an operation is repeated.
_REPEATS = 5
#: Seconds after which background threads have finished the work of an operation.
_QUIET = 0.2


@dataclass(frozen=True)
class Walk:
    """What one operation visited."""

    files: int
    functions: int
    hops: int
    depth: int
    #: ``file:line function`` in the order of the first call.
    visited: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.files} files, {self.functions} functions, {self.hops} hops, depth {self.depth}"


class _Recorder:
    """The profiler: records each call of a function of the package while it is switched on."""

    def __init__(self) -> None:
        self.is_on = False
        self.depth = 0
        self.calls: dict[int, list[CodeType]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call" and _is_own(frame):
            self.calls.setdefault(threading.get_ident(), []).append(frame.f_code)
            self.depth = max(self.depth, _own_frames(frame))

    def begin(self) -> None:
        """Discard what was recorded, and switch on."""
        self.calls, self.depth, self.is_on = {}, 0, True

    def walk(self) -> Walk:
        """Return the counts of what was recorded."""
        calls = [code for thread in self.calls.values() for code in thread]
        hops = [
            before.co_filename != after.co_filename
            for thread in self.calls.values()
            for before, after in pairwise(thread)
        ]
        visited = dict.fromkeys(_place(code) for code in calls if code.co_name not in _NAMELESS)
        files = {code.co_filename for code in calls}
        return Walk(len(files), len(visited), sum(hops), self.depth, tuple(visited))


_recorder = _Recorder()


def _place(code: CodeType) -> str:
    file = code.co_filename.removeprefix(_PACKAGE)
    return f"{file}:{code.co_firstlineno} {code.co_qualname}"


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


def _own_frames(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += _is_own(frame)
        frame = frame.f_back
    return count


@contextmanager
def followed() -> Iterator[None]:
    """Count threads that start inside the block, too."""
    before = threading.getprofile()
    threading.setprofile(_recorder)
    try:
        yield
    finally:
        threading.setprofile(before)


def walk(action: Callable[[], object], *, quiet: float = 0.0) -> Walk:
    """Call the action and count. Other threads are counted for ``quiet`` seconds longer."""
    before = sys.getprofile()
    _recorder.begin()
    sys.setprofile(_recorder)
    try:
        action()
    finally:
        sys.setprofile(before)
    time.sleep(quiet)
    _recorder.is_on = False
    return _recorder.walk()


# -- the operations ------------------------------------------------------------------------------------


class Worker:
    """An app with one agent task, and its worker: this thread executes messages, as a solo pool does.

    There is no watchdog, whose thread would add to the walks.
    """

    def __init__(self, store_url: str, server_url: str) -> None:
        self.app = Celery("walk", broker=server_url, backend=server_url, set_as_current=False)
        self.app.conf.update(ckpt_store_url=store_url, task_default_queue=_QUEUE)
        self._body: Callable[[AgentRun], object] = bool

        @agent_task(app=self.app, name="walk", shared=False)
        def task(run: AgentRun) -> None:
            self._body(run)

        self.task = task
        self.app.finalize()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(_QUIET)
        Agents(self.app).store.close()
        self.app.close()

    def send(self, body: Callable[[AgentRun], object]) -> None:
        """Send the task, with this function as its body."""
        self._body = body
        self.task.delay()

    def work(self) -> None:
        """Execute the next message."""
        with self.app.connection_for_read() as connection, connection.channel() as channel:
            message = channel.basic_get(_QUEUE)
            assert message is not None, "no message was sent"
            request = Request(message, app=self.app, task=self.task, hostname="walk")
            failed, result, _ = trace_task_ret(
                self.task.name, request.id, request.request_dict, message.body,
                message.content_type, message.content_encoding, app=self.app,
            )  # fmt: skip
            message.ack()
        assert not failed, result

    def execute(self, body: Callable[[AgentRun], object]) -> None:
        """Send the task and execute it."""
        self.send(body)
        self.work()


def emit(worker: Worker) -> Walk:
    """``run.emit`` inside a body, after which a checkpoint is saved."""
    walks = []

    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=_REPEATS):
            run.conversation.append(make_message())
            walks.append(walk(lambda: run.emit(CheckpointEvent.TOOL_CALL_COMPLETE)))

    worker.execute(body)
    return _usual(walks)


def step(worker: Worker) -> Walk:
    """``run.step`` after ``run.emit`` inside a body: it calls the function and records its result."""
    walks = []

    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=_REPEATS):
            run.emit(CheckpointEvent.TOOL_CALL_COMPLETE)
            walks.append(walk(lambda: run.step("step", lambda: 1)))

    worker.execute(body)
    return _usual(walks)


def send(worker: Worker) -> Walk:
    """``task.delay``."""
    walks = [walk(worker.task.delay) for _ in range(_REPEATS)]
    worker.app.control.purge()
    return _usual(walks)


def resume(worker: Worker) -> Walk:
    """A message is delivered, its body does three iterations, and its outcome is known."""

    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=3):
            run.llm(lambda: {"role": "assistant", "content": "text"})
            run.step("step", lambda: 1)
            run.emit(CheckpointEvent.TOOL_CALL_COMPLETE)

    walks = []
    for _ in range(_REPEATS):
        worker.send(body)
        walks.append(walk(worker.work, quiet=_QUIET))
    return _usual(walks)


def prune(worker: Worker) -> Walk:
    """``celery_ckpt.prune`` for one agent whose run has ended, with more checkpoints than it keeps."""

    def body(run: AgentRun) -> None:
        for _ in range(_CHECKPOINTS):
            run.checkpoint()

    walks = []
    for _ in range(_REPEATS):
        worker.app.tasks[_PRUNE]()
        worker.execute(body)
        time.sleep(_QUIET)
        walks.append(walk(worker.app.tasks[_PRUNE]))
    return _usual(walks)


def save(store: CheckpointStore) -> Walk:
    """``store.save`` of the next checkpoint of an agent."""
    conversation, walks = make_conversation(), []
    for number in range(_REPEATS):
        conversation.append(make_message())
        checkpoint = make_checkpoint("agent", conversation.copy(), number + 1)
        walks.append(walk(lambda: store.save(checkpoint)))  # noqa: B023
    return _usual(walks)


def _usual(walks: list[Walk]) -> Walk:
    """Return the most frequent walk; of several, the last one."""
    return mode(reversed(walks))


#: The operations that need a worker, with the names of their rows.
_IN_A_WORKER: tuple[tuple[str, Callable[[Worker], Walk]], ...] = (
    ("WRITE run.emit", emit),
    ("run.step, recorded", step),
    ("SEND task.delay", send),
    ("RESUME delivery -> outcome", resume),
    ("PRUNE celery_ckpt.prune", prune),
)


def table(directory: Path, server: Valkey) -> Iterator[tuple[str, Walk]]:
    """Yield the rows: the name of the operation and its walk."""
    urls = {
        "redis": server.url,
        "sqlite": f"sqlite:///{directory}/store.db",
        "file": f"file://{directory}/files",
        "memory": "memory://",
    }
    for kind, url in urls.items():
        with open_store(url) as store:
            yield f"store.save -> {kind}", save(store)
    for name, operation in _IN_A_WORKER:
        for kind in ("redis", "sqlite"):
            with server.client() as client:
                client.flushall()
            with followed(), Worker(urls[kind], server.url) as worker:
                yield f"{name} -> {kind}", operation(worker)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.walk")
    parser.add_argument(
        "--list", metavar="WORDS", help="also list the functions of the rows with these"
    )
    words = parser.parse_args().list
    write = sys.stdout.write
    write(f"{'':36}{'files':>8}{'functions':>11}{'hops':>8}{'depth':>8}\n")
    with tempfile.TemporaryDirectory() as directory, Valkey(Path(directory) / "valkey") as server:
        for row, found in table(Path(directory), server):
            write(f"{row:36}{found.files:8}{found.functions:11}{found.hops:8,}{found.depth:8}\n")
            if words is not None and words in row:
                write("".join(f"    {one}\n" for one in found.visited))


if __name__ == "__main__":
    main()
