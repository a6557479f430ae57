"""Commands and scripts, sent to wherever the data is; what comes back is bytes, or an error of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError

from celery_ckpt.stores.redis.client import DRIVER_ERRORS, AnyClient, translate
from celery_ckpt.stores.resources import lua


@cache
def _script(name: str) -> tuple[bytes, bytes]:
    source = lua(name).encode()
    return source, sha1(source, usedforsecurity=False).hexdigest().encode()


class Server:
    """A Redis client as the store uses it."""

    def __init__(self, client: AnyClient, where: str) -> None:
        self.client = client
        self.where = where
        # The user's client may decode replies; with NEVER_DECODE they are bytes all the same.
        self._send: Callable[..., Any] = client.execute_command

    def run(self, script: str, keys: Sequence[bytes], *args: Any) -> Any:
        """Run a script in one round trip.

        A server that has forgotten the script, after a restart, a flush or a failover, is sent its
        source: that it did not know it means that it did nothing.
        """
        source, digest = _script(script)
        try:
            return self._send("EVALSHA", digest, len(keys), *keys, *args, NEVER_DECODE=True)
        except NoScriptError:
            return self.command("EVAL", source, len(keys), *keys, *args)
        except DRIVER_ERRORS as error:
            raise translate(error, self.where) from error

    def command(self, *args: Any) -> Any:
        """Send one command."""
        try:
            return self._send(*args, NEVER_DECODE=True)
        except DRIVER_ERRORS as error:
            raise translate(error, self.where) from error
