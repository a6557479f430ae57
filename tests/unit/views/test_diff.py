"""What differs between two checkpoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_ckpt import Conversation, Message
from celery_ckpt.testing.factories import make_checkpoint
from celery_ckpt.views.diff import Change, Edit, difference


def of(letters: str, **fields: object) -> object:
    conversation = Conversation(messages=[Message.user(letter) for letter in letters])
    return make_checkpoint("agent", conversation, **fields)


def test_checkpoints_with_equal_content_do_not_differ() -> None:
    found = difference(of("abc", state={"a": [1]}), of("abc", state={"a": [1]}))
    assert not found
    assert found.shared == 3


def test_every_value_that_differs_is_named_by_its_path() -> None:
    old = of(
        "a", iteration=1, state={"same": 0, "n": 1, "in": {"x": 1, "gone": None}}, metadata={"m": "1"}
    )
    new = of("a", iteration=2, state={"same": 0, "n": True, "in": {"x": 2, "new": []}}, metadata={})
    assert difference(old, new).changes == [
        Change("iteration", 1, 2),
        Change("metadata.m", "1", None, has_new=False),
        Change("state.n", 1, True),
        Change("state.in.x", 1, 2),
        Change("state.in.gone", None, None, has_new=False),
        Change("state.in.new", None, [], has_old=False),
    ]


def test_a_compaction_is_one_edit_with_the_removed_and_added_messages() -> None:
    [edit] = difference(of("abcdefg"), of("aXfg")).edits
    texts = [[message.text for message in side] for side in (edit.removed, edit.added)]
    assert (edit.old_at, edit.new_at, texts) == (1, 1, [["b", "c", "d", "e"], ["X"]])


LETTERS = st.text("abc", max_size=8)


@given(LETTERS, LETTERS)
def test_the_edits_transform_one_conversation_into_the_other(old: str, new: str) -> None:
    found = difference(of(old), of(new))
    made, at = "", 0
    for edit in found.edits:
        made += old[at : edit.old_at]
        assert len(made) == edit.new_at
        made += "".join(message.text for message in edit.added)
        at = edit.old_at + len(edit.removed)
    assert made + old[at:] == new
    assert bool(found) is (old != new)


def test_very_long_differences_are_one_edit() -> None:
    found = difference(of("a" * 3_000), of("b" * 3_000))
    assert [type(edit) for edit in found.edits] == [Edit]
    assert found.shared == 0
