"""What a node counts of its cluster, as Prometheus metrics: families without samples where there is no `--cluster`.

One node is one target of a scrape, so no series has another node's name: how many are in which state is told, and which
ones by `tpc cluster`, `tpc-broker status` and `/debug`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from tpc_broker.node.counters import METADATA_ROLES
from tpc_broker.raft.output import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from tpc_broker.node.counters import ClusterCounters

MEMBER_STATES: Final = {"alive": "alive", "suspected": "suspect", "dead": "dead", "left": "left"}


class Counted(NamedTuple):
    """One number of a node. `name` ends in `_total` where it only grows."""

    name: str
    field: str
    explanation: str


MEMBERSHIP: Final = (
    Counted("tpc_swim_local_health", "local_health", "0: healthy; n: this node is slow itself, and waits n + 1 times."),
    Counted("tpc_swim_joined", "is_joined", "1: another member has answered this one."),
    Counted("tpc_swim_rumours", "rumours", "News that are still told to others."),
    Counted("tpc_swim_probes_total", "probes", "Members that were probed."),
    Counted("tpc_swim_probes_failed_total", "probes_failed", "Of them, without an answer by any way."),
    Counted("tpc_swim_suspicions_total", "suspicions", "Members that this node came to suspect."),
    Counted("tpc_swim_burials_total", "burials", "Members that this node declared dead itself."),
    Counted("tpc_swim_refutations_total", "refutations", "Times that this node was suspected, and contradicted."),
    Counted("tpc_swim_datagrams_sent_total", "datagrams_sent", "Datagrams of membership sent."),
    Counted("tpc_swim_datagrams_received_total", "datagrams_received", "Datagrams of membership that were taken."),
    Counted("tpc_swim_datagrams_ignored_total", "datagrams_ignored", "Of them, late or for another node."),
    Counted("tpc_swim_datagrams_foreign_total", "foreign", "Datagrams that the cluster's secret did not seal."),
    Counted("tpc_swim_exchanges_total", "exchanges", "Exchanges of the whole membership."),
    Counted("tpc_swim_exchanges_failed_total", "exchanges_failed", "Of them, that failed."),
    Counted("tpc_swim_members_refused_total", "members_refused", "Members for which the table had no place."),
)
REPLICA: Final = (
    Counted("tpc_metadata_term", "term", "Term of the metadata group, as this node's replica knows it."),
    Counted("tpc_metadata_commit_offset", "commit_offset", "Up to where this replica knows the metadata committed."),
    Counted("tpc_metadata_last_offset", "last_offset", "Up to where this replica has the metadata's log."),
    Counted("tpc_metadata_elections_total", "elections", "Elections of the metadata group that this replica began."),
    Counted("tpc_metadata_elections_won_total", "elections_won", "Of them, that it won."),
    Counted("tpc_metadata_cuts_total", "cuts", "Times that another leader's log replaced the end of this one."),
)
RAFT: Final = (
    Counted("tpc_raft_messages_sent_total", "messages_sent", "Messages of the metadata group sent."),
    Counted("tpc_raft_messages_received_total", "messages_received", "Messages of the metadata group received."),
    Counted("tpc_raft_frames_sent_total", "frames_sent", "Frames in which they were sent."),
)
LINKS: Final = (
    Counted("tpc_cluster_links_wanted", "wanted", "Nodes and seeds that this node keeps a link to."),
    Counted("tpc_cluster_links", "up", "Links to other nodes that are up."),
    Counted("tpc_cluster_links_incoming", "incoming", "Links from other nodes that are up."),
    Counted("tpc_cluster_links_queued_bytes", "queued_bytes", "Bytes that wait to be sent to other nodes."),
    Counted("tpc_cluster_links_opened_total", "opened", "Links to other nodes that came up."),
    Counted("tpc_cluster_links_lost_total", "lost", "Links to other nodes that ended."),
    Counted("tpc_cluster_sent_bytes_total", "sent_bytes", "Bytes sent to other nodes over links."),
    Counted("tpc_cluster_received_bytes_total", "received_bytes", "Bytes received from other nodes over links."),
    Counted("tpc_cluster_raft_sent_bytes_total", "raft_sent_bytes", "Of those sent, frames of replication."),
    Counted("tpc_cluster_raft_received_bytes_total", "raft_received_bytes", "Of those received, the same."),
    Counted("tpc_cluster_raft_dropped_total", "raft_dropped", "Frames of replication that found no room on a link."),
    Counted("tpc_cluster_requests_total", "requests", "Requests to other nodes."),
    Counted("tpc_cluster_requests_failed_total", "requests_failed", "Of them, refused or without an answer in time."),
    Counted("tpc_cluster_requests_served_total", "requests_served", "Requests of other nodes that were carried out."),
    Counted("tpc_cluster_requests_refused_total", "requests_refused", "Of other nodes, with too many under way."),
)


ROLES: Final = tuple(role.value for role in Role)
REPLICAS: Final = (
    Counted("tpc_partitions_leaderless", "leaderless", "Replicas here whose leader was not heard of lately."),
    Counted("tpc_partitions_under_replicated", "under_replicated", "Led here, and a replica is silent or behind."),
    Counted("tpc_partitions_refusing", "refusing", "Led here, and taking nothing: too much waits for a majority."),
    Counted("tpc_replication_uncommitted_records", "uncommitted_records", "Led here, and not committed yet."),
    Counted("tpc_replication_commits_total", "commits", "Times that the high watermark of a replica here rose."),
    Counted("tpc_replication_elections_total", "elections", "Elections that replicas here began."),
    Counted("tpc_replication_elections_won_total", "elections_won", "Of them, that they won."),
    Counted("tpc_replication_cuts_total", "cuts", "Times that another leader's log replaced the end of one here."),
    Counted("tpc_replication_messages_sent_total", "messages_sent", "Messages of replicas here to others."),
    Counted("tpc_replication_messages_received_total", "messages_received", "Messages of others to replicas here."),
    Counted("tpc_replication_links_wanted", "links_wanted", "Cores of other nodes that share partitions with this."),
    Counted("tpc_replication_links", "links_up", "Links to them that are up."),
    Counted("tpc_replication_links_lost_total", "links_lost", "Links to them that ended."),
    Counted("tpc_replication_sent_bytes_total", "sent_bytes", "Bytes sent to them."),
    Counted("tpc_replication_received_bytes_total", "received_bytes", "Bytes received from them."),
    Counted("tpc_replication_dropped_total", "frames_dropped", "Frames that found no room on a link."),
)


def replica_metrics(told: Sequence[tuple[str, Mapping[str, int]]]) -> Iterator[Metric]:
    """`told`: what each core counts of its replicas, if it has any."""
    roles = GaugeMetricFamily("tpc_replicas", "Replicas of partitions by role.", labels=["core", "role"])
    for core, numbers in told:
        for role in ROLES:
            if numbers:
                roles.add_metric([core, role], numbers[role.replace("-", "_")])
    yield roles
    for row in REPLICAS:
        family = _family(row, ["core"])
        for core, numbers in told:
            if numbers:
                family.add_metric([core], numbers[row.field])
        yield family


def cluster_metrics(told: ClusterCounters | None) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "tpc_cluster", "Which node of which cluster this is.",
        None if told is None else {"cluster_id": told["cluster_id"], "node": str(told["node"])},
    )  # fmt: skip
    yield from _of_nodes(told)
    yield from _table(MEMBERSHIP, told and told["membership"])
    yield from _of_metadata(told)
    yield from _table(RAFT, told and told["raft"])
    yield from _table(LINKS, told and told["links"])
    refused = CounterMetricFamily(
        "tpc_cluster_links_refused", "Links that were refused, by the end that dialled and by reason.",
        labels=["direction", "reason"],
    )  # fmt: skip
    if told is not None:
        for direction, reasons in (("incoming", told["refused_incoming"]), ("outgoing", told["refused_outgoing"])):
            for reason, count in reasons.items():
                refused.add_metric([direction, reason], count)
    yield refused


def _of_nodes(told: ClusterCounters | None) -> Iterator[Metric]:
    members = GaugeMetricFamily("tpc_cluster_members", "Members by state, this node included.", labels=["state"])
    nodes = GaugeMetricFamily("tpc_cluster_nodes", "Nodes that are registered in the metadata.", labels=[])
    absent = GaugeMetricFamily("tpc_cluster_nodes_absent", "Of them, dead or gone as far as is known.", labels=[])
    conflict = GaugeMetricFamily("tpc_cluster_conflict", "1: two processes claim to be one node.", labels=[])
    if told is not None:
        for state, field in MEMBER_STATES.items():
            if told["membership"]:
                members.add_metric([state], told["membership"][field])
        nodes.add_metric([], told["nodes"])
        absent.add_metric([], len(told["absent"]))
        conflict.add_metric([], int(bool(told["conflict"])))
    yield from (members, nodes, absent, conflict)


def _of_metadata(told: ClusterCounters | None) -> Iterator[Metric]:
    role = GaugeMetricFamily("tpc_metadata_role", "1: the role that this node has for the metadata.", labels=["role"])
    leader = GaugeMetricFamily("tpc_metadata_has_leader", "1: this node knows who leads the metadata.", labels=[])
    voters = GaugeMetricFamily("tpc_metadata_voters", "Nodes that vote on the metadata, as far as is known.", labels=[])
    version = GaugeMetricFamily("tpc_metadata_version", "Version of the newest metadata that are here.", labels=[])
    if told is not None:
        found = told["metadata"]
        for name in METADATA_ROLES:
            role.add_metric([name], int(name == found["role"]))
        leader.add_metric([], int(found["leader"] is not None))
        voters.add_metric([], len(found["voters"]))
        version.add_metric([], found["version"])
    yield from (role, leader, voters, version)
    has_replica = told is not None and told["metadata"]["term"] >= 0
    yield from _table(REPLICA, dict(told["metadata"]) if told is not None and has_replica else None)  # type: ignore[arg-type]


def _table(rows: tuple[Counted, ...], numbers: Mapping[str, int] | None) -> Iterator[Metric]:
    for row in rows:
        family = _family(row, [])
        if numbers:
            family.add_metric([], int(numbers[row.field]))
        yield family


def _family(row: Counted, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    if row.name.endswith("_total"):
        return CounterMetricFamily(row.name.removesuffix("_total"), row.explanation, labels=labels)
    return GaugeMetricFamily(row.name, row.explanation, labels=labels)
