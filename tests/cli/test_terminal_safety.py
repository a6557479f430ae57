"""Stored text cannot control a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ckpt.cli.output.text import (
    age,
    as_json_line,
    bytes_of,
    counted,
    excerpt,
    one_line,
    visible,
    visible_json,
)

#: Characters that terminals obey (except newline), and characters that change the direction of a line.
HARMFUL = {
    *map(chr, [*range(10), *range(11, 32), *range(0x7F, 0xA0)]),
    *"\u202a\u202d\u202e\u2066\u2069",
}
ANYTHING = st.text(st.characters() | st.sampled_from(sorted(HARMFUL)))


@given(ANYTHING, st.integers(10, 50))
def test_no_control_characters_are_left(text: str, limit: int) -> None:
    for made in (visible(text), one_line(text), one_line(text, limit), excerpt(text, limit)):
        assert not set(made) & HARMFUL
        made.encode()
    assert "\n" not in one_line(text)
    assert len(one_line(text, limit)) <= limit


@given(ANYTHING)
def test_escaped_json_is_printable_and_exact(text: str) -> None:
    written = as_json_line({"text": text})
    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written) == {"text": text}


@given(ANYTHING)
def test_a_line_of_json_is_escaped_and_means_the_same(text: str) -> None:
    line = json.dumps({"text": text.encode(errors="ignore").decode()}, ensure_ascii=False)
    made = visible_json(f"{line}\n".encode()).decode()
    assert not set(made[:-1]) & HARMFUL
    assert made.endswith("}\n")
    assert json.loads(made) == json.loads(line)


def test_harmless_text_is_unchanged() -> None:
    text = "Grüße, 世界 👩‍🚀\n  indented"
    assert visible(text) == text
    assert visible("a\tb\r\nc") == "a    b\nc"
    assert visible("\x1b[31m") == "\\x1b[31m"


def test_a_long_text_is_shown_by_its_start_and_end() -> None:
    shown = excerpt("a" * 900 + "b" * 100, 200)
    assert shown == "a" * 150 + "\n… 800 characters omitted …\n" + "b" * 50
    assert excerpt("short", 200) == "short"


def test_a_text_that_is_only_a_little_too_long_is_not_cut() -> None:
    assert excerpt("a" * 250, 200) == "a" * 250
    assert "51 characters omitted" in excerpt("a" * 251, 200)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-5, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7_200, "2 h ago"), (200_000, "2 d ago")],
)
def test_ages_are_rough(seconds: int, said: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age(now - timedelta(seconds=seconds), now) == said


def test_numbers_have_units() -> None:
    assert [bytes_of(n) for n in (0, 999, 1_000, 1_500_000, 2e9)] == [
        *("0 B", "999 B", "1.0 kB", "1.5 MB", "2.0 GB"),
    ]
    assert (counted(1, "run"), counted(1_000, "run")) == ("1 run", "1,000 runs")
