"""The URLs of Redis stores, and the clients that they describe.

    redis://user:password@host:6379/0            rediss:// the same over TLS
    valkey://host:6379/0                         valkeys:// the same over TLS
    redis+sentinel://user:password@host1:26379,host2:26379/mymaster/0?sentinel_password=...
    redis+cluster://user:password@host1:6379,host2:6379        rediss+sentinel, rediss+cluster: TLS

Options of redis-py, for instance ``ssl_ca_certs`` or ``socket_timeout``, are parameters of the query.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import SSLConnection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.stores.redis.connections import (
    PatientConnection,
    PatientTlsConnection,
    Pool,
    SentinelPool,
    retry,
)
from celery_ckpt.stores.redis.errors import translated

_UNKNOWN_OPTION = re.compile("unexpected keyword argument ('.+')")

AnyClient = Redis | RedisCluster

_DEFAULTS: dict[str, Any] = {"socket_timeout": 5, "socket_connect_timeout": 5}
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


def connect(url: str) -> AnyClient:
    """Return a client. It does not connect yet, except to learn the shape of a cluster.

    Raises:
        ConfigurationError: the URL is wrong.
    """
    try:
        _refuse_unclear(url)
        parts = urlsplit(url.replace("valkey", "redis", 1) if url.startswith("valkey") else url)
        scheme, _, kind = parts.scheme.partition("+")
        make = {"": _plain, "sentinel": _sentinel, "cluster": _cluster}[kind]
        if scheme not in ("redis", "rediss") or not parts.netloc:
            raise ValueError("it has no host")
        return make(parts, scheme)
    except (ValueError, KeyError, TypeError) as error:
        option = _UNKNOWN_OPTION.search(str(error))
        why = f"{option[1]} is not an option of redis-py's connections" if option else error
        raise ConfigurationError(
            reason=f"{without_password(url)} is not the URL of a Redis store: {why}."
        ) from error


def _plain(parts: SplitResult, scheme: str) -> AnyClient:
    url = parts._replace(scheme=scheme, path=f"/{_database(parts.path.strip('/'))}").geturl()
    connection_class = PatientTlsConnection if scheme == "rediss" else PatientConnection
    pool = Pool.from_url(url, **_DEFAULTS, retry=retry(), protocol=2, connection_class=connection_class)
    client = Redis.from_pool(pool)
    return _with_known_options(client)


def _with_known_options(client: Redis) -> Redis:
    # A misspelt option is only noticed when a connection is made: make one, without connecting it.
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
    client: Redis = sentinel.master_for(
        unquote(service),
        connection_pool_class=SentinelPool,
        retry=retry(),
        redis_connect_func=_greet_master,
    )
    return _with_known_options(client)


def _greet_master(connection: Any) -> None:
    """Refuse a server that has become a replica since Sentinel named it as the master."""
    connection.on_connect()
    connection.send_command("ROLE")
    try:
        role = connection.read_response()[0]
    except NoPermissionError:
        return  # a replica refuses the first write
    if role not in (b"master", "master"):
        raise RedisConnectionError(f"{connection.host}:{connection.port} is not the master any more")


def _cluster(parts: SplitResult, scheme: str) -> AnyClient:
    (host, port), *others = _hosts(parts, 6379)
    first = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with translated(parts.netloc.rpartition("@")[2]):
        client = RedisCluster(
            # It takes the class of its pool only with a URL.
            url=_plain_url(parts, scheme, first, "0"),
            startup_nodes=[ClusterNode(host, port) for host, port in others],
            connection_pool_class=Pool,
            **_DEFAULTS,
            retry=retry(),
        )
    return _with_known_places(client)


def _with_known_places(client: RedisCluster) -> RedisCluster:
    # In a pipeline it would ask a server, for each script, where in the call the keys are. They follow
    # their number, and the first one is enough, because all of them are in one slot.
    behind = {"flags": [], "first_key_pos": 3, "last_key_pos": 3, "step_count": 1}
    known: dict[str, Any] = client.commands_parser.commands
    known.update({name: {**known.get(name, {}), **behind} for name in ("eval", "evalsha")})
    return client


def _options(parts: SplitResult, scheme: str, database: str) -> dict[str, Any]:
    """Return credentials, database and query as redis-py reads them from a plain URL."""
    options: dict[str, Any] = {**_DEFAULTS, **parse_url(_plain_url(parts, scheme, "host", database))}
    options.pop("host")
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    return options


def _plain_url(parts: SplitResult, scheme: str, host: str, database: str) -> str:
    credentials = parts.netloc.rpartition("@")[0]
    at = f"{credentials}@" if credentials else ""
    return f"{scheme}://{at}{host}/{_database(database)}?{parts.query}"


def _database(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError(f"{text!r} is not the number of a database")
    return int(text or 0)


def _hosts(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    hosts = []
    for host in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{host}")
        if not one.hostname:
            raise ValueError(f"{host!r} is not a host")
        hosts.append((one.hostname, one.port or default_port))
    return hosts


def _refuse_unclear(url: str) -> None:
    """Raise ``ValueError`` if it is not clear where the password ends. Such a URL must not be shown."""
    if "://" not in url or "@" in _parts_to_show(url)[1]:
        raise ValueError("write / ? # and @ in a password as %2F %3F %23 and %40")


def _parts_to_show(url: str) -> tuple[str, str]:
    """Return the scheme and hosts, then everything after the hosts."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{authority.rpartition('@')[2]}", rest[len(authority) :]


def without_password(url: str) -> str:
    """Return the URL as it may be shown."""
    hosts, behind = _parts_to_show(url)
    if "://" not in url or "@" in behind:
        return "This"
    return hosts + re.split("[?#]", behind, maxsplit=1)[0]
