"""StoreContract: the promises of ``celery_ckpt.store``, as tests.

Subclass it in a test module, give it a ``store`` fixture, and pytest runs the whole contract:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore()

Give an ``other_store`` fixture too (another object on the same data, as another process would have
one) if the store's data can be shared; and a ``clock`` fixture with the ``FakeClock`` that the store
was made with, if it takes one, so that no test has to wait for a lease to end.
"""

from __future__ import annotations

from celery_ckpt.testing.contract.checkpoints import CheckpointContract
from celery_ckpt.testing.contract.concurrency import ConcurrencyContract
from celery_ckpt.testing.contract.leases import LeaseContract
from celery_ckpt.testing.contract.ledger import LedgerContract
from celery_ckpt.testing.contract.names import NamesContract
from celery_ckpt.testing.contract.old_runs import OldRunsContract
from celery_ckpt.testing.contract.pins import PinsContract
from celery_ckpt.testing.contract.pruning import PruningContract
from celery_ckpt.testing.contract.rewrite import RewritingContract
from celery_ckpt.testing.contract.schedule import WatchingContract
from celery_ckpt.testing.contract.sweep import SweepingContract
from celery_ckpt.testing.contract.turns import TurnsContract


class StoreContract(
    CheckpointContract,
    NamesContract,
    PruningContract,
    RewritingContract,
    SweepingContract,
    OldRunsContract,
    PinsContract,
    LeaseContract,
    LedgerContract,
    TurnsContract,
    WatchingContract,
    ConcurrencyContract,
):
    """The whole contract."""
