"""Retrying while the store is unavailable: a short outage must not cost an agent its work."""

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


def retry_while_unavailable(action: Callable[[], R], seconds: float) -> R:
    """Call ``action``, and again while the store is unavailable, for up to these seconds.

    A repetition does no harm: every write of a store can be repeated.

    Raises:
        StoreUnavailable: the store was unavailable all the time.
    """
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        try:
            return action()
        except StoreUnavailable as error:
            if time.monotonic() + pause > end:
                raise
            logger.warning("The checkpoint store does not answer; retrying: %s", error)
        # Random, so that the processes do not all return at once to a store that is just starting.
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, _LONGEST_PAUSE)
