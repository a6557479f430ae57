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

#: How soon a worker that was told to stop has to be gone, with agents at work.
EXIT = 20.0
#: How long things stay broken.
_OUTAGE = 1.0
#: How long three sentinels may take to make a replica the master, and the old master its replica.
_FAILOVER = 60.0
Fault = Callable[[Fleet], None]


# -- processes -------------------------------------------------------------------------------------


def kill_child(fleet: Fleet) -> None:
    """SIGKILL of a process of a pool."""
    worker = fleet.pick()
    children = worker.children()
    if children:
        worker.kill_child(fleet.chance.choice(children))


def kill_parent(fleet: Fleet) -> None:
    """SIGKILL of a worker's main process; its children are left to themselves."""
    worker = fleet.pick()
    # They end soon, by themselves.
    fleet.ledger.killed(*worker.tree())
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: not worker.tree(), EXIT, f"the children of {worker.name} are gone")
    _start_anew(fleet, worker)


def kill_tree(fleet: Fleet) -> None:
    """SIGKILL of a whole worker, as a machine that fails."""
    worker = fleet.pick()
    worker.kill_tree()
    _start_anew(fleet, worker)


def _start_anew(fleet: Fleet, worker: object) -> None:
    fleet.workers.remove(worker)
    fleet.add_worker()
    fleet.wait_ready()


def freeze(fleet: Fleet) -> None:
    """SIGSTOP of a whole worker, past its leases, and SIGCONT."""
    worker = fleet.pick()
    worker.freeze()
    time.sleep(1.5 * LEASE)
    worker.thaw()


def deploy(fleet: Fleet) -> None:
    """SIGTERM, while the one that takes its place starts."""
    leaving = fleet.pick()
    leaving.term()
    fleet.workers.remove(leaving)
    fleet.add_worker()
    status = leaving.wait_exit(EXIT)
    assert status == 0, f"{leaving.name} left with status {status}:\n{leaving.log()[-3000:]}"
    fleet.wait_ready()


def quit_cold(fleet: Fleet) -> None:
    """SIGQUIT: Celery's cold shutdown."""
    leaving = fleet.pick()
    tree = leaving.tree()
    # Most bodies end by themselves; Celery kills what is left, now or until it has gone itself.
    fleet.ledger.killed(*tree)
    leaving.quit()
    leaving.wait_exit(EXIT)
    fleet.ledger.killed(*tree)
    leaving.kill_tree()
    _start_anew(fleet, leaving)


# -- the clock of a worker -------------------------------------------------------------------------


def jump_ahead(fleet: Fleet) -> None:
    """A worker's clock is set hours ahead; it stays so."""
    _jump(fleet, fleet.chance.uniform(2, 9) * 3600)


def jump_back(fleet: Fleet) -> None:
    """A worker's clock is set hours back; it stays so."""
    _jump(fleet, -fleet.chance.uniform(2, 9) * 3600)


def drift_apart(fleet: Fleet) -> None:
    """A worker's clock is off by some leases, which is harder to notice than hours."""
    _jump(fleet, fleet.chance.uniform(-30, 30) * LEASE)


def _jump(fleet: Fleet, seconds: float) -> None:
    fleet.clocks[fleet.pick().name].set_off_by(seconds)
    time.sleep(1.5 * LEASE)


# -- the disk of a host ----------------------------------------------------------------------------


def full_disk(fleet: Fleet) -> None:
    """No process of any worker can write to a file for a while."""
    _without_room(fleet, _OUTAGE)


def full_disk_for_long(fleet: Fleet) -> None:
    """The same for longer than a lease: nobody can renew theirs, or take over another's."""
    _without_room(fleet, 1.5 * LEASE)


def kill_tree_on_full_disk(fleet: Fleet) -> None:
    """SIGKILL of a whole worker that waits for room."""
    worker = fleet.pick()
    worker.fill_disk()
    time.sleep(_OUTAGE)
    worker.kill_tree()
    _start_anew(fleet, worker)


def _without_room(fleet: Fleet, seconds: float) -> None:
    for worker in fleet.workers:
        worker.fill_disk()
    time.sleep(seconds)
    for worker in fleet.workers:
        worker.make_room()


# -- servers ---------------------------------------------------------------------------------------


def kill_store(fleet: Fleet) -> None:
    """Kill -9 of the store's server, which comes back with what it had acknowledged."""
    _outage(fleet.store)


