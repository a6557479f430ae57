"""The test kit, for authors of stores and of agents. Install it with ``celery-ckpt[testing]``.

contract     the promises of ``celery_ckpt.store`` as tests: ``StoreContract``, ``DamageContract``
machine      any store against the memory store, over random operations: ``StoreMachine``
crash        ``crash_everywhere``: an agent ends the same wherever it is interrupted
simulation   one run over all its attempts in one process, which ``crash`` interrupts
faults       a store that fails, or kills its process, at a chosen write
factories    checkpoints, steps and runs to put into a store
clock        a clock that tests move

The kit may import every part of the package except ``cli`` and ``demo``; nothing imports it. Only the
kit needs pytest and Hypothesis. What ``__all__`` names is public.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "celery_ckpt.testing.contract.checkpoints",
    "celery_ckpt.testing.contract.concurrency",
    "celery_ckpt.testing.contract.damage",
    "celery_ckpt.testing.contract.encryption",
    "celery_ckpt.testing.contract.features",
    "celery_ckpt.testing.contract.findings",
    "celery_ckpt.testing.contract.fixtures",
    "celery_ckpt.testing.contract.leases",
    "celery_ckpt.testing.contract.names",
    "celery_ckpt.testing.contract.policies",
    "celery_ckpt.testing.contract.pruning",
    "celery_ckpt.testing.contract.removal",
    "celery_ckpt.testing.contract.rewrite",
    "celery_ckpt.testing.contract.run_pruning",
    "celery_ckpt.testing.contract.runs",
    "celery_ckpt.testing.contract.schedule",
    "celery_ckpt.testing.contract.steps",
    "celery_ckpt.testing.contract.turns",
    "celery_ckpt.testing.machine",
)

# ruff: noqa: E402  (modules must be registered before they are imported)
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
