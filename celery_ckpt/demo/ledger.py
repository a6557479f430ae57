"""What each side did and what it cost: one file per side, which no kill can damage.

A worker writes a note as one line with one ``write`` to a file opened for appending, so that a note is
there completely or not at all. The ledger is not kept in the store, so that the bill does not depend on
what the demo is about. Times are ``time.monotonic()``, which all processes of a machine share.

Beside it lies the cue, by which the show makes the model pause in a chosen iteration: a worker is
killed in the middle of the model's reply on any machine, however fast.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import task_failure, task_prerun, task_success

from celery_ckpt import AgentRun, Checkpoint, open_store, signals

#: After this many words of its reply the model pauses.
WORDS = 4
_LOOK_EVERY = 0.02
#: The environment variables with the path of the ledger and the number of the worker.
PATH, WORKER = "CKPT_DEMO_LEDGER", "CKPT_DEMO_WORKER"


@dataclass(frozen=True)
class Note:
    """One line: what happened, when, and in which worker."""

    what: str
    at: float
    worker: int
    facts: dict[str, Any]


class Ledger:
    """The notes of one side, from all its processes."""

    def __init__(self, path: Path, worker: int = 0) -> None:
        self.path, self._worker = path, worker
        self._read_to = 0

    def note(self, what: str, *, worker: int | None = None, **facts: Any) -> None:
        """Write a note about what happens now."""
        by = self._worker if worker is None else worker
        line = json.dumps([what, time.monotonic(), by, facts]) + "\n"
        # Without O_CREAT: a worker that dies late must not leave a file behind.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def news(self) -> list[Note]:
        """Return the notes since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            # What follows the last newline is still being written.
            lines = file.read().split(b"\n")[:-1]
        self._read_to += sum(len(line) + 1 for line in lines)
        return [Note(*json.loads(line)) for line in lines]


def ledger() -> Ledger:
    """Return the ledger of this worker process."""
    return Ledger(Path(os.environ[PATH]), int(os.environ[WORKER]))


# -- the cue -----------------------------------------------------------------------------------------


class Cue:
    """Makes the model of one side pause: a file beside its ledger that names an iteration."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger.with_suffix(".cue")

    def give(self, iteration: int | None) -> None:
        """Let the model pause in this iteration, or continue if it is ``None``."""
        # Appended, so that a reader never sees half a number.
        with self._path.open("a") as file:
            file.write(f"{iteration or 0}\n")

    def wait(self, iteration: int, words: int) -> None:
        """Wait while the model has to pause after this word of this iteration."""
        while words == WORDS and int(self._path.read_text().split()[-1]) == iteration:
            time.sleep(_LOOK_EVERY)


def cue() -> Cue:
    """Return the cue for this worker process."""
    return Cue(Path(os.environ[PATH]))


# -- what workers note about their attempts ----------------------------------------------------------


def record_tasks() -> None:
    """Note when plain tasks start and end."""
    task_prerun.connect(lambda **_: ledger().note("begin"), weak=False)
    _record_ends()


def record_agents(app: Celery) -> None:
    """Note when agents start, resume, are saved, are handed off and end."""

    def resumed(run: AgentRun, **_: Any) -> None:
        saved, replays = _to_replay(app.conf.ckpt_store_url, run)
        ledger().note("resume", saved=saved, replays=replays)

    def saved(run: AgentRun, checkpoint: Checkpoint, **_: Any) -> None:
        ledger().note("checkpoint", iteration=checkpoint.iteration)

    signals.agent_started.connect(lambda **_: ledger().note("begin"), weak=False)
    signals.agent_resumed.connect(resumed, weak=False)
    signals.checkpoint_saved.connect(saved, weak=False)
    signals.agent_handed_off.connect(lambda **_: ledger().note("hand-off"), weak=False)
    _record_ends()


def _record_ends() -> None:
    """Note the outcome once Celery has it."""

    def failed(exception: BaseException, **_: Any) -> None:
        ledger().note("failure", reason=repr(exception))

    task_success.connect(lambda **_: ledger().note("answer"), weak=False)
    task_failure.connect(failed, weak=False)


def _to_replay(store_url: str, run: AgentRun) -> tuple[int, list[int]]:
    """Return the iteration of the latest checkpoint, and the iterations of the steps after it."""
    with open_store(store_url) as store:
        latest = store.load_latest(run.agent_id)
        steps = store.steps(run.agent_id, run.run_id)
    assert latest is not None
    first = latest.iteration + (latest.entry is None)
    return latest.iteration, [step.iteration for step in steps if step.iteration >= first]
