"""All checks by name. A check takes a ``Random``, makes a case from it, and fails if the case
does harm.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from tests.fuzz import decoders, import_command, imports, redis_keys, stored_files

Check = Callable[[Random], None]
CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check
    for module in (decoders, imports, import_command, stored_files, redis_keys)
    for name, check in vars(module).items()
    if name.startswith("check_")
}
#: Seconds. A case that takes longer has found a way to keep a process busy.
_LONGEST = 20


@contextmanager
def _in_time() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeoutError(f"it took more than {_LONGEST} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(_LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_case(name: str, seed: int, number: int) -> None:
    """Make a case, and check that it does no harm."""
    with _in_time():
        CHECKS[name](Random(f"{name} {seed} {number}"))
