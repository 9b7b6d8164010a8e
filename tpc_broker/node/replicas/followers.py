"""How far the followers are of what a core leads, and which replicas are in sync (`broker.replication_port.Followers`).

Of a group that C carries nothing of that changes, unless its term, its carrying or a link is another: what was found
is kept, and after a look at all of them only those are looked at that were their machines' since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.model import NodeId, TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.node.replicas.steady_carrier import AwakeGroups


class ReplicaFollowers:
    """Of one core, touched by its thread only. `led`: what is led here."""

    def __init__(self, replicas: CoreReplicas, led: Iterable[TopicPartition]) -> None:
        self._replicas = replicas
        self._led = led
        self._driver: ReplicaDriver
        self._in_touch: dict[str, tuple[tuple[int, ...], tuple[NodeId, ...]]] = {}
        """Of groups that C carries: what tells whether it is so still, and who was in sync."""
        self._awake: AwakeGroups
        self._links_looked_at = 0

    def begin(self, driver: ReplicaDriver) -> None:
        """There is one."""
        self._driver, self._awake = driver, driver.carrier.watch_awake()

    def held(self, key: TopicPartition) -> dict[NodeId, int]:
        machine = self._replicas.look_at(key)
        if machine is None or not machine.is_leader:
            return {}
        return {peer.voter.node: peer.match for peer in machine.peers.values()}

    def in_sync(self, key: TopicPartition) -> tuple[NodeId, ...]:
        machine = self._replicas.machine_of(key)
        if machine is None or not machine.is_leader:
            return ()
        group = self._replicas.group_name(key)
        stamp = (machine.term, machine.carries, self._driver.core.links_changed)
        known = self._in_touch.get(group) if machine.carried else None
        if known is not None and known[0] == stamp:
            return known[1]
        found = tuple(voter.node for voter in machine.in_touch())
        if machine.carried:
            self._in_touch[group] = stamp, found
        else:
            self._in_touch.pop(group, None)
        return found

    def perhaps_in_sync(self) -> list[TopicPartition]:
        awake, links_changed = self._awake.take(), self._driver.core.links_changed
        if links_changed != self._links_looked_at:
            self._links_looked_at = links_changed
            return list(self._led)
        return self._replicas.known(awake)

    def removed(self, group: str) -> None:
        self._in_touch.pop(group, None)
