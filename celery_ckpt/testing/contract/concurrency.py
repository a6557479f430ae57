"""The contract when several threads and store objects write at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.errors import LeaseHeld, LeaseLost
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_message

_WRITERS = 4
_SAVES = 15


def write_history(store: CheckpointStore, seed: int) -> list[Checkpoint]:
    """Save a conversation that grows, is compacted, and sometimes continues another writer's."""
    random, saved = Random(seed), []
    conversation = make_conversation(2)
    for iteration in range(_SAVES):
        conversation.append(make_message())
        if random.random() < 0.15:
            conversation.replace([*conversation.messages[:1], *conversation.messages[-3:]])
        if random.random() < 0.15 and (latest := store.load_latest("agent")):
            conversation = latest.conversation
        saved.append(make_checkpoint("agent", conversation, iteration))
        store.save(saved[-1])
    return saved


class ConcurrencyContract(ContractFixtures):
    """Whatever the interleaving, every saved checkpoint loads back exactly."""

    def test_concurrent_writers_lose_and_mix_nothing(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        stores = [store, other_store] * (_WRITERS // 2)
        with ThreadPoolExecutor(_WRITERS) as pool:
            histories = list(pool.map(write_history, stores, range(_WRITERS)))

        expected = {checkpoint.id: checkpoint for history in histories for checkpoint in history}
        listed = store.list("agent")
        assert {checkpoint.id: checkpoint for checkpoint in listed} == expected
        assert all(other_store.load(name) == checkpoint for name, checkpoint in expected.items())
        for history in histories:
            own = [checkpoint.id for checkpoint in reversed(history)]
            assert [c.id for c in listed if c.id in set(own)] == own

    def test_concurrent_pruning_does_not_damage_the_rest(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        def prune_until_done() -> None:
            while not all(writer.done() for writer in writers):
                other_store.prune("agent", 2)

        with ThreadPoolExecutor(3) as pool:
            writers = [pool.submit(write_history, s, n) for n, s in enumerate((store, other_store))]
            pruner = pool.submit(prune_until_done)
            expected = {c.id: c for writer in writers for c in writer.result()}
            pruner.result()

        left = store.list("agent")
        assert left
        assert all(checkpoint == expected[checkpoint.id] for checkpoint in left)

    def test_a_lease_has_one_holder(self, store: CheckpointStore, other_store: CheckpointStore) -> None:
        def try_to_acquire(number: int) -> int | None:
            try:
                return (store, other_store)[number % 2].acquire("agent", f"{number}", LONG_TTL).token
            except LeaseHeld:
                return None

        with ThreadPoolExecutor(8) as pool:
            tokens = list(pool.map(try_to_acquire, range(8)))

        assert sorted(token for token in tokens if token) == [1]

    def test_each_new_holder_fences_off_all_earlier_ones(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        def hold(number: int) -> int:
            mine, written = (store, other_store)[number % 2], 0
            for _ in range(10):
                try:
                    lease = mine.acquire("agent", f"{number}", LONG_TTL)
                    mine.save(make_checkpoint("agent", metadata={"token": str(lease.token)}), lease)
                    mine.release(lease)
                    written += 1
                except (LeaseHeld, LeaseLost):
                    continue
            return written

        with ThreadPoolExecutor(_WRITERS) as pool:
            written = sum(pool.map(hold, range(_WRITERS)))

        tokens = [int(info.metadata["token"]) for info in store.history("agent")]
        assert len(tokens) == written
        assert tokens == sorted(tokens, reverse=True)
