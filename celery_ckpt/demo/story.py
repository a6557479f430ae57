"""What the ledger of one side tells, note by note: who worked on what, what was saved, what it cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from celery_ckpt.demo.ledger import Note


class Turn(StrEnum):
    """How an attempt came by an iteration."""

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
    """One execution by one worker."""

    #: The worker's own number, and the one it is shown with: by the order in which they come.
    worker: int
    shown: int
    turns: dict[int, Turn] = field(default_factory=dict)
    end: End | None = None

    @property
    def at(self) -> int:
        """The iteration it is in, or was in when it ended."""
        return max(self.turns, default=0)


@dataclass(frozen=True)
class Event:
    """Something that is told to whoever watches; what is not a turning point may be left out."""

    seconds: float
    text: str
    is_turning_point: bool = True


class Story:
    """All of it so far."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.events: list[Event] = []
        #: Calls of the model, by iteration.
        self.calls: Counter[int] = Counter()
        self.tools = self.replayed = self.checkpoints = 0
        self.dollars = 0.0
        #: The iterations in which a checkpoint was taken.
        self.saved: set[int] = set()
        #: What the model is streaming now, and how many words of it have come.
        self.text = ""
        #: Why there will be no answer.
        self.failure = ""
        self._numbers: dict[int, int] = {}
        self._begin: float | None = None
        self._end: float | None = None

    # -- what it says ----------------------------------------------------------------------------------

    @property
    def now(self) -> Attempt:
        """The latest attempt."""
        return self.attempts[-1]

    @property
    def is_over(self) -> bool:
        """Is there an answer?"""
        return self._end is not None

    def seconds(self, now: float) -> float:
        """How long it has taken, up to now or to its end."""
        return 0.0 if self._begin is None else (self._end or now) - self._begin

    def is_amid(self, turn: int, words: int) -> bool:
        """Is the model streaming its answer of that iteration, or a later one, well under way?"""
        is_working = bool(self.attempts) and self.now.end is None
        return is_working and self.now.at >= turn and len(self.text.split()) >= words

    @property
    def model_calls(self) -> int:
        """How many calls of the model were paid."""
        return self.calls.total()

    @property
    def repeated_calls(self) -> int:
        """How many of them had been paid before."""
        return self.model_calls - len(self.calls)

    # -- how it grows ----------------------------------------------------------------------------------

    def add(self, note: Note) -> None:
        """One more note."""
        facts = note.facts
        match note.what:
            case "sent":
                self._begin = note.at
            case "begin":
                self._begins(note)
            case "resume":
                self._resumes(note, facts["saved"], facts["replays"])
            case "call":
                self._calls(note, facts["turn"], facts["dollars"])
            case "word":
                self.text = f"{self.text} {facts['text']}".lstrip()
                self.dollars += facts["dollars"]
            case "tool":
                self.tools += 1
            case "checkpoint":
                self._saves(note, facts["iteration"])
            case "killed":
                self._ends(End.KILLED)
                self._tell(note, f"SIGKILL to worker {self._number(note)}")
            case "told to stop":
                self._tell(note, f"SIGTERM to worker {self._number(note)}: a deploy")
            case "hand-off":
                self._ends(End.HANDED_OFF)
                self._tell(note, f"worker {self._number(note)} hands the run off")
            case "answer":
                self._answers(note)
            case "failure":
                self.failure = facts["reason"]

    def _begins(self, note: Note) -> None:
        begins = "starts" if not self.attempts else "starts from scratch"
        self._add(Attempt(note.worker, self._number(note)))
        self._tell(note, f"worker {self._number(note)} {begins}")

    def _resumes(self, note: Note, saved: int, replays: list[int]) -> None:
        turns = dict.fromkeys(replays, Turn.REPLAYED)
        self._add(Attempt(note.worker, self._number(note), turns))
        self.replayed += len(replays)
        steps = f"{len(replays)} step{'s' * (len(replays) != 1)}"
        self._tell(note, f"worker {self._number(note)} loads checkpoint {saved}, replays {steps}")

    def _calls(self, note: Note, turn: int, dollars: float) -> None:
        self.calls[turn] += 1
        self.dollars += dollars
        self.text = ""
        is_again = self.calls[turn] > 1
        self.now.turns[turn] = Turn.PAID_AGAIN if is_again else Turn.PAID
        again = ", paid again" if is_again else ""
        self._tell(note, f"iteration {turn}: the model is called{again}", is_turning_point=False)

    def _saves(self, note: Note, iteration: int) -> None:
        self.checkpoints += 1
        if iteration not in self.saved:
            self._tell(note, f"checkpoint {iteration} saved", is_turning_point=False)
        self.saved.add(iteration)

    def _answers(self, note: Note) -> None:
        self._end, self.now.end, self.text = note.at, End.ANSWERED, ""
        self._tell(note, "answered")

    def _ends(self, how: End) -> None:
        if self.now.end is None:
            self.now.end, self.text = how, ""

    def _number(self, note: Note) -> int:
        return self._numbers.setdefault(note.worker, len(self._numbers) + 1)

    def _add(self, attempt: Attempt) -> None:
        if self.attempts:
            self._ends(End.STOPPED)
        self.attempts.append(attempt)

    def _tell(self, note: Note, text: str, *, is_turning_point: bool = True) -> None:
        self.events.append(Event(self.seconds(note.at), text, is_turning_point))
