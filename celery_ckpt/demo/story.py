"""What happened on one side, from the notes in its ledger: attempts, iterations, checkpoints, cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from celery_ckpt.demo.ledger import Note


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
    """Everything that has happened so far."""

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
