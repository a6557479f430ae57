"""The bootstep of every worker with agents: it checks the settings, starts the watchdog, and sets the
drain flag when the worker stops.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from celery import bootsteps
from celery.worker import state as worker_state
from click import ClickException

from celery_ckpt.errors import ConfigurationError, StoreUnavailable
from celery_ckpt.runtime.attempt.settlement import finish_settling
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.drain import drain
from celery_ckpt.runtime.worker.watchdog import Watchdog

logger = logging.getLogger(__name__)
Handler = Callable[[int, FrameType | None], Any]
#: Signals with which Celery stops at once.
_COLD = {"SIGQUIT"}
#: How long such a signal waits for a task that is being written to a child, and how often it checks.
_HANDING_SECONDS, _LOOK_SECONDS = 2.0, 0.02


class AgentsStep(bootsteps.StartStopStep):
    """Starts the watchdog with the worker, and sets the drain flag when the worker stops."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        try:
            context = AppContext.of(worker.app)
            _warn_of_risks(context)
        except ConfigurationError as error:
            # Wrong settings end the worker before it takes a message, with one line on what is wrong.
            raise ClickException(str(error)) from error
        drain.end()
        # Set by a setting or a command-line option; Celery 5.6 has neither.
        if getattr(worker, "pool_start_method", "fork") == "spawn":
            drain.share()
        context.announce_events(bool(worker.task_events))

    def create(self, worker: Any) -> Any:
        """Make the watchdog; see Celery's bootsteps."""
        from celery.concurrency.prefork import TaskPool

        # In other pools a worker_pid does not name a child process.
        has_children = issubclass(worker.pool_cls, TaskPool)
        return Watchdog(worker.app, partial(_maintain_pool, worker) if has_children else None)

    def start(self, worker: Any) -> None:
        """Start the watchdog, and put a handler before each of Celery's own signal handlers."""
        self.obj.start()
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGTERM", "SIGQUIT", "SIGINT", "SIGHUP"):
                _chain(worker, getattr(signal, name), name)

    def close(self, worker: Any) -> None:
        """Set the drain flag. Celery calls this also at ``control.shutdown()`` and a lost broker."""
        drain.begin(warm=True)

    def stop(self, worker: Any) -> None:
        """Finish what the worker has begun; it has stopped."""
        finish_settling()
        self.obj.stop()
        drain.unshare()

    terminate = stop


def _warn_of_risks(context: AppContext) -> None:
    try:
        for risk in context.store.risks():
            logger.warning("The checkpoint store can lose work: %s", risk)
    except StoreUnavailable as error:
        where = getattr(error, "where", "-")
        logger.warning("The checkpoint store does not answer yet. Agents wait for it. store=%s", where)


def _maintain_pool(worker: Any) -> None:
    """Have the pool replace dead children, in the thread of its own loop."""
    hub = getattr(worker, "hub", None)
    if hub is not None:
        hub.call_soon(worker.pool.maintain_pool)


def _chain(worker: Any, number: signal.Signals, name: str) -> None:
    before = signal.getsignal(number)
    if not callable(before):
        return
    is_solo = worker.pool_cls.__module__.endswith("solo")
    celerys: Handler = before
    until = 0.0

    def handle(signum: int, frame: FrameType | None) -> Any:
        nonlocal until
        until = until or time.monotonic() + _HANDING_SECONDS
        drain.begin(warm=not _is_cold(name))
        # True while the pool has written a part of a task to one of its processes.
        is_writing = bool(getattr(getattr(worker.pool, "_pool", None), "_active_writers", None))
        if _is_cold(name) and is_writing and time.monotonic() < until:
            # Celery would stop right here, and wait forever for a child that waits for its task.
            threading.Timer(_LOOK_SECONDS, os.kill, (os.getpid(), signum)).start()
            return None
        if is_solo and _is_cold(name):
            # Celery would raise NotImplementedError inside the body. A warm stop ends it as well.
            worker_state.should_stop = 0
            return None
        return celerys(signum, frame)

    signal.signal(number, handle)


def _is_cold(name: str) -> bool:
    from celery.apps.worker import REMAP_SIGTERM

    return name in _COLD or (name == "SIGTERM" and REMAP_SIGTERM == "SIGQUIT")
