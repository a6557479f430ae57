"""From a URL to a Redis client, and from the driver's errors to ours.

    redis://user:password@host:6379/0            rediss:// the same over TLS
    valkey://host:6379/0                         valkeys:// the same over TLS
    redis+sentinel://user:password@host1:26379,host2:26379/mymaster/0?sentinel_password=...
    redis+cluster://user:password@host1:6379,host2:6379        rediss+sentinel, rediss+cluster: TLS

Options of redis-py, ``ssl_ca_certs`` or ``socket_timeout`` for instance, go into the query.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from redis import BlockingConnectionPool, Redis, RedisCluster
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.cluster import ClusterNode
from redis.connection import SSLConnection, parse_url
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_ckpt.errors import (
    CheckpointError,
    ConfigurationError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

#: What the driver can raise; a cluster's own exception is no RedisError.
DRIVER_ERRORS = (RedisError, RedisClusterException, OSError)
_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, RedisClusterException, OSError)
#: What a server answers that is a replica, and for which the driver has no class.
_OF_A_REPLICA = (
    "UNBLOCKED",  # it was made one while it waited for one
    "WAIT cannot be used with replica",
    "WAITAOF cannot be used with replica",
)
#: What a server answers while another one takes over.
_NOT_NOW = (
    AskError,  # of which MOVED is one
    ClusterError,  # it is down, or its nodes name each other as whose a slot is
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
)
#: The same in its own words, for which the driver has no class.
_NOT_NOW_IN_WORDS = (
    "MISCONF",  # the disk is full
    "NOREPLICAS",
    "WAITAOF cannot be used",
    *_OF_A_REPLICA,
)
#: What it answers when a user may run a script, but not a command in it: Redis 7 and Valkey, Redis 6.
_NOT_ALLOWED_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
#: What it answers, or its client says, if the URL does not fit the server.
_MISFITS = {
    "DB index is out of range": "Name another database in the URL",
    "Cluster mode is not enabled": "Write redis:// for a server that is no cluster",
    "unknown command": "Is it older than 6.2? Or no Sentinel, where the URL says redis+sentinel://",
}
_UNKNOWN_OPTION = re.compile("unexpected keyword argument ('.+')")

AnyClient = Redis | RedisCluster

_DEFAULTS: dict[str, Any] = {"socket_timeout": 5, "socket_connect_timeout": 5}
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


#: Python's words for TLS that nobody answers (a server without it waits for more), and how long to
#: try again then, in seconds: each time takes as long as the socket's timeout.
_NO_HANDSHAKE, _HANDSHAKE_PATIENCE = "handshake operation timed out", 8.0


class _Retry(Retry):
    """A refused login is not tried again: it stays refused. TLS that nobody answers, not for long."""

    def call_with_retry(
        self, do: Any, fail: Any, is_retryable: Any = None, *args: Any, **options: Any
    ) -> Any:
        """See redis-py."""
        end = time.monotonic() + _HANDSHAKE_PATIENCE

        def may_help(error: Exception) -> bool:
            is_late = _is_without_handshake(error) and time.monotonic() > end
            is_refused = is_late or isinstance(error, AuthenticationError)
            return not is_refused and (is_retryable is None or is_retryable(error))

        return super().call_with_retry(do, fail, may_help, *args, **options)


def _is_without_handshake(error: BaseException) -> bool:
    """The driver says only that it could not connect in time, and keeps why as the context."""
    return _NO_HANDSHAKE in f"{error} {error.__context__}"


def retry(also: tuple[type[Exception], ...] = ()) -> Retry:
    """About ten seconds of trying again, which covers a restart and a failover.

    There must be no second loop inside it: health checks would bring one along.
    """
    errors = (RedisConnectionError, RedisTimeoutError, TimeoutError, *also)
    return _Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.5), 10, errors)


def connect(url: str) -> AnyClient:
    """Make a client; nothing is sent yet, except to learn the shape of a cluster.

    Raises:
        ConfigurationError: the URL is wrong.
    """
    try:
        _refuse_unclear(url)
        parts = urlsplit(url.replace("valkey", "redis", 1) if url.startswith("valkey") else url)
        scheme, _, kind = parts.scheme.partition("+")
        make = {"": _plain, "sentinel": _sentinel, "cluster": _cluster}[kind]
        if scheme not in ("redis", "rediss") or not parts.netloc:
            raise ValueError("there is no host in it")
        return make(parts, scheme)
    except (ValueError, KeyError, TypeError) as error:
        option = _UNKNOWN_OPTION.search(str(error))
        told = f"{option[1]} is no option of redis-py's connections" if option else error
        raise ConfigurationError(
            reason=f"{without_password(url)} is no URL of a Redis store: {told}."
        ) from error


def _plain(parts: SplitResult, scheme: str) -> AnyClient:
    url = parts._replace(scheme=scheme, path=f"/{_database(parts.path.strip('/'))}").geturl()
    client = Redis.from_url(url, **_DEFAULTS, retry=retry(), protocol=2)
    return _with_known_options(client)


def _with_known_options(client: Redis) -> Redis:
    # A misspelt option only shows when a connection is made: make one, without connecting it.
    client.connection_pool.make_connection()
    return client


def _sentinel(parts: SplitResult, scheme: str) -> AnyClient:
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("the name of the master is missing after the hosts")
    options = _options(parts, scheme, database)
    own = {name: options.pop(name) for name in _SENTINEL_OPTIONS if name in options}
    shared = {k: v for k, v in options.items() if k.startswith(("ssl", "socket"))}
    sentinel_options = {**shared, **{k.removeprefix("sentinel_"): v for k, v in own.items()}}
    sentinel_options["retry"] = Retry(NoBackoff(), 0)
    sentinel = Sentinel(_hosts(parts, 26379), sentinel_kwargs=sentinel_options, **options)
    greet = {"redis_connect_func": _greet_master}
    client: Redis = sentinel.master_for(unquote(service), retry=retry(), **greet)
    return _with_known_options(client)


def _greet_master(connection: Any) -> None:
    """Who was the master when Sentinel was asked may be a replica by now, and would answer as one."""
    connection.on_connect()
    connection.send_command("ROLE")
    try:
        role = connection.read_response()[0]
    except NoPermissionError:
        return  # its first write will tell
    if role not in (b"master", "master"):
        raise RedisConnectionError(f"{connection.host}:{connection.port} is no master any more")


def _cluster(parts: SplitResult, scheme: str) -> AnyClient:
    options = _options(parts, scheme, "0")
    options.pop("db", None)
    nodes = [ClusterNode(host, port) for host, port in _hosts(parts, 6379)]
    with translated(parts.netloc.rpartition("@")[2]):
        client = RedisCluster(startup_nodes=nodes, **options, retry=retry())
    return _with_known_places(client)


def _with_known_places(client: RedisCluster) -> RedisCluster:
    # In a pipeline it would ask a server, for each script, where in the call the keys are. Behind
    # their number; and the first will do, for all of them lie in one slot.
    behind = {"flags": [], "first_key_pos": 3, "last_key_pos": 3, "step_count": 1}
    known: dict[str, Any] = client.commands_parser.commands
    known.update({name: {**known.get(name, {}), **behind} for name in ("eval", "evalsha")})
    return client


def _options(parts: SplitResult, scheme: str, database: str) -> dict[str, Any]:
    """Credentials, database and query, as redis-py reads them from a plain URL."""
    credentials = parts.netloc.rpartition("@")[0]
    at = f"{credentials}@" if credentials else ""
    plain = f"{scheme}://{at}host/{_database(database)}?{parts.query}"
    options: dict[str, Any] = {**_DEFAULTS, **parse_url(plain)}
    options.pop("host")
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    return options


def _database(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError(f"{text!r} is no number of a database")
    return int(text or 0)


def _hosts(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    hosts = []
    for host in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{host}")
        if not one.hostname:
            raise ValueError(f"{host!r} is no host")
        hosts.append((one.hostname, one.port or default_port))
    return hosts


def _refuse_unclear(url: str) -> None:
    """Nobody can tell where the password of such a URL ends; it may not be shown either."""
    if "://" not in url or "@" in _parts_to_show(url)[1]:
        raise ValueError("write / ? # and @ in a password as %2F %3F %23 and %40")


def _parts_to_show(url: str) -> tuple[str, str]:
    """The scheme and hosts, then all that comes behind the hosts."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{authority.rpartition('@')[2]}", rest[len(authority) :]


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    hosts, behind = _parts_to_show(url)
    if "://" not in url or "@" in behind:
        return "This"
    return hosts + re.split("[?#]", behind, maxsplit=1)[0]


