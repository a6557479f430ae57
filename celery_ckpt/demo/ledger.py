"""What each side did and what it cost: the notes of its processes, and the story that they make.

The notes of a side are in one file, which no kill can damage: a worker writes a note as one line with
one ``write`` to a file opened for appending, so that a note is there completely or not at all. The
ledger is not kept in the store, so that the bill does not depend on what the demo is about. Times are
``time.monotonic()``, which all processes of a machine share.

Beside it lies the cue, by which the show makes the model pause in a chosen iteration: a worker is
killed in the middle of the model's reply on any machine, however fast.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
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
        with open_store(app.conf.ckpt_store_url) as store:
            latest = store.load_latest(run.agent_id)
            steps = store.steps(run.agent_id, run.run_id)
        assert latest is not None
        # The steps after the checkpoint are replayed.
        first = latest.iteration + (latest.entry is None)
        replays = [step.iteration for step in steps if step.iteration >= first]
        ledger().note("resume", saved=latest.iteration, replays=replays)

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


# -- the story ---------------------------------------------------------------------------------------


class Payment(StrEnum):
    """How an attempt got the reply of the model in an iteration."""

    PAID = "paid"
    PAID_AGAIN = "paid again"
    REPLAYED = "replayed"


class End(StrEnum):
    """How an attempt ended."""

    KILLED = "killed"
    HANDED_OFF = "handed off"
    STOPPED = "stopped"
    ANSWERED = "answered"


@dataclass
class Attempt:
    """One execution of the run by one worker."""

    #: The number of the worker, and the number that is shown: workers are counted as they begin.
    worker: int
    shown: int
    iterations: dict[int, Payment] = field(default_factory=dict)
    end: End | None = None

    @property
    def at(self) -> int:
        """The iteration that the attempt is in, or was in when it ended."""
        return max(self.iterations, default=0)


@dataclass(frozen=True)
class Event:
    """Something to show. The screen omits what is not a turning point."""

    seconds: float
    text: str
    is_turning_point: bool = True


class Story:
    """Everything that has happened on one side so far."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.events: list[Event] = []
        #: Calls of the model, by iteration.
        self.calls: Counter[int] = Counter()
        self.tools = self.replayed = self.checkpoints = 0
        self.dollars = 0.0
        #: The iterations in which a checkpoint was taken.
        self.saved: set[int] = set()
        #: What the model has streamed of its current reply.
        self.text = ""
        #: Why there is no answer.
        self.failure = ""
        self._numbers: dict[int, int] = {}
        self._begin: float | None = None
        self._end: float | None = None

    # -- what is known ---------------------------------------------------------------------------------

    @property
    def now(self) -> Attempt:
        """The latest attempt."""
        return self.attempts[-1]

    @property
    def is_over(self) -> bool:
        """True once there is an answer."""
        return self._end is not None

    def seconds(self, now: float) -> float:
        """Return the seconds until now, or until the answer."""
        return 0.0 if self._begin is None else (self._end or now) - self._begin

    def is_streaming(self, iteration: int, words: int) -> bool:
        """True if the model has streamed this many words in this iteration, or a later one."""
        is_working = bool(self.attempts) and self.now.end is None
        return is_working and self.now.at >= iteration and len(self.text.split()) >= words

    @property
    def model_calls(self) -> int:
        """The number of paid model calls."""
        return self.calls.total()

    @property
    def repeated_calls(self) -> int:
        """The number of model calls that had been paid before."""
        return self.model_calls - len(self.calls)

    # -- new notes -------------------------------------------------------------------------------------

    def add(self, note: Note) -> None:
        """Add a note."""
        facts = note.facts
        match note.what:
            case "sent":
                self._begin = note.at
            case "begin":
                begins = "starts" if not self.attempts else "starts from scratch"
                self._add_attempt(Attempt(note.worker, self._number(note)))
                self._add_event(note, f"worker {self._number(note)} {begins}")
            case "resume":
                self._resumes(note, facts["saved"], facts["replays"])
            case "call":
                self._calls(note, facts["iteration"], facts["dollars"])
            case "word":
                self.text = f"{self.text} {facts['text']}".lstrip()
                self.dollars += facts["dollars"]
            case "tool":
                self.tools += 1
            case "checkpoint":
                self.checkpoints += 1
                if facts["iteration"] not in self.saved:
                    text = f"checkpoint {facts['iteration']} saved"
                    self._add_event(note, text, is_turning_point=False)
                self.saved.add(facts["iteration"])
            case "killed":
                self._ends(End.KILLED)
                self._add_event(note, f"SIGKILL to worker {self._number(note)}")
            case "stopped":
                self._add_event(note, f"SIGTERM to worker {self._number(note)}: a deploy")
            case "hand-off":
                self._ends(End.HANDED_OFF)
                self._add_event(note, f"worker {self._number(note)} hands the run off")
            case "answer":
                self._end, self.now.end, self.text = note.at, End.ANSWERED, ""
                self._add_event(note, "answered")
            case "failure":
                self.failure = facts["reason"]

    def _resumes(self, note: Note, saved: int, replays: list[int]) -> None:
        replayed = dict.fromkeys(replays, Payment.REPLAYED)
        self._add_attempt(Attempt(note.worker, self._number(note), replayed))
        self.replayed += len(replays)
        steps = f"{len(replays)} step{'s' * (len(replays) != 1)}"
        self._add_event(note, f"worker {self._number(note)} loads checkpoint {saved}, replays {steps}")

    def _calls(self, note: Note, iteration: int, dollars: float) -> None:
        self.calls[iteration] += 1
        self.dollars += dollars
        self.text = ""
        is_again = self.calls[iteration] > 1
        self.now.iterations[iteration] = Payment.PAID_AGAIN if is_again else Payment.PAID
        again = ", paid again" if is_again else ""
        self._add_event(
            note, f"iteration {iteration}: the model is called{again}", is_turning_point=False
        )

    def _ends(self, how: End) -> None:
        if self.now.end is None:
            self.now.end, self.text = how, ""

    def _number(self, note: Note) -> int:
        return self._numbers.setdefault(note.worker, len(self._numbers) + 1)

    def _add_attempt(self, attempt: Attempt) -> None:
        if self.attempts:
            self._ends(End.STOPPED)
        self.attempts.append(attempt)

    def _add_event(self, note: Note, text: str, *, is_turning_point: bool = True) -> None:
        self.events.append(Event(self.seconds(note.at), text, is_turning_point))
