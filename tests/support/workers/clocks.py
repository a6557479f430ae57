"""The clock of a worker, which can be set while it runs.

``libfaketime`` adds an offset, which it reads from a file, to the time of the system. It does not
change the monotonic clock, as setting the clock of a machine does not.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_MISSING = "libfaketime is not installed (it is in the extra dev)"


class WorkerClock:
    """The clock of one worker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set_off_by(0)

    def set_off_by(self, seconds: float) -> None:
        """Set the clock ahead of the clock of the system; a negative offset sets it back."""
        # Replaced by a rename, because the worker reads the file all the time.
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(f"{seconds:+f}\n")
        fresh.rename(self._path)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that give a process this clock."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


def remove_shared_memory(pid: int) -> None:
    """Remove the shared memory that the library leaves when its process is killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        (Path("/dev/shm") / name).unlink(missing_ok=True)


def _library() -> Path:
    found = find_spec("libfaketime")
    assert found, _MISSING
    assert found.origin, _MISSING
    return Path(found.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
