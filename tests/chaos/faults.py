"""What can happen to a fleet. Each fault is over when its function returns."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tests.chaos.fleet import LEASE, Fleet
from tests.support.servers.valkey import Guarded, Valkey
from tests.support.wait import until
from tests.support.workers.broker import BROKER_DB

#: How long a worker may take to exit after SIGTERM while its agents are running.
EXIT = 20.0
#: How long a fault lasts.
_OUTAGE = 1.0
#: How long three sentinels may take to promote the replica and to make the old master its replica.
_FAILOVER = 60.0
Fault = Callable[[Fleet], None]


# -- processes -------------------------------------------------------------------------------------


def kill_child(fleet: Fleet) -> None:
    """Kill a process of a pool with SIGKILL."""
    worker = fleet.pick()
    children = worker.children()
    if children:
        worker.kill_child(fleet.chance.choice(children))


def kill_parent(fleet: Fleet) -> None:
    """Kill a worker's main process with SIGKILL. Its children become orphans."""
    worker = fleet.pick()
    # The children exit soon on their own.
    fleet.ledger.killed(*worker.tree())
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: not worker.tree(), EXIT, f"the children of {worker.name} are gone")
    _restart(fleet, worker)


def kill_tree(fleet: Fleet) -> None:
    """Kill a whole worker with SIGKILL, like a machine that fails."""
    worker = fleet.pick()
    worker.kill_tree()
    _restart(fleet, worker)


def _restart(fleet: Fleet, worker: object) -> None:
    fleet.workers.remove(worker)
    fleet.add_worker()
    fleet.wait_ready()


def freeze(fleet: Fleet) -> None:
    """Stop a whole worker with SIGSTOP until its leases have expired, then continue it with SIGCONT."""
    worker = fleet.pick()
    worker.freeze()
    time.sleep(1.5 * LEASE)
    worker.thaw()


def deploy(fleet: Fleet) -> None:
    """Stop a worker with SIGTERM while its replacement starts."""
    leaving = fleet.pick()
    leaving.term()
    fleet.workers.remove(leaving)
    fleet.add_worker()
    status = leaving.wait_exit(EXIT)
    assert status == 0, f"{leaving.name} exited with status {status}:\n{leaving.log()[-3000:]}"
    fleet.wait_ready()


def quit_cold(fleet: Fleet) -> None:
    """Send SIGQUIT: Celery's cold shutdown."""
    leaving = fleet.pick()
    tree = leaving.tree()
    # Most bodies end on their own. Celery kills the rest, now or before it exits itself.
    fleet.ledger.killed(*tree)
    leaving.quit()
    leaving.wait_exit(EXIT)
    fleet.ledger.killed(*tree)
    leaving.kill_tree()
    _restart(fleet, leaving)


# -- the clock of a worker -------------------------------------------------------------------------


def jump_ahead(fleet: Fleet) -> None:
    """Set a worker's clock hours ahead. It stays that way."""
    _jump(fleet, fleet.chance.uniform(2, 9) * 3600)


def jump_back(fleet: Fleet) -> None:
    """Set a worker's clock hours back. It stays that way."""
    _jump(fleet, -fleet.chance.uniform(2, 9) * 3600)


def drift_apart(fleet: Fleet) -> None:
    """Shift a worker's clock by a few leases, which is harder to notice than hours."""
    _jump(fleet, fleet.chance.uniform(-30, 30) * LEASE)


def _jump(fleet: Fleet, seconds: float) -> None:
    fleet.clocks[fleet.pick().name].set_off_by(seconds)
    time.sleep(1.5 * LEASE)


# -- the disk of a host ----------------------------------------------------------------------------


def full_disk(fleet: Fleet) -> None:
    """Fill the disk: for a while, no process of any worker can write to a file."""
    _without_room(fleet, _OUTAGE)


def full_disk_for_long(fleet: Fleet) -> None:
    """Fill the disk for longer than a lease: no process can renew a lease or take one over."""
    _without_room(fleet, 1.5 * LEASE)


def kill_tree_on_full_disk(fleet: Fleet) -> None:
    """Kill a whole worker with SIGKILL while it waits for disk space."""
    worker = fleet.pick()
    worker.fill_disk()
    time.sleep(_OUTAGE)
    worker.kill_tree()
    _restart(fleet, worker)


def _without_room(fleet: Fleet, seconds: float) -> None:
    for worker in fleet.workers:
        worker.fill_disk()
    time.sleep(seconds)
    for worker in fleet.workers:
        worker.make_room()


# -- servers ---------------------------------------------------------------------------------------


