"""Lua and SQL, read from the files they live in."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from celery_ckpt.codec import FORMAT_VERSION

#: Found now, because that imports modules. Were it done when the first script is needed, then by a
#: thread: a process that is forked at that moment would wait for ever for the import to end.
_FILES = files("celery_ckpt.stores")


@cache
def lua(name: str) -> str:
    """A whole script: what all scripts share, then its own file."""
    constants = f"local FORMAT_VERSION = '{FORMAT_VERSION}'\n"
    return constants + _read("redis/lua/fence.lua") + _read(f"redis/lua/{name}.lua")


@cache
def queries() -> dict[str, str]:
    """The statements of ``queries.sql`` by the name in the ``-- name (parameters)`` line above each."""
    blocks = _read("sqlite/queries.sql").split("\n\n-- ")[1:]
    pairs = (block.split("\n", 1) for block in blocks)
    return {name.partition(" ")[0]: statement.strip() for name, statement in pairs}


def statements(name: str) -> list[str]:
    """The statements of a file that makes or changes the tables of an SQLite store."""
    return _read(f"sqlite/{name}.sql").split(";\n")


def _read(path: str) -> str:
    return _FILES.joinpath(path).read_text(encoding="utf-8")
