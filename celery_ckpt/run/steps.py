"""Recorded steps: how a call is recognised, and the book that knows which ones were made.

A tool call is known by its id, and by what was said up to its question if the body appended that; any
other call by its name, the fingerprint of its arguments and which of the equal ones it is. Positions
would not do: parallel calls finish in any order.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from pydantic import BaseModel

from celery_ckpt.conversation import Conversation
from celery_ckpt.json_values import MAX_DEPTH, kind_of
from celery_ckpt.messages import Message, digested
from celery_ckpt.records import Step

#: Says that the body counts its iterations itself. It is no call's key: those have a second colon.
MANUAL = "0:manual"
#: Before the fingerprint of a call that is made inside of another one.
_NESTED = "in "
_LONGEST_PART = 200
_DIGITS = 32
_HUGE_BITS = 14_000

Digest = Callable[[Conversation], str]


def fingerprint(
    args: Sequence[Any], kwargs: dict[str, Any], digest: Digest = lambda own: own.digest
) -> str:
    """A digest of arguments, equal in every process for arguments that are equal as JSON.

    What is not JSON counts by its type's name, since a ``repr`` may hold an address.
    """
    return _hash([_canonical(list(args), digest, 0), _canonical(kwargs, digest, 0)])


def _hash(canonical: Any) -> str:
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _canonical(value: Any, digest: Digest, depth: int) -> Any:
    if isinstance(value, Message):
        # Made once for each message: model calls are given long lists of them, again and again.
        return digested(value, _canonical_object)
    if value is None or isinstance(value, str | bool | float):
        return value
    if isinstance(value, int) and value.bit_length() < _HUGE_BITS:
        return value
    if isinstance(value, Conversation):
        return {"conversation": digest(value)}
    if depth < MAX_DEPTH:
        if isinstance(value, list | tuple):
            return [_canonical(item, digest, depth + 1) for item in value]
        if isinstance(value, dict):
            # By a digest, as a message is: the two are the same.
            return {
                "object": _hash({_key(k): _canonical(v, digest, depth + 1) for k, v in value.items()})
            }
        if isinstance(value, BaseModel):
            return {"type": kind_of(value), "json": _dump(value, digest, depth)}
    return {"type": kind_of(value)}


def _canonical_object(value: dict[str, Any]) -> Any:
    return _canonical(value, str, 0)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else f"{kind_of(key)} {_canonical(key, str, MAX_DEPTH)}"


def _dump(model: BaseModel, digest: Digest, depth: int) -> Any:
    try:
        return _canonical(model.model_dump(mode="json", warnings=False), digest, depth + 1)
    except ValueError:
        # Some field of it has no JSON; then its type must do.
        return None


def name_of(fn: Callable[..., Any]) -> str:
    """What a function is called."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def call_key(iteration: int, call_id: str) -> str:
    """The key of a tool call. Some providers number their calls anew in every answer."""
    return f"{iteration}:call:{_short(call_id)}"


def manual_call_key(key: str, said: str) -> str:
    """That of one whose question the body appended; ``said`` is the digest of all up to that."""
    return f"{key}@{said[:_DIGITS]}"


def step_key(iteration: int, name: str, print_: str) -> str:
    """The key of any other call, but for which of the equal ones it is."""
    return f"{iteration}:{_short(name)}:{print_}"


def nested_key(iteration: int, name: str, print_: str) -> str:
    """The same for a call that is made inside of another one."""
    return step_key(iteration, name, _NESTED + print_)


def _is_nested(key: str) -> bool:
    return key.rpartition(":")[0].rpartition(":")[2].startswith(_NESTED)


def _short(part: str) -> str:
    """Keys have a limit, and must be Unicode; a digest stands for what is neither."""
    if len(part) <= _LONGEST_PART and part.isprintable():
        return part
    return hashlib.sha256(part.encode("utf-8", "surrogatepass")).hexdigest()


