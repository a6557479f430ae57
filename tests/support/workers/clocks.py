"""The clock of a worker, which can be set while it runs.

``libfaketime`` stands between the process and the system, and adds what a file says. What measures
spans of time is left alone, as on a machine whose clock is set.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_MISSING = "clocks cannot be set here: libfaketime (in the extra dev) is not installed"


class WorkerClock:
    """One worker's idea of the time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set_off_by(0)

    def set_off_by(self, seconds: float) -> None:
        """It is so much later than the others'; negative: earlier."""
        # Renamed, because it is read all the time.
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(f"{seconds:+f}\n")
        fresh.rename(self._path)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process has this clock."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


def sweep_up_after(pid: int) -> None:
    """Remove the shared memory that the library leaves behind if its process is killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        (Path("/dev/shm") / name).unlink(missing_ok=True)


def _library() -> Path:
    found = find_spec("libfaketime")
    assert found, _MISSING
    assert found.origin, _MISSING
    return Path(found.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
