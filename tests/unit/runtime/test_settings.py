"""The settings: typed, checked when a worker starts, and the user's values before the defaults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_ckpt import AfterToolCall, AgentRun, EveryN, agent_task
from celery_ckpt.errors import ConfigurationError
from celery_ckpt.runtime.settings import PREFIX, Settings
from tests.support.ledger import Ledger
from tests.support.tasks.agents import nothing
from tests.support.tasks.scenarios import count, fair
from tests.support.workers.fixtures import StartWorker

IN_A_THREAD = """
from concurrent.futures import ThreadPoolExecutor
from celery import Celery
from celery_ckpt import agent_task

app = Celery("mine", broker="memory://")
app.conf.ckpt_store_url = "memory://"

@agent_task
def body(run): ...

with ThreadPoolExecutor() as threads:
    threads.submit(lambda: body.delay()).result()
"""
PAGE = Path(__file__).parents[3] / "docs/reference/settings.md"


def app_with(**conf: Any) -> Celery:
    app = Celery("settings", set_as_current=False)
    app.conf.update(conf)
    return app


def test_the_page_has_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(ckpt_\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    defaults = dict(Settings())

    assert list(rows) == [PREFIX + name for name in Settings.model_fields]
    for name, default in defaults.items():
        shown = rows[PREFIX + name].strip("`")
        assert shown == _as_shown(default), name


def _as_shown(default: Any) -> str:
    if isinstance(default, float | int) and not isinstance(default, bool):
        return f"{default:_}".removesuffix(".0")
    return (
        '"after_tool_call"' if isinstance(default, AfterToolCall) else repr(default).replace("'", '"')
    )


def test_the_default_strategy_can_be_written_as_documented() -> None:
    assert Settings(strategy="after_tool_call").strategy == Settings().strategy


def test_every_setting_is_read_from_the_app() -> None:
    given = {
        "ckpt_store_url": "memory://",
        "ckpt_key_prefix": "mine:",
        "ckpt_strategy": "every:3",
        "ckpt_keep": 3,
        "ckpt_max_age": timedelta(minutes=1),
        "ckpt_forget_finished_after": None,
        "ckpt_prune_every": None,
        "ckpt_lease_ttl": timedelta(seconds=2),
        "ckpt_hand_off": False,
        "ckpt_hand_off_on_time_limit": True,
        "ckpt_iterations_per_task": 2,
        "ckpt_max_stalled_attempts": 1,
        "ckpt_max_checkpoint_bytes": 1000,
        "ckpt_durability": "fsync",
        "ckpt_event_log": 100,
        "ckpt_encryption_keys": ("A" * 43,),
        "ckpt_redact": max,
        "ckpt_cost": max,
    }

    read = dict(Settings.of(app_with(**given)))

    seconds = {"ckpt_max_age": 60, "ckpt_lease_ttl": 2, "ckpt_strategy": EveryN(3)}
    assert {PREFIX + name: read[name] for name in read if PREFIX + name in given} == given | seconds
    assert {PREFIX + name for name in read} == given.keys()


def test_a_task_without_a_strategy_has_that_of_its_app() -> None:
    app = app_with(ckpt_strategy="every:3")

    @agent_task(app=app)
    def as_set(run: AgentRun) -> None: ...

    @agent_task(app=app, strategy="every:2")
    def as_said(run: AgentRun) -> None: ...

    strategies = [task.strategy_in(Settings.of(app)) for task in (as_set, as_said)]
    assert strategies == [EveryN(3), EveryN(2)]


def test_uppercase_and_namespaced_setting_names_are_read() -> None:
    capitals = Celery("capitals", set_as_current=False)
    capitals.config_from_object(SimpleNamespace(CKPT_KEEP=7))
    namespaced = Celery("namespaced", set_as_current=False)
    namespaced.config_from_object(SimpleNamespace(CELERY_CKPT_KEEP=8), namespace="CELERY")

    assert [Settings.of(app).keep for app in (capitals, namespaced)] == [7, 8]


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"ckpt_keep": 0}, "The setting ckpt_keep = 0 is wrong: .*greater than or equal to 1"),
        ({"ckpt_max_age": float("inf")}, "The setting ckpt_max_age = inf is wrong: .*finite"),
        ({"ckpt_keep": "many"}, "The setting ckpt_keep = 'many' is wrong: .*valid integer"),
        ({"ckpt_strategy": "evry:3"}, "The setting ckpt_strategy = 'evry:3' is wrong: .*every"),
        ({"ckpt_strategy": 3}, "The setting ckpt_strategy = 3 is wrong"),
        ({"ckpt_lease_ttl": 0.1}, "The setting ckpt_lease_ttl = 0.1 is wrong"),
        ({"ckpt_durability": "disk"}, "The setting ckpt_durability = 'disk' is wrong: .*'fsync'"),
        ({"ckpt_encryption_keys": ("k",)}, "The setting ckpt_encryption_keys is wrong: .*number 1 .*"),
        ({"ckpt_store_ulr": "memory://"}, "no setting 'ckpt_store_ulr'. Did you mean ckpt_store_url?"),
        ({"CKPT_KEPE": 3}, "no setting 'ckpt_kepe'. Did you mean ckpt_keep?"),
        ({"ckpt_zzz": 3}, r"no setting 'ckpt_zzz'\.$"),
    ],
)
def test_the_error_names_an_invalid_setting(conf: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings.of(app_with(**conf))


def test_a_task_cannot_be_sent_without_a_store_url() -> None:
    app = app_with(broker_url="memory://")

    @agent_task(app=app, shared=False)
    def without_a_store(run: AgentRun) -> None: ...

    with pytest.raises(ConfigurationError, match=r"ckpt_store_url is not set.*app\.conf"):
        without_a_store.delay()


def test_the_error_in_a_thread_without_a_current_app_says_so() -> None:
    # In a separate process: which app is current depends on every test before.
    sent = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD], capture_output=True, text=True, timeout=240
    )

    assert re.search(r"No app of yours is current in this thread.*@agent_task\(app=app\)", sent.stderr)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"CELERY_CKPT_KEEP": 0}, "The setting ckpt_keep = 0 is wrong: "),
        ({"CELERY_CKPT_KEPE": 3}, "There is no setting 'ckpt_kepe'. Did you mean ckpt_keep?"),
        ({"CELERY_CKPT_STORE_URL": "mongo://x"}, "ckpt_store_url"),
        ({"CELERY_CKPT_DURABILITY": "fsync"}, "a server that syncs; the one at redis://"),
    ],
    ids=["wrong", "misspelt", "no such store", "cannot be had"],
)
@pytest.mark.configured(include=("tests.support.tasks.agents",))
def test_a_worker_with_a_wrong_setting_exits_with_one_line_that_names_it(
    start_worker: StartWorker, conf: Mapping[str, Any], message: str
) -> None:
    worker = start_worker(wait=False, environment=_given(conf), **NAMESPACED)

    assert worker.wait_exit(20) == 1
    lines = [line for line in worker.log().splitlines() if "Error" in line]
    assert len(lines) == 1, worker.log()
    assert message in lines[0]
    assert "Traceback" not in worker.log()


@pytest.mark.configured(include=("tests.support.tasks.agents",))
@pytest.mark.usefixtures("celery_app")
def test_an_app_with_a_namespace_works(start_worker: StartWorker) -> None:
    start_worker(pool="threads", environment=_given({"CELERY_CKPT_LEASE_TTL": 2}), **NAMESPACED)

    assert nothing.delay().get(timeout=60) == 1


@pytest.mark.configured(
    include=("tests.support.tasks.scenarios",),
    conf={"ckpt_iterations_per_task": 2, "ckpt_lease_ttl": 10},
)
@pytest.mark.usefixtures("celery_app")
def test_agents_are_handed_off_after_the_iterations_of_the_setting_unless_they_override_it(
    start_worker: StartWorker, ledger: Ledger
) -> None:
    start_worker(pool="threads")
    as_set, as_said = count.delay(5, 0), fair.delay(3, 0)

    assert [result.get(timeout=60)[0] for result in (as_set, as_said)] == [20, 9]
    # No run is handed off after its last iteration.
    assert [len(ledger.bodies(result.id)) for result in (as_set, as_said)] == [3, 3]


#: Only the app reads the variable, and no module that a fork has imported already.
NAMESPACED: dict[str, Any] = {"app": "tests.support.workers.namespaced_app", "forked": True}


def _given(conf: Mapping[str, Any]) -> dict[str, str]:
    return {"CKPT_TEST_NAMESPACED": json.dumps(dict(conf))}


@pytest.mark.parametrize("namespace", ["", "CELERY"])
def test_celery_shows_neither_the_store_password_nor_the_keys(namespace: str) -> None:
    secrets = {"ckpt_store_url": "redis://:hunter2@host/1", "ckpt_encryption_keys": ["hunter2"]}
    given = {f"CELERY_{name.upper()}": value for name, value in secrets.items()}
    app = Celery("secretive", set_as_current=False)
    app.config_from_object(given if namespace else secrets, namespace=namespace or None)

    assert "ckpt_store_url: '********'" in app.bugreport().lower()
    assert "hunter2" not in f"{app.bugreport()} {app.conf.table(with_defaults=True)}"


@pytest.mark.parametrize(
    ("conf", "seconds"),
    [
        ({}, 604_800),
        ({"ckpt_forget_finished_after": None}, 604_800),
        ({"ckpt_forget_finished_after": 10_000}, 10_000),
        ({"ckpt_forget_finished_after": 60}, 3600),
        (
            {
                "ckpt_forget_finished_after": 60,
                "broker_transport_options": {"visibility_timeout": 43_200},
            },
            43_200,
        ),
    ],
)
def test_deleted_runs_are_remembered_at_least_for_the_visibility_timeout(
    conf: dict[str, Any], seconds: float
) -> None:
    app = Celery("remembering", set_as_current=False)
    app.conf.update(conf)

    assert Settings.of(app).remember_deleted(app) == seconds
