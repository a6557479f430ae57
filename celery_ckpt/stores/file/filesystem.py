"""Atomic replacement of files, locks between processes, private modes."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from celery_ckpt.errors import StoreError, StoreFull, is_disk_full

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


@contextmanager
def translated(where: Path) -> Iterator[None]:
    """Turn errors of the operating system into ``StoreFull`` and ``StoreError``."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise StoreFull(where=str(where), reason=str(error)) from error
        raise StoreError(reason=f"The file store at {where} failed: {error}") from error


def make_directory(path: Path) -> None:
    """Create a directory and its parents, private to this user."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True, mode=DIRECTORY_MODE)


def sync_directory(path: Path) -> None:
    """Make new and deleted names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old content or the new one, even after a crash."""
    _rename(_written_beside(path, data), path)
    sync_directory(path.parent)


def replace_unsynced(path: Path, data: bytes) -> None:
    """Write a file like ``replace``, faster. After a power failure it may be the old one, or empty."""
    _rename(_written_beside(path, data, is_synced=False), path)


def _rename(temporary: Path, path: Path) -> None:
    try:
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def add(path: Path, data: bytes) -> bool:
    """Create a file with its whole content. Return False if it exists."""
    temporary = _written_beside(path, data)
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_directory(path.parent)
    return True


def _written_beside(path: Path, data: bytes, *, is_synced: bool = True) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        write_all(descriptor, data)
        if is_synced:
            os.fsync(descriptor)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return temporary


def append(path: Path, data: bytes, size: int) -> None:
    """Append to a file after its first ``size`` bytes. Any further bytes are a torn write.

    Raises:
        OSError: nothing was added.
    """
    is_new = size == 0 and not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
    try:
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if is_new:
        sync_directory(path.parent)


def overwrite(path: Path, data: bytes, size: int) -> None:
    """Write after the first ``size`` bytes of a file, without waiting for the disk.

    Only for what no promise depends on: a crash can leave any part of it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
    try:
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read(path: Path) -> bytes | None:
    """Return the content of a file, or ``None`` if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextmanager
def locked(directory: Path, *, exclusive: bool) -> Iterator[bool]:
    """Hold the lock of a directory. Yields False if the directory does not exist."""
    path = directory / "lock"
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except FileNotFoundError:
            yield False
            return
        _HELD.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            if _inode(path) == os.fstat(descriptor).st_ino:  # else it was deleted during the wait
                yield True
                return
        finally:
            # A forked child may have inherited the descriptor: closing ours would not unlock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            _HELD.discard(descriptor)
            os.close(descriptor)


def _inode(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


#: The descriptors through which this process holds locks.
_HELD: set[int] = set()


def _close_inherited_locks() -> None:
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)
