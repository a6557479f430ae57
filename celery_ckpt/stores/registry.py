"""Which store a URL names, and how to open it.

The scheme of the URL decides. The built-in stores are imported when they are first opened. Other
packages add schemes with ``register_store`` or with an entry point in the group ``celery_ckpt.stores``.
Entry points are read only for a scheme that is neither built in nor registered.

An error never shows a URL as it is: it may contain a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import unquote, urlsplit

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.store import CheckpointStore, Durability

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Opens the store at a URL, with the options that were given to ``open_store``.
Opener = Callable[..., CheckpointStore]

#: The entry points of installed packages: the name is a scheme, the value an opener.
ENTRY_POINTS = "celery_ckpt.stores"

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
#: The durabilities of the built-in stores that do not have all. A file store always syncs.
_DURABILITIES = {"memory": ["default"], "file": ["default", "fsync"], "sqlite": ["default", "fsync"]}
#: What follows ``sqlite://`` for a database in memory.
_IN_MEMORY = ("", "/", "/:memory:")


def open_store(
    url: str,
    *,
    durability: Durability = "default",
    encryption_keys: str | Iterable[str] = (),
    **options: Any,
) -> CheckpointStore:
    """Open a store: ``memory://``, ``file:///dir``, ``sqlite:///relative.db``,
    ``sqlite:////absolute.db``, ``redis://``, ``rediss://``, ``valkey://``, ``redis+sentinel://``,
    ``redis+cluster://``, or a scheme that another package provides (``register_store``).

    With ``durability``, a write returns when it is on the disk (``"fsync"``) or on a replica
    (``"replica"``, Redis only); ``docs/howto/survive-a-failover.md`` states the cost. With
    ``encryption_keys``, the content of agents is encrypted (``docs/howto/encrypt.md``). The other
    options are passed to the store's constructor or opener, for instance ``max_checkpoint_bytes``.

    Raises:
        ConfigurationError: the scheme is unknown, or the URL, a key or an option is wrong.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    known_durabilities = _DURABILITIES.get(scheme, get_args(Durability))
    if durability not in known_durabilities:
        what = f"A {scheme}:// store cannot have durability = {durability!r}"
        raise ConfigurationError(reason=f"{what}. It can have: {', '.join(known_durabilities)}.")
    if durability != "default" and scheme != "file":
        options["durability"] = durability
    opener = _BUILT_IN.get(scheme) or _registered.get(scheme) or _installed(scheme)
    try:
        store = opener(url, **options)
    except TypeError as error:
        raise ConfigurationError(reason=f"Invalid options for a {scheme}:// store: {error}.") from error
    # An empty string is an unset variable, and must not switch encryption off.
    if encryption_keys or isinstance(encryption_keys, str):
        encrypted: CheckpointStore = _named("encrypted", "EncryptedStore")(store, encryption_keys)
        return encrypted
    return store


def register_store(scheme: str, opener: Opener) -> None:
    """Let ``open_store`` and ``ckpt_store_url`` open URLs with this scheme.

    ``opener(url, **options)`` returns a store. It gets the whole URL and the options that were given to
    ``open_store``, with ``durability`` unless it is ``"default"``. An app passes
    ``max_checkpoint_bytes``, and ``key_prefix`` if that is set. A ``TypeError`` from the opener is
    reported as invalid options. A scheme that is registered here takes precedence over an entry point.

    Raises:
        ConfigurationError: the scheme is not valid, is built in, or is registered for another opener.
    """
    if not _SCHEME.fullmatch(scheme):
        reason = f"{scheme!r} is not a URL scheme. Use lower-case letters, digits, '+', '.' and '-'."
        raise ConfigurationError(reason=reason)
    if scheme in _BUILT_IN:
        raise ConfigurationError(reason=f"The store scheme {scheme!r} is built in. Use another one.")
    if _registered.setdefault(scheme, opener) is not opener:
        reason = f"The store scheme {scheme!r} is already registered for {_registered[scheme]!r}."
        raise ConfigurationError(reason=f"{reason} Use another one.")


