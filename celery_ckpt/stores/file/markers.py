"""Markers of runs whose agents were deleted: one small file for each, until it expires."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.json_values import decode, encode
from celery_ckpt.stores.file.filesystem import make_directory, read, replace, translated


class MarkerDirectory:
    """The directory ``deleted``: expiry times in microseconds, by the digest of a run's id.

    It needs no lock: each file is replaced as a whole, and only an expired one is removed.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "deleted"

    def add(self, digests: Iterable[str], expires_at: int) -> None:
        """Write markers."""
        with translated(self._path):
            make_directory(self._path)
            for digest in digests:
                replace(self._path / digest, encode({"expires_at": expires_at}))

    def has(self, digest: str, now: int) -> bool:
        """Return True if there is such a marker, and it has not expired."""
        return _expires_at(self._path / digest) > now

    def remove_expired(self, now: int) -> None:
        """Remove the markers that have expired. A damaged one stays, and prevents nothing here."""
        for path in self._path.glob("[!.]*"):
            with suppress(StoreDamaged):
                if _expires_at(path) <= now:
                    with translated(path):
                        path.unlink(missing_ok=True)


def _expires_at(path: Path) -> int:
    """Return when a marker expires, or 0 if it does not exist."""
    with translated(path):
        stored = read(path)
    try:
        return 0 if stored is None else int(decode(stored)["expires_at"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(where=str(path), reason=str(error)) from error
