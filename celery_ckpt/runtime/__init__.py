"""The only part that imports Celery: agent tasks, workers, pruning, and ``Agents`` from outside.

``task`` is what users write and send; ``attempt`` turns a delivery into an outcome; ``process``
holds what one process has once; ``broker`` reads and publishes messages; ``worker`` runs in a
worker's parent process; ``pruning`` is the beat task; ``agents`` acts on agents from outside a
worker. ``install`` connects all of it to Celery.

Imports point in one direction: agents, task > install > worker, pruning > attempt > process >
broker > settings, signals. Stores, the run and the vocabulary never import this package.
"""

from __future__ import annotations
