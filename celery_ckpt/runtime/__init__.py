"""Agents on Celery: tasks, workers, pruning, and ``Agents`` from outside.

``task`` is what users write and send; ``attempt`` turns a delivery into an outcome; ``process`` has
what one process has once; ``broker`` reads and publishes messages; ``worker`` runs in a worker's
parent process; ``pruning`` is the beat task; ``agents`` inspects and controls agents from outside a
worker. ``install`` connects all of it to Celery; ``log_lines`` has every log line; ``current`` the
present attempt.

Imports point in one direction: agents, task > install > worker, pruning > attempt > process >
log_lines > broker > current > settings, signals. Stores, the run and the vocabulary never
import this package.
"""

from __future__ import annotations
