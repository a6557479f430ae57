"""Where the model waits for the show: what is to happen amid its answer does so on any machine.

The show names an iteration; the model stops in it after some words, until another one is named or none.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery_ckpt.demo import ledger

#: So much of an answer is heard when something happens.
WORDS = 4
_LOOK_EVERY = 0.02


class Cue:
    """Of one side: a file beside its ledger."""

    def __init__(self, book: Path) -> None:
        self._path = book.with_suffix(".cue")

    def give(self, turn: int | None) -> None:
        """The iteration in which the model is to stop; ``None``: it is to go on."""
        # Appended: nobody ever reads a half of it.
        with self._path.open("a") as file:
            file.write(f"{turn or 0}\n")

    def keep(self, turn: int, words: int) -> None:
        """Wait as long as the model is to stop here."""
        while words == WORDS and self._named() == turn:
            time.sleep(_LOOK_EVERY)

    def _named(self) -> int:
        return int(self._path.read_text().split()[-1])


def here() -> Cue:
    """The cue for this worker process."""
    return Cue(Path(os.environ[ledger.PATH]))
