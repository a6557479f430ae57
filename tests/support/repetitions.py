"""The rule for the calls of a run: each is made once, except calls that were in flight at a fault."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

from tests.support.ledger import VARIABLE, Note, names
from tests.support.tasks.scenarios import count


@cache
def uninterrupted(n: int) -> list[Any]:
    """Return the result of counting to ``n`` without a fault."""
    with patch.dict(os.environ, {VARIABLE: os.devnull}):
        return count(n, 0)


def repetitions(
    run_id: str, n: int, notes: Sequence[Note], is_excused: Callable[[Note], bool] = lambda call: False
) -> int:
    """Return the number of repeated calls of a run.

    Fail if a call is missing, or if one that was recorded is repeated without an excuse.
    """
    wanted = {f"{what} {iteration}" for what in ("llm", "tool") for iteration in range(1, n + 1)}
    made = names(note for note in notes if note.what == "call")
    assert set(made) == wanted, f"run {run_id} made {made}"
    again = [call for call in called_after_record(notes) if not is_excused(call)]
    assert not again, f"these calls were recorded and are repeated: {again}"
    return len(made) - len(wanted)


def called_after_record(notes: Sequence[Note]) -> list[Note]:
    """Return the calls that were made after they had been recorded."""
    recorded: set[str] = set()
    again = []
    for note in notes:
        if note.what == "recorded":
            recorded.add(note["name"])
        elif note.what == "call" and note["name"] in recorded:
            again.append(note)
    return again
