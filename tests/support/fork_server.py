"""A process that has imported what many programs import, and forks them on request.

A short program spends most of its time on imports; here they are made once. ``forks.py`` runs this file
with the modules to import as its arguments. A request is one line, for a program or for the exit status
of one, and so is the reply.

The child leaves the loop and ends as the program does, so that exit handlers run as usual.
"""

from __future__ import annotations

import ctypes
import json
import os
import pkgutil
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

#: As in <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1


def serve() -> dict[str, Any]:
    """Answer requests until the input ends. In a child, return the request for its program."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "pid" in asked:
            _answer(_exit_status(asked["pid"]))
        elif os.fork() == 0:
            return asked
    sys.exit()  # the programs die with this process


def _exit_status(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _answer(answer: int | None) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the tests ended before the program began")


def _become(asked: dict[str, Any]) -> None:
    """Set up what a new process gets: session, directory, files, environment, arguments, path."""
    os.setsid()
    read, *written = asked["files"]
    files = [os.open(read, os.O_RDONLY | os.O_NOCTTY)]
    files += [os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY) for path in written]
    # Only now: the tests then close their end of a pseudo terminal, and its path is gone.
    _answer(os.getpid())
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    below = [entry for entry in sys.path if entry not in _given_path()]
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["command"]
    # The directory of a script comes first.
    sys.path[:] = [str(Path(sys.argv[0]).parent), *_given_path(), *below]
    # A script is not in a package; Click names the program after it.
    globals()["__package__"] = None


def _given_path() -> list[str]:
    """Return what ``PYTHONPATH`` has added to ``sys.path``, in the form in which Python adds it."""
    given = os.environ["PYTHONPATH"].split(os.pathsep)
    return list(dict.fromkeys(map(os.path.abspath, given)))


if __name__ == "__main__":
    _die_with(int(sys.argv[1]))
    for module in sys.argv[2:]:
        import_module(module)
    server = os.getpid()
    request = serve()
    _die_with(server)
    _become(request)
    sys.exit(pkgutil.resolve_name(request["main"])())
