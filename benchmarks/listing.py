"""What a list of agents costs: round trips per hundred agents, however many there are."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

from redis import Redis

from benchmarks.budgets import Budget
from benchmarks.contenders import Place
from benchmarks.iterations import counted_trips
from benchmarks.measure import Plan
from celery_ckpt import RedisCheckpointStore
from celery_ckpt.names import locator
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.stores.redis.run_line import run_line, usage_word

_AGENTS = 2000
#: When the first agent changed, in microseconds since 1970.
_FIRST = 1_700_000_000_000_000
#: How many agents one pipeline writes.
_AT_ONCE = 1000
_MAX_BYTES = 10_000
_RUN = RunRecord(
    agent_id="agent",
    run_id="run",
    task="tests.agent",
    status=RunStatus.SUCCEEDED,
    attempts=1,
    delivered=True,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def fill(client: Redis, count: int) -> None:
    """Write agents as a store writes them, ``agent-0`` first, each with a run that succeeded."""
    pipeline = client.pipeline(transaction=False)
    line = b"1 " + usage_word(_RUN.usage).encode() + b" " + run_line(_RUN, _MAX_BYTES)
    for number in range(count):
        name, time = f"agent-{number}", _FIRST + number
        place = f"{time} {locator(name)}:{name}"
        fields = {"runs": 1, "last": "run", "changed": f"{time} succeeded"}
        pipeline.hset(f"ckpt:{{{name}}}:agent", mapping=fields)
        pipeline.hset(f"ckpt:{{{name}}}:runs", "run", line)
        entries = {f"* {place}": 0, f"succeeded {place}": 0}
        pipeline.zadd(f"ckpt:changes:{locator(name)[0]}", entries)
        if number % _AT_ONCE == _AT_ONCE - 1:
            pipeline.execute()
    pipeline.execute()


def trips_per_hundred(url: str, agents: int = _AGENTS) -> float:
    """Return the round trips to the store per hundred agents, if all agents are listed."""
    with Redis.from_url(url) as client:
        fill(client, agents)
    with closing(RedisCheckpointStore.from_url(url)) as store:
        store.page(limit=1)  # connects, and the server learns the scripts
        found, after = 0, None
        with counted_trips() as trips:
            while True:
                page = store.page(limit=100, after=after)
                found, after = found + len(page.agents), page.after
                if after is None:
                    break
    assert found == agents
    return 100 * trips[0] / agents


def listing(place: Place, plan: Plan) -> Budget:
    """Compare the round trips of a list with one for the names and one for the agents."""
    ours, least = trips_per_hundred(place.redis_url), 2
    what = "listing, round trips per 100 agents"
    return Budget(what, "one for names, one for agents", ours, least, ours / least, 1.5, unit="")


#: Starts with an empty server.
LISTING = (listing,)
