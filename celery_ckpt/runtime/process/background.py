"""Work that no worker slot waits for: one thread for each process does it, in order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)

#: Seconds before each action. The slot is just starting its next task, which gets the interpreter.
_DELAY = 0.003


class BackgroundThread:
    """Executes actions one after the other, beside the tasks of this process."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def do(self, action: Callable[[], object]) -> None:
        """Execute an action soon."""
        self._queue.put(action)
        with self._lock:
            if self._thread is None:
                name = "celery_ckpt-background"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    def finish(self, seconds: float) -> bool:
        """Wait until all actions are done. False if that takes longer than these seconds."""
        done = threading.Event()
        if self._thread is None:
            return True
        self._queue.put(done.set)
        return done.wait(seconds)

    def _work(self) -> None:
        while True:
            action = self._queue.get()
            time.sleep(_DELAY)
            try:
                action()
            except Exception:
                logger.exception("Background work failed")
