"""Real Celery workers for the tests: started, watched, killed, frozen, cut off and cleaned up."""

from __future__ import annotations
