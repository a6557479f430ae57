"""Fills a server with agents that are copies of one, and removes from some of them with bare commands.

One agent is saved, with 20 checkpoints of a growing conversation, and copied under other names, exactly
as the store would have written it. Some agents are copied twice: the second copies lie between the
others in the server's memory. From these, the fields that a sweep removes are removed by one HDEL each,
in the order in which a sweep visits the agents. Neither removes messages: the newest checkpoint needs
them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery_ckpt import Checkpoint, Conversation, Message
from celery_ckpt.names import locator
from celery_ckpt.records import Schedule
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.redis.keys import FIELD, Keys

CHECKPOINTS, KEEP, MESSAGE_BYTES = 20, 2, 100
#: About how many agents have a second copy.
_TWICE = 5000
#: How many agents are written, or removed from, in one round trip.
_PIPELINE = 20
_KEYS, _BARE = Keys("ckpt:"), Keys("bare:")


def fill(store: CheckpointStore, client: Any, agents: int) -> None:
    """Save one agent, and copy it under all names."""
    conversation = Conversation()
    for iteration in range(1, CHECKPOINTS + 1):
        conversation.append(Message.user(f"{iteration}".ljust(MESSAGE_BYTES)))
        store.save(Checkpoint.new("template", conversation, iteration))
    agent, log = _KEYS.of("template", "agent", "log")
    fields, messages = client.hgetall(agent), client.lrange(log, 0, -1)
    twice = set(names_in_two_copies(agents))
    for first in range(0, agents, _PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for name in map(_name, range(first, min(first + _PIPELINE, agents))):
            _list(pipeline, name)
            for keys in (_KEYS, _BARE) if name in twice else (_KEYS,):
                _copy(pipeline, keys, name, fields, messages)
        pipeline.execute()
    store.delete("template")


def names_in_two_copies(agents: int) -> list[str]:
    """Return names spread over all agents, in the order in which a sweep claims them."""
    names = map(_name, range(0, agents, max(1, agents // _TWICE)))
    return sorted(names, key=lambda name: (_KEYS.due_times_of(name, Schedule.SWEEP), name))


def _name(number: int) -> str:
    return f"agent-{number:07}"


def _list(pipeline: Any, name: str) -> None:
    pipeline.zadd(_KEYS.agents(locator(name)[0]), {f"{locator(name)}:{name}": 0})
    pipeline.zadd(_KEYS.due_times_of(name, Schedule.SWEEP), {name: 1})


def _copy(pipeline: Any, keys: Keys, name: str, fields: Any, messages: list[bytes]) -> None:
    old, new = FIELD.encode() + locator("template").encode(), FIELD.encode() + locator(name).encode()
    agent, log = keys.of(name, "agent", "log")
    mapping = {field.replace(old, new): value.replace(old, new) for field, value in fields.items()}
    pipeline.hset(agent, mapping=mapping)
    pipeline.rpush(log, *messages)


def bare_removals(client: Any, agents: int, parts: int) -> Iterator[Callable[[], int]]:
    """Yield removals that return how many fields they removed, then delete the second copies."""
    names = names_in_two_copies(agents)
    fields = {name: _fields_to_remove(client, name) for name in names}
    size = -(-len(names) // parts)
    for first in range(0, len(names), size):
        part = {name: fields[name] for name in names[first : first + size]}
        yield lambda part=part: _removed(client, part)
    for name in names:
        client.delete(*_BARE.of(name, "agent", "log"))


def _fields_to_remove(client: Any, name: str) -> list[bytes]:
    # Read from the first copy, so that the second is as cold as the agents that a sweep visits.
    [key] = _KEYS.of(name, "agent")
    fields = sorted(field for field in client.hkeys(key) if field.startswith(FIELD.encode()))
    return fields[: CHECKPOINTS - KEEP]


def _removed(client: Any, part: dict[str, list[bytes]]) -> int:
    removed, names = 0, list(part)
    for first in range(0, len(names), _PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for name in names[first : first + _PIPELINE]:
            [key] = _BARE.of(name, "agent")
            for field in part[name]:
                pipeline.hdel(key, field)
        removed += sum(pipeline.execute())
    return removed
