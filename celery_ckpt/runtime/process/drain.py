"""The drain flag: by it a body in a pool child learns at once that the worker is shutting down.

It is one page of memory that parent and children share. It is made at import, before the pool forks;
with ``worker_pool_start_method = "spawn"`` the children find it by the name in an environment variable.
Celery's own ``worker_shutting_down`` comes too late in a cold shutdown, and not at all with SIGHUP and
``control.shutdown()``. So ``worker/bootstep.py`` sets the flag in signal handlers and in ``close``.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextlib import suppress
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from uuid import uuid4

from celery.signals import worker_process_init

from celery_ckpt.runtime.process.owner import is_known_dead, this_process

_ENVIRONMENT = "CELERY_CKPT_DRAIN"
#: Where Linux keeps shared memory that has a name, and the prefix of our names.
_MEMORY, _PREFIX = Path("/dev/shm"), "celery_ckpt."
#: Whether the worker is shutting down, whether warmly, and since when (monotonic, the same in all
#: processes of a boot).
_LAYOUT = struct.Struct("??d")
#: A child that ends its task with an exception right after the signal can make the worker hang.
_WARM_GRACE = 0.3
#: In a soft shutdown the parent's pending BRPOP, of one second, would swallow a published message.
_COLD_GRACE = 1.3


class Drain:
    """The flag, and how long a hand-off has to wait."""

    def __init__(self) -> None:
        self._page: mmap.mmap | memoryview = mmap.mmap(-1, mmap.PAGESIZE)
        self._shared: shared_memory.SharedMemory | None = None

    def share(self) -> None:
        """In the parent, before children are spawned: give the page a name."""
        _remove_leftovers()
        # Pid namespace, pid and start time say later whether the process is dead.
        process = this_process().rsplit("/", 3)[1:]
        name = f"{_PREFIX}{'-'.join(process)}-{uuid4().hex[:8]}"
        self._shared = shared_memory.SharedMemory(name, create=True, size=_LAYOUT.size)
        assert self._shared.buf is not None
        self._page = self._shared.buf
        os.environ[_ENVIRONMENT] = self._shared.name

    @property
    def name(self) -> str:
        """Return the name of the page, or "" if it has none."""
        return self._shared.name if self._shared is not None else ""

    def unshare(self) -> None:
        """In the parent, when it has stopped: remove the name."""
        if self._shared is not None and _ENVIRONMENT in os.environ:
            del os.environ[_ENVIRONMENT]
            self._shared.unlink()

    def attach(self) -> None:
        """In a spawned child: use the parent's page."""
        # Removed: a worker that this process starts is not a child of the parent.
        name = os.environ.pop(_ENVIRONMENT, None)
        if name and self._shared is None:
            self._shared = shared_memory.SharedMemory(name=name)
            # The parent removes it.
            resource_tracker.unregister(f"/{name}", "shared_memory")
            assert self._shared.buf is not None
            self._page = self._shared.buf

    def begin(self, *, warm: bool) -> None:
        """Set the flag: the worker is shutting down."""
        if not self.is_on:
            _LAYOUT.pack_into(self._page, 0, True, warm, time.monotonic())

    def end(self) -> None:
        """Clear the flag, for a worker that starts in the same process, and for tests."""
        _LAYOUT.pack_into(self._page, 0, False, False, 0.0)

    @property
    def is_on(self) -> bool:
        """True if the worker is shutting down."""
        return bool(self._page[0])

    @property
    def grace_left(self) -> float:
        """Return the seconds to wait before a message is published and the task ends."""
        on, warm, since = _LAYOUT.unpack_from(self._page, 0)
        if not on:
            return 0.0
        grace = _WARM_GRACE if warm else _COLD_GRACE
        return max(0.0, float(since) + grace - time.monotonic())


def _remove_leftovers() -> None:
    """Remove the pages of workers that were killed. They are small, but they would add up."""
    host, boot, *_ = this_process().rsplit("/", 4)
    for page in _MEMORY.glob(f"{_PREFIX}*"):
        owner = "/".join((host, boot, *page.name.removeprefix(_PREFIX).split("-")[:3]))
        if is_known_dead(owner):
            with suppress(OSError):  # it may belong to another user
                page.unlink()


#: The drain flag of this worker.
drain = Drain()


def connect() -> None:
    """Connect to Celery's signals."""
    uid = "celery_ckpt.drain"
    worker_process_init.connect(lambda **_: drain.attach(), weak=False, dispatch_uid=uid)
