"""What was called and what it cost: a file beside the store, because a bill must not depend on it.

A note is one ``write`` of one line to a file that is opened for appending, so that it is there whole or
not at all, whoever is killed. Times are ``time.monotonic()``, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The environment variables that tell a worker where the ledger is, and which worker it is.
PATH, WORKER = "CKPT_DEMO_LEDGER", "CKPT_DEMO_WORKER"


@dataclass(frozen=True)
class Note:
    """One line: what happened, when, in which worker."""

    what: str
    at: float
    worker: int
    facts: dict[str, Any]


class Ledger:
    """The notes of one side, from all its processes."""

    def __init__(self, path: Path, worker: int = 0) -> None:
        self.path, self._worker = path, worker
        self._read_to = 0

    def note(self, what: str, *, worker: int | None = None, **facts: Any) -> None:
        """Write down what happens now."""
        by = self._worker if worker is None else worker
        line = json.dumps([what, time.monotonic(), by, facts]) + "\n"
        # Without O_CREAT: a worker that dies late must not leave a file behind.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def news(self) -> list[Note]:
        """What was written since the last time this was asked."""
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            # What stands behind the last newline is still being written.
            lines = file.read().split(b"\n")[:-1]
        self._read_to += sum(len(line) + 1 for line in lines)
        return [Note(*json.loads(line)) for line in lines]


def here() -> Ledger:
    """The ledger of this worker process."""
    return Ledger(Path(os.environ[PATH]), int(os.environ[WORKER]))