def without_password(url: str) -> str:
    """Return the URL as an error or a page may show it."""
    if url.partition("://")[0] in ("memory", "file", "sqlite"):
        return url
    shown: str = _named("redis.addresses", "without_password")(url)
    return shown


def missing_path(url: str) -> Path | None:
    """Return the file or directory that opening this URL would create, or ``None``."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest not in _IN_MEMORY:
        path = Path(unquote(rest.removeprefix("/")))
    elif scheme == "file":
        path = Path(unquote(urlsplit(url).path))
    else:
        return None
    return None if path.exists() else path


# -- stores of other packages ------------------------------------------------------------------------


def _installed(scheme: str) -> Opener:
    """Return the opener that an installed package provides for a scheme."""
    from importlib.metadata import entry_points  # start-up must not pay for it

    group = entry_points(group=ENTRY_POINTS)
    found = {_package_of(point): point for point in group.select(name=scheme)} if scheme else {}
    if not found:
        known = sorted({*_registered, *group.names} - _BUILT_IN.keys())
        names = ", ".join(f"{name}://" for name in (*_BUILT_IN, *known))
        # Not the URL itself: it may contain a password.
        what = f"Unknown store scheme {scheme!r}" if scheme else "A store's URL begins with a scheme"
        raise ConfigurationError(reason=f"{what}. Known schemes: {names}.")
    if len(found) > 1:
        packages = " and ".join(sorted(found))
        reason = f"The packages {packages} both provide the store scheme {scheme!r}. Uninstall one."
        raise ConfigurationError(reason=reason)
    [(package, point)] = found.items()
    what = f"The store scheme {scheme!r} of the package {package}"
    try:
        opener = point.load()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigurationError(reason=f"{what} cannot be loaded ({point.value}: {why}).") from error
    if not callable(opener):
        raise ConfigurationError(reason=f"{what} is not usable: {point.value} is not callable.")
    checked: Opener = _registered.setdefault(scheme, opener)
    return checked


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


# -- built-in stores ---------------------------------------------------------------------------------


def _named(module: str, name: str) -> Any:
    return getattr(import_module(f"celery_ckpt.stores.{module}"), name)


def _memory(url: str, **options: Any) -> CheckpointStore:
    store: CheckpointStore = _named("memory", "MemoryCheckpointStore")(**options)
    return store


def _file(url: str, **options: Any) -> CheckpointStore:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.strip("/"):
        raise ConfigurationError(reason=f"{url!r}: write file:///, then a directory.")
    store: CheckpointStore = _named("file", "FileCheckpointStore")(unquote(parts.path), **options)
    return store


def _sqlite(url: str, **options: Any) -> CheckpointStore:
    kind = _named("sqlite", "SqliteCheckpointStore")
    path = unquote(url.removeprefix("sqlite://"))
    if path in _IN_MEMORY:
        memory: CheckpointStore = kind.in_memory(**options)
        return memory
    if not path.startswith("/"):
        reason = f"{url!r}: write sqlite:/// and a path; four slashes if it is absolute."
        raise ConfigurationError(reason=reason)
    store: CheckpointStore = kind.open(path[1:], **options)
    return store


def _redis(url: str, **options: Any) -> CheckpointStore:
    store: CheckpointStore = _named("redis", "RedisCheckpointStore").from_url(url, **options)
    return store


_BUILT_IN: dict[str, Opener] = {
    "memory": _memory,
    "file": _file,
    "sqlite": _sqlite,
    "redis": _redis,
    "rediss": _redis,
    "valkey": _redis,
    "valkeys": _redis,
    "redis+sentinel": _redis,
    "rediss+sentinel": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
}
#: The openers that were registered, or loaded from an entry point.
_registered: dict[str, Opener] = {}
