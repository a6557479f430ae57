"""Where a run stands: which iteration its steps belong to, and what a checkpoint says of it.

    iterations   0 (before the loop) ─> 1 ─> 2 ─> ... ─> limit + 1 (after a loop that ran to its end)

After ``break`` a run still stands in the iteration it left, so that a resume enters it, replays it
and breaks again. A body that has no loop stands in 0, or counts by hand with ``emit(ITERATION)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_ckpt.control import found
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import RunMisused
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.messages import Message
from celery_ckpt.models import Entry
from celery_ckpt.restoring import Restored


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
        self.entry = Entry(conversation=begin.conversation, state=begin.state)
        #: The run's metadata at that entry.
        self.metadata = dict(begin.metadata)
        #: Has the body done by hand what only an exact checkpoint can hold? Before the loop that holds
        #: from the start, if it did so in an earlier attempt: an entry there would mean "not resumed".
        self.is_own_hand = self.by_hand or (begin.exact and begin.enters == 0)
        #: In this iteration the conversation holds already what recorded steps have added.
        self.exact = begin.iteration if begin.exact or self.by_hand else None
        #: Is the iteration over and the next one not begun?
        self.ended = False
        #: The messages of ``run.llm`` in this iteration that ask for a tool call, by its id.
        self.asked: dict[str, list[Message]] = {}
        #: How often each name was asked an idempotency key for in this iteration.
        self.keys: Counter[str] = Counter()
        self._next = max(begin.enters, 1)
        self._has_loop = False
        self._is_turning = False
        self._is_exhausted = False

    @property
    def is_past(self) -> bool:
        """Is this the code before a loop that an earlier attempt has been in? Its steps add nothing."""
        return self.steps == 0 and self.stands > 0

    @property
    def has_loop(self) -> bool:
        """Has the body asked for its iterations?"""
        return self._has_loop

    @property
    def is_turning(self) -> bool:
        """Is an iteration of the loop under way?"""
        return self._is_turning

    def begin_loop(self) -> None:
        """The body asks for its iterations. Raises ``RunMisused`` for a second time."""
        if self._has_loop:
            raise RunMisused(
                reason="A run has one run.iterations() loop: where would it go on in the second? "
                "Make one loop of both, or two runs."
            )
        if self.by_hand:
            raise RunMisused(
                reason="This run counts its iterations by run.emit(CheckpointEvent.ITERATION) outside "
                "of a loop, so it cannot have a run.iterations() loop. Use one of both."
            )
        self._has_loop = True

    def note_questions(self, messages: list[Message]) -> None:
        """The model has asked for the tool calls in these."""
        for message in messages:
            for call in message.tool_calls:
                self.asked.setdefault(call.id, []).append(message)

    def advance(
        self,
        limit: int | None,
        conversation: Conversation,
        state: dict[str, Any],
        metadata: dict[str, str],
    ) -> int | None:
        """Enter the next iteration, or what comes after the last."""
        entry = Entry(conversation=conversation, state=state)
        is_over = limit is not None and self._next > limit
        self._enter(self._next, entry)
        self.metadata = dict(metadata)
        self.iteration = self._next - 1 if is_over else self._next
        self._is_turning, self._is_exhausted = not is_over, is_over
        if is_over:
            return None
        self._next += 1
        return self.iteration

    def _enter(self, iteration: int, entry: Entry | None = None) -> None:
        self.steps = self.stands = iteration
        self.entry = entry or self.entry
        self.is_own_hand = self.ended = False
        self.asked, self.keys = {}, Counter()

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
        self._enter(self.iteration)
        self.by_hand = self.is_own_hand = True

    def of_snapshot(
        self,
        conversation: Conversation,
        state: dict[str, Any],
        metadata: dict[str, str],
        event: CheckpointEvent | None,
    ) -> dict[str, Any]:
        """What a checkpoint says of where it was taken."""
        if self.ended:
            return {"iteration": self.stands, "event": event or CheckpointEvent.ITERATION}
        if event is None and self._is_still_at_the_end(conversation, state, metadata):
            return {"iteration": self.iteration, "event": CheckpointEvent.ITERATION}
        entry = None if self.is_own_hand else self.entry
        return {"iteration": self.stands, "event": event, "entry": entry}

    def _is_still_at_the_end(
        self, conversation: Conversation, state: dict[str, Any], metadata: dict[str, str]
    ) -> bool:
        """Has the loop run to its end, and nothing changed since? Then the last iteration says all."""
        if not self._is_exhausted or self.is_own_hand:
            return False
        is_same_talk = conversation.extent == self.entry.conversation.extent
        return is_same_talk and (state, metadata) == (self.entry.state, self.metadata)
