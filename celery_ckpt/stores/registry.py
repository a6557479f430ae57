"""From a URL to a store. Each kind is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote, urlsplit

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.store import CheckpointStore, Durability

_REDIS_SCHEMES = (
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)


#: What can be waited for, where not everything can. A file store always syncs.
_DURABILITIES = {"memory": ["default"], "file": ["default", "fsync"], "sqlite": ["default", "fsync"]}


#: What stands behind ``sqlite://`` if there is to be no file.
_IN_MEMORY = ("", "/", "/:memory:")


def open_store(
    url: str,
    *,
    durability: Durability = "default",
    encryption_keys: str | Iterable[str] = (),
    **options: Any,
) -> CheckpointStore:
    """Open a store: ``memory://``, ``file:///dir``, ``sqlite:///relative.db``,
    ``sqlite:////absolute.db``, ``redis://``, ``rediss://``, ``valkey://``, ``redis+sentinel://`` or
    ``redis+cluster://``.

    With ``durability`` a write returns when it is on the disk (``"fsync"``) or on a replica
    (``"replica"``, Redis only); ``docs/howto/survive-a-failover.md`` says what that costs. With
    ``encryption_keys`` what agents say and know is encrypted (``docs/howto/encrypt.md``). The other
    options are those of the store's constructor, ``max_checkpoint_bytes`` for instance.

    Raises:
        ConfigurationError: the URL names no store, a key is wrong, or an option is none of that
            store's.
    """
    store = _opened(url, durability, options)
    # An empty text is a variable that was not set: no reason to write everything as it is.
    is_sealed = encryption_keys or isinstance(encryption_keys, str)
    return _store("encrypted", "EncryptedStore")(store, encryption_keys) if is_sealed else store


def without_password(url: str) -> str:
    """The URL of a store as a message may show it."""
    if url.partition("://")[0] in _REDIS_SCHEMES:
        shown: str = _store("redis.addresses", "without_password")(url)
        return shown
    return url


def missing_path(url: str) -> Path | None:
    """The file or directory that opening this URL would make; ``None`` if there is nothing to make."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest not in _IN_MEMORY:
        path = Path(unquote(rest.removeprefix("/")))
    elif scheme == "file":
        path = Path(unquote(urlsplit(url).path))
    else:
        return None
    return None if path.exists() else path


def _opened(url: str, durability: Durability, options: dict[str, Any]) -> CheckpointStore:
    scheme = url.partition("://")[0] if "://" in url else ""
    opener = _OPENERS.get(scheme)
    if opener is None:
        known = ", ".join(f"{name}://" for name in _OPENERS)
        # Not the URL itself: it may hold a password.
        what = f"{scheme!r} is" if scheme else "What stands before '://' is"
        raise ConfigurationError(reason=f"{what} no kind of store. There are: {known}.")
    _refuse_durability(scheme, durability)
    if durability != "default" and scheme != "file":
        options["durability"] = durability
    try:
        return opener(url, options)
    except TypeError as error:
        raise ConfigurationError(reason=f"A {scheme}:// store cannot be opened so: {error}.") from error


def _refuse_durability(scheme: str, durability: str) -> None:
    known = _DURABILITIES.get(scheme, get_args(Durability))
    if durability not in known:
        what = f"A {scheme}:// store cannot have durability = {durability!r}"
        raise ConfigurationError(reason=f"{what}. It can have: {', '.join(known)}.")


def _store(module: str, name: str) -> Any:
    return getattr(import_module(f"celery_ckpt.stores.{module}"), name)


def _memory(url: str, options: dict[str, Any]) -> CheckpointStore:
    store: CheckpointStore = _store("memory", "MemoryCheckpointStore")(**options)
    return store


def _file(url: str, options: dict[str, Any]) -> CheckpointStore:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.strip("/"):
        raise ConfigurationError(reason=f"{url!r}: write file:///, then a directory.")
    store: CheckpointStore = _store("file", "FileCheckpointStore")(unquote(parts.path), **options)
    return store


def _sqlite(url: str, options: dict[str, Any]) -> CheckpointStore:
    kind = _store("sqlite", "SqliteCheckpointStore")
    path = unquote(url.removeprefix("sqlite://"))
    if path in _IN_MEMORY:
        memory: CheckpointStore = kind.in_memory(**options)
        return memory
    if not path.startswith("/"):
        raise ConfigurationError(reason=f"{url!r}: write sqlite:/// and a path, four / if absolute.")
    store: CheckpointStore = kind.open(path[1:], **options)
    return store


def _redis(url: str, options: dict[str, Any]) -> CheckpointStore:
    store: CheckpointStore = _store("redis", "RedisCheckpointStore").from_url(url, **options)
    return store


_OPENERS: dict[str, Callable[[str, dict[str, Any]], CheckpointStore]] = {
    "memory": _memory,
    "file": _file,
    "sqlite": _sqlite,
    **dict.fromkeys(_REDIS_SCHEMES, _redis),
}
