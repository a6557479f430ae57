"""Forged, torn and mixed-up bytes, made from correct ones.

Everything is derived from a ``Random``: a number identifies a case, and gives the same case everywhere.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

_NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, -(2**63), 0.5, -0.0, 1e308)
_TEXTS = (
    "", "\x00", "../../etc/passwd", "a" * 600, "{agent}", "%7B", "\u202e", "-", "0", "0:1", "+0:9",
    "0:99999999999999", "1:1,0:1", "agent", "succeeded", "2026-01-01T00:00:00Z", "\U0001f600",
    "e\u0301", "*", "a b", "a:b", "\n", "__class__", "cos\nsystem\n(S'id'\ntR.", "!!python/object",
)  # fmt: skip
#: Characters of every kind: control, separators, letters, marks, beyond the basic plane, unassigned.
_CHARACTERS = (
    "\x00\x07\x1b\n\r\t \"'\\/%{}[]():*?~.-_aZ0"
    "\xe9\u0301\u200b\u2028\u202e\ufeff\uffff\u6f22\U0001f600\U0010ffff"
)


def any_text(chance: Random, longest: int = 12) -> str:
    """Return text with every kind of character."""
    if chance.random() < 0.4:
        return chance.choice(_TEXTS)
    return "".join(_character(chance) for _ in range(chance.randrange(longest)))


def _character(chance: Random) -> str:
    if chance.random() < 0.7:
        return chance.choice(_CHARACTERS)
    code = chance.randrange(0x110000)
    return "�" if 0xD800 <= code < 0xE000 else chr(code)


def any_value(chance: Random, depth: int = 3) -> Any:
    """Return anything that JSON can express, and some values that it cannot."""
    kind = chance.randrange(8 if depth else 5)
    if kind == 0:
        return chance.choice((None, True, False))
    if kind == 1:
        return chance.choice(_NUMBERS)
    if kind == 2:
        return chance.choice((float("nan"), float("inf"))) if chance.random() < 0.1 else chance.random()
    if kind < 5:
        return any_text(chance)
    if kind == 5:
        return nested(chance.randrange(1, 400))
    inner = [any_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return inner if kind == 6 else {any_text(chance): value for value in inner}


def nested(depth: int) -> Any:
    """Return a list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def changed(chance: Random, value: Any) -> Any:
    """Return the value with one of its parts replaced, removed or added."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(sorted(value))
        match chance.randrange(6):
            case 0:
                return {name: part for name, part in value.items() if name != key}
            case 1:
                return {**value, any_text(chance): any_value(chance)}
            case _:
                return {**value, key: changed(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], changed(chance, value[at]), *value[at + 1 :]]
    return any_value(chance)


def mangled_json(chance: Random, valid: Any) -> bytes:
    """Return a JSON value with up to three changed parts, as bytes."""
    value = valid
    for _ in range(chance.randrange(1, 4)):
        value = changed(chance, value)
    return json.dumps(value).encode()


def mangled_bytes(chance: Random, valid: bytes) -> bytes:
    """Return the bytes cut, repeated, or with others inserted."""
    data = valid
    for _ in range(chance.randrange(1, 4)):
        at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
        data = data[:at] + chance.randbytes(chance.randrange(7)) + data[chance.choice((at, to)) :]
    return data


def mangled(chance: Random, valid: bytes) -> bytes:
    """Return JSON bytes that are usually wrong in one of several ways. Some are still correct."""
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.randrange(40))
        case 1 | 2:
            return mangled_bytes(chance, valid)
        case _:
            return mangled_json(chance, json.loads(valid))
