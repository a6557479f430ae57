"""Which values survive a trip through JSON unchanged, and the one way they are written.

``plain`` copies a value out of the caller's hands and refuses, naming the path, whatever JSON would
change on the way: a NaN, bytes, a tuple, a key that is not text, a lone surrogate. ``encode`` and
``decode`` are exact inverses for everything that ``plain`` returns. A time is written as an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic_core import from_json, to_json

from celery_ckpt.errors import NotJson

#: Nesting that every decoder accepts, with room for what a record wraps around a value.
MAX_DEPTH: Final = 150
#: Python refuses to read integers of more than 4,300 digits from text.
_MAX_INTEGER_BITS: Final = 14_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def plain(value: Any, path: str, *, depth: int = 0) -> Any:
    """Return a deep copy of ``value`` that consists of plain JSON types only.

    Raises:
        NotJson: JSON cannot represent a part of it exactly; the error names the path.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value, path)
    if kind is bool or value is None:
        return value
    if kind is dict or isinstance(value, dict):
        if depth >= MAX_DEPTH:
            raise _too_deep(path)
        # A list: a parallel call may change a run's state during the copy.
        items = list(value.items())
        return {_key(k, path): plain(v, f"{path}.{k}", depth=depth + 1) for k, v in items}
    if kind is list or isinstance(value, list):
        if depth >= MAX_DEPTH:
            raise _too_deep(path)
        return [plain(v, f"{path}[{i}]", depth=depth + 1) for i, v in enumerate(value)]
    return _scalar(value, path)


#: Writes a plain value as compact JSON: one line, UTF-8, keys in their own order.
encode: Callable[[Any], bytes] = to_json


def decode(data: bytes | str) -> Any:
    """Read what ``encode`` wrote. Raises ``ValueError`` for anything that is not JSON."""
    return from_json(data, allow_inf_nan=False)


def microseconds(time: datetime) -> int:
    """Return a time as it is stored: microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    """Return the time this long after 1970. Raises ``ValueError`` if it is not a date."""
    try:
        return _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        raise ValueError(f"{microseconds} microseconds after 1970 is not a date") from None


def _scalar(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return _text(str.__str__(value), path)
    if isinstance(value, int):
        if value.bit_length() > _MAX_INTEGER_BITS:
            raise NotJson(path=path, reason="is an integer of more than 4,200 digits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(path=path, reason=f"is {float(value)}")
        return float(value)
    raise NotJson(path=path, reason=f"is of type {kind_of(value)}")


def kind_of(value: Any) -> str:
    """Return the name of a value's type for an error message."""
    module = type(value).__module__
    prefix = "" if module == "builtins" else f"{module}."
    return f"{prefix}{type(value).__qualname__}"


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NotJson(
            path=path, reason=f"contains a lone surrogate at character {error.start}"
        ) from None
    return value


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise NotJson(path=path, reason=f"has a key of type {kind_of(key)}")
    return _text(str.__str__(key), f"A key of {path}")


def _too_deep(path: str) -> NotJson:
    return NotJson(path=f"{path[:60]}...", reason=f"is nested deeper than {MAX_DEPTH} levels")
