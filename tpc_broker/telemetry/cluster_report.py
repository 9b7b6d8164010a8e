"""What `tpc-broker status` says of a node's cluster, as lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tpc_broker.node.counters import ClusterCounters

KIB: Final = 1024


def cluster_lines(told: ClusterCounters) -> list[str]:
    """The first one is the head of the others."""
    head = f"cluster {told['cluster_id'] or '(none yet)'}: node {told['node']} of {told['nodes']}"
    if told["absent"]:
        head += f"; away: {', '.join(map(str, told['absent']))}"
    if told["conflict"]:
        head += f"; {told['conflict']}"
    return [
        head,
        f"{'metadata':<12}{_of_metadata(told)}",
        f"{'members':<12}{_of_members(told)}",
        f"{'links':<12}{_of_links(told)}",
        *(f"{'':<12}{line}" for line in _missing(told)),
    ]


def _of_metadata(told: ClusterCounters) -> str:
    found = told["metadata"]
    leader = "nobody is known to lead" if found["leader"] is None else f"led by node {found['leader']}"
    voters = ", ".join(map(str, found["voters"])) or "not known"
    text = f"{found['role']}, {leader}; voters: {voters}; version {found['version']:,}"
    if found["term"] < 0:
        return text
    return (
        f"{text}; term {found['term']:,}, committed up to {found['commit_offset']:,} of {found['last_offset']:,}; "
        f"elections begun: {found['elections']:,}, won: {found['elections_won']:,}"
    )


def _of_members(told: ClusterCounters) -> str:
    found = told["membership"]
    if not found:
        return "none yet: it looks for its cluster"
    slow = f"; this node is slow itself: health {found['local_health']}" if found["local_health"] else ""
    return (
        f"{found['alive']:,} alive, {found['suspect']:,} suspected, {found['dead']:,} dead, {found['left']:,} left; "
        f"probes: {found['probes']:,}, failed: {found['probes_failed']:,}; suspected: {found['suspicions']:,} times, "
        f"buried: {found['burials']:,}, refuted: {found['refutations']:,}; "
        f"datagrams of strangers: {found['foreign']:,}{slow}"
    )


def _of_links(told: ClusterCounters) -> str:
    links = told["links"]
    refused = sum(told["refused_incoming"].values()) + sum(told["refused_outgoing"].values())
    return (
        f"{links['up']:,} of {links['wanted']:,} up, {links['incoming']:,} from others; {links['lost']:,} lost, "
        f"{refused:,} refused; {links['sent_bytes'] // KIB:,} KiB out, {links['received_bytes'] // KIB:,} KiB in; "
        f"{links['requests']:,} requests, {links['requests_failed']:,} failed; {links['raft_dropped']:,} frames dropped"
    )


def _missing(told: ClusterCounters) -> list[str]:
    return [
        f"none to {'a seed' if row['node'] is None else 'node ' + str(row['node'])} at {row['address']}"
        + (f": {row['refused']}" if row["refused"] else "")
        for row in told["links_to"] if not row["up"]
    ]  # fmt: skip
