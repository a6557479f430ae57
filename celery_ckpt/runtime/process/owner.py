"""The owner of a lease: a process on a boot of a machine, and whether it is known to be dead.

    hostname/boot id/pid namespace/pid/start time of the process

Only a process that would be visible from here can be known to be dead: one of the same boot and the
same pid namespace. The start time distinguishes a process from a later one with the same pid.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

_UNKNOWN = "-"


def this_process() -> str:
    """Return the name of this process as the owner of leases."""
    pid = os.getpid()
    return "/".join((_hostname(), *_place(), str(pid), _start_time(pid)))


def is_process(owner: str) -> bool:
    """True if the owner is a process; False if it is a tool."""
    return len(owner.rsplit("/", 4)) == 5


def host_and_pid(owner: str) -> str:
    """Return an owner for people: host and pid, or the name that a tool gave itself."""
    if not is_process(owner):
        return owner
    host, _, _, pid, _ = owner.rsplit("/", 4)
    return f"{host}, pid {pid}"


def is_known_dead(owner: str) -> bool:
    """True if the owner was a process that would be visible from here, and is not."""
    if not is_process(owner):
        return False
    host, boot, namespace, pid, started = owner.rsplit("/", 4)
    if host != _hostname() or (boot, namespace) != _place():
        return False
    if _UNKNOWN in (boot, namespace, started) or not pid.isdigit():
        return False
    return _start_time(int(pid)) != started


def is_dead(pid: int) -> bool:
    """True if the process does not exist any more, or is a zombie."""
    return _start_time(pid) == _UNKNOWN


def _hostname() -> str:
    return socket.gethostname().replace("/", "_") or _UNKNOWN


def _place() -> tuple[str, str]:
    boot = namespace = _UNKNOWN
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return boot, namespace


def _start_time(pid: int) -> str:
    """Return the start of a process in ticks since the boot; unknown if it is dead or a zombie."""
    with suppress(OSError, IndexError):
        # The name in parentheses may contain anything, so count from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[19] if fields[0] not in "ZX" else _UNKNOWN
    return _UNKNOWN
