"""Bytes that somebody forged, tore or mixed up, made of ones that were right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

_NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, -(2**63)]),
    st.floats(),
)
_TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "\x00", "../../etc/passwd", "a" * 600, "{agent}", "%7B", "\u202e", "-", "0"]),
)
_DEEP = st.integers(1, 400).map(lambda depth: _nested(depth))
#: Anything that JSON can say.
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@st.composite
def mangled_json(draw: Callable[..., Any], valid: Any) -> bytes:
    """A JSON value with some of its parts replaced, removed or added, as bytes."""
    value = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 3))):
        value = _changed(draw, value)
    return json.dumps(value).encode()


def _changed(draw: Callable[..., Any], value: Any) -> Any:
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        if not draw(st.integers(0, 4)):
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: _changed(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _changed(draw, value[at]), *value[at + 1 :]]
    return draw(st.one_of(VALUES, _DEEP))


@st.composite
def mangled_bytes(draw: Callable[..., Any], valid: bytes) -> bytes:
    """Bytes that are cut, repeated, or have some others in between."""
    data = valid
    for _ in range(draw(st.integers(1, 3))):
        at, to = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        data = data[:at] + draw(st.binary(max_size=6)) + data[to if draw(st.booleans()) else at :]
    return data


def mangled(valid: bytes) -> st.SearchStrategy[bytes]:
    """JSON bytes that are wrong in one way or the other; some are still right."""
    return mangled_json(json.loads(valid)) | mangled_bytes(valid) | st.binary(max_size=40)
