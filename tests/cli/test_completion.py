"""Shell completion, which gives up if the store is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from celery import Celery
from click.shell_completion import ShellComplete

from celery_ckpt import open_store
from celery_ckpt.cli import ckpt, options
from tests.support.cli import add_agent
from tests.support.servers.valkey import free_port
from tests.support.workers.fixtures import current_app_kept

ROOT = click.Group("celery", params=[click.Option(["-A", "--app"])], commands={"ckpt": ckpt})


def offered(line: str) -> list[str]:
    """Return what a shell would offer for the last word of a line."""
    *words, incomplete = line.split(" ")[1:]
    found = ShellComplete(ROOT, {}, "celery", "_CELERY_COMPLETE").get_completions(words, incomplete)
    return [item.value for item in found]


@pytest.fixture(autouse=True)
def default_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a new current app for each test, and wait longer, because the machine may be busy."""
    monkeypatch.setattr(options, "_COMPLETION_SECONDS", 60)
    with current_app_kept():
        Celery("completing")
        yield


@pytest.fixture
def store_option(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        for name in ("user-1", "user-2", "other", "user-\x1b[2J"):
            add_agent(store, name)
    return f"--store {url}"


def test_commands_and_options_are_completed() -> None:
    assert offered("celery ckpt res") == ["resume"]
    assert offered("celery ckpt show --js") == ["--json"]
    assert "running" in offered("celery ckpt list --status ")


def test_names_of_agents_are_completed_if_they_can_be_typed(store_option: str) -> None:
    assert offered(f"celery ckpt {store_option} show us") == ["user-1", "user-2"]
    assert offered(f"celery ckpt {store_option} cancel user-1 o") == ["other"]
    assert offered(f"celery ckpt {store_option} export ") == ["other", "user-1", "user-2"]


def test_completion_does_not_create_a_missing_store(tmp_path: Path) -> None:
    assert offered(f"celery ckpt --store sqlite:///{tmp_path}/typo/store.db show u") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "celery ckpt --store redis://127.0.0.1:PORT/0 show u",
        "celery ckpt --store nonsense show u",
        "celery -A no.such.app ckpt show u",
    ],
)
def test_a_slow_store_completes_nothing(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_COMPLETION_SECONDS", 0.3)
    begin = time.monotonic()
    assert offered(line.replace("PORT", str(free_port()))) == []
    assert time.monotonic() - begin < 30
