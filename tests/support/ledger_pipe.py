"""A ledger that workers write through a pipe, which no limit on files and no full disk affects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from tests.support.ledger import Ledger

#: Does not occur in a note.
_END = b"\0"


@contextmanager
def piped(ledger: Ledger) -> Iterator[Path]:
    """Yield the path of a pipe. What is written to it is copied to the ledger."""
    path = ledger.path.with_suffix(".pipe")
    os.mkfifo(path)
    # Opened for reading and writing, so that both ends stay open when a worker dies.
    pipe = os.open(path, os.O_RDWR)
    copying = Thread(target=_copy, args=(pipe, ledger.path))
    copying.start()
    try:
        yield path
    finally:
        os.write(pipe, _END)
        copying.join()
        os.close(pipe)


def _copy(pipe: int, path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        while not (data := os.read(pipe, 1 << 16)).endswith(_END):
            file.write(data)
        file.write(data.removesuffix(_END))