class StepBook:
    """The recorded steps of a run, and which of them this attempt has met again. Thread-safe."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._lock = threading.Lock()
        #: In the order in which they were recorded.
        self._steps = {step.key: step for step in steps}
        self._before = list(self._steps.values())
        self._taken: set[str] = set()
        #: How many calls of each name the body itself has begun in each iteration.
        self._begun: Counter[tuple[int, str]] = Counter()
        #: Which of them each claimed call is.
        self._places: dict[str, int] = {}
        #: The iterations and names of calls that no record was found for.
        self._missed: dict[tuple[int, str], None] = {}
        #: The records of calls that are known to have changed.
        self._replaced: set[str] = set()

    @property
    def has_manual_iterations(self) -> bool:
        """Has the body counted its iterations itself?"""
        return MANUAL in self._steps

    def up_to(self, key: str | None, first: int) -> set[str]:
        """The keys of the steps, from an iteration on, that were recorded up to that one; none if it is
        not there.
        """
        keys = [step.key for step in self._before]
        if key not in keys:
            return set()
        return {step.key for step in self._before[: keys.index(key) + 1] if step.iteration >= first}

    def claim_call(self, key: str, times: int) -> tuple[int, str, Step | None]:
        """Which one of equal tool calls this is, its key, and its record if there is one.

        It was asked for so many times; one time more is the last one again, with its result.
        """
        with self._lock:
            keys = [key, *(f"{key}#{n}" for n in range(1, times))]
            n = next((n for n, own in enumerate(keys) if own not in self._taken), len(keys) - 1)
            return n, *self._take(keys[n])

    def first_manual_call(self, key: str) -> str:
        """The first key of a tool call by hand, with that id, that nobody has met; else this one."""
        with self._lock:
            unmet = (own for own in self._steps if own not in self._taken)
            return next((own for own in unmet if own == manual_call_key(key, own[-_DIGITS:])), key)

    def claim(self, *bases: str) -> tuple[str, Step | None]:
        """The next key for a call, and its record if there is one.

        With several bases, it is the call that was recorded first of all that fit.
        """
        with self._lock:
            free = [next(self._free(base)) for base in bases]
            fitting = [key for key in free if key in self._steps]
            return self._take(min(fitting, key=list(self._steps).index) if fitting else free[0])

    def claim_placed(
        self, iteration: int, name: str, base: str, place: int | None, *, beside: bool
    ) -> tuple[str, Step | None]:
        """Like ``claim``, but a call that fits no record is the one of that name and place. One that is
        made beside others has no place; with ``beside`` it is the first of its name that has none.
        """
        with self._lock:
            key = next(self._free(base))
            if key not in self._steps and (beside or place is not None):
                unmet = self._unmet(iteration, name)
                key = next((step.key for step in unmet if step.place == place), key)
            return self._take(key)

    def begin(self, iteration: int, name: str, base: str) -> int:
        """The body itself, and nothing beside it, begins a call of that name: which one is it?

        Calls that fail are counted too. They have no record, so counting records would not do. One that
        is tried again is the one that failed.
        """
        with self._lock:
            if (failed := self._places.get(next(self._free(base)))) is not None:
                return failed
            place = self._begun[iteration, name]
            self._begun[iteration, name] += 1
            return place

    def put(self, key: str, place: int | None) -> None:
        """Remember which one a claimed call is."""
        if place is not None:
            self._places[key] = place

    def place_of(self, key: str) -> int | None:
        """Which one it is; ``None`` if it was made beside others."""
        return self._places.get(key)

    def release(self, key: str) -> None:
        """The call failed: whoever makes it again is the same one."""
        with self._lock:
            self._taken.discard(key)

    def keep(self, step: Step) -> None:
        """Remember a step that was just recorded."""
        with self._lock:
            self._steps[step.key] = step

    def replaces(self, iteration: int, name: str, place: int | None) -> bool:
        """Is there a record of another call in the place of one that was just claimed, and found none?
        Then the code, or what it was given, is another than it was.
        """
        with self._lock:
            replaced = [step.key for step in self._at(iteration, name, place)]
            self._replaced.update(replaced)
            if not replaced:
                self._missed[iteration, name] = None
            return bool(replaced)

    def changed(self, iteration: int | None = None) -> list[str]:
        """The names of other calls that found no record while one of that name was left over. To be
        asked when the iteration (``None``: the body) is over, since calls side by side come in any
        order. Each is named once.
        """
        with self._lock:
            missed = [each for each in self._missed if iteration in (None, each[0])]
            for each in missed:
                del self._missed[each]
            return [name for at, name in missed if any(self._left_over(at, name))]

    def _at(self, iteration: int, name: str, place: int | None) -> Iterator[Step]:
        if place is None:
            return iter(())
        return (step for step in self._left_over(iteration, name) if step.place == place)

    def _left_over(self, iteration: int, name: str) -> Iterator[Step]:
        # What was recorded inside of a recorded call is not called again: that is no change.
        unmet = (step for step in self._unmet(iteration, name) if not _is_nested(step.key))
        return (step for step in unmet if step.key not in self._replaced)

    def _take(self, key: str) -> tuple[str, Step | None]:
        self._taken.add(key)
        return key, self._steps.get(key)

    def _free(self, base: str) -> Iterator[str]:
        keys = (f"{base}:{n}" for n in count())
        return (key for key in keys if key not in self._taken)

    def _unmet(self, iteration: int, name: str) -> Iterator[Step]:
        return (
            step
            for step in self._before
            if (step.iteration, step.name) == (iteration, name) and step.key not in self._taken
        )
