"""Any text of 1 to 512 characters is a name, and an id names its agent."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from celery_ckpt import Checkpoint, Conversation
from celery_ckpt.checkpoint import named
from celery_ckpt.errors import InvalidName
from celery_ckpt.names import MAX_NAME_LENGTH, checked_name, locator, names_its_agent

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIELD = TypeAdapter[str](Annotated[str, named("A run_id")])
NAMES = st.text(min_size=1, max_size=MAX_NAME_LENGTH)


def new_checkpoint_id(agent_id: str, created_at: datetime) -> str:
    return Checkpoint.new(agent_id, Conversation(), 0, created_at=created_at).id


class Label(str):
    __slots__ = ()


@pytest.mark.parametrize("name", ["a", "../../etc", "{tag}%", "a b\n\x00", "😀", "x" * MAX_NAME_LENGTH])
def test_any_text_up_to_the_limit_is_a_name(name: str) -> None:
    assert checked_name(name) == name


def test_the_limit_counts_characters_not_bytes() -> None:
    assert checked_name("😀" * MAX_NAME_LENGTH)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "has 0 characters"),
        ("x" * (MAX_NAME_LENGTH + 1), "has 513 characters"),
        ("a\ud800", "contains a lone surrogate"),
        (None, "is a NoneType"),
        (b"a", "is a bytes"),
        (3, "is a int"),
    ],
)
def test_a_name_that_cannot_be_stored_is_a_value_error_that_says_why(name: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^A run_id {reason}") as refused:
        checked_name(name, "A run_id")
    assert isinstance(refused.value, InvalidName)
    assert refused.value.limit == MAX_NAME_LENGTH


@given(
    st.one_of(
        st.text(st.characters(), max_size=3),
        st.integers(510, 514).map("x".__mul__),
        st.integers(510, 514).map("😀".__mul__),
        st.sampled_from([None, b"a", 3, True, bytearray(b"a"), ["a"], Label("a"), Label("")]),
    )
)
def test_a_field_of_a_record_accepts_exactly_the_names(name: Any) -> None:
    try:
        wanted = checked_name(name, "A run_id")
    except InvalidName:
        with pytest.raises(ValidationError, match="A run_id must be text of 1 to 512 characters"):
            FIELD.validate_python(name)
    else:
        assert FIELD.validate_python(name) == wanted


@given(NAMES)
def test_a_locator_is_safe_in_any_file_name_or_key(agent_id: str) -> None:
    assert re.fullmatch("[a-z2-7]{16}", locator(agent_id))


def test_a_locator_never_changes() -> None:
    assert locator("agent-1") == locator("agent-1") == "n7z3hpiryrgkyyqm"


@given(NAMES, NAMES)
def test_an_id_identifies_its_agent_and_no_other(agent_id: str, other: str) -> None:
    checkpoint_id = new_checkpoint_id(agent_id, NOW)
    assert names_its_agent(checkpoint_id, agent_id)
    assert names_its_agent(checkpoint_id, other) == (other == agent_id)


def test_ids_created_at_the_same_time_differ() -> None:
    assert len({new_checkpoint_id("a", NOW) for _ in range(1000)}) == 1000


@given(st.integers(0, 10**15), st.integers(1, 10**15))
def test_ids_sort_by_the_microsecond_of_their_creation(microseconds: int, later: int) -> None:
    first, second = (
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)
        for moment in (microseconds, microseconds + later)
    )
    assert new_checkpoint_id("a", first) < new_checkpoint_id("a", second)


def test_an_id_is_a_valid_name() -> None:
    checkpoint_id = new_checkpoint_id("x" * MAX_NAME_LENGTH, NOW)
    assert checked_name(checkpoint_id) == checkpoint_id
