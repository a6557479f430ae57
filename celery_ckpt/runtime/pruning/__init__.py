"""Pruning (PRUNE): the Celery tasks, one part of a sweep, and the entry in beat's schedule.

A sweep reads agents that changed, asks ``celery_ckpt.retention`` and has the store apply the plan. It
may be interrupted anywhere: what it did not finish is due again. This package imports ``process`` and
what is below.
"""

from __future__ import annotations
