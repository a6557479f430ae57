"""Read every byte that a store keeps, in any place."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from redis import Redis

#: Not ASCII, so that its escaped form in JSON differs.
MARKER = "Schwertfisch-ü-7731"


def forms(text: str = MARKER) -> list[bytes]:
    """Return the forms in which a text may be stored: plain, escaped, hex, base64 at any offset."""
    raw = text.encode()
    encoded = []
    for before in range(3):
        whole = base64.b64encode(b"x" * before + raw).decode()
        # Without the characters that also depend on the bytes before and after the text.
        first = -(-8 * before // 6)
        inside = whole[first : (before + len(raw)) * 8 // 6]
        encoded += [inside.encode(), inside.replace("+", "-").replace("/", "_").encode()]
    return [raw, json.dumps(text)[1:-1].encode(), raw.hex().encode(), *encoded]


def found_in(data: bytes, text: str = MARKER) -> list[bytes]:
    return [form for form in forms(text) if form in data]


def content_of_keys(client: Redis) -> dict[bytes, object]:
    """Return the content of each key of a database. The order of the server does not matter."""
    return {key: _content(client, key) for key in client.scan_iter()}


def _content(client: Redis, key: bytes) -> object:
    reading: dict[bytes, Callable[[bytes], object]] = {
        b"none": lambda key: None,  # it was deleted after the scan
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: dict(client.zrange(key, 0, -1, withscores=True)),
        b"set": client.smembers,
    }
    return reading[client.type(key)](key)


def bytes_of_keys(client: Redis) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes, with the name, of each key of a database."""
    for key, content in content_of_keys(client).items():
        yield key.decode(), b"".join(_flat([key, content]))


def _flat(value: object) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, float):
        yield repr(value).encode()
    elif isinstance(value, dict):
        yield from _flat([*value, *value.values()])
    elif value is not None:
        for each in value:  # type: ignore[attr-defined]
            yield from _flat(each)


def bytes_of_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file, with write-ahead logs."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.name, str(path).encode() + path.read_bytes()
