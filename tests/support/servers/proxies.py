"""A proxy between a store and its server: it counts round trips, cuts, loses replies, speaks TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, Self

import trustme

from tests.support.servers.valkey import LOOPBACK


class Proxy:
    """A TCP proxy to a port, in a thread of its own.

    It counts round trips, bytes and connections. A round trip is everything that the client sends
    before it waits for a reply, in one piece or in several.
    """

    def __init__(self, target: int, tls: ssl.SSLContext | None = None) -> None:
        self._target, self._tls = target, tls
        self.trips = self.bytes_sent = self.connections = 0
        #: The number of round trips until one whose reply is lost; 0: none.
        self._lose_in = 0
        self.lost_replies = 0
        #: The number of round trips until one before which the action is called; 0: none.
        self._act_in = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        # A client that refuses the certificate is not an error of the proxy.
        self._loop.set_exception_handler(lambda loop, context: None)
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)

    @property
    def url(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://{LOOPBACK}:{self.port}/0"

    # -- what a test can do to the connection --------------------------------------------------------

    def reset(self) -> None:
        """Count from 0 again."""
        self.trips = self.bytes_sent = self.connections = 0

    def lose_reply(self, trip: int = 1) -> None:
        """Lose the reply and the connection of the n-th round trip from now. The server executes it."""
        self._lose_in = trip

    def before(self, trip: int, action: Callable[[], object]) -> Future[object]:
        """Call the action before the n-th round trip from now; return a future with its result."""
        self._act_in, self._action, done = trip, action, Future()
        self._done = done
        return done

    def act(self) -> None:
        """Call the action now instead of before a round trip."""
        self._act_in = 0
        try:
            self._done.set_result(self._action())
        except BaseException as error:
            self._done.set_exception(error)

    def lead_to(self, target: int) -> None:
        """Connect new clients to another port from now on."""
        self._target = target

    def cut(self) -> None:
        """Close every connection."""
        self._call(self._close_all())

    # -- the connection ------------------------------------------------------------------------------

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._pumps.add(asyncio.current_task())
        self.connections += 1
        self._open.add(to_client)
        try:
            server, to_server = await asyncio.open_connection(LOOPBACK, self._target)
            self._open.add(to_server)
            wire = _Wire(self)
            ends = (to_client, to_server)
            forth = self._pump(client, to_server, wire.forth, ends)
            back = self._pump(server, to_client, wire.back, ends)
            await asyncio.gather(forth, back)
        except OSError:
            to_client.close()
        finally:
            self._pumps.discard(asyncio.current_task())

    async def _pump(self, source: asyncio.StreamReader, sink: Any, passes: Any, ends: Any) -> None:
        try:
            while (data := await source.read(1 << 16)) and passes(data):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            for end in ends:
                end.close()
                self._open.discard(end)

    async def _close_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _shut_down(self) -> None:
        self._server.close()
        await self._close_all()
        await asyncio.gather(*self._pumps, return_exceptions=True)


class _Wire:
    """One connection: which side sends next, and whether the next reply is lost."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._clients_turn, self._loses = True, False

    def forth(self, data: bytes) -> bool:
        proxy = self._proxy
        proxy.bytes_sent += len(data)
        if self._clients_turn:
            self._clients_turn = False
            proxy.trips += 1
            self._loses = proxy._lose_in == 1
            proxy._lose_in = max(0, proxy._lose_in - 1)
            proxy._act_in -= 1
            if proxy._act_in == 0:
                proxy.act()
        return True

    def back(self, data: bytes) -> bool:
        self._clients_turn = True
        if self._loses:
            self._proxy.lost_replies += 1
        return not self._loses


def server_side_of(authority: trustme.CA) -> ssl.SSLContext:
    """Return the TLS context of a server with a certificate of that authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(LOOPBACK, "localhost").configure_cert(context)
    return context
