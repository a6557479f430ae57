"""The position of a run: where an attempt starts, which iteration its steps belong to, and what a
checkpoint says about it.

An attempt starts where the latest checkpoint says, however often the run was tried:

    latest checkpoint                       restored            enters              resumed
    none, or of another run                 all of it           1                   no
    of this run
      with an entry, before the loop        the entry           1                   no
      with an entry, in iteration i         the entry           i                   yes
      with an entry, after the loop         the entry           skips the loop      yes
      after ITERATION i, without entry      all of it           i + 1               yes
      exact, after the loop                 all of it           skips the loop      yes
      exact, in iteration i                 all of it           i                   yes

An entry is where an iteration, or the code after the loop, began: recorded steps replay from there and
add again what they added. A checkpoint without an entry is exact: the body took it manually, and steps
find in it what they have added. The run's metadata is restored with the state; metadata that was given
to a single checkpoint stays with that checkpoint.

From there on, steps belong to these iterations:

    before the loop     0
    in the loop         1, 2, ...
    after the loop      the number that follows the last iteration

Whether the loop ends by ``break`` or at its limit, a resume enters the last iteration again, replays
its recorded calls and leaves the loop again. So a variable that the iteration binds is bound after the
loop. The exception is a last iteration that the body has saved manually: no replay can rebuild it, so
a resume skips the loop. A body without a loop stays in 0, or counts its iterations manually with
``emit(ITERATION)``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from celery_ckpt.checkpoint import Checkpoint, Entry
from celery_ckpt.conversation import Conversation, Spine
from celery_ckpt.errors import RunMisused
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.messages import Message
from celery_ckpt.retention.report import without_pin
from celery_ckpt.run.control_flow import found
from celery_ckpt.usage import Usage


@dataclass(frozen=True)
class Restored:
    """What an attempt starts with."""

    conversation: Conversation
    state: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    #: True if a checkpoint of this run was restored, and not one of an earlier run.
    resumed: bool = False
    #: The iteration of that checkpoint.
    iteration: int = 0
    #: The iteration to enter; 0 is the start of the body.
    enters: int = 0
    #: True if the conversation already contains what steps of that iteration have added.
    exact: bool = False
    #: True if the loop is not entered again.
    skips_loop: bool = False
    #: The iteration to enter, if its end is recorded: then all its calls are recorded, too.
    completed: int | None = None
    #: What the calls of the run had used, and the key of the last step that this includes.
    usage: Usage = field(default_factory=Usage)
    counted: str | None = None


def restored(latest: Checkpoint | None, run_id: str, max_tokens: int) -> Restored:
    """Return what an attempt of this run starts with."""
    if latest is None:
        return Restored(Conversation(max_tokens))
    if latest.run_id != run_id:
        return Restored(latest.conversation, latest.state)
    if latest.entry is None:
        i, is_end = latest.iteration, is_end_of_iteration(latest)
        return Restored(
            latest.conversation,
            latest.state,
            metadata_of_run(latest),
            resumed=True,
            iteration=i,
            enters=i + 1 if is_end or latest.after_loop else i,
            exact=not is_end,
            skips_loop=latest.after_loop,
            usage=latest.usage,
            counted=latest.counted,
        )
    i, entry = latest.iteration, latest.entry
    is_over = latest.after_loop or latest.event == CheckpointEvent.ITERATION
    return Restored(
        entry.conversation,
        entry.state,
        metadata_of_run(latest),
        resumed=i > 0 or entry.after_loop,
        iteration=i,
        enters=i + 1 if entry.after_loop else i,
        skips_loop=entry.after_loop,
        completed=i if is_over and i > 0 and not entry.after_loop else None,
        usage=entry.usage,
    )


def metadata_of_run(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the metadata that the run of a checkpoint continues with."""
    own = checkpoint.run_metadata
    return without_pin(checkpoint.metadata) if own is None else own


def is_end_of_iteration(checkpoint: Checkpoint) -> bool:
    """True if it was taken at the end of its iteration, so that a resume enters the next one."""
    is_end = checkpoint.event == CheckpointEvent.ITERATION and not checkpoint.after_loop
    return checkpoint.entry is None and is_end


#: A thread, and a task of its event loop.
Place = tuple[int, int]


