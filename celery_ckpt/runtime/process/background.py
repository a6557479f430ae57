"""Work that no worker slot waits for: one thread a process does it, in the order it was asked for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)

#: Seconds. The next task begins just now, and should not have to share the interpreter for that.
_MANNERS = 0.003


class BackgroundThread:
    """Does things one after the other, beside the tasks of this process."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def do(self, action: Callable[[], object]) -> None:
        """Do it soon."""
        self._queue.put(action)
        with self._lock:
            if self._thread is None:
                name = "celery_ckpt-aside"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    def finish(self, seconds: float) -> bool:
        """Wait until all that was asked for is done, at most so long. Says whether it is."""
        done = threading.Event()
        if self._thread is None:
            return True
        self._queue.put(done.set)
        return done.wait(seconds)

    def _work(self) -> None:
        while True:
            action = self._queue.get()
            time.sleep(_MANNERS)
            try:
                action()
            except Exception:
                logger.exception("Background work failed")
