from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llmock.pytest_plugin import LLMock

from tests.support.example_model import Model
from tests.support.example_programs import Example, OpenExample
from tests.support.servers.valkey import Valkey
from tests.support.workers.fixtures import broker_server

__all__ = ["broker_server"]


@pytest.fixture
def open_example(broker_server: Valkey, model: Model, tmp_path: Path) -> Iterator[OpenExample]:
    with broker_server.client() as client:
        client.flushall()
    opened: list[Example] = []

    def open_one(name: str, app: str) -> Example:
        environment = {"REDIS_URL": broker_server.url.removesuffix("/0"), **model.environment}
        opened.append(Example(name, app, environment, tmp_path))
        return opened[-1]

    yield open_one
    for example in opened:
        example.close()


@pytest.fixture
def model(llmock: LLMock) -> Model:
    """A fake model server, which records the requests that it gets."""
    return Model(llmock)
