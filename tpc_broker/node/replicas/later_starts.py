"""Where the logs of followers start, of whom clients have asked for less (`broker.replication_port.LaterStarts`): each
tells its leader, which sends nobody there for that. What followers are to delete as their leaders did is in
`log_starts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpc_broker.errors import MailboxError
from tpc_broker.model import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.model import TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas

LATER_START: Final = "replicas.later_start"


class ReplicaLaterStarts:
    """Of one core, touched by its thread only."""

    def __init__(self, replicas: CoreReplicas) -> None:
        self._replicas = replicas
        self._on_lacking: Callable[[TopicPartition, NodeId, int], None] = lambda _key, _node, _offset: None

    def on_lacking(self, lacks: Callable[[TopicPartition, NodeId, int], None]) -> None:
        self._on_lacking = lacks

    async def tell_start(self, key: TopicPartition, log_start_offset: int) -> None:
        machine = self._replicas.machine_of(key)
        if machine is None or machine.leader is None:
            raise MailboxError("the partition follows no leader")
        told = {self._replicas.group_name(key): [machine.term, log_start_offset]}
        await self._replicas.links.tell(machine.address_of(machine.leader), LATER_START, told)

    async def serve(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> None:
        """A follower says where its logs start: of groups, its leader's term and the offset."""
        for group, (term, starts) in payload.items():
            key = self._replicas.key_of(group)
            machine = None if key is None else self._replicas.machine_of(key)
            if key is not None and machine is not None and machine.is_leader and machine.term == term:
                self._on_lacking(key, NodeId(hello.node), int(starts))
