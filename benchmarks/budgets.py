"""The budgets: what our stores may cost, as multiples of the least work that is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from benchmarks.contenders import Contender, Place, our_file, our_redis, our_sqlite
from benchmarks.limits import RedisCommands, SqliteInsert
from benchmarks.measure import Plan, timed, timed_save
from benchmarks.pairs import Pair, Timed, alternate
from benchmarks.work import Agent

_WARM_UP = 50


@dataclass(frozen=True)
class Budget:
    """One budget and its measurement, in seconds (``s``), bytes (``B``) or a number (empty)."""

    what: str
    limit_is: str
    ours: float
    limit: float
    ratio: float
    allowed: float
    unit: str = "s"

    @property
    def holds(self) -> bool:
        """True if the measurement is within the budget."""
        return self.ratio <= self.allowed

    @classmethod
    def of(cls, what: str, limit_is: str, pair: Pair, allowed: float) -> Budget:
        """Return the budget of two alternating measurements."""
        return cls(what, limit_is, median(pair.ours), median(pair.limit), pair.ratio, allowed)


def redis_save(place: Place, plan: Plan) -> Budget:
    """Compare a save with an RPUSH of its new messages."""
    with closing(our_redis(place)) as store, closing(RedisCommands(place)) as bare:
        pair = alternate(_saving(store), _saving(bare), plan.rounds, warm_up=_WARM_UP)
    return Budget.of("Redis save", "one RPUSH of the same new bytes", pair, 1.3)


def _growth(make: Callable[[Place], Contender], place: Place, plan: Plan) -> Budget:
    rounds = plan.rounds // 3
    with closing(make(place)) as store:
        large = _saving(store, _grown(store, "growth-large", plan.read_at))
        pair = alternate(large, _saving_around_ten(store, rounds), rounds)
        what = f"{store.name.partition(' ')[2]} save at iteration {plan.read_at:,}"
    return Budget.of(what, "the same at iteration 10", pair, 1.2)


def redis_growth(place: Place, plan: Plan) -> Budget:
    """Compare a save of a long conversation with a save of a short one, on Redis."""
    return _growth(our_redis, place, plan)


def sqlite_growth(place: Place, plan: Plan) -> Budget:
    """Compare a save of a long conversation with a save of a short one, on SQLite."""
    return _growth(our_sqlite, place, plan)


def file_growth(place: Place, plan: Plan) -> Budget:
    """Compare a save of a long conversation with a save of a short one, in files."""
    return _growth(our_file, place, plan)


def stored_bytes(place: Place, plan: Plan) -> Budget:
    """Compare the bytes in Redis with the bytes of the messages."""
    with closing(our_redis(place)) as store:
        agent = _grown(store, "weighed", plan.read_at)
    stored, messages = place.bytes_in_redis(), agent.message_bytes
    what = f"Redis bytes at iteration {plan.read_at:,}"
    ratio = stored / messages
    return Budget(what, "the bytes of the messages", stored, messages, ratio, 1.2, unit="B")


def load_latest(place: Place, plan: Plan) -> Budget:
    """Compare reading the latest checkpoint with reading one JSON value."""
    with closing(our_redis(place)) as store, closing(RedisCommands(place)) as bare:
        name = _grown(store, "loaded", plan.read_at).agent_id
        bare.put_json(store.load_latest(name))
        pair = alternate(
            lambda: timed(store.load_latest, name),
            lambda: timed(bare.load_latest, name),
            rounds=plan.rounds // 20,
            warm_up=3,
        )
    what = f"Redis load_latest at iteration {plan.read_at:,}"
    return Budget.of(what, "GET of one JSON, parsed into the same models", pair, 1.5)


def prune(place: Place, plan: Plan) -> Budget:
    """Compare pruning with a pipeline that removes the same fields from a copy of the hash."""
    with closing(our_redis(place)) as store, closing(RedisCommands(place)) as bare:
        ours, copies = _prunings(place, store, bare, plan)
        pair = alternate(lambda: next(ours), lambda: next(copies), plan.prunes)
    return Budget.of("Redis prune, each checkpoint", "pipelined removal of the same keys", pair, 1.7)


def sqlite_save(place: Place, plan: Plan) -> Budget:
    """Compare a save with an INSERT of its new messages."""
    with closing(our_sqlite(place)) as store, closing(SqliteInsert(place)) as bare:
        pair = alternate(_saving(store), _saving(bare), plan.rounds, warm_up=_WARM_UP)
    limit_is = "one INSERT of the same new bytes (WAL, NORMAL)"
    return Budget.of("SQLite save", limit_is, pair, 2)


def imports(place: Place, plan: Plan) -> Budget:
    """Compare the import of this library with the import of Celery and pydantic."""
    pair = _importing("import celery_ckpt", "import celery, pydantic", plan)
    return Budget.of("import of celery_ckpt", "import of celery and pydantic", pair, 1.3)


def first_use(place: Place, plan: Plan) -> Budget:
    """Compare imports of the names that a program uses: all three libraries import them lazily."""
    ours = "from celery_ckpt import Checkpoint, Conversation, Message, open_store"
    pair = _importing(ours, "from celery import Celery; from pydantic import BaseModel", plan)
    return Budget.of("import of Checkpoint and open_store", "import of Celery and BaseModel", pair, 1.3)


def _importing(ours: str, limit: str, plan: Plan) -> Pair:
    return alternate(lambda: _import_time(ours), lambda: _import_time(limit), plan.imports, warm_up=1)


#: Each starts with an empty server and an empty directory.
BUDGETS: tuple[Callable[[Place, Plan], Budget], ...] = (
    redis_save, redis_growth, stored_bytes, load_latest, prune,
    sqlite_save, sqlite_growth, file_growth, imports, first_use,
)  # fmt: skip


def _saving(contender: Contender, agent: Agent | None = None) -> Timed:
    worker = agent or Agent("budget")
    return lambda: timed_save(contender, worker.work())


def _grown(store: Contender, agent_id: str, iterations: int) -> Agent:
    agent = Agent(agent_id)
    for _ in range(iterations):
        timed_save(store, agent.work())
    return agent


def _saving_around_ten(store: Contender, saves: int) -> Timed:
    """Save iterations 6 to 15 of one agent after the other.

    All agents exist before, and one more: in a B-tree, the newest agent writes at the end, and the
    others, like the large one, write in the middle.
    """
    names = (f"growth-small-{number}" for number in range(saves // 10 + 2))
    agents = [_grown(store, name, 5) for name in names]
    times = (timed_save(store, agent.work()) for agent in agents for _ in range(10))
    return lambda: next(times)


def _prunings(
    place: Place, store: Contender, bare: RedisCommands, plan: Plan
) -> tuple[Iterator[float], Iterator[float]]:
    """Return the times to prune each agent, and to remove the same fields from copies."""
    agents = [_grown(store, f"pruned-{number}", plan.read_at) for number in range(plan.prunes)]
    copies = _copied_hashes(place, agents, plan)
    per = 1 / (plan.read_at - plan.keep)
    return (
        (timed(store.prune, agent.agent_id, plan.keep) * per for agent in agents),
        (timed(bare.remove_fields, key, fields) * per for key, fields in copies),
    )


def _copied_hashes(place: Place, agents: list[Agent], plan: Plan) -> list[tuple[bytes, list[str]]]:
    """Copy the hashes with one field per checkpoint; return the copies and the fields to remove."""
    copies = []
    with place.client() as client:
        for agent in agents:
            key = f"ckpt:{{{agent.agent_id}}}:agent".encode()
            client.copy(key, b"bare:" + key)
            fields = [field.decode() for field in client.hkeys(key) if field.startswith(b"c:")]
            copies.append((b"bare:" + key, fields[: plan.read_at - plan.keep]))
    return copies


def _import_time(statement: str) -> float:
    program = f"from time import perf_counter as t; s = t(); {statement}; print(t() - s)"
    command = [sys.executable, "-c", program]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)
