"""The positions of messages in a log: whatever is done to ranges, they refer to the same messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ckpt.stores.log.ranges import Ranges, Span, freshen

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5), st.booleans()), max_size=6)
BASES = st.integers(0, 100)


def of_offsets(wanted: list[int]) -> Ranges:
    return Ranges.of((offset, 1, False) for offset in wanted)


def offsets(spans: list[Span], base: int) -> list[int]:
    """Return the offsets that spans stand for, in the simplest way."""
    return [start + base * new + i for start, count, new in spans for i in range(count)]


@given(SPANS, BASES)
def test_ranges_at_a_base_are_the_offsets_of_their_spans(spans: list[Span], base: int) -> None:
    ranges = Ranges.of(spans)
    assert list(ranges.at(base)) == offsets(spans, base)
    assert ranges.count == len(offsets(spans, base))


@given(SPANS, BASES)
def test_placed_spans_are_equivalent_to_merged_ones(spans: list[Span], base: int) -> None:
    placed = Ranges.of(spans).placed(base)
    assert offsets(placed, 0) == offsets(spans, base)
    assert not any(new for _, _, new in placed)


@given(SPANS)
def test_ranges_survive_serialization(spans: list[Span]) -> None:
    ranges = Ranges.of(spans)
    assert Ranges.parse(str(ranges)) == ranges


@given(SPANS, st.integers(0, 30), st.integers(0, 30), BASES)
def test_a_cut_is_a_slice(spans: list[Span], start: int, stop: int, base: int) -> None:
    cut = Ranges.of(spans).cut(start, stop)
    assert list(cut.at(base)) == offsets(spans, base)[start:stop]
    assert cut.count == len(offsets(spans, base)[start:stop])


@given(SPANS, SPANS, BASES)
def test_a_sum_concatenates_ranges(first: list[Span], second: list[Span], base: int) -> None:
    both = Ranges.of(first) + Ranges.of(second)
    assert list(both.at(base)) == offsets([*first, *second], base)


@given(SPANS, st.integers(0, 9), BASES)
def test_after_shifts_only_new_offsets(spans: list[Span], count: int, base: int) -> None:
    moved = Ranges.of(spans).after(count)
    assert list(moved.at(base)) == offsets([(s + count * new, n, new) for s, n, new in spans], base)


@given(st.lists(st.integers(0, 50)))
def test_single_offsets_form_equivalent_ranges(wanted: list[int]) -> None:
    assert list(of_offsets(wanted)) == wanted


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.just(False))))
def test_a_union_has_every_offset_once_and_in_order(spans: list[tuple[int, int, bool]]) -> None:
    union = Ranges.union(spans)
    assert list(union) == sorted(
        {at for start, count, _ in spans for at in range(start, start + count)}
    )
    assert all(end < start for (_, end), (start, _) in pairwise(_edges(union)))


def _edges(ranges: Ranges) -> list[tuple[int, int]]:
    return [(start, start + count) for start, count, _ in ranges.spans]


@given(SPANS)
def test_the_low_end_is_the_smallest_old_offset(spans: list[Span]) -> None:
    old = [start for start, _, new in spans if not new]
    ranges = Ranges.of(spans)
    assert ranges.low == (str(min(old)) if old else "-")
    assert ranges.place == f"{ranges.low} {ranges}"


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        (Ranges(), "-"),
        (Ranges.all_new(0), "-"),
        (Ranges.all_new(3), "+0:3"),
        (of_offsets([0, 1, 2, 7, 8]), "0:3,7:2"),
        (of_offsets([2, 1, 0]), "2:1,1:1,0:1"),
        (Ranges.of([(0, 40, False), (0, 2, True)]), "0:40,+0:2"),
        (Ranges.of([(0, 2, True), (2, 1, True), (3, 1, False)]), "+0:3,3:1"),
    ],
)
def test_adjacent_ranges_are_written_as_one(ranges: Ranges, text: str) -> None:
    assert str(ranges) == text


def test_new_messages_merge_with_the_old_ones_they_follow() -> None:
    assert str(Ranges.of([(0, 40, False), (0, 2, True)]).at(40)) == "0:42"


def test_ranges_compare_and_hash_by_value() -> None:
    assert of_offsets([1, 2]) == Ranges.of([(1, 2, False)])
    assert hash(of_offsets([1, 2])) == hash(Ranges.of([(1, 2, False)]))
    assert of_offsets([1, 2]) != Ranges.of([(1, 2, True)])
    assert of_offsets([1, 2]) != "1:2"


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "0", "0:", ":1", "0:0", "0:-1", "-1:2", "+-1:2", "++0:1", "a:b", "0:1,", "0:1;2:1"),
        *("0.5:1", "0:1:1", "0x1:1", "- ", "--"),
    ],
)
def test_invalid_text_is_not_read_as_ranges(text: str) -> None:
    with pytest.raises(ValueError, match="expected a range"):
        Ranges.parse(text)


FOUND = st.lists(st.none() | st.integers(0, 200), max_size=30)


@given(FOUND)
def test_freshening_never_changes_an_offset_it_keeps(found: list[int | None]) -> None:
    fresh = freshen(found)
    assert len(fresh) == len(found)
    assert all(new in (None, old) for old, new in zip(found, fresh, strict=True))


@given(FOUND)
def test_freshening_frees_four_times_what_it_rewrites(found: list[int | None]) -> None:
    before = {at for at in found if at is not None}
    after = {at for at in freshen(found) if at is not None}
    again = before - after
    if again:
        freed = set(range(min(before), min(after))) - again
        assert len(freed) >= 4 * len(again)


@given(FOUND)
def test_freshening_is_idempotent(found: list[int | None]) -> None:
    assert freshen(freshen(found)) == freshen(found)


@pytest.mark.parametrize(
    ("found", "fresh"),
    [
        ([], []),
        ([None, None], [None, None]),
        ([0, 1, 2], [0, 1, 2]),
        ([0, 4], [0, 4]),
        ([0, 5], [None, 5]),
        ([0, 1, 9, None], [0, 1, 9, None]),
        ([0, 1, 10, None], [None, None, 10, None]),
        ([500, 0], [500, None]),
        ([0, 0, 100], [None, None, 100]),
    ],
)
def test_ranges_with_too_much_garbage_are_rewritten(
    found: list[int | None], fresh: list[int | None]
) -> None:
    assert freshen(found) == fresh
