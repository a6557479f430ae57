"""The documented ACL rules for Redis users, applied to real servers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.servers.valkey import Valkey

PAGE = Path(__file__).parents[3] / "docs/howto/restrict-redis-users.md"


def documented_rules(file: str) -> str:
    """Return the lines of one of the ACL files on the page."""
    [rules] = re.findall(
        rf'^```text title="{re.escape(file)}"\n(.*?)^```$', PAGE.read_text(), re.M | re.S
    )
    return rules


def as_user(server: Valkey, user: str, database: int = 0) -> str:
    """Return the URL with which a user connects."""
    return server.url.replace("//", f"//{user}:secret@").removesuffix("/0") + f"/{database}"


def refusals(server: Valkey) -> list[tuple[str, str, str]]:
    """Return the refusals (user, reason, object) since the start or the last ``forget_refusals``."""
    with server.client(decode_responses=True) as client:
        return [(one["username"], one["reason"], one["object"]) for one in client.acl_log()]


def forget_refusals(server: Valkey) -> None:
    """Clear the log of refusals: tests share the server, and each must see only its own."""
    with server.client() as client:
        client.acl_log_reset()
