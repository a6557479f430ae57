"""A kit for testing stores and what uses them: nothing in the package itself needs it.

``StoreContract`` and ``StoreMachine`` hold any store to the promises of ``celery_ckpt.store``. They
need pytest and Hypothesis: install ``celery-ckpt[testing]``.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "celery_ckpt.testing.contract.checkpoints",
    "celery_ckpt.testing.contract.concurrency",
    "celery_ckpt.testing.contract.damage",
    "celery_ckpt.testing.contract.leases",
    "celery_ckpt.testing.contract.ledger",
    "celery_ckpt.testing.contract.names",
    "celery_ckpt.testing.contract.old_runs",
    "celery_ckpt.testing.contract.pins",
    "celery_ckpt.testing.contract.pruning",
    "celery_ckpt.testing.contract.rewrite",
    "celery_ckpt.testing.contract.sweep",
    "celery_ckpt.testing.contract.turns",
    "celery_ckpt.testing.contract.schedule",
    "celery_ckpt.testing.machine",
)

# ruff: noqa: E402  (what is to be rewritten must be named before it is imported)
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.contract.damage import DamageContract
from celery_ckpt.testing.contract.suite import StoreContract
from celery_ckpt.testing.crash import CrashReport, crash_everywhere
from celery_ckpt.testing.factories import (
    make_checkpoint,
    make_conversation,
    make_message,
    make_run,
    make_step,
)
from celery_ckpt.testing.faults import Fault, FaultyStore, InjectedFault, kill_this_process
from celery_ckpt.testing.machine import StoreMachine

__all__ = [
    "CrashReport",
    "DamageContract",
    "Fault",
    "FaultyStore",
    "FakeClock",
    "InjectedFault",
    "StoreContract",
    "StoreMachine",
    "crash_everywhere",
    "kill_this_process",
    "make_checkpoint",
    "make_conversation",
    "make_message",
    "make_run",
    "make_step",
]