def kill_store(fleet: Fleet) -> None:
    """Kill the store's server with SIGKILL. It comes back with everything that it had acknowledged."""
    _outage(fleet.store)


def kill_broker(fleet: Fleet) -> None:
    """Kill the server of the broker and the results with SIGKILL. It comes back in the same way."""
    _outage(fleet.broker.server)


def kill_store_for_long(fleet: Fleet) -> None:
    """Kill the store's server until its clients have given up and deliveries were postponed."""
    _outage(fleet.store, fleet.chance.uniform(11, 20))


def _outage(server: Valkey, seconds: float = _OUTAGE) -> None:
    server.kill()
    time.sleep(seconds)
    server.start()


def cut_broker(fleet: Fleet) -> None:
    """Close all connections to the broker."""
    fleet.broker.cut_connections(BROKER_DB)


def full_store(fleet: Fleet) -> None:
    """Fill the store's memory: the server refuses writes with an error."""
    with fleet.store.client() as client:
        client.config_set("maxmemory", 1)
        time.sleep(_OUTAGE)
        client.config_set("maxmemory", 0)


def paused_store(fleet: Fleet) -> None:
    """Pause the store's server for longer than a lease."""
    _pause(fleet.store)


def paused_broker(fleet: Fleet) -> None:
    """Pause the server of the broker and the results for as long."""
    _pause(fleet.broker.server)


def _pause(server: Valkey) -> None:
    server.signal(signal.SIGSTOP)
    time.sleep(1.5 * LEASE)
    server.signal(signal.SIGCONT)


# -- a master and its replica ----------------------------------------------------------------------


def fail_over(fleet: Fleet) -> None:
    """Kill the master with SIGKILL. Its replica is promoted, and the old master returns as a
    replica.
    """
    _lose_master(fleet.store)


def fail_over_behind(fleet: Fleet) -> None:
    """Fail over while the replica lacks the last writes, and kill the only worker that knew of them."""
    servers, worker = fleet.store, fleet.pick()
    servers.replica.signal(signal.SIGSTOP)
    with servers.master.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    time.sleep(_OUTAGE)
    worker.kill_tree()
    servers.master.kill()
    servers.replica.signal(signal.SIGCONT)
    _lose_master(servers)
    _restart(fleet, worker)


def _lose_master(servers: Guarded) -> None:
    servers.master.kill()
    until(lambda: servers.is_master(servers.replica), _FAILOVER, "the replica is the master")
    servers.master, servers.replica = servers.replica, servers.master
    until(servers.is_monitored, _FAILOVER, "all sentinels know the new master")
    servers.replica.start()
    until(servers.is_replicated, _FAILOVER, "the old master is its replica")
    until(servers.is_monitored, _FAILOVER, "the sentinels are ready again")


def lag(fleet: Fleet) -> None:
    """Pause the replica, so that it confirms nothing."""
    fleet.store.replica.signal(signal.SIGSTOP)
    time.sleep(_OUTAGE)
    fleet.store.replica.signal(signal.SIGCONT)


# -- the nodes of a cluster ------------------------------------------------------------------------


def lose_node(fleet: Fleet) -> None:
    """Kill a node with SIGKILL. It comes back soon."""
    _outage(fleet.chance.choice(fleet.store))


def lose_node_for_long(fleet: Fleet) -> None:
    """Kill a node until the others notice. They refuse requests too, because a part of the
    slots is missing.
    """
    node = fleet.chance.choice(fleet.store)
    node.kill()
    other = next(each for each in fleet.store if each is not node)
    until(lambda: not other.covers_all_slots(), _FAILOVER, "the cluster is down")
    node.start()
    until(
        lambda: all(each.covers_all_slots() for each in fleet.store),
        _FAILOVER,
        "the cluster is up again",
    )


# -- the network in front of the store -------------------------------------------------------------


def cut_store(fleet: Fleet) -> None:
    """Close all connections to the store."""
    fleet.network.cut()


def slow_network(fleet: Fleet) -> None:
    """Delay the traffic by a tenth of a second in each direction."""
    fleet.network.delay = 0.1
    time.sleep(2 * _OUTAGE)
    fleet.network.delay = 0.0


def black_hole(fleet: Fleet) -> None:
    """Swallow all traffic without an error."""
    fleet.network.swallows_requests = True
    time.sleep(_OUTAGE)
    fleet.network.clear()


def half_open(fleet: Fleet) -> None:
    """Deliver requests and swallow all replies."""
    fleet.network.swallows_replies = True
    time.sleep(_OUTAGE)
    fleet.network.clear()
