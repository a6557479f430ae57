"""A process that has imported what every worker imports, and forks workers on request.

A worker spends most of its start on imports; here they are made once. ``launch.py`` runs this file.
A request is one line, for a worker or for the exit status of one, and so is the reply.

The child leaves the loop and ends as the ``celery`` script does, so that exit handlers run as usual.
This process must import nothing that forks would share: neither ``celery_ckpt.runtime``, whose
``drain`` is a page of shared memory, nor gevent, which must be imported first.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

#: As in <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
IMPORTED = (
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


def serve() -> dict[str, Any]:
    """Answer requests until the input ends. In a child, return the request for its worker."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "pid" in asked:
            _answer(_exit_status(asked["pid"]))
        elif os.fork() == 0:
            return asked
    sys.exit()  # the workers die with this process


def _exit_status(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _answer(answer: int | None) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the tests ended before the worker began")


def _become(asked: dict[str, Any]) -> None:
    """Set up what a new process gets: session, directory, files, environment, arguments, path."""
    os.setsid()
    _answer(os.getpid())
    below = [entry for entry in sys.path if entry not in _given_path()]
    os.chdir(asked["directory"])
    with Path(os.devnull).open() as nothing, Path(asked["log"]).open("ab") as log:
        for file, number in [(nothing, 0), (log, 1), (log, 2)]:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["command"]
    # The directory of a script comes first.
    sys.path[:] = [str(Path(sys.argv[0]).parent), *_given_path(), *below]


def _given_path() -> list[str]:
    """Return what ``PYTHONPATH`` has added to ``sys.path``, in the form in which Python adds it."""
    given = os.environ["PYTHONPATH"].split(os.pathsep)
    return list(dict.fromkeys(map(os.path.abspath, given)))


if __name__ == "__main__":
    _die_with(int(sys.argv[1]))
    for module in IMPORTED:
        import_module(module)
    assert not {"celery_ckpt.runtime", "gevent"} & sys.modules.keys()
    server = os.getpid()
    worker = serve()
    _die_with(server)
    _become(worker)
    sys.exit(import_module("celery.__main__").main())
