"""Whether who greets on a link belongs here: nodes of one cluster, each with its own id and data, none removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.link_codec import Reason
from tpc_broker.node.links.link_errors import LinkRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import NodeRegistered


def refusal_of(hello: Hello, own: Hello, known: Iterable[Hello], image: ClusterImage) -> LinkRefusedError | None:
    """`known`: who has a connection to this node; `image`: the newest that it has, perhaps the empty one."""
    if (hello.node, hello.incarnation, hello.boot) == (own.node, own.incarnation, own.boot):
        return LinkRefusedError(Reason.NODE_ITSELF, "a node that dialled itself", by_peer=False)
    if hello.cluster and own.cluster and hello.cluster != own.cluster:
        text = (
            f"node {own.node} at {SeedAddress(*own.address)} is of cluster {own.cluster}, and node {hello.node} at "
            f"{SeedAddress(*hello.address)} is of cluster {hello.cluster}"
        )
        return LinkRefusedError(Reason.CLUSTER, text, by_peer=False)
    return refusal_of_node(hello, own, image) or _refusal_of_id(hello, own, known)


# Rule: No node with an authorizer has a link to one without: that one would do, as the leader of the metadata or of a
# partition, what a client asks for by the other one, whoever it is. Held by tests/cluster/test_authorizers.py.
def refusal_of_node(hello: Hello, own: Hello, image: ClusterImage) -> LinkRefusedError | None:
    """It was removed, its release does not speak what the cluster does, or only one of the two asks for rights."""
    if hello.incarnation in image.removed:
        return LinkRefusedError(Reason.REMOVED, removed_text(hello.node, image.cluster_id), by_peer=False)
    if image.cluster_id and not hello.levels.has(image.feature_level):
        text = level_text(hello, image.cluster_id, image.feature_level)
        return LinkRefusedError(Reason.LEVEL, text, by_peer=False)
    if hello.has_authorizer != own.has_authorizer:
        return LinkRefusedError(Reason.AUTHORIZER, _authorizer_text(hello, own), by_peer=False)
    return None


def _authorizer_text(one: Hello, other: Hello) -> str:
    has, lacks = (one, other) if one.has_authorizer else (other, one)
    return (
        f"authorizer.class.name is set at node {has.node} at {SeedAddress(*has.address)}, and not at node {lacks.node} "
        f"at {SeedAddress(*lacks.address)}: give it to all nodes of the cluster, or to none"
    )


def _refusal_of_id(hello: Hello, own: Hello, known: Iterable[Hello]) -> LinkRefusedError | None:
    """Each id is one process's."""
    if hello.node == own.node:
        text = (
            f"node id {hello.node} is alive at {SeedAddress(*own.address)} with another incarnation; give the node at "
            f"{SeedAddress(*hello.address)} another --node-id"
        )
        return LinkRefusedError(Reason.NODE_ID, text, by_peer=False)
    for one in () if hello.replication else known:  # the incarnation of a core's replicas stands in each message
        if one.node == hello.node and (one.incarnation, one.boot) != (hello.incarnation, hello.boot):
            what = "incarnation" if one.incarnation != hello.incarnation else "process of the same data directory"
            text = (
                f"node id {hello.node} is alive at {SeedAddress(*one.address)} with another {what}; give the "
                f"node at {SeedAddress(*hello.address)} another --node-id and --data"
            )
            return LinkRefusedError(Reason.NODE_ID, text, by_peer=False)
    return None


def level_text(node: Hello | NodeRegistered, cluster: str, level: int) -> str:
    return (
        f"node {node.node} (release {node.version}) speaks feature {node.levels}, and cluster {cluster} is at level "
        f"{level}: start a release that speaks it"
    )


def refusal_of_registration(
    node: NodeRegistered, image: ClusterImage, is_alive: Callable[[NodeRegistered], bool]
) -> str:
    """Why a node has no place in the cluster as it is; "": it has one. `is_alive`: whether one is, as far as the
    controller can see.
    """
    known = image.nodes.get(node.node)
    if not node.levels.has(image.feature_level):
        return level_text(node, image.cluster_id, image.feature_level)
    if node.incarnation in image.removed:
        return removed_text(node.node, image.cluster_id)
    if known is not None and known.incarnation != node.incarnation and is_alive(known):
        return (
            f"node id {node.node} is alive at {SeedAddress(*known.address)} with another incarnation; give "
            f"the node at {SeedAddress(*node.address)} another --node-id"
        )
    return ""


def removed_text(node: int, cluster: str) -> str:
    return (
        f"node {node} was removed from cluster {cluster}, and its data directory cannot come back; with an empty "
        "--data it joins as new"
    )
