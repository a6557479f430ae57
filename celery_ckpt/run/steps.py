"""Recorded steps: the keys that identify calls, and the book of the steps that are recorded.

The key of a tool call has its id and, if the body appended the question itself, a digest of the
conversation up to it. A key that the caller supplies identifies its call in the whole run; behind it is
the fingerprint of the arguments, only to notice a change. The key of any other call has its name, the
fingerprint of its arguments, and its number among equal calls. Positions would not work: parallel calls
end in any order.
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
from celery_ckpt.errors import RunMisused
from celery_ckpt.json_values import MAX_DEPTH, kind_of
from celery_ckpt.messages import Message, digested
from celery_ckpt.records import Step

#: Says that the body counts its iterations itself. No call has this key: keys have a second colon.
MANUAL = "0:manual"
#: The begin of a key that the caller has supplied. All others begin with a digit.
_SUPPLIED = "key:"
#: Before the fingerprint of a call that is made inside another call.
_NESTED = "in "
_LONGEST_PART = 200
_DIGITS = 32
_HUGE_BITS = 14_000

Digest = Callable[[Conversation], str]


def fingerprint(
    args: Sequence[Any], kwargs: dict[str, Any], digest: Digest = lambda own: own.digest
) -> str:
    """Return a digest of arguments, the same in every process for arguments that are equal as JSON.

    A value that is not JSON counts by the name of its type, since a ``repr`` may contain an address.
    """
    return _hash([_canonical(list(args), digest, 0), _canonical(kwargs, digest, 0)])


def _hash(canonical: Any) -> str:
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _canonical(value: Any, digest: Digest, depth: int) -> Any:
    if isinstance(value, Message):
        # Computed once per message: model calls get long lists of messages again and again.
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
            # By a digest, like a message: a message and its dict have the same fingerprint.
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
        # JSON cannot represent some field of it; then only its type counts.
        return None


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a function."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def call_key(iteration: int, call_id: str) -> str:
    """Return the key of a tool call. Some providers reuse ids in every reply."""
    return f"{iteration}:call:{_short(call_id)}"


def manual_call_key(key: str, said: str) -> str:
    """Return the key of a call whose question the body appended; ``said`` is a digest up to it."""
    return f"{key}@{said[:_DIGITS]}"


def step_key(iteration: int, name: str, print_: str) -> str:
    """Return the key of any other call, without its number among equal calls."""
    return f"{iteration}:{_short(name)}:{print_}"


def nested_key(iteration: int, name: str, print_: str) -> str:
    """Return the key of a call that is made inside another call, without its number."""
    return step_key(iteration, name, _NESTED + print_)


def supplied_key(key: str) -> str:
    """Return the key of a call that the caller has identified, without its fingerprint."""
    return f"{_SUPPLIED}{_short(key)}"


def _is_nested(key: str) -> bool:
    return key.rpartition(":")[0].rpartition(":")[2].startswith(_NESTED)


def _short(part: str) -> str:
    """Return the part of a key, or a digest of it: keys are short, and printable Unicode."""
    if len(part) <= _LONGEST_PART and part.isprintable():
        return part
    return hashlib.sha256(part.encode("utf-8", "surrogatepass")).hexdigest()


class StepBook:
    """The recorded steps of a run, and which of them this attempt has claimed. Thread-safe."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._lock = threading.Lock()
        #: In the order in which they were recorded.
        self._steps = {step.key: step for step in steps}
        self._before = list(self._steps.values())
        self._taken: set[str] = set()
        #: The whole keys of calls that their callers have identified, by the key without a fingerprint.
        self._supplied = {
            key.rpartition("@")[0]: key for key in self._steps if key.startswith(_SUPPLIED)
        }
        #: How many calls of each name the body itself has begun in each iteration.
        self._begun: Counter[tuple[int, str]] = Counter()
        #: The place of each claimed call among them.
        self._places: dict[str, int] = {}
        #: The iterations and names of calls without a record.
        self._missed: dict[tuple[int, str], None] = {}
        #: The keys of steps whose calls have changed.
        self._replaced: set[str] = set()

    @property
    def has_manual_iterations(self) -> bool:
        """True if the body counts its iterations itself."""
        return MANUAL in self._steps

    def up_to(self, key: str | None, first: int) -> set[str]:
        """Return the keys of the steps from iteration ``first`` on that were recorded up to ``key``."""
        keys = [step.key for step in self._before]
        if key not in keys:
            return set()
        return {step.key for step in self._before[: keys.index(key) + 1] if step.iteration >= first}

    def claim_call(self, key: str, times: int) -> tuple[int, str, Step | None]:
        """Claim one of ``times`` equal tool calls; returns its number, its key, and its record if any.

        One more claim returns the last call again, with its result.
        """
        with self._lock:
            keys = [key, *(f"{key}#{n}" for n in range(1, times))]
            n = next((n for n, own in enumerate(keys) if own not in self._taken), len(keys) - 1)
            return n, *self._take(keys[n])

    def first_manual_call(self, key: str) -> str:
        """Return the first unclaimed key of a manual tool call with that id; else this key."""
        with self._lock:
            unmet = (own for own in self._steps if own not in self._taken)
            return next((own for own in unmet if own == manual_call_key(key, own[-_DIGITS:])), key)

    def claim(self, *bases: str) -> tuple[str, Step | None]:
        """Claim the next key for a call; returns it, and its record if there is one.

        With several bases, it is the call that was recorded first among the matching ones.
        """
        with self._lock:
            free = [next(self._free(base)) for base in bases]
            fitting = [key for key in free if key in self._steps]
            return self._take(min(fitting, key=list(self._steps).index) if fitting else free[0])

    def claim_supplied(self, base: str, print_: str) -> tuple[str, Step | None, bool]:
        """Claim the call with a supplied key; returns its whole key, its record if there is one, and
        whether its arguments are those of the record.

        Raises:
            RunMisused: another call has this key.
        """
        with self._lock:
            known, key = self._supplied.get(base), f"{base}@{print_}"
            if known in self._taken:
                own = base.removeprefix(_SUPPLIED)
                raise RunMisused(
                    reason=f"Two calls of run.step have the key {own!r}. A key must be unique in its "
                    "run: add the iteration, or a number."
                )
            whole = known if known is not None and known in self._steps else key
            self._supplied[base] = whole
            return *self._take(whole), whole == key

    def claim_placed(
        self, iteration: int, name: str, base: str, place: int | None, *, beside: bool
    ) -> tuple[str, Step | None]:
        """Claim like ``claim``, but a call without a matching record is the one of that name and place.

        A parallel call has no place; with ``beside`` it is the first of its name that has none.
        """
        with self._lock:
            key = next(self._free(base))
            if key not in self._steps and (beside or place is not None):
                unmet = self._unmet(iteration, name)
                key = next((step.key for step in unmet if step.place == place), key)
            return self._take(key)

    def begin(self, iteration: int, name: str, base: str) -> int:
        """Return the place of a call that the body itself begins, among those of that name.

        Failed calls count, too. They have no record, so counting records would not work. A call that is
        tried again has the place of the one that failed.
        """
        with self._lock:
            if (failed := self._places.get(next(self._free(base)))) is not None:
                return failed
            place = self._begun[iteration, name]
            self._begun[iteration, name] += 1
            return place

    def put(self, key: str, place: int | None) -> None:
        """Remember the place of a claimed call."""
        if place is not None:
            self._places[key] = place

    def place_of(self, key: str) -> int | None:
        """Return the place of a call; ``None`` for a parallel call."""
        return self._places.get(key)

    def release(self, key: str) -> None:
        """Release a call that failed: when it is made again, it is the same call."""
        with self._lock:
            self._taken.discard(key)

    def keep(self, step: Step) -> None:
        """Remember a step that was just recorded."""
        with self._lock:
            self._steps[step.key] = step

    def replaces(self, iteration: int, name: str, place: int | None) -> bool:
        """True if another call is recorded in the place of a claimed call that has no record.

        Then the code or its arguments have changed.
        """
        with self._lock:
            replaced = [step.key for step in self._at(iteration, name, place)]
            self._replaced.update(replaced)
            if not replaced:
                self._missed[iteration, name] = None
            return bool(replaced)

    def changed(self, iteration: int | None = None) -> list[str]:
        """Return the names of parallel calls without a record, if one of that name is unclaimed.

        To be called at the end of the iteration (``None``: of the body), since parallel calls come in
        any order. Each name is returned once.
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
        # Steps inside a recorded call are not called again: that is not a change.
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
            if (step.iteration, step.name) == (iteration, name)
            and step.key not in self._taken
            and not step.key.startswith(_SUPPLIED)
        )
