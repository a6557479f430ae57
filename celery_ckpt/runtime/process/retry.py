"""Waiting for a store that is away: some seconds of it must not cost an agent its work."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from celery_ckpt.errors import StoreUnavailable

logger = logging.getLogger(__name__)
R = TypeVar("R")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


def retry_while_unavailable(write: Callable[[], R], seconds: float) -> R:
    """Do a write, again and again while the store is away, for so many seconds. It may be repeated:
    every write of a store may.

    Raises:
        StoreUnavailable: it was away all the time.
    """
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        try:
            return write()
        except StoreUnavailable as error:
            if time.monotonic() + pause > end:
                raise
            logger.warning("The checkpoint store does not answer and is tried again: %s", error)
        # Not all at once: the store is just coming back.
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, _LONGEST_PAUSE)