class Position:
    """The position of one attempt."""

    def __init__(self, begin: Restored, has_manual_iterations: bool) -> None:
        #: True if the body counts its iterations itself.
        self.has_manual_iterations = has_manual_iterations and begin.enters > 0
        #: What the body sees as ``run.iteration``.
        self.iteration = begin.iteration
        #: The iteration that a resume from here would enter; 0 is the start of the body.
        self.enters = begin.iteration if self.has_manual_iterations else begin.enters
        #: The iteration that steps made now belong to.
        self.steps = self.enters if self.has_manual_iterations else 0
        #: What the calls up to this point of the body have used. The code before a loop that an earlier
        #: attempt has entered counts its calls again; the loop continues with the usage at its entry.
        self.usage = Usage() if self.is_past else begin.usage
        self._used_before = begin.usage if self.is_past else None
        self.entry = Entry(
            conversation=begin.conversation,
            state=begin.state,
            after_loop=begin.skips_loop,
            usage=begin.usage,
        )
        #: The run's metadata at that entry.
        self.metadata = dict(begin.metadata)
        #: True once the body has done something manually in this iteration that only an exact
        #: checkpoint can hold. Before the loop, it is true from the start if an earlier attempt did so:
        #: an entry there would mean "not resumed".
        self.is_manual = self.has_manual_iterations or (begin.exact and begin.enters == 0)
        #: True if a resume from here skips the loop.
        self.skips_loop = begin.skips_loop
        #: True after the loop: in this attempt, or in the checkpoint that it resumed from.
        self.has_left_loop = begin.skips_loop
        #: The iteration in which the conversation already contains what recorded steps have added.
        self.exact: int | None = None
        if begin.exact or self.has_manual_iterations:
            self.exact = begin.enters if begin.skips_loop else begin.iteration
        #: The iteration whose end an earlier attempt has recorded: all its calls are recorded.
        self.completed = begin.completed
        #: True between the end of an iteration and the start of the next.
        self.ended = False
        #: True once the end of the iteration was emitted: a run stopped there does not repeat it.
        self.is_end_emitted = False
        #: The messages of ``run.llm`` in this iteration that ask for a tool call, by its id.
        self.asked: dict[str, list[Message]] = {}
        #: All messages that ``run.llm`` has appended since the entry.
        self._said: list[Message] = []
        #: How many idempotency keys each name got in this iteration.
        self.keys: Counter[str] = Counter()
        self._next = max(begin.enters, 1)
        #: True once the body has asked for its iterations.
        self.has_loop = False
        #: True inside an iteration of the loop.
        self.is_iterating = False
        self._has_iterated = False
        #: The conversation at the entry, and how often the body had changed it by then.
        self._edits: tuple[Conversation, int] = (begin.conversation, begin.conversation.edits)
        #: Set when the loop was dropped inside an iteration, until it is known whether by ``break``.
        self._dropped: tuple[Entry | None, Conversation, int, dict[str, str]] | None = None
        #: Where the body ran then, and the exception that it was handling, if any.
        self._home: Place | None = None
        self._handled: BaseException | None = None
        #: What else ran then.
        self._beside: set[Place] = set()
        self._confirming = threading.Lock()

    @property
    def is_past(self) -> bool:
        """True before a loop that an earlier attempt has entered: steps replay, and append nothing."""
        return self.steps == 0 and self.enters > 0

    @property
    def is_complete(self) -> bool:
        """True if the end of this iteration is recorded, and therefore all its calls."""
        return self.completed is not None and self.steps == self.completed

    @property
    def is_in_or_after_loop(self) -> bool:
        """True if there is an entry in the loop or after it to resume from."""
        return self._has_iterated or (self.has_loop and (self._next > 1 or self.skips_loop))

    @property
    def has_skipped_loop(self) -> bool:
        """True if the loop had no iteration in this attempt, but some in an earlier one."""
        return self.has_loop and not self._has_iterated and not self.is_iterating and self._next > 1

    def begin_loop(self) -> None:
        """Note that the body asks for its iterations. Raises ``RunMisused`` for the second time."""
        if self.has_loop:
            raise RunMisused(
                reason="run.iterations() was called twice. A run can resume into one loop only: merge "
                "the loops, or use two tasks."
            )
        if self.has_manual_iterations:
            raise RunMisused(
                reason="This run counts its iterations with run.emit(CheckpointEvent.ITERATION) "
                "outside a loop, so it cannot call run.iterations(). Use one of the two."
            )
        self.has_loop = True

    def note_questions(self, messages: list[Message]) -> None:
        """Remember that the model asked for the tool calls in these messages."""
        self._said += messages
        for message in messages:
            for call_id in message.call_ids:
                self.asked.setdefault(call_id, []).append(message)

    def can_rebuild(self, message: Message) -> bool:
        """True if a replay from the entry has this message: it was there, or ``run.llm`` added it."""
        return any(own is message for own in (*self._said, *self.entry.conversation))

    def note_replayed_edits(
        self,
        before: tuple[Conversation, int],
        had: tuple[Spine, int],
        after: tuple[Conversation, int],
        has: tuple[Spine, int],
    ) -> None:
        """Note changes of the conversation that a replay makes again: they are not the body's own.

        ``before`` and ``after`` are the conversation and its number of edits, ``had`` and ``has`` its
        extent.
        """
        entered, edits = self._edits
        if entered is before[0]:
            # What the body itself has changed before stays counted.
            self._edits = after[0], edits + after[1] - before[1]
        if had[0] is has[0]:
            self._said += has[0].messages[had[1] : has[1]]
        else:
            known = {id(message) for message in had[0].messages[: had[1]]}
            self._said += [own for own in has[0].messages[: has[1]] if id(own) not in known]

    def is_edited(self, conversation: Conversation) -> bool:
        """True if the body itself has changed the conversation since the entry."""
        entered, edits = self._edits
        return conversation is not entered or conversation.edits != edits

    # -- the loop --------------------------------------------------------------------------------------

    def is_last(self, limit: int | None) -> bool:
        """True if no iteration is left."""
        return self.skips_loop or (limit is not None and self._next > limit)

    def advance(
        self,
        limit: int | None,
        conversation: Conversation,
        state: dict[str, Any],
        metadata: dict[str, str],
    ) -> int | None:
        """Enter the next iteration, or the code after the loop."""
        if self._used_before is not None:
            self.usage, self._used_before = self._used_before, None
        if self.is_last(limit):
            entry = self._entry(conversation, state, after_loop=True)
            self._leave(entry, conversation, conversation.edits, metadata)
            return None
        self.steps = self.enters = self.iteration = self._next
        self._enter(self._entry(conversation, state), conversation, metadata)
        self.is_iterating = self._has_iterated = True
        self._next += 1
        return self.iteration

    def drop(
        self,
        conversation: Conversation,
        state: dict[str, Any],
        metadata: dict[str, str],
    ) -> None:
        """Note that the loop was dropped inside an iteration: by ``break``, or by an exception."""
        if not self.is_iterating:
            return
        entry = None
        if self.is_manual:
            with suppress(ValueError):  # the next checkpoint reports what is not JSON
                entry = self._entry(conversation, state, after_loop=True)
        self._dropped = entry, conversation, conversation.edits, dict(metadata)
        self._home, self._handled, self._beside = here(), sys.exception(), everywhere()

    def confirm_drop(self) -> None:
        """Leave the loop that was dropped, if the body continues after it.

        Calls that the body started before may still run while an exception leaves it. So only a call
        of the body itself counts, or of a thread or task that started later. A call of the body
        does not count in a ``finally`` block that the exception passes.
        """
        if self._dropped is None:
            return
        if here() == self._home:
            continues = sys.exception() in (None, self._handled)
        else:
            continues = here() not in self._beside
        with self._confirming:
            if continues and self._dropped is not None:
                self._leave(*self._dropped)
                self._dropped = None

    def _leave(
        self,
        entry: Entry | None,
        conversation: Conversation,
        edits: int,
        metadata: dict[str, str],
    ) -> None:
        """Enter the code after the loop."""
        can_replay = self.is_iterating and not self.is_manual
        self.steps, self.iteration = self._next, self._next - 1
        self.is_iterating = self.is_end_emitted = False
        self.has_left_loop = True
        if not can_replay:
            self.skips_loop = True
            if entry is not None:
                self._enter(entry, conversation, metadata)
                self._edits = conversation, edits
        self.asked, self.keys = {}, Counter()

    def _entry(
        self, conversation: Conversation, state: dict[str, Any], *, after_loop: bool = False
    ) -> Entry:
        return Entry(conversation=conversation, state=state, after_loop=after_loop, usage=self.usage)

    def _enter(self, entry: Entry, conversation: Conversation, metadata: dict[str, str]) -> None:
        self.entry, self.metadata = entry, dict(metadata)
        self._edits = conversation, conversation.edits
        # What was restored exactly is saved exactly: no entry can say what its steps have added.
        self.is_manual = self.exact == self.steps
        self.ended = self.is_end_emitted = False
        self.asked, self._said, self.keys = {}, [], Counter()

    @contextmanager
    def ending(self, is_end: bool = True) -> Iterator[None]:
        """Emit the end of an iteration inside. A run that is stopped there is at that end."""
        self.ended = is_end
        try:
            yield
        except BaseException as error:
            self.ended = is_end and found(error) is not None
            raise
        self.ended = False

    def count_manually(self) -> None:
        """Count an iteration that the body itself ends, without a loop."""
        self.iteration += 1
        self.steps = self.enters = self.iteration
        self.ended = False
        self.asked, self.keys = {}, Counter()
        self.has_manual_iterations = self.is_manual = True

    # -- checkpoints -----------------------------------------------------------------------------------

    def snapshot_fields(
        self, event: CheckpointEvent | None, more: Usage | None = None
    ) -> dict[str, Any]:
        """Return what a checkpoint says about where it was taken, and with which usage added."""
        usage = self._used_before
        if usage is None:
            usage = self.usage + more if more else self.usage
        if self.ended or self.is_end_emitted:
            event = event or CheckpointEvent.ITERATION
        if self.ended:
            return {"iteration": self.enters, "event": event, "usage": usage}
        # In the code before its loop, a resumed run is where it was restored.
        is_exact = self.exact == self.enters if self.is_past else self.is_manual
        return {
            "iteration": self.iteration if self.has_left_loop else self.enters,
            "event": event,
            "entry": None if is_exact else self.entry,
            "after_loop": self.has_left_loop,
            "usage": usage,
        }


def here() -> Place:
    """Return the thread, and the task of the event loop, that the caller runs in."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task)


def everywhere() -> set[Place]:
    """Return all threads, and all tasks of the event loop that runs here, if there is one."""
    threads = {(thread.ident or 0, id(None)) for thread in threading.enumerate()}
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return threads
    return threads | {(threading.get_ident(), id(task)) for task in tasks}
