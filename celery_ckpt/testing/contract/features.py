"""The contract on optional features: a store has those that it declares, and refuses the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_ckpt.errors import FeatureMissing
from celery_ckpt.store import FEATURES, CheckpointStore
from celery_ckpt.testing.contract.fixtures import ContractFixtures
from celery_ckpt.testing.factories import make_checkpoint

#: One call for each feature.
_CALLS: dict[str, Callable[[CheckpointStore], object]] = {
    "log": lambda store: store.event_log("agent"),
    "reschedule": lambda store: store.reschedule({"agent": 1}, 1),
    "rewrite": lambda store: store.rewrite("agent", lambda contents: contents),
}


class FeaturesContract(ContractFixtures):
    """A store declares its optional features."""

    def test_every_declared_feature_exists(self, store: CheckpointStore) -> None:
        assert store.features <= FEATURES

    @pytest.mark.parametrize("feature", sorted(FEATURES))
    def test_a_feature_works_if_and_only_if_it_is_declared(
        self, store: CheckpointStore, feature: str
    ) -> None:
        checkpoint = make_checkpoint("agent")
        store.save(checkpoint)
        if feature in store.features:
            _CALLS[feature](store)
        else:
            with pytest.raises(FeatureMissing, match=f"does not have the feature {feature!r}"):
                _CALLS[feature](store)
        assert store.list("agent") == [checkpoint]


def needs(feature: str, store: CheckpointStore) -> None:
    """Skip a test of a feature that the store does not declare; another test checks its refusal."""
    if feature not in store.features:
        pytest.skip(f"{type(store).__name__} does not declare the feature {feature!r}")
