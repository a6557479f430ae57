"""Replay: which recorded step, if any, belongs to the call that the body makes now."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery_ckpt.conversation import Conversation
from celery_ckpt.messages import Message, ToolCall
from celery_ckpt.records import Step
from celery_ckpt.run.position import Place, Position, here
from celery_ckpt.run.steps import (
    StepBook,
    call_key,
    fingerprint,
    manual_call_key,
    nested_key,
    step_key,
    supplied_key,
)
from celery_ckpt.run.tool_results import asked_last
from celery_ckpt.usage import Usage

if TYPE_CHECKING:
    from celery_ckpt.run.agent_run import AgentRun

#: How many messages back a conversation is compared with the one that a recorded call got.
_LOOK_BACK = 64


class Inside:
    """The step whose function runs. Its key is part of the keys of the calls inside it."""

    def __init__(self, run: AgentRun, key: str) -> None:
        self.run, self.key = run, key
        #: How many idempotency keys each name got inside it.
        self.keys: Counter[str] = Counter()
        #: The keys of the calls inside it.
        self.claimed: set[str] = set()
        #: What was reported for the call itself, and what the calls inside it have used.
        self.reported, self.nested = Usage(), Usage()
        self._lock = threading.Lock()

    def report(self, usage: Usage) -> None:
        """Add to what the call itself has used."""
        with self._lock:
            self.reported += usage

    def add(self, usage: Usage) -> None:
        """Add to what the calls inside it have used."""
        with self._lock:
            self.nested += usage


_inside: ContextVar[Inside | None] = ContextVar("celery_ckpt_inside", default=None)


@contextmanager
def under_way(inside: Inside) -> Iterator[None]:
    """Run the function of a step inside this context."""
    token = _inside.set(inside)
    try:
        yield
    finally:
        _inside.reset(token)


def step_under_way(run: AgentRun) -> Inside | None:
    """Return the step of this run whose function is the caller; ``None`` outside a step."""
    inside = _inside.get()
    return inside if inside is not None and inside.run is run else None


class Recognition:
    """Finds the records of the calls of one attempt."""

    def __init__(self, run: AgentRun, position: Position, book: StepBook) -> None:
        self._run, self._at, self._book = run, position, book
        #: The thread and task of the body, once it has begun.
        self.home: Place | None = None

    def claim(self, name: str, args: Any, kwargs: dict[str, Any]) -> tuple[str, Step | None]:
        """Return the key of a call, and its record if there is one."""
        at, book = self._at, self._book
        # Only the calls that the body itself makes one after the other have the same order every time.
        inside = step_under_way(self._run)
        is_own = self.home == here() and inside is None
        base = self._base(name, args, kwargs)
        place = book.begin(at.steps, name, base) if is_own else None
        if at.is_past or at.is_complete:
            # All calls are recorded. Before the loop, they get the conversation and the state of a
            # later iteration, which match no record.
            key, step = book.claim_placed(at.steps, name, base, place, beside=at.is_past)
        else:
            key, step = book.claim(base, *self._shorter_bases(base, name, args, kwargs))
        book.put(key, place)
        if inside is not None:
            inside.claimed.add(key)
        return key, step

    def claim_supplied(
        self, supplied: str, args: Any, kwargs: dict[str, Any]
    ) -> tuple[str, Step | None, bool]:
        """Return the key of a call that its caller has identified, its record if there is one, and
        whether the arguments have changed since.
        """
        at, inside = self._at, step_under_way(self._run)
        key, step, is_same = self._book.claim_supplied(
            supplied_key(supplied), fingerprint(args, kwargs)
        )
        if inside is not None:
            inside.claimed.add(key)
        # The same exceptions as for calls without a key: there, other arguments are no change.
        is_checked = not (at.is_past or at.is_complete or at.exact == at.steps or inside)
        return key, step, is_checked and step is not None and not is_same

    def is_changed(self, key: str, name: str) -> bool:
        """True if another call is recorded in the place of this call, which has no record."""
        at = self._at
        return at.exact != at.steps and self._book.replaces(at.steps, name, self._book.place_of(key))

    def claim_call(self, call: ToolCall) -> tuple[str, Message | None, Step | None]:
        """Return the key of a tool call, the message that asked for it, and its record."""
        asking = self._at.asked.get(call.id)
        if asking is None:
            return self._claim_manual(call)
        n, key, step = self._book.claim_call(call_key(self._at.steps, call.id), len(asking))
        return key, asking[n], step

    def _claim_manual(self, call: ToolCall) -> tuple[str, None, Step | None]:
        """Claim a call that was asked for in an earlier iteration, or by the body itself.

        The conversation up to the question is part of its key: ids may be reused, and the same question
        may be asked again.
        """
        key, times = call_key(self._at.steps, call.id), 1
        spine, length = self._run.conversation.extent
        at = asked_last(spine.messages[:length], call.id)
        if at is None or not self._at.can_rebuild(spine.messages[at]):
            # The body has appended the question itself, and a replay does not append it.
            self._at.is_manual = True
        if self._at.is_past or at is None:
            # It was recorded, even if the conversation has changed since; or there is no question.
            key = self._book.first_manual_call(key)
        else:
            times = [one.id for one in spine.messages[at].tool_calls].count(call.id)
            key = manual_call_key(key, spine.digest(at + 1)[0])
        _, key, step = self._book.claim_call(key, times)
        return key, None, step

    def _shorter_bases(self, base: str, name: str, args: Any, kwargs: dict[str, Any]) -> list[str]:
        """Return other bases that the call may be recorded under.

        In an iteration that was restored exactly, the conversation may have grown since the call was
        made. Then a call that got a shorter conversation matches, too.
        """
        if self._at.exact != self._at.steps or base == self._base(name, args, kwargs, lambda _: ""):
            return []
        spine, length = self._run.conversation.extent
        shorter = range(length - 1, max(-1, length - 1 - _LOOK_BACK), -1)
        digests = [spine.digest(n)[0] for n in shorter]
        return [self._base(name, args, kwargs, lambda _, own=own: own) for own in digests]  # type: ignore[misc]

    def _base(
        self,
        name: str,
        args: Any,
        kwargs: dict[str, Any],
        digest: Callable[[Conversation], str] | None = None,
    ) -> str:
        def digest_of(conversation: Conversation) -> str:
            is_own = conversation is self._run.conversation
            return digest(conversation) if digest and is_own else conversation.digest

        inside = step_under_way(self._run)
        if inside is None:
            return step_key(self._at.steps, name, fingerprint(args, kwargs, digest_of))
        return nested_key(self._at.steps, name, fingerprint([*args, inside.key], kwargs, digest_of))
