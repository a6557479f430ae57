"""Campaigns: which faults, how many, on what fleet. The seed decides their order and their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import faults
from tests.chaos.evidence import examined
from tests.chaos.faults import Fault
from tests.chaos.fleet import ITERATIONS
from tests.chaos.judge import Verdict, judge
from tests.chaos.soak import soak

#: A fault that lasts until a replica has taken over and the old master has become its replica.
LONGER_LEASE = 15.0


@dataclass(frozen=True)
class Campaign:
    """A series of faults of one kind."""

    name: str
    faults: tuple[Fault, ...]
    #: How many faults there are by default.
    times: int
    workers: int = 2
    #: How many agents are running or queued at any time.
    open_runs: int = 10
    #: The number of iterations of each agent.
    iterations: int = ITERATIONS
    #: True if ended runs are replaced by new ones.
    keeps_sending: bool = True
    own_clocks: bool = False
    #: If not 0, there are no faults: rounds of this many agents run, and what they leave behind is
    #: measured.
    soaked_agents: int = 0
    #: What the store runs on (see ``stores.py``), and additional settings.
    store: str = "alone"
    conf: Mapping[str, Any] = field(default_factory=dict)


CAMPAIGNS = (
    Campaign("killed processes", (faults.kill_child, faults.kill_parent, faults.kill_tree), 30),
    Campaign(
        "a thousand short agents",
        (faults.kill_child, faults.kill_tree),
        15,
        open_runs=1000,
        iterations=1,
        keeps_sending=False,
    ),
    Campaign("soak", (), 30, soaked_agents=150),
    Campaign("frozen workers", (faults.freeze,), 10),
    Campaign("rolling deploys", (faults.deploy,), 20, workers=4, open_runs=16),
    Campaign("cold shutdowns", (faults.quit_cold,), 10),
    Campaign(
        "servers",
        (
            faults.kill_store,
            faults.kill_store_for_long,
            faults.kill_broker,
            faults.cut_broker,
            faults.full_store,
            faults.paused_store,
            faults.paused_broker,
        ),
        18,
    ),
    Campaign(
        "network",
        (faults.cut_store, faults.slow_network, faults.black_hole, faults.half_open),
        16,
    ),
    Campaign(
        "clock jumps",
        (faults.jump_ahead, faults.jump_back, faults.drift_apart, faults.kill_tree, faults.deploy),
        15,
        own_clocks=True,
    ),
    *(
        Campaign(
            f"full disk, {store}",
            (
                faults.full_disk,
                faults.full_disk_for_long,
                faults.kill_tree_on_full_disk,
                faults.kill_child,
            ),
            12,
            store=store,
        )
        for store in ("file", "sqlite")
    ),
    Campaign(
        "failover",
        (faults.fail_over, faults.fail_over_behind, faults.lag),
        12,
        store="sentinel",
        conf={"ckpt_durability": "replica", "ckpt_lease_ttl": LONGER_LEASE},
    ),
    Campaign(
        "cluster",
        (faults.lose_node, faults.lose_node_for_long),
        12,
        store="cluster",
        conf={"ckpt_durability": "fsync", "ckpt_lease_ttl": LONGER_LEASE},
    ),
)


def run(
    campaign: Campaign, seed: int, times: int | None = None, report_fault: Callable[[str], object] = str
) -> Verdict:
    """Run a campaign and report each fault. Problems are in the verdict, not raised."""
    if campaign.soaked_agents:
        return soak(campaign.name, seed, times or campaign.times, campaign.soaked_agents, report_fault)
    verdict = Verdict(campaign.name, seed)
    with examined(
        verdict,
        workers=campaign.workers,
        iterations=campaign.iterations,
        store=campaign.store,
        own_clocks=campaign.own_clocks,
        conf=campaign.conf,
    ) as made:
        made.top_up(campaign.open_runs)
        for _ in range(times or campaign.times):
            fault = made.chance.choice(campaign.faults)
            report_fault(fault.__name__)
            fault(made)
            if campaign.keeps_sending:
                made.top_up(campaign.open_runs)
            made.wait_for_progress()
            verdict.faults += 1
        judge(made, verdict)
    return verdict
