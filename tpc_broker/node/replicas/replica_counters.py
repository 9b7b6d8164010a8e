"""What a core counts of its replicas of partitions, as plain numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tpc_broker.raft.output import LEADER

if TYPE_CHECKING:
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.node.replicas.replica_links import ReplicaLinks


def replica_counters(driver: ReplicaDriver, links: ReplicaLinks, now_ms: int) -> dict[str, int]:
    """What is: `leader`, `follower`, `candidate`, `pre_candidate` (replicas by role), `leaderless` (whose leader was
    not heard of lately), `under_replicated` (led here, and some voter is silent or behind), `uncommitted_records` (of
    those that are led here), `refusing` (taking nothing, because too much waits for a quorum), `links_wanted`,
    `links_up`. All others only grow. Looks at each replica once; at those that C carries as their machines left them,
    since of thousands nobody waits for C's word.
    """
    found: Counter[str] = Counter(driver.ended)
    for machine in driver.core.groups.values():
        found[machine.role.value.replace("-", "_")] += 1
        found["elections"] += machine.elections_started
        found["elections_won"] += machine.elections_won
        found["cuts"] += machine.cuts
        if machine.role is LEADER:
            found["uncommitted_records"] += driver.uncommitted(machine)
            voters = len(machine.config.voters) if machine.config is not None else 0
            found["under_replicated"] += len(machine.in_touch()) < voters
        elif machine.fresh_leader(now_ms) is None:
            found["leaderless"] += 1
    sent, carried, over_links = driver.core.statistics(), driver.carrier.statistics(), links.numbers()
    over_links["sent_bytes"] += carried["sent_bytes"]
    over_links["received_bytes"] += carried["taken_bytes"]
    names = (
        "leader", "follower", "candidate", "pre_candidate", "leaderless", "under_replicated", "uncommitted_records",
        "elections", "elections_won", "cuts",
    )  # fmt: skip
    return {
        **{name: found[name] for name in names},
        "refusing": driver.refusing,
        "commits": driver.commits + carried["commits"],
        "messages_sent": sent.messages_sent,
        "messages_received": sent.messages_received,
        **over_links,
    }
