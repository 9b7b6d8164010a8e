"""Replicas on their way between the cores of a simulated node: what the node does, whatever crashes meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.raft_oracle import BrokenInvariantError
from tests.simulator.world import MS
from tpc_broker.raft.items import Address, GroupId
from tpc_broker.raft.journal import is_adopted

if TYPE_CHECKING:
    from tests.simulator.raft_cluster import Cluster
    from tests.simulator.raft_node import CoreDriver

LOOK_US = 20 * MS


class CoreMoves:
    """Where the replicas are, and those that are to go elsewhere. Looks again and again until each has arrived."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._random = cluster.world.stream("core moves")
        self._cores: dict[tuple[GroupId, int], int] = {}
        self._moving: dict[tuple[GroupId, int], int] = {}
        self._came_from: dict[tuple[GroupId, int], CoreDriver] = {}
        self.count = 0

    def core_of(self, group: GroupId, node: int) -> int:
        """Where the metadata say that a node's replica is."""
        return self._cores.get((group, node), group % self._cluster.cores_count)

    def cores(self, group: GroupId) -> dict[int, int]:
        """On all nodes."""
        return {node: self.core_of(group, node) for node in range(self._cluster.nodes_count)}

    def is_moving(self, group: GroupId, node: int) -> bool:
        """A replica that may be nowhere just now."""
        return (group, node) in self._moving

    def only_here(self, group: GroupId, address: Address) -> None:
        """A node never has a replica on two cores."""
        for other, driver in self._cluster.drivers.items():
            if other.node == address.node and other != address and driver.machine(group) is not None:
                raise BrokenInvariantError(f"two cores: {address} takes {group} up, {other} has it")

    def forget_earlier(self, group: GroupId, node: int) -> None:
        """What the node's journals have of earlier incarnations is not the new one's: counts of moves begin anew."""
        for address, driver in self._cluster.drivers.items():
            if address.node == node:
                driver.journal.forget(group, 0 if driver.core is None else driver.core.sequence)

    def begin(self, group: GroupId, node: int, core: int) -> None:
        """The metadata say that it begins."""
        source = self._cluster.driver(group, node)
        if not self.is_moving(group, node) and group in source.replicas and core != source.address.core:
            self._moving[group, node] = core
            self._look(group, node)

    def _look(self, group: GroupId, node: int) -> None:
        core = self._moving[group, node]
        source, target = self._cluster.driver(group, node), self._cluster.drivers[Address(node, core)]
        if source is target:
            source = self._came_from[group, node]
        if _is_up(source) and self._go_on(group, source, target):
            del self._moving[group, node]
        else:
            delay_us = LOOK_US + int(self._random.random() * LOOK_US)
            self._cluster.world.call_after(delay_us, lambda: self._look(group, node))

    def _go_on(self, group: GroupId, source: CoreDriver, target: CoreDriver) -> bool:
        """The next step, as far as it can be taken. True when there is none."""
        machine = source.machine(group)
        if machine is not None and group in source.replicas:
            if not machine.leaving:
                source.perform(group, lambda core, now_ms: core.leave(group, now_ms))
            elif source.core.has_left(group):
                source.perform(group, lambda core, now_ms: core.release_group(group, target.address.core, now_ms))
            return False
        if group not in source.released:
            return group not in source.replicas and source is self._cluster.driver(group, source.address.node)
        return self._arrive(group, source, target)

    def _arrive(self, group: GroupId, source: CoreDriver, target: CoreDriver) -> bool:
        released = source.core.moves.released(group)
        node = source.address.node
        if released is None:
            return False
        if is_adopted(released, target.found(group)):
            source.core.moves.forget(group)
            del source.released[group]
            self.count += 1
            self._tell(group, node)
            return True
        if _is_up(target) and target.journal.is_open and group not in target.replicas:
            self._cores[group, node] = target.address.core
            self._came_from[group, node] = source
            target.adopt(released, source.released[group])
        return False

    def _tell(self, group: GroupId, node: int) -> None:
        """The other nodes hear of it some time."""
        for address, driver in self._cluster.drivers.items():
            if address.node != node:
                delay_us = int(self._random.random() * 200 * MS)
                self._cluster.world.call_after(delay_us, lambda driver=driver: driver.replica_moved(group, node))


def _is_up(driver: CoreDriver) -> bool:
    return driver.core is not None and driver.process.is_running and not driver.process.is_paused
