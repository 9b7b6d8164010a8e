"""What a node counts of its cluster, as plain numbers: for `/metrics`, `/debug`, `tpc-broker status` and `/ready`.

Told as soon as a node has links (`CoreStatus.cluster`), thus before it answers clients: a node that waits for a
majority is one that people look at. Everything is bounded by what the code knows (states, roles, reasons), except
`links_to`, a row for each node that is dialled, which becomes no metric.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from tpc_broker.raft.output import Role

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.node.links.links import Links
    from tpc_broker.node.membership.identity import NodeIdentity
    from tpc_broker.node.membership.members import Members
    from tpc_broker.node.metadata.metadata_group import MetadataGroup

Numbers = dict[str, int]

OBSERVER: Final = "observer"
"""A node that has no replica of the metadata, or none with a vote."""
METADATA_ROLES: Final = (*(role.value for role in Role), OBSERVER)


class MetadataCounters(TypedDict):
    """`role`: one of METADATA_ROLES. `version`: of the newest committed image here. `term`, `commit_offset`,
    `last_offset`, `elections`, `elections_won`, `cuts`: of the replica; -1 where there is none. `leader`: None where
    this node knows none.
    """

    role: str
    leader: int | None
    voters: list[int]
    version: int
    term: int
    commit_offset: int
    last_offset: int
    elections: int
    elections_won: int
    cuts: int


class ClusterCounters(TypedDict):
    """`membership`: of `SwimStatistics`, and `foreign`: datagrams that no node of this cluster sealed; empty before the
    node has found its cluster. `links`: of `LinkCounts` without reasons; `wanted`, `up`, `incoming` and `queued_bytes`
    are what is. `links_to`: a row for each node that is dialled. `raft`: messages of the metadata group. `nodes`,
    `absent`: that are registered, and of these the ones that membership has given up. `conflict`: who else claims to
    be this node, or another one twice; empty where nobody does.
    """

    cluster_id: str
    node: int
    nodes: int
    absent: list[int]
    conflict: str
    membership: Numbers
    metadata: MetadataCounters
    raft: Numbers
    links: Numbers
    refused_incoming: dict[str, int]
    refused_outgoing: dict[str, int]
    links_to: list[dict[str, Any]]


class Known(NamedTuple):
    """As far as the node knows: nodes that are given up, who leads the metadata, who votes, and who claims what."""

    absent: Collection[int]
    leader: int | None
    voters: Collection[int]
    conflict: str


def cluster_counters(  # noqa: PLR0913 (the parts of a node)
    identity: NodeIdentity,
    image: ClusterImage,
    links: Links,
    members: Members | None,
    group: MetadataGroup | None,
    known: Known,
) -> ClusterCounters:
    """In one look, without waiting."""
    counts = asdict(links.counts)
    incoming, outgoing = counts.pop("refused_incoming"), counts.pop("refused_outgoing")
    known_by = {tuple(each.address): node for node, each in image.nodes.items()}
    rows: list[dict[str, Any]] = [
        {
            "node": peer.hello.node if peer.hello is not None else known_by.get(tuple(peer.address)),
            "address": str(peer.address),
            "up": peer.is_up,
            "queued_bytes": peer.queued_bytes,
            "refused": str(peer.refused) if peer.refused is not None else None,
        }
        for peer in links.peers.values()
    ]
    now = {
        "wanted": len(rows), "up": sum(row["up"] for row in rows), "incoming": len(links.incoming),
        "queued_bytes": sum(row["queued_bytes"] for row in rows),
    }  # fmt: skip
    return ClusterCounters(
        cluster_id=image.cluster_id,
        node=int(identity.node),
        nodes=len(image.nodes),
        absent=sorted(int(node) for node in known.absent),
        conflict=known.conflict,
        membership=_of_members(members),
        metadata=_of_metadata(group, image, known),
        raft=_of_raft(group),
        links={**now, **counts},
        refused_incoming=incoming,
        refused_outgoing=outgoing,
        links_to=rows,
    )


def _of_members(members: Members | None) -> Numbers:
    if members is None:
        return {}
    return {**{name: int(count) for name, count in asdict(members.statistics()).items()}, "foreign": members.strangers}


def _of_metadata(group: MetadataGroup | None, image: ClusterImage, known: Known) -> MetadataCounters:
    leader = None if known.leader in known.absent else known.leader
    told = MetadataCounters(
        role=OBSERVER, leader=leader, voters=sorted(known.voters), version=image.version,
        term=-1, commit_offset=-1, last_offset=-1, elections=-1, elections_won=-1, cuts=-1,
    )  # fmt: skip
    if group is None or not group.has_replica:
        return told
    found = group.group.statistics()
    return {
        **told,
        "role": found.role.value if found.is_voter else OBSERVER,
        "term": found.term,
        "commit_offset": found.commit.offset,
        "last_offset": found.last.offset,
        "elections": found.elections_started,
        "elections_won": found.elections_won,
        "cuts": found.cuts,
    }


def _of_raft(group: MetadataGroup | None) -> Numbers:
    if group is None:
        return {"messages_sent": 0, "messages_received": 0, "frames_sent": 0}
    found = group.core.statistics()
    return {
        "messages_sent": found.messages_sent,
        "messages_received": found.messages_received,
        "frames_sent": found.frames_sent,
    }