def leave_replica(client: AnyClient, error: Exception) -> None:
    """Close the idle connections to a server that answers as a replica: the next one may lead to the
    master. A cluster's client is told by its servers where to go.
    """
    is_replica = isinstance(error, ReadOnlyError | MasterDownError)
    if isinstance(client, RedisCluster) or not (is_replica or str(error).startswith(_OF_A_REPLICA)):
        return
    pool = client.connection_pool
    if isinstance(pool, BlockingConnectionPool):
        pool.disconnect()  # before redis-py 7 it knows only all of them
    else:
        pool.disconnect(inuse_connections=False)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error, where) from error


def translate(error: Exception, where: str, key: bytes | str = "") -> CheckpointError:
    """The error of ours that says what one of the driver's means; ``key``: what was asked about."""
    # What follows in the answer of Sentinel's client are all its clients with all their options.
    reason = str(error).partition(" : <redis")[0].rstrip(".?") or type(error).__name__
    if _is_without_handshake(error):
        reason += ", no TLS was spoken (if the server has none, write redis:// for rediss://)"
    in_script = any(text in reason for text in _NOT_ALLOWED_IN_SCRIPT)
    if isinstance(error, NoPermissionError) or in_script:
        return ConfigurationError(
            reason=f"The Redis user at {where} lacks a permission: {reason}. Give it the rights of its "
            "role on the keys of ckpt_key_prefix; the page on restricting Redis users lists them."
        )
    if isinstance(error, AuthenticationError):
        return ConfigurationError(reason=f"The Redis server at {where} refused the login: {reason}.")
    for text, remedy in _MISFITS.items():
        if text in reason:
            told = f"The Redis server at {where} does not fit its URL: {reason}. {remedy}."
            return ConfigurationError(reason=told)
    if isinstance(error, OutOfMemoryError):
        return StoreFull(where=where, reason=reason)
    if isinstance(error, (*_UNREACHABLE, *_NOT_NOW)) or reason.startswith(_NOT_NOW_IN_WORDS):
        return StoreUnavailable(where=where, reason=reason)
    name = key if isinstance(key, str) else key.decode(errors="replace")
    about = f" about {name}" if name else ""
    return StoreError(reason=f"The Redis store at {where} answered{about}: {reason}.")
