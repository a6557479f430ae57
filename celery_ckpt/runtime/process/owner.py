"""Who holds a lease: which process, on which boot of which machine; and whether it is known to be dead.

    hostname/boot id/pid namespace/pid/start time of the process

Only a process that would be seen from here can be known to be dead: the same boot and the same pid
namespace. The start time tells a process from a later one with the same pid.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

_UNKNOWN = "-"


def this_process() -> str:
    """The name of this process as the owner of leases."""
    pid = os.getpid()
    return "/".join((_hostname(), *_place(), str(pid), _start_time(pid)))


def is_process(owner: str) -> bool:
    """Is that the name of a process, and not that of a tool?"""
    return len(owner.rsplit("/", 4)) == 5


def host_and_pid(owner: str) -> str:
    """An owner as people know it; a tool is shown by the name it gave itself."""
    if not is_process(owner):
        return owner
    host, _, _, pid, _ = owner.rsplit("/", 4)
    return f"{host}, pid {pid}"


def is_known_dead(owner: str) -> bool:
    """Was that owner a process that would be here, and is not?"""
    if not is_process(owner):
        return False
    host, boot, namespace, pid, started = owner.rsplit("/", 4)
    if host != _hostname() or (boot, namespace) != _place():
        return False
    if _UNKNOWN in (boot, namespace, started) or not pid.isdigit():
        return False
    return _start_time(int(pid)) != started


def is_dead(pid: int) -> bool:
    """Is there no such process any more, or only its remains?"""
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
    """When a process began, in ticks since the boot; unknown if it is gone, or dead and not buried."""
    with suppress(OSError, IndexError):
        # The name in parentheses may hold anything, so count from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[19] if fields[0] not in "ZX" else _UNKNOWN
    return _UNKNOWN
