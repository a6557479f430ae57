"""The configuration that the app of a test and the apps of its workers share.

Workers get it in environment variables: ``Configuration.from_environment()`` in a worker reads what
``environment()`` returned in the test.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from celery import Celery

from tests.support import ledger

#: The broker redelivers the messages of a killed worker about a second after their first delivery. By
#: default it takes an hour and up to 100 s more: kombu looks at every tenth of its ten-second ticks.
FAST_REDELIVERY: Mapping[str, Any] = {
    "visibility_timeout": 1,
    "unacked_restore_interval": 0.2,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 2,
}
#: The signal at which a process writes the stacks of all its threads.
STACKS = signal.SIGUSR2
PLAIN_TASKS = "tests.support.tasks.plain"


@dataclass(frozen=True)
class Configuration:
    """The addresses of the servers and the ledger, and the settings."""

    broker_url: str
    backend_url: str
    store_url: str
    ledger: Path
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    conf: Mapping[str, Any] = field(default_factory=dict)
    #: The modules with the tasks. Both the test and the worker import them.
    include: tuple[str, ...] = (PLAIN_TASKS,)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that configure a worker process."""
        return {
            "CKPT_TEST_BROKER_URL": self.broker_url,
            "CKPT_TEST_BACKEND_URL": self.backend_url,
            "CKPT_TEST_STORE_URL": self.store_url,
            ledger.VARIABLE: str(self.ledger),
            "CKPT_TEST_TRANSPORT_OPTIONS": json.dumps(dict(self.transport_options)),
            "CKPT_TEST_CONF": json.dumps(dict(self.conf)),
            "CKPT_TEST_INCLUDE": " ".join(self.include),
        }

    @classmethod
    def from_environment(cls) -> Self:
        """Return the configuration in the environment variables of this process."""
        return cls(
            broker_url=os.environ["CKPT_TEST_BROKER_URL"],
            backend_url=os.environ["CKPT_TEST_BACKEND_URL"],
            store_url=os.environ["CKPT_TEST_STORE_URL"],
            ledger=Path(os.environ[ledger.VARIABLE]),
            transport_options=json.loads(os.environ["CKPT_TEST_TRANSPORT_OPTIONS"]),
            conf=json.loads(os.environ["CKPT_TEST_CONF"]),
            include=tuple(os.environ["CKPT_TEST_INCLUDE"].split()),
        )

    def make_app(self) -> Celery:
        """Return an app with this configuration and its tasks, and make it the current app."""
        app = Celery("tests", broker=self.broker_url, backend=self.backend_url)
        app.conf.update(
            broker_connection_retry_on_startup=True,
            broker_transport_options=dict(self.transport_options),
            worker_prefetch_multiplier=1,
            task_track_started=True,
            ckpt_store_url=self.store_url,
        )
        app.conf.update(self.conf)
        app.set_current()
        for module in self.include:
            import_module(module)
        app.finalize()
        return app
