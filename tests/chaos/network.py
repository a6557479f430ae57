"""The network between the workers and their store, and its faults."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.servers.proxies import Proxy


class Network(Proxy):
    """Forwards bytes, with a delay or not at all."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        #: The delay of each chunk, in seconds.
        self.delay = 0.0
        self.swallows_requests = self.swallows_replies = False

    async def _pump(self, source: asyncio.StreamReader, sink: Any, passes: Any, ends: Any) -> None:
        is_reply = sink is ends[0]
        await super()._pump(_Weather(self, source, is_reply), sink, passes, ends)

    def clear(self) -> None:
        """End all faults. Swallowed bytes are not delivered afterwards."""
        self.delay = 0.0
        self.swallows_requests = self.swallows_replies = False
        self.cut()


class _Weather:
    """One direction of a connection."""

    def __init__(self, network: Network, source: asyncio.StreamReader, is_reply: bool) -> None:
        self._network, self._source, self._is_reply = network, source, is_reply

    async def read(self, size: int) -> bytes:
        while data := await self._source.read(size):
            await asyncio.sleep(self._network.delay)
            if not self._is_swallowed():
                return data
        return b""

    def _is_swallowed(self) -> bool:
        network = self._network
        return network.swallows_replies if self._is_reply else network.swallows_requests