def kill_broker(fleet: Fleet) -> None:
    """The same for the server of the broker and the results."""
    _outage(fleet.broker.server)


def kill_store_for_long(fleet: Fleet) -> None:
    """It comes back when its clients have given up, and deliveries were put off."""
    _outage(fleet.store, fleet.chance.uniform(11, 20))


def _outage(server: Valkey, seconds: float = _OUTAGE) -> None:
    server.kill()
    time.sleep(seconds)
    server.start()


def cut_broker(fleet: Fleet) -> None:
    """All connections to the broker are closed."""
    fleet.broker.cut_connections(BROKER_DB)


def full_store(fleet: Fleet) -> None:
    """The store's memory is full: it refuses to write, and says so."""
    with fleet.store.client() as client:
        client.config_set("maxmemory", 1)
        time.sleep(_OUTAGE)
        client.config_set("maxmemory", 0)


def paused_store(fleet: Fleet) -> None:
    """The store's server does not answer for longer than a lease lasts."""
    _pause(fleet.store)


def paused_broker(fleet: Fleet) -> None:
    """Nor does that of the broker and the results."""
    _pause(fleet.broker.server)


def _pause(server: Valkey) -> None:
    server.signal(signal.SIGSTOP)
    time.sleep(1.5 * LEASE)
    server.signal(signal.SIGCONT)


# -- a master and its replica ----------------------------------------------------------------------


def fail_over(fleet: Fleet) -> None:
    """Kill -9 of the master; the replica takes its place, and it comes back as the other's replica."""
    _lose_master(fleet.store)


def fail_over_behind(fleet: Fleet) -> None:
    """The same while the replica lacks the last writes, and with a worker, which alone knew of them."""
    servers, worker = fleet.store, fleet.pick()
    servers.replica.signal(signal.SIGSTOP)
    with servers.master.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    time.sleep(_OUTAGE)
    worker.kill_tree()
    servers.master.kill()
    servers.replica.signal(signal.SIGCONT)
    _lose_master(servers)
    _start_anew(fleet, worker)


def _lose_master(servers: Guarded) -> None:
    servers.master.kill()
    until(lambda: servers.is_master(servers.replica), _FAILOVER, "the replica is the master")
    servers.master, servers.replica = servers.replica, servers.master
    until(servers.is_watched, _FAILOVER, "all sentinels know that")
    servers.replica.start()
    until(servers.is_replicated, _FAILOVER, "the old master is its replica")
    until(servers.is_watched, _FAILOVER, "the sentinels are ready again")


def lag(fleet: Fleet) -> None:
    """The replica stands still, and confirms nothing."""
    fleet.store.replica.signal(signal.SIGSTOP)
    time.sleep(_OUTAGE)
    fleet.store.replica.signal(signal.SIGCONT)


# -- the nodes of a cluster ------------------------------------------------------------------------


def lose_node(fleet: Fleet) -> None:
    """Kill -9 of a node, which comes back soon."""
    _outage(fleet.chance.choice(fleet.store))


def lose_node_for_long(fleet: Fleet) -> None:
    """The others notice, and do not answer either, because a part of the slots is gone."""
    node = fleet.chance.choice(fleet.store)
    node.kill()
    other = next(each for each in fleet.store if each is not node)
    until(lambda: not other.covers_all_slots(), _FAILOVER, "the cluster is down")
    node.start()
    until(lambda: all(each.covers_all_slots() for each in fleet.store), _FAILOVER, "it is back")


# -- the network before the store ------------------------------------------------------------------


def cut_store(fleet: Fleet) -> None:
    """All connections to the store are closed."""
    fleet.network.cut()


def slow_network(fleet: Fleet) -> None:
    """A tenth of a second in each direction."""
    fleet.network.delay = 0.1
    time.sleep(2 * _OUTAGE)
    fleet.network.delay = 0.0


def black_hole(fleet: Fleet) -> None:
    """Nothing arrives, and nobody says so."""
    fleet.network.swallows_requests = True
    time.sleep(_OUTAGE)
    fleet.network.clear_up()


def half_open(fleet: Fleet) -> None:
    """What is asked for is done, and no reply comes."""
    fleet.network.swallows_replies = True
    time.sleep(_OUTAGE)
    fleet.network.clear_up()
