"""UnsealedStore: for who has no keys. What was sealed is refused, and never taken for data."""

from __future__ import annotations

import builtins

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.errors import CheckpointDamaged, EncryptionKeyMissing
from celery_ckpt.records import AgentActivity, CheckpointInfo, Lease, RunRecord, StartResult, Step
from celery_ckpt.stores.encrypted.checkpoints import text_of_checkpoint
from celery_ckpt.stores.encrypted.cipher import sealed_text
from celery_ckpt.stores.encrypted.records import text_of_run, text_of_step
from celery_ckpt.stores.wrapper import WrapperStore, give_back


class UnsealedStore(WrapperStore):
    """Passes everything on, unless it is sealed. One look at each record is enough to tell."""

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        """See ``CheckpointStore``."""
        return _checkpoint(self.inner.load_latest(agent_id))

    def load(self, checkpoint_id: str) -> Checkpoint | None:
        """See ``CheckpointStore``."""
        return _checkpoint(self.inner.load(checkpoint_id))

    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        """See ``CheckpointStore``."""
        try:
            found = self.inner.list(agent_id, limit=limit)
        except CheckpointDamaged as damage:
            for checkpoint in damage.readable:
                _checkpoint(checkpoint)
            raise
        for checkpoint in found:
            _checkpoint(checkpoint)
        return found

    def history(self, agent_id: str) -> builtins.list[CheckpointInfo]:
        """See ``CheckpointStore``."""
        found = self.inner.history(agent_id)
        for info in found:
            _refuse(agent_id, f"Checkpoint {info.id}", sealed_text(info.__dict__["metadata"]))
        return found

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """See ``CheckpointStore``."""
        found = self.inner.steps(agent_id, run_id)
        for step in found:
            _refuse(agent_id, f"A step of run {run_id!r}", text_of_step(step))
        return found

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore``."""
        found = self.inner.run(agent_id, run_id)
        return found and _run(found)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """See ``CheckpointStore``."""
        return [_run(run) for run in self.inner.runs(agent_id)]

    def start_run(
        self, run: RunRecord, owner: str, ttl: float, *, over: Lease | None = None
    ) -> StartResult:
        """See ``CheckpointStore``."""
        start = self.inner.start_run(run, owner, ttl, over=over)
        try:
            _run(start.run)
        except EncryptionKeyMissing:
            give_back(self.inner, start)
            raise
        return start

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        """See ``CheckpointStore``."""
        following = self.inner.settle_run(run, lease)
        return following and _run(following)

    def activity(self, agent_id: str) -> AgentActivity:
        """See ``CheckpointStore``."""
        found = self.inner.activity(agent_id)
        for run in found.open:
            _run(run)
        return found


def _checkpoint(found: Checkpoint | None) -> Checkpoint | None:
    if found is not None:
        _refuse(found.agent_id, f"Checkpoint {found.id}", text_of_checkpoint(found))
    return found


def _run(run: RunRecord) -> RunRecord:
    _refuse(run.agent_id, f"The record of run {run.run_id!r}", text_of_run(run))
    return run


def _refuse(agent_id: str, what: str, text: str | None) -> None:
    if text is not None:
        key_id = text.partition(".")[0][:32]
        raise EncryptionKeyMissing(what=what, agent_id=agent_id, key_id=key_id)
