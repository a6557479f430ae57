"""How often a watchdog asks the store for due agents: the more watchdogs there are, the more seldom.

Every due agent is given to one watchdog, so that it does not matter which one asks. Up to eight
watchdogs ask once a second each. More of them ask eight times a second together, at random times: that
none of them asks for two seconds then has a probability of about 1e-7. No watchdog asks more seldom
than every ten seconds, so that a few survivors of a large fleet soon check as often as a small one.
"""

from __future__ import annotations

import random

#: Seconds between two requests of a watchdog, at least and at most.
_SHORTEST, _LONGEST = 1.0, 10.0
#: How many requests a second all watchdogs of a store make together.
_TOGETHER = 8.0


def poll_interval(watchdogs: int) -> float:
    """Return the average number of seconds between two requests, for this number of watchdogs."""
    return min(max(_SHORTEST, watchdogs / _TOGETHER), _LONGEST)


def randomized(interval: float) -> float:
    """Return about as many seconds: watchdogs that were started together must not ask together."""
    return interval * random.uniform(0.75, 1.25)
