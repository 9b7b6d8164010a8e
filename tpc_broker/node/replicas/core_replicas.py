"""What the parts of a core's replication ask of it: who is here, how its machine stands, and the links to others.

`replication.CoreReplication` is it, and puts the parts together. What only one part asks for stands with that part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.model import NodeId, TopicPartition
    from tpc_broker.node.replicas.replica_links import ReplicaLinks
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.items import Address
    from tpc_broker.storage.ports import Bounds


class CoreReplicas(Protocol):
    """Of one core; an answer is of this moment."""

    links: ReplicaLinks

    @property
    def image(self) -> ClusterImage: ...

    @property
    def node(self) -> NodeId: ...

    def now_ms(self) -> int: ...

    def group_name(self, key: TopicPartition) -> str: ...

    def key_of(self, group: str) -> TopicPartition | None:
        """None: that group has no replica that takes part here."""
        ...

    def replicas_here(self) -> list[TopicPartition]:
        """Of the replicas that take part."""
        ...

    def machine_of(self, key: TopicPartition) -> Group | None:
        """As it was left, while C carries it."""
        ...

    def look_at(self, key: TopicPartition) -> Group | None:
        """A replica's machine, as it stands now."""
        ...

    def bounds_of(self, key: TopicPartition) -> Bounds | None:
        """None: it was withdrawn this moment."""
        ...

    async def set_log_start(self, key: TopicPartition, offset: int) -> None:
        """PartitionOfflineError."""
        ...

    async def confirm(self, key: TopicPartition) -> bool:
        """Whether it is led here, as a quorum says when asked."""
        ...

    def transfer_to_best(self, key: TopicPartition) -> None:
        """To the voter that is heard and has most of the log; to one without segment space if there is no other."""
        ...

    def want_links(self, addresses: Iterable[Address]) -> None:
        """To cores that have replicas of what is here."""
        ...
