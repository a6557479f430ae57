"""What JSON represents exactly is kept exactly. Everything else is refused with its path."""

from __future__ import annotations

import json
from collections import OrderedDict, UserDict, namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ckpt import Conversation, Message
from celery_ckpt.errors import NotJson
from celery_ckpt.json_values import MAX_DEPTH, decode, encode, plain

LARGEST_INTEGER = 2**14_000 - 1
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    value: Any = 0
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def a_list_in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@given(JSON_VALUES)
def test_any_json_value_round_trips(value: Any) -> None:
    # json.dumps distinguishes 1 from true and -0.0 from 0.0, which == does not.
    assert json.dumps(decode(encode(plain(value, "value")))) == json.dumps(value)


@given(JSON_VALUES)
def test_json_is_written_on_one_line(value: Any) -> None:
    assert b"\n" not in encode(plain(value, "value"))


@pytest.mark.parametrize(
    "value",
    [
        *(1e22, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e16),
        *(2**63, -(2**64), 10**300, LARGEST_INTEGER, -LARGEST_INTEGER),
        *("\u2028\u2029\x85", "\x00", "😀\uffff\ufeff", "\\ud800"),
    ],
)
def test_values_that_break_other_encoders_round_trip(value: Any) -> None:
    assert repr(decode(encode(plain(value, "value")))) == repr(value)


def test_the_order_of_keys_is_kept() -> None:
    assert list(decode(encode(plain({"b": 1, "a": 2, "": 3}, "value")))) == ["b", "a", ""]


def test_the_deepest_allowed_value_round_trips() -> None:
    value = nested(MAX_DEPTH)
    assert decode(encode(plain(value, "value"))) == value


def test_a_copy_shares_nothing_with_its_original() -> None:
    original = {"a": [{"b": 1}]}
    copy = plain(original, "value")
    original["a"][0]["b"] = 2
    assert copy == {"a": [{"b": 1}]}


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Ratio(float):
    pass


@pytest.mark.parametrize(
    ("given_value", "kept"),
    [
        (Colour.RED, "red"),
        (Number.ONE, 1),
        (Ratio(0.5), 0.5),
        (OrderedDict(a=1), {"a": 1}),
        ({Colour.RED: 1}, {"red": 1}),
    ],
)
def test_subclasses_of_json_types_become_plain_types(given_value: Any, kept: Any) -> None:
    copy = plain(given_value, "value")
    assert copy == kept
    assert type(copy) is type(kept)


Pair = namedtuple("Pair", "x y")

REFUSED: dict[str, tuple[Any, str, str]] = {
    "lone surrogate": ("ab\ud800", "message.content[1].x", "contains a lone surrogate at character 2"),
    "nan": (float("nan"), "message.content[1].x", "is nan"),
    "infinity": (float("inf"), "message.content[1].x", "is inf"),
    "minus infinity": (float("-inf"), "message.content[1].x", "is -inf"),
    "bytes": (b"x", "message.content[1].x", "is of type bytes"),
    "bytearray": (bytearray(b"x"), "message.content[1].x", "is of type bytearray"),
    "tuple": ((1, 2), "message.content[1].x", "is of type tuple"),
    "named tuple": (Pair(1, 2), "message.content[1].x", f"is of type {__name__}.Pair"),
    "set": ({1}, "message.content[1].x", "is of type set"),
    "object": (object(), "message.content[1].x", "is of type object"),
    "class": (int, "message.content[1].x", "is of type type"),
    "complex": (1j, "message.content[1].x", "is of type complex"),
    "decimal": (Decimal(1), "message.content[1].x", "is of type decimal.Decimal"),
    "date": (datetime.now(UTC), "message.content[1].x", "is of type datetime.datetime"),
    "mapping": (UserDict(a=1), "message.content[1].x", "is of type collections.UserDict"),
    "generator": ((i for i in "a"), "message.content[1].x", "is of type generator"),
    "integer key": ({1: 2}, "message.content[1].x", "has a key of type int"),
    "None key": ({None: 2}, "message.content[1].x", "has a key of type NoneType"),
    "bytes key": ({b"k": 2}, "message.content[1].x", "has a key of type bytes"),
    "surrogate key": ({"\udfff": 2}, "A key of message.content[1].x", "contains a lone surrogate"),
    "deep inside": ({"y": [0, {"z": {1}}]}, "message.content[1].x.y[1].z", "is of type set"),
    "giant integer": (LARGEST_INTEGER + 1, "message.content[1].x", "is an integer of more than"),
    "too deep": (nested(MAX_DEPTH), "message.content[1].x", "is nested deeper than 150 levels"),
    "endless": (a_list_in_itself(), "message.content[1].x[0]", "is nested deeper than 150 levels"),
}


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED.values(), ids=REFUSED)
def test_append_refuses_values_that_json_would_change_and_names_the_path(
    value: Any, path: str, reason: str
) -> None:
    conversation = Conversation(messages=[Message.user("before")])
    unchanged = conversation.copy()
    with pytest.raises(NotJson) as refused:
        conversation.append({"role": "user", "content": ["ok", {"x": value}]})
    assert refused.value.path.startswith(path)
    assert refused.value.reason.startswith(reason)
    assert str(refused.value).startswith(f"{refused.value.path} {refused.value.reason}. ")
    assert conversation == unchanged


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_refused_values_raise_a_value_error(value: tuple[Any, str, str]) -> None:
    with pytest.raises(ValueError, match="that JSON represents exactly"):
        plain({"x": value[0]}, "message")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"NaN", b"Infinity", b"[1,]", b"{'a': 1}", b"\xff", b'"\\ud800"', b"[" * 1000, b"1 2"],
)
def test_invalid_json_cannot_be_decoded(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"at line 1 column"):
        decode(data)


def test_a_value_that_changes_while_it_is_copied_can_still_be_copied() -> None:
    class Busy(int):
        def bit_length(self) -> int:
            value["later"] = 2
            return super().bit_length()

    value: dict[str, Any] = {"now": Busy(1)}
    assert plain(value, "value") == {"now": 1}
    assert plain(value, "value") == {"now": 1, "later": 2}
