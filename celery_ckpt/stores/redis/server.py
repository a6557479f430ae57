"""Commands and scripts, sent to the node that has the data. A reply is bytes, or a ``StoreError``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha1
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import ClusterCrossSlotError, NoScriptError, ResponseError

from celery_ckpt.errors import CheckpointError, StoreError
from celery_ckpt.records import Lease
from celery_ckpt.stores.redis.addresses import AnyClient
from celery_ckpt.stores.redis.errors import DRIVER_ERRORS, leave_replica, translate
from celery_ckpt.stores.resources import joined_lua, lua

_PAGE = 500
#: The bytes that are saved must be worth the work of the script.
_WORTH_SENDING_ONCE = 200


@cache
def _script(name: str) -> tuple[bytes, bytes]:
    return _with_digest(lua(name))


@cache
def _joined(names: tuple[str, ...]) -> tuple[bytes, bytes]:
    return _with_digest(joined_lua(names))


def _with_digest(text: str) -> tuple[bytes, bytes]:
    source = text.encode()
    return source, sha1(source, usedforsecurity=False).hexdigest().encode()


def _bytes(fact: Any) -> Any:
    # The user's client may have decoded the reply.
    return fact.encode() if isinstance(fact, str) else fact


def _key_of(args: Sequence[Any]) -> Any:
    """Return the first key of a command."""
    place = 3 if args[0] in ("EVAL", "EVALSHA") else 1
    return args[place] if len(args) > place else ""


def fence(agent_id: str, lease: Lease | None) -> str:
    """Return the lease as scripts take it. The lease of another agent is never valid for this one."""
    if lease is None:
        return ""
    return f"{lease.token}:{lease.nonce}" if lease.agent_id == agent_id else "0:"


class _Repetition(NamedTuple):
    """A text that the last argument of a joined script has in common with another argument."""

    #: Where it is, as ``joined.lua`` takes it.
    place: str
    #: The last argument without it.
    rest: bytes


def _repetition(args: Sequence[Any], common: Sequence[bytes]) -> _Repetition | None:
    for text in common:
        at = args[-1].find(text) if len(text) >= _WORTH_SENDING_ONCE else -1
        for number, arg in enumerate(args[:-1], 1) if at >= 0 else ():
            start = arg.find(text) if isinstance(arg, bytes) else -1
            if start >= 0:
                end = start + len(text)
                rest = args[-1][:at] + args[-1][at + len(text) :]
                return _Repetition(f"{number} {start + 1} {end} {at}", rest)
    return None


class Call(NamedTuple):
    """A command or a script, to be sent together with others."""

    args: tuple[Any, ...]
    source: bytes | None = None
    #: The name of the command or of the script; of a joined script, the names of its parts.
    name: str = ""

    @classmethod
    def command(cls, *args: Any) -> Call:
        """Return the call of a command."""
        return cls(args, name=args[0])

    @classmethod
    def script(cls, name: str, keys: Sequence[bytes], *args: Any) -> Call:
        """Return the call of a script."""
        source, digest = _script(name)
        return cls(("EVALSHA", digest, len(keys), *keys, *args), source, name)

    @classmethod
    def joined(cls, *calls: Call, deciding: int = 0, common: Sequence[bytes] = ()) -> Call:
        """Return the call of one script that runs all these. Its reply is the list of their replies.

        ``deciding`` is the number of a call, counted from 1: later calls are made only if that one has
        written. Commands must have one key, as their first argument. In a cluster, all keys must be in
        one slot. ``common`` are texts that the last argument may have in common with another one: the
        first that it has is sent once.
        """
        # Parts that run the same script share it, so that the server compiles and keeps it once.
        scripts: dict[str, int] = {}
        sizes: list[int] = []
        keys: list[Any] = []
        args: list[Any] = []
        for call in calls:
            if call.source is None:
                name, (command, key, *rest) = "", call.args
                own, more = [key], [command, *rest]
            else:
                name, count = call.name, call.args[2]
                own, more = list(call.args[3 : 3 + count]), list(call.args[3 + count :])
            sizes += (scripts.setdefault(name, len(scripts) + 1), len(own), len(more))
            keys += own
            args += more
        source, digest = _joined(tuple(scripts))
        repetition = _repetition(args, common)
        if repetition is not None:
            args[-1] = repetition.rest
        place = repetition.place if repetition else ""
        given = (deciding, len(calls), place, *sizes, *args)
        name = "+".join(call.name for call in calls)
        return cls(("EVALSHA", digest, len(keys), *keys, *given), source, name)

    @property
    def with_source(self) -> tuple[Any, ...]:
        """The call for a server that does not know the script."""
        return self.args if self.source is None else ("EVAL", self.source, *self.args[2:])

    @property
    def key(self) -> Any:
        """The first key."""
        return _key_of(self.args)


class Server:
    """A Redis client as the store uses it."""

    #: True if several calls may be sent as one script (see ``as_one``).
    joins = True

    def __init__(self, client: AnyClient, where: str) -> None:
        self.client = client
        self.where = where
        #: True if one script cannot use keys of several slots.
        self.is_cluster = not isinstance(client, Redis)
        # The user's client may decode replies; with NEVER_DECODE they are bytes all the same.
        self._send: Callable[..., Any] = client.execute_command

    def refused(self, key: bytes, reason: bytes) -> StoreError:
        """Return the error for a key that a script could not use."""
        return StoreError(
            reason=f"The Redis store at {self.where} answered about {key.decode()}: "
            f"{reason.decode(errors='replace')}."
        )

    def _translated(self, error: Exception, key: bytes | str = "") -> CheckpointError:
        leave_replica(self.client, error)
        return translate(error, self.where, key)

    def run(self, script: str, keys: Sequence[bytes], *args: Any) -> Any:
        """Run a script in one round trip.

        A server that does not know the script, after a restart, a flush or a failover, does nothing and
        is sent the source.
        """
        source, digest = _script(script)
        try:
            return self._send("EVALSHA", digest, len(keys), *keys, *args, NEVER_DECODE=True)
        except NoScriptError:
            return self.command("EVAL", source, len(keys), *keys, *args)
        except DRIVER_ERRORS as error:
            raise self._translated(error, keys[0]) from error

    def together(self, *calls: Call) -> list[Any]:
        """Send several commands and scripts in one round trip, in this order.

        They are one atomic step, unless the server is the node of a cluster. In a cluster, where they
        may be for different nodes, they are sent one after the other.
        """
        if len(calls) == 1 or not isinstance(self.client, Redis):
            return [self._one(call) for call in calls]
        replies = self.as_one(*calls)
        return self.side_by_side(*calls) if replies is None else replies

    def as_one(self, *calls: Call, deciding: int = 0) -> list[Any] | None:
        """Send several commands and scripts as one script (see ``Call.joined``).

        Return ``None`` if the server cannot run it, if a call is joined already, and if the server
        answers with an error: sent one by one, the call that fails is known. All can be repeated.
        """
        if self.is_cluster or not self.joins or any("+" in call.name for call in calls):
            return None
        call = Call.joined(*calls, deciding=deciding)
        try:
            try:
                replies: list[Any] = self._send(*call.args, NEVER_DECODE=True)
            except NoScriptError:
                replies = self._send(*call.with_source, NEVER_DECODE=True)
        except ResponseError as error:
            if isinstance(error, ClusterCrossSlotError):
                self.is_cluster = True
            return None
        except DRIVER_ERRORS as error:
            raise self._translated(error, call.key) from error
        return replies

    def side_by_side(self, *calls: Call) -> list[Any]:
        """Send several commands and scripts that need no order: to each node in one round trip."""
        return [self._unless_error(*answer) for answer in zip(calls, self._answers(calls), strict=True)]

    def each(self, *calls: Call) -> list[Any]:
        """Like ``side_by_side``, but the reply of a call that fails because of its key is the error."""
        return [self._or_error(*answer) for answer in zip(calls, self._answers(calls), strict=True)]

    def _answers(self, calls: Sequence[Call]) -> list[Any]:
        """Return the replies, including errors."""
        if not calls:
            return []
        plain = {"transaction": False} if isinstance(self.client, Redis) else {}
        replies = self._replies(calls, **plain)
        unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # The first call teaches the server the script. Then the others can be sent again.
            first = self._answer(calls[unknown[0]])
            again = [first, *self._answers([calls[at] for at in unknown[1:]])]
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        return replies

    def at_once(self, *calls: Call) -> list[Any] | None:
        """Send several commands and scripts as one atomic step, in one round trip.

        Return ``None``, and do nothing, for a cluster, for a client that decodes replies in spite of
        NEVER_DECODE, and for a server that does not know a script.
        """
        if not isinstance(self.client, Redis) or self.client.get_encoder().decode_responses:
            return None
        replies = self._replies(calls, transaction=True)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            return None
        return [self._unless_error(*answer) for answer in zip(calls, replies, strict=True)]

    def _replies(self, calls: Iterable[Call], **options: bool) -> list[Any]:
        pipeline = self.client.pipeline(**options)
        for call in calls:
            pipeline.execute_command(*call.args, NEVER_DECODE=True)
        try:
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        except DRIVER_ERRORS as error:
            raise self._translated(error) from error
        return replies

    def _unless_error(self, call: Call, reply: Any) -> Any:
        if isinstance(reply, StoreError):
            raise reply
        if isinstance(reply, DRIVER_ERRORS):
            raise self._translated(reply, call.key) from reply
        return reply

    def whole_or_parts(self, whole: Call, parts: Sequence[Call]) -> list[Any]:
        """Send a script for keys of several slots; to a cluster, send the script for each slot."""
        if not self.is_cluster:
            [reply] = self.each(whole)
            if not isinstance(reply, StoreError):
                return [reply]
            # Of the parts, one names the key that the error is about.
        return self.side_by_side(*parts)

    def _or_error(self, call: Call, reply: Any) -> Any:
        if isinstance(reply, ClusterCrossSlotError):
            # A server of a cluster that has all slots can be addressed as a single server.
            self.is_cluster = True
        try:
            return self._unless_error(call, reply)
        except StoreError as error:
            _raise_unless_about_a_key(error)
            return error

    def _answer(self, call: Call) -> Any:
        try:
            return self._one(call)
        except StoreError as error:
            _raise_unless_about_a_key(error)
            return error

    def _one(self, call: Call) -> Any:
        try:
            return self._send(*call.args, NEVER_DECODE=True)
        except NoScriptError:
            return self.command(*call.with_source)
        except DRIVER_ERRORS as error:
            raise self._translated(error, call.key) from error

    # -- everything in a key, page by page -----------------------------------------------------------

    def scan(self, pattern: str) -> Iterator[bytes]:
        """Yield the keys that match the pattern, of all nodes."""
        return self._all(self.client.scan_iter(match=pattern, count=_PAGE))

    def hash_items(self, key: bytes | str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the fields and values of a hash."""
        return self._all(self.client.hscan_iter(key, count=_PAGE), key)

    def whole_hash(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return a hash, of any size: each part is read by a short script (see ``hash_page.lua``)."""
        found: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            cursor, *flat = self.run("hash_page", keys, cursor)
            found.update(zip(flat[::2], flat[1::2], strict=True))
            if cursor == b"0":
                return found

    def scored(self, key: bytes) -> Iterator[tuple[bytes, float]]:
        """Yield the members of a sorted set and their scores."""
        return self._all(self.client.zscan_iter(key, count=_PAGE), key)

    def _all(self, items: Iterable[Any], key: bytes | str = "") -> Iterator[Any]:
        try:
            for item in items:
                yield tuple(map(_bytes, item)) if isinstance(item, tuple) else _bytes(item)
        except DRIVER_ERRORS as error:
            raise self._translated(error, key) from error

    def command(self, *args: Any) -> Any:
        """Send one command."""
        try:
            return self._send(*args, NEVER_DECODE=True)
        except DRIVER_ERRORS as error:
            raise self._translated(error, _key_of(args)) from error


def _raise_unless_about_a_key(error: StoreError) -> None:
    # Subclasses of StoreError mean that the server is unavailable or full.
    if type(error) is not StoreError:
        raise error
