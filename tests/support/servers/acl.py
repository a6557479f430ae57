"""The rules for users of Redis that the documentation has, on real servers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.servers.valkey import Valkey

PAGE = Path(__file__).parents[3] / "docs/howto/restrict-redis-users.md"


def documented_rules(file: str) -> str:
    """The lines of one of the page's ACL files."""
    [rules] = re.findall(
        rf'^```text title="{re.escape(file)}"\n(.*?)^```$', PAGE.read_text(), re.M | re.S
    )
    return rules


def as_user(server: Valkey, user: str, database: int = 0) -> str:
    """The URL with which a user comes."""
    return server.url.replace("//", f"//{user}:secret@").removesuffix("/0") + f"/{database}"


def refusals(server: Valkey) -> list[tuple[str, str, str]]:
    """Who was refused what, since the server began or ``forget_refusals`` was called."""
    with server.client(decode_responses=True) as client:
        return [(one["username"], one["reason"], one["object"]) for one in client.acl_log()]


def forget_refusals(server: Valkey) -> None:
    """Begin anew: what others were refused on a server that tests share is not the next one's."""
    with server.client() as client:
        client.acl_log_reset()
