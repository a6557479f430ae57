"""StoreContract: the promises of ``celery_ckpt.store`` as tests.

Subclass it in a test module and define a ``store`` fixture. pytest then runs the whole contract:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore()

If processes can share the data of the store, also define an ``other_store`` fixture: another store
object on the same data. If the store takes a clock, define a ``clock`` fixture with the ``FakeClock``
of the store, so that no test has to wait for a lease to expire.
"""

from __future__ import annotations

from celery_ckpt.testing.contract.agent_pages import AgentPagesContract
from celery_ckpt.testing.contract.checkpoints import CheckpointsContract
from celery_ckpt.testing.contract.concurrency import ConcurrencyContract
from celery_ckpt.testing.contract.deletion import DeletionContract
from celery_ckpt.testing.contract.encryption import EncryptionContract
from celery_ckpt.testing.contract.event_log import EventLogContract
from celery_ckpt.testing.contract.features import FeaturesContract
from celery_ckpt.testing.contract.findings import FindingsContract
from celery_ckpt.testing.contract.leases import LeasesContract
from celery_ckpt.testing.contract.names import NamesContract
from celery_ckpt.testing.contract.pages import PagesContract
from celery_ckpt.testing.contract.policies import PoliciesContract
from celery_ckpt.testing.contract.pruning import PruningContract
from celery_ckpt.testing.contract.record_and_save import RecordAndSaveContract
from celery_ckpt.testing.contract.removal import RemovalContract
from celery_ckpt.testing.contract.rewrite import RewriteContract
from celery_ckpt.testing.contract.run_pruning import RunPruningContract
from celery_ckpt.testing.contract.runs import RunsContract
from celery_ckpt.testing.contract.schedule import ScheduleContract
from celery_ckpt.testing.contract.steps import StepsContract
from celery_ckpt.testing.contract.turns import TurnsContract


class StoreContract(
    # An agent's history
    NamesContract,
    CheckpointsContract,
    PagesContract,
    AgentPagesContract,
    StepsContract,
    RecordAndSaveContract,
    RunsContract,
    RemovalContract,
    DeletionContract,
    RewriteContract,
    EventLogContract,
    FeaturesContract,
    EncryptionContract,
    # Who may write, and which run is next
    LeasesContract,
    TurnsContract,
    ScheduleContract,
    ConcurrencyContract,
    # What is deleted in time
    PoliciesContract,
    PruningContract,
    RunPruningContract,
    FindingsContract,
):
    """The whole contract. Each ancestor is one part of it, and can be used on its own."""
