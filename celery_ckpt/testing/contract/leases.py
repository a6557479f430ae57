"""The contract of ``acquire``, ``renew``, ``release`` and ``holder``, and of writes with a lease."""

from __future__ import annotations

import pytest

from celery_ckpt.errors import LeaseHeld, LeaseLost
from celery_ckpt.records import Lease
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.contract.fixtures import LONG_TTL, SHORT_TTL, ContractFixtures, pass_time
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step


def refused_writes(store: CheckpointStore, lease: Lease | None, error: type[Exception]) -> None:
    """Check that every write that needs the lease is refused, and changes nothing."""
    before = (store.list("agent"), store.steps("agent", "run"), store.runs("agent"))
    with pytest.raises(error):
        store.save(make_checkpoint("agent"), lease)
    with pytest.raises(error):
        store.record_step(make_step("agent"), lease)
    with pytest.raises(error):
        store.drop_steps("agent", "run", lease=lease)
    with pytest.raises(error):
        store.update_run(make_run("agent", "run", task="other"), lease)
    assert (store.list("agent"), store.steps("agent", "run"), store.runs("agent")) == before


class LeasesContract(ContractFixtures):
    """Only the lease holder writes."""

    @pytest.fixture
    def used_store(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store with an agent that has a checkpoint, a step and a run."""
        store.save(make_checkpoint("agent"))
        store.record_step(make_step("agent", "run", "early"))
        store.add_run(make_run("agent", "run"))
        return store

    def test_the_lease_holder_can_write(self, used_store: CheckpointStore) -> None:
        lease = used_store.acquire("agent", "me", LONG_TTL)

        saved, step = make_checkpoint("agent"), make_step("agent", "run", "late")
        used_store.save(saved, lease)
        used_store.record_step(step, lease)
        run = make_run("agent", "run", task="done")
        used_store.update_run(run, lease)

        assert used_store.load_latest("agent") == saved
        assert step in used_store.steps("agent", "run")
        assert used_store.run("agent", "run") == run
        assert used_store.drop_steps("agent", "run", lease=lease) == 2

    def test_writing_without_a_lease_is_refused_while_it_is_held(
        self, used_store: CheckpointStore
    ) -> None:
        used_store.acquire("agent", "me", LONG_TTL)

        refused_writes(used_store, None, LeaseHeld)

    def test_acquiring_a_held_lease_is_refused_and_names_its_owner(
        self, used_store: CheckpointStore
    ) -> None:
        lease = used_store.acquire("agent", "me", LONG_TTL)

        for owner in ("you", "me"):
            with pytest.raises(LeaseHeld) as refusal:
                used_store.acquire("agent", owner, LONG_TTL)
            assert (refusal.value.owner, refusal.value.token) == ("me", lease.token)
            assert 0 < refusal.value.seconds_left <= LONG_TTL

    def test_tokens_only_grow(self, used_store: CheckpointStore, clock: FakeClock | None) -> None:
        first = used_store.acquire("agent", "a", LONG_TTL)
        used_store.release(first)
        second = used_store.acquire("agent", "b", SHORT_TTL)
        pass_time(used_store, "agent", clock)
        third = used_store.acquire("agent", "c", LONG_TTL)
        fourth = used_store.acquire("agent", "d", LONG_TTL, over=third)

        assert [lease.token for lease in (first, second, third, fourth)] == [1, 2, 3, 4]
        assert len({lease.nonce for lease in (first, second, third, fourth)}) == 4

    def test_a_superseded_holder_writes_nothing(
        self, used_store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        old = used_store.acquire("agent", "frozen", SHORT_TTL)
        pass_time(used_store, "agent", clock)
        used_store.acquire("agent", "successor", LONG_TTL)

        refused_writes(used_store, old, LeaseLost)
        with pytest.raises(LeaseLost):
            used_store.renew(old, LONG_TTL)
        assert used_store.release(old) is False
        assert (used_store.holder("agent") or old).owner == "successor"

    def test_an_expired_lease_still_writes_if_no_newer_one_exists(
        self, used_store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        lease = used_store.acquire("agent", "slow", SHORT_TTL)
        pass_time(used_store, "agent", clock)

        saved = make_checkpoint("agent")
        used_store.save(saved, lease)

        assert used_store.load_latest("agent") == saved
        renewed = used_store.renew(lease, LONG_TTL)
        assert (used_store.holder("agent") or lease).token == renewed.token == lease.token

    def test_writing_without_a_lease_is_allowed_after_expiry(
        self, used_store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        used_store.acquire("agent", "gone", SHORT_TTL)
        pass_time(used_store, "agent", clock)

        saved = make_checkpoint("agent")
        used_store.save(saved)

        assert used_store.load_latest("agent") == saved

    def test_a_released_lease_no_longer_writes(self, used_store: CheckpointStore) -> None:
        lease = used_store.acquire("agent", "me", LONG_TTL)

        assert used_store.release(lease) is True
        assert used_store.release(lease) is False
        assert used_store.holder("agent") is None
        refused_writes(used_store, lease, LeaseLost)
        with pytest.raises(LeaseLost):
            used_store.renew(lease, LONG_TTL)

    def test_renewing_changes_only_the_expiry(self, used_store: CheckpointStore) -> None:
        lease = used_store.acquire("agent", "me", SHORT_TTL)

        renewed = used_store.renew(lease, LONG_TTL)

        assert renewed.expires_at > lease.expires_at
        assert (renewed.token, renewed.nonce, renewed.owner) == (lease.token, lease.nonce, "me")
        assert used_store.holder("agent") == renewed

    def test_renewing_many_leases_extends_all_of_them(self, store: CheckpointStore) -> None:
        names = [f"agent {number}" for number in range(250)]
        leases = [store.acquire(name, "me", SHORT_TTL) for name in names]

        renewed = store.renew_many(leases, LONG_TTL)

        assert renewed == [store.holder(name) for name in names]
        pairs = zip(leases, renewed, strict=True)
        assert all(
            isinstance(new, Lease)
            and (new.token, new.nonce) == (old.token, old.nonce)
            and new.expires_at > old.expires_at
            for old, new in pairs
        )
        assert store.renew_many([], LONG_TTL) == []

    def test_a_lease_that_was_lost_does_not_prevent_other_renewals(
        self, store: CheckpointStore
    ) -> None:
        names = ["first", "stolen", "{released}", "deleted", "last"]
        leases = dict(zip(names, [store.acquire(name, "me", SHORT_TTL) for name in names], strict=True))
        thief = store.acquire("stolen", "thief", LONG_TTL, over=leases["stolen"])
        store.release(leases["{released}"])
        store.delete("deleted")

        renewed = dict(zip(names, store.renew_many(list(leases.values()), LONG_TTL), strict=True))

        lost = {name: result for name, result in renewed.items() if isinstance(result, LeaseLost)}
        assert {name: error.agent_id for name, error in lost.items()} == {
            name: name for name in ("stolen", "{released}", "deleted")
        }
        assert [renewed[name] for name in ("first", "last")] == [
            store.holder("first"),
            store.holder("last"),
        ]
        assert store.holder("stolen") == thief
        assert "deleted" not in store.agents()

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
    def test_many_leases_are_renewed_for_a_valid_time_only(
        self, store: CheckpointStore, ttl: float
    ) -> None:
        lease = store.acquire("agent", "me", LONG_TTL)
        with pytest.raises(ValueError, match="must be over 0"):
            store.renew_many([lease], ttl)
        assert store.holder("agent") == lease

    def test_the_lease_of_a_dead_owner_is_taken_over_immediately(
        self, used_store: CheckpointStore
    ) -> None:
        dead = used_store.acquire("agent", "dead", LONG_TTL)

        lease = used_store.acquire("agent", "heir", LONG_TTL, over=dead)

        assert lease.token == dead.token + 1
        with pytest.raises(LeaseHeld):
            used_store.acquire("agent", "late heir", LONG_TTL, over=dead)
        refused_writes(used_store, dead, LeaseLost)

    def test_a_lease_with_a_forged_nonce_is_refused(self, used_store: CheckpointStore) -> None:
        lease = used_store.acquire("agent", "me", LONG_TTL)

        forged = lease.model_copy(update={"nonce": "forged"})

        refused_writes(used_store, forged, LeaseLost)
        assert used_store.release(forged) is False
        assert used_store.holder("agent") == lease

    def test_a_lease_is_for_one_agent(self, used_store: CheckpointStore) -> None:
        lease = used_store.acquire("other", "me", LONG_TTL)
        refused_writes(used_store, lease, LeaseLost)
        used_store.acquire("agent", "you", LONG_TTL)
        refused_writes(used_store, lease, LeaseLost)

    def test_another_agents_lease_does_not_save_a_growing_conversation(
        self, used_store: CheckpointStore
    ) -> None:
        latest = used_store.load_latest("agent")
        assert latest is not None
        lease = used_store.acquire("other", "me", LONG_TTL)

        with pytest.raises(LeaseLost):
            used_store.save(make_checkpoint("agent", latest.conversation), lease)

        assert used_store.load_latest("agent") == latest

    def test_the_lease_of_a_deleted_agent_is_lost(self, used_store: CheckpointStore) -> None:
        lease = used_store.acquire("agent", "me", LONG_TTL)
        used_store.delete("agent")

        with pytest.raises(LeaseLost):
            used_store.save(make_checkpoint("agent"), lease)
        assert list(used_store.agents()) == []

    def test_a_save_repeated_after_the_lease_was_lost_succeeds(
        self, used_store: CheckpointStore
    ) -> None:
        lease = used_store.acquire("agent", "me", LONG_TTL)
        saved = make_checkpoint("agent")
        used_store.save(saved, lease)
        used_store.release(lease)

        used_store.save(saved, lease)

        assert used_store.load_latest("agent") == saved

    @pytest.mark.parametrize("ttl", [0, -1, float("nan")])
    def test_a_lease_must_last_longer_than_zero_seconds(
        self, used_store: CheckpointStore, ttl: float
    ) -> None:
        with pytest.raises(ValueError, match="must be over 0"):
            used_store.acquire("agent", "me", ttl)

    @pytest.mark.parametrize("ttl", [float("inf"), 1e12])
    def test_a_lease_lasts_at_most_a_year(self, store: CheckpointStore, ttl: float) -> None:
        with pytest.raises(ValueError, match="at most"):
            store.acquire("agent", "me", ttl)
        assert store.holder("agent") is None
        lease = store.acquire("agent", "me", LONG_TTL)
        with pytest.raises(ValueError, match="at most"):
            store.renew(lease, ttl)
        assert store.holder("agent") == lease

    @pytest.mark.parametrize("owner", ["", "\ud800", 5, None])
    def test_a_lease_needs_an_owner(self, store: CheckpointStore, owner: str) -> None:
        with pytest.raises(ValueError, match="A lease's owner"):
            store.acquire("agent", owner, LONG_TTL)
        assert store.holder("agent") is None

    def test_an_expired_lease_still_records_steps_and_runs_if_no_newer_one_exists(
        self, used_store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        lease = used_store.acquire("agent", "slow", SHORT_TTL)
        pass_time(used_store, "agent", clock)

        step = make_step("agent", "run")
        used_store.record_step(step, lease)
        used_store.update_run(make_run("agent", "run", task="late"), lease)

        assert step in used_store.steps("agent", "run")
        assert used_store.release(lease) is True

    def test_only_the_exact_lease_is_renewed_or_taken_over(self, store: CheckpointStore) -> None:
        lease = store.acquire("agent", "me", LONG_TTL)
        forged = lease.model_copy(update={"nonce": "forged"})

        with pytest.raises(LeaseLost):
            store.renew(forged, LONG_TTL)
        with pytest.raises(LeaseHeld):
            store.acquire("agent", "heir", LONG_TTL, over=forged)
        assert store.holder("agent") == lease

    def test_a_run_is_added_without_the_lease(self, store: CheckpointStore) -> None:
        store.acquire("agent", "me", LONG_TTL)

        assert store.add_run(make_run("agent", "another")) is True

    def test_a_step_repeated_after_the_lease_was_lost_is_accepted(
        self, used_store: CheckpointStore
    ) -> None:
        lease = used_store.acquire("agent", "me", LONG_TTL)
        step = make_step("agent", "run")
        used_store.record_step(step, lease)
        used_store.release(lease)

        used_store.record_step(step, lease)

        assert used_store.steps("agent", "run").count(step) == 1
