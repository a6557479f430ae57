"""Code that decodes must execute nothing. The interpreter's audit events report everything that would.

Threads that existed before are left out: threads that other tests have left running in this process may
connect to their server at any time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_EXECUTING = frozenset(
    {
        "compile",
        "ctypes.dlopen",
        "exec",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
        "os.system",
        "pickle.find_class",
        "marshal.loads",
        "socket.connect",
        "subprocess.Popen",
    }
)
_seen: list[str] | None = None
_others: frozenset[int | None] = frozenset()


def _record_event(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event in _EXECUTING and threading.get_ident() not in _others:
        _seen.append(f"{event} {str(arguments)[:200]}")


sys.addaudithook(_record_event)


@contextmanager
def nothing_executed() -> Iterator[None]:
    """Fail if anything is compiled, executed, unpickled, started or connected to inside the block."""
    global _seen, _others
    _others = frozenset(one.ident for one in threading.enumerate()) - {threading.get_ident()}
    _seen = seen = []
    try:
        yield
    finally:
        _seen = None
    assert not seen, seen
