from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests on RabbitMQ first, in a row, so that one xdist worker executes all of them.

    Every xdist worker that executes one has to start a node, which takes many seconds.
    """
    items.sort(key=lambda item: not _is_on_rabbitmq(item))


def _is_on_rabbitmq(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    return parameters is not None and parameters.params.get("broker") == "rabbitmq"
