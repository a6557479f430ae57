"""A ledger: what task bodies did, written where no lost store, lost broker or kill can delete it.

It is a file opened with O_APPEND. A note is one ``write`` of one line, so that it is there completely
or not at all, whichever process is killed. Times are ``time.monotonic()``, which all processes of a
machine share. In a worker::

    with here().body(run_id, attempt=run.attempt):      # notes "begin" and "end"
        here().call(run_id, "search")

The tests read the same file; ``bodies.py`` derives from it when bodies were active. A test decides how
long a call takes: a held call waits, on a fast and on a slow machine::

    ledger.hold("tool 2")
    ... ledger.wait_for_call("tool 2", 10) ...          # it is made, and waits
    ledger.let_go()
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support import bodies
from tests.support.wait import POLL, until

#: The environment variable with the path of the ledger for worker processes.
VARIABLE = "CKPT_TEST_LEDGER"
#: The run id of notes by the harness itself.
NO_RUN = ""
_BODY: ContextVar[str | None] = ContextVar("body", default=None)


@dataclass(frozen=True)
class Note:
    """One line of the ledger."""

    run_id: str
    what: str
    at: float
    pid: int
    facts: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, fact: str) -> Any:
        return self.facts[fact]

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value!r}" for name, value in self.facts.items())
        return f"{self.at:.3f} pid {self.pid} {self.run_id} {self.what} {facts}".rstrip()


class Ledger:
    """An append-only list of notes, shared by all processes with its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()

    # Writing

    def note(self, run_id: str, what: str, **facts: Any) -> Note:
        """Write a note of this process, now, and of the body that calls this, if there is one."""
        if (body := _BODY.get()) is not None:
            facts.setdefault("body", body)
        note = Note(run_id, what, time.monotonic(), os.getpid(), facts)
        line = json.dumps([note.run_id, note.what, note.at, note.pid, note.facts]) + "\n"
        self._append(line.encode())
        return note

    def _append(self, line: bytes) -> None:
        # Opened for each note: forks share no file, and a kill leaves nothing in a buffer.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            assert os.write(file, line) == len(line)
        finally:
            os.close(file)

    def call(self, run_id: str, name: str, **facts: Any) -> Note:
        """Note a call that must not be made twice: of a model, a tool or a step.

        Wait while the call is held.
        """
        note = self.note(run_id, "call", name=name, **facts)
        while self.is_held(name):
            time.sleep(POLL)
        return note

    @contextmanager
    def body(self, run_id: str, **facts: Any) -> Iterator[None]:
        """Note the begin of a body, and its end with the reason. Only a kill leaves no second note."""
        token = _BODY.set(uuid4().hex[:8])
        how = "returned"
        self.note(run_id, "begin", **facts)
        try:
            yield
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            self.note(run_id, "end", how=how, **facts)
            _BODY.reset(token)

    def killed(self, *pids: int) -> None:
        """Note that these processes get SIGKILL now. Call this just before the kill."""
        self.note(NO_RUN, "killed", pids=pids)

    def frozen(self, *pids: int) -> None:
        """Note that these processes have stopped. Call this just after SIGSTOP."""
        self.note(NO_RUN, "frozen", pids=pids)

    def thawed(self, *pids: int) -> None:
        """Note that these processes continue now. Call this just before SIGCONT."""
        self.note(NO_RUN, "thawed", pids=pids)

    # Holding

    def hold(self, *names: str) -> None:
        """Make only the calls with these names wait from now on; without names, all calls.

        They wait until ``let_go`` is called, or until their worker knows that it is shutting down.
        """
        # Replaced by a rename, because workers read it all the time.
        new = self._held.with_suffix(".new")
        new.write_text(json.dumps(names))
        new.rename(self._held)

    def let_go(self) -> None:
        """Let all held calls continue, and hold no more calls."""
        self._held.unlink(missing_ok=True)

    def is_held(self, name: str) -> bool:
        """True if a call of that name must wait. ``call`` checks this; a coroutine must, too."""
        try:
            names = json.loads(self._held.read_text())
        except FileNotFoundError:
            return False
        return (not names or name in names) and not _is_shutting_down()

    @property
    def _held(self) -> Path:
        return self.path.with_suffix(".held")

    # Reading

    def notes(self, run_id: str | None = None, what: str | None = None) -> list[Note]:
        """Return all notes in the order of writing, or only those of a run or of one kind."""
        # The rest after the last newline is still being written.
        lines = self.path.read_bytes().split(b"\n")[:-1]
        notes = (Note(*json.loads(line)) for line in lines)
        return [note for note in notes if run_id in (None, note.run_id) and what in (None, note.what)]

    def wait_for(
        self, predicate: Callable[[Note], object], deadline: float, what: str = "a note", count: int = 1
    ) -> Note:
        """Wait until ``count`` notes match; return the last of these."""

        def found() -> list[Note]:
            matching = [note for note in self.notes() if predicate(note)]
            return matching if len(matching) >= count else []

        try:
            return until(found, deadline, f"{what} in the ledger")[count - 1]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self}") from None

    def wait_for_call(
        self, name: str, deadline: float, run_id: str | None = None, count: int = 1
    ) -> Note:
        """Wait until a call has been made ``count`` times; return the note of the last of these."""

        def is_it(note: Note) -> bool:
            return note.what == "call" and note["name"] == name and run_id in (None, note.run_id)

        return self.wait_for(is_it, deadline, f"call {name!r}", count)

    # Checking

    def calls(self, name: str | None = None, run_id: str | None = None) -> list[Note]:
        """Return the notes of all calls, or only of one name or run."""
        calls = self.notes(run_id, "call")
        return [call for call in calls if name in (None, call["name"])]

    def repeated(self, run_id: str | None = None) -> dict[tuple[str, str], int]:
        """Return the calls that a run made more than once: ``{(run id, name): times}``."""
        made = Counter((call.run_id, call["name"]) for call in self.calls(run_id=run_id))
        return {call: times for call, times in made.items() if times > 1}

    def bodies(self, run_id: str) -> list[bodies.Body]:
        """Return the bodies of a run, in the order of their start."""
        return bodies.of_run(self.notes(), run_id)

    def never_two_bodies_at_once(self, run_id: str, grace_after_thaw: float = 0.0) -> None:
        """Fail if two bodies of the run were active at the same time.

        A killed body ends at the kill, and a frozen one is not active until it is thawed. A body whose
        lease expired while it was frozen has ``grace_after_thaw`` seconds to notice that.
        """
        overlapping = bodies.overlaps(self.bodies(run_id), grace_after_thaw)
        pairs = "\n".join(f"{one} overlaps {other}" for one, other in overlapping)
        assert not overlapping, f"two bodies of run {run_id} at the same time:\n{pairs}\n{self}"

    def __str__(self) -> str:
        return "the ledger:\n" + "\n".join(f"  {note}" for note in self.notes())


def _is_shutting_down() -> bool:
    """True if this worker knows that it is shutting down."""
    # Not imported at the top: forks would share it.
    runtime = sys.modules.get("celery_ckpt.runtime.process.drain")
    return runtime is not None and runtime.drain.is_on


def is_worker() -> bool:
    """True if this process is a worker of a test; False if it runs the tests."""
    return VARIABLE in os.environ


def here() -> Ledger:
    """Return the ledger of this worker process."""
    return Ledger(Path(os.environ[VARIABLE]))


def names(calls: Iterable[Note]) -> list[str]:
    """Return the names of the calls, in order."""
    return [call["name"] for call in calls]
