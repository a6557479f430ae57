"""A worker as a forked program: what its fork server imports, and how it begins.

The fork server must import nothing that forks would share: neither ``celery_ckpt.runtime``, whose
``drain`` is a page of shared memory, nor gevent, which must be imported first.
"""

from __future__ import annotations

import sys

MAIN = f"{__name__}:main"
IMPORTED = (
    __name__,
    "celery.__main__",
    "celery.app.control",
    "celery.app.log",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "celery_ckpt.run.agent_run",
    "celery_ckpt.stores.redis.store",
    "celery_ckpt.strategies",
    "tests.support.workers.configuration",
    "kombu.transport.redis",
)


def main() -> None:
    """Run the ``celery`` command."""
    assert not {"celery_ckpt.runtime", "gevent"} & sys.modules.keys()
    from celery.__main__ import main

    main()
