"""Retention: which checkpoints, runs and agents may be deleted.

``policy`` decides, ``report`` holds what a sweep reads, plans and did. Both are pure: they import the
vocabulary and no store, and read no clock. A store never decides by itself what to delete.
"""

from __future__ import annotations

from celery_ckpt.retention.policy import RetentionPolicy

__all__ = ["RetentionPolicy"]
