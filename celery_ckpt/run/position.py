"""Where a run stands: which iteration its steps belong to, and what a checkpoint says of it.

    before the loop     0
    in the loop         1, 2, ...
    after the loop      steps belong to the number that follows the last iteration

However the loop ends, by ``break`` or at its limit, a resume enters the last iteration again, replays
its recorded calls and leaves the loop again. So a variable that the iteration binds is bound after the
loop. The exception is a last iteration that the body has saved by its own hand: no replay can rebuild
it, so a resume skips the loop. A body without a loop stands in 0, or counts its iterations by hand with
``emit(ITERATION)``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery_ckpt.checkpoint import Entry
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import RunMisused
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.messages import Message
from celery_ckpt.run.control import found
from celery_ckpt.run.restoration import Restored
from celery_ckpt.usage import Usage

#: A thread, and a task of its event loop.
Place = tuple[int, int]


class Position:
    """Where one attempt stands, from its restored beginning on."""

    def __init__(self, begin: Restored, by_hand: bool) -> None:
        #: Does the body count its iterations itself?
        self.by_hand = by_hand and begin.enters > 0
        #: What the body sees as ``run.iteration``.
        self.iteration = begin.iteration
        #: The iteration a resume from here would enter, 0 for the beginning of the body.
        self.stands = begin.iteration if self.by_hand else begin.enters
        #: The iteration that steps made now belong to.
        self.steps = self.stands if self.by_hand else 0
        #: What the calls up to this point of the body have used. The code before a loop that an earlier
        #: attempt has been in counts its own calls again; the loop goes on with the usage at its entry.
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
        #: Has the body done by hand what only an exact checkpoint can hold? Before the loop that holds
        #: from the start, if it did so in an earlier attempt: an entry there would mean "not resumed".
        self.is_own_hand = self.by_hand or (begin.exact and begin.enters == 0)
        #: Does a resume from here skip the loop?
        self.skips_loop = begin.skips_loop
        #: True after the loop: in this attempt, or in the checkpoint that it resumed from.
        self.has_left_loop = begin.skips_loop
        #: In this iteration the conversation holds already what recorded steps have added.
        self.exact: int | None = None
        if begin.exact or self.by_hand:
            self.exact = begin.enters if begin.skips_loop else begin.iteration
        #: The iteration whose end an earlier attempt has put on record: all its calls are recorded.
        self.completed = begin.completed
        #: Is the iteration over and the next one not begun?
        self.ended = False
        #: Has the host been told of its end? A run that is stopped there does not tell it again.
        self.is_end_told = False
        #: The messages of ``run.llm`` in this iteration that ask for a tool call, by its id.
        self.asked: dict[str, list[Message]] = {}
        #: All that ``run.llm`` has said since the entry.
        self._said: list[Message] = []
        #: How often each name was asked an idempotency key for in this iteration.
        self.keys: Counter[str] = Counter()
        self._next = max(begin.enters, 1)
        #: True once the body has asked for its iterations.
        self.has_loop = False
        self._is_turning = False
        self._has_turned = False
        #: The conversation at the entry, and how often the body had changed it by then.
        self._edits: tuple[Conversation, int] = (begin.conversation, begin.conversation.edits)
        #: Set when the loop was dropped amid an iteration, until it is clear that this was a ``break``.
        self._dropped: tuple[Entry | None, Conversation, int, dict[str, str]] | None = None
        #: Where the body was running then, and the exception that it was handling, if any.
        self._home: Place | None = None
        self._handled: BaseException | None = None
        #: What else was running then.
        self._beside: set[Place] = set()
        self._confirming = threading.Lock()

    @property
    def is_past(self) -> bool:
        """Is this the code before a loop that an earlier attempt has been in? Its steps add nothing."""
        return self.steps == 0 and self.stands > 0

    @property
    def is_complete(self) -> bool:
        """Are all calls of this iteration recorded, because its end is?"""
        return self.completed is not None and self.steps == self.completed

    @property
    def is_in_or_after_loop(self) -> bool:
        """Is there an entry in the loop or after it to resume from?"""
        return self._has_turned or (self.has_loop and (self._next > 1 or self.skips_loop))

    @property
    def is_turning(self) -> bool:
        """Is an iteration of the loop under way?"""
        return self._is_turning

    @property
    def has_skipped_loop(self) -> bool:
        """Has the loop ended without an iteration in this attempt, after some in an earlier one?"""
        return self.has_loop and not self._has_turned and not self._is_turning and self._next > 1

    def begin_loop(self) -> None:
        """The body asks for its iterations. Raises ``RunMisused`` for a second time."""
        if self.has_loop:
            raise RunMisused(
                reason="A run has one run.iterations() loop: where would it go on in the second? "
                "Make one loop of both, or two runs."
            )
        if self.by_hand:
            raise RunMisused(
                reason="This run counts its iterations by run.emit(CheckpointEvent.ITERATION) outside "
                "of a loop, so it cannot have a run.iterations() loop. Use one of both."
            )
        self.has_loop = True

    def note_questions(self, messages: list[Message]) -> None:
        """The model has asked for the tool calls in these."""
        self._said += messages
        for message in messages:
            for call in message.tool_calls:
                self.asked.setdefault(call.id, []).append(message)

    def can_rebuild(self, message: Message) -> bool:
        """Does a replay from the entry have this message: was it there, or has a helper added it?"""
        return any(own is message for own in (*self._said, *self.entry.conversation))

    def is_edited(self, conversation: Conversation) -> bool:
        """Has the body itself, and not a helper, changed the conversation since the entry?"""
        entered, edits = self._edits
        return conversation is not entered or conversation.edits != edits

    # -- the loop --------------------------------------------------------------------------------------

    def is_last(self, limit: int | None) -> bool:
        """Is no iteration left?"""
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
        self.steps = self.stands = self.iteration = self._next
        self._enter(self._entry(conversation, state), conversation, metadata)
        self._is_turning = self._has_turned = True
        self._next += 1
        return self.iteration

    def drop(
        self,
        conversation: Conversation,
        state: dict[str, Any],
        metadata: dict[str, str],
    ) -> None:
        """The loop is gone amid an iteration: by ``break``, or by an exception."""
        if not self._is_turning:
            return
        entry = None
        if self.is_own_hand:
            with suppress(ValueError):  # the next checkpoint says what is not JSON
                entry = self._entry(conversation, state, after_loop=True)
        self._dropped = entry, conversation, conversation.edits, dict(metadata)
        self._home, self._handled, self._beside = here(), sys.exception(), everywhere()

    def confirm_drop(self) -> None:
        """If the body goes on, it has left the loop. Calls that it has made before may go on while an
        exception is on its way out of it, so only it can tell, or what it has started since. And it
        may call in a ``finally`` while the exception goes by.
        """
        if self._dropped is None:
            return
        if here() == self._home:
            is_going_on = sys.exception() in (None, self._handled)
        else:
            is_going_on = here() not in self._beside
        with self._confirming:
            if is_going_on and self._dropped is not None:
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
        can_replay = self._is_turning and not self.is_own_hand
        self.steps, self.iteration = self._next, self._next - 1
        self._is_turning = self.is_end_told = False
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
        # What was restored exactly is saved exactly: no entry could say what its steps have added.
        self.is_own_hand = self.exact == self.steps
        self.ended = self.is_end_told = False
        self.asked, self._said, self.keys = {}, [], Counter()

    @contextmanager
    def ending(self, is_end: bool = True) -> Iterator[None]:
        """While the end of an iteration is told. If the run is stopped here, it stands at that end."""
        self.ended = is_end
        try:
            yield
        except BaseException as error:
            self.ended = is_end and found(error) is not None
            raise
        self.ended = False

    def count_by_hand(self) -> None:
        """The body says that an iteration is over, and has no loop that would say so."""
        self.iteration += 1
        self.steps = self.stands = self.iteration
        self.ended = False
        self.asked, self.keys = {}, Counter()
        self.by_hand = self.is_own_hand = True

    # -- checkpoints -----------------------------------------------------------------------------------

    def of_snapshot(self, event: CheckpointEvent | None) -> dict[str, Any]:
        """What a checkpoint says of where it was taken."""
        usage = self.usage if self._used_before is None else self._used_before
        if self.ended or self.is_end_told:
            event = event or CheckpointEvent.ITERATION
        if self.ended:
            return {"iteration": self.stands, "event": event, "usage": usage}
        # In the code before its loop, a resumed run stands where it was restored.
        is_exact = self.exact == self.stands if self.is_past else self.is_own_hand
        return {
            "iteration": self.iteration if self.has_left_loop else self.stands,
            "event": event,
            "entry": None if is_exact else self.entry,
            "after_loop": self.has_left_loop,
            "usage": usage,
        }


def here() -> Place:
    """The thread, and the task of an event loop, that the present code runs in."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task)


def everywhere() -> set[Place]:
    """All threads, and all tasks of the event loop, if one is running here."""
    threads = {(thread.ident or 0, id(None)) for thread in threading.enumerate()}
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return threads
    return threads | {(threading.get_ident(), id(task)) for task in tasks}
