"""Which replicas of a core lead, which follow whom, and who is told (`broker.replication_port.Leaderships`).

A partition's machine decides who leads it; the broker is told when that is this core and clients may know, and when it
is no more. Who waits for another leader looks again whenever a role, a term or a leader is another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tpc_broker.model import LeaderEpoch, TopicPartition
from tpc_broker.raft.output import FOLLOWER, LEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.model import NodeId
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.raft.output import Role


class ReplicaLeaderships:
    """Of one core, touched by its thread only."""

    def __init__(self, replicas: CoreReplicas) -> None:
        self._replicas = replicas
        self._driver: ReplicaDriver
        self.led: dict[TopicPartition, LeaderEpoch] = {}
        """What is led here, and clients may know."""
        self._moved: dict[TopicPartition, trio.Event] = {}
        self.on_ended: Callable[[TopicPartition], None] = lambda _key: None
        """Called when one is not led here, or is not here any more."""
        self._on_led: Callable[[TopicPartition, LeaderEpoch], None]
        self._on_lost: Callable[[TopicPartition, LeaderEpoch], None]
        self._on_moved: Callable[[TopicPartition], None] = lambda _key: None

    def begin(self, driver: ReplicaDriver) -> None:
        """There is one."""
        self._driver = driver
        driver.on_leader_ready = self._leader_ready
        driver.on_role = self._role_changed

    def on_roles(
        self,
        led: Callable[[TopicPartition, LeaderEpoch], None],
        lost: Callable[[TopicPartition, LeaderEpoch], None],
    ) -> None:
        self._on_led, self._on_lost = led, lost

    def on_moved(self, moved: Callable[[TopicPartition], None]) -> None:
        self._on_moved = moved

    # -- who leads ---------------------------------------------------------------------------------------------------

    def followed(self, key: TopicPartition) -> tuple[NodeId, int] | None:
        machine = self._replicas.machine_of(key)
        if machine is None or machine.role is not FOLLOWER or machine.leader is None:
            return None
        return machine.leader.node, machine.term

    def hears_leader(self, key: TopicPartition, told_epoch: int) -> bool:
        if (machine := self._replicas.machine_of(key)) is None:
            return False
        leads = machine.fresh_leader(self._replicas.now_ms()) not in (None, machine.me)
        return (leads and told_epoch >= machine.term) or told_epoch > machine.log.last.epoch

    def leaderless(self) -> list[TopicPartition]:
        """Quick where thousands are well: C carries those."""
        now_ms, groups = self._replicas.now_ms(), self._replicas.groups
        return self._replicas.known(
            str(group) for group, machine in groups.items()
            if not machine.carried and not machine.is_leader and machine.fresh_leader(now_ms) is None
        )  # fmt: skip

    def term_of(self, key: TopicPartition) -> int | None:
        machine = self._replicas.machine_of(key)
        return None if machine is None else machine.term

    async def confirm(self, key: TopicPartition) -> bool:
        if self._replicas.machine_of(key) is None:
            return False
        return await self._driver.confirm(self._replicas.group_name(key))

    # -- who waits for another leader --------------------------------------------------------------------------------

    async def wait_moved(self, key: TopicPartition) -> None:
        await self._moved.setdefault(key, trio.Event()).wait()

    def leader_told(self, key: TopicPartition) -> None:
        self._moved.pop(key, trio.Event()).set()

    def all_moved(self) -> None:
        moved, self._moved = self._moved, {}
        for event in moved.values():
            event.set()

    # -- roles -------------------------------------------------------------------------------------------------------

    def removed(self, key: TopicPartition) -> None:
        """It is not here any more."""
        self._lost(key)
        self._moved.pop(key, trio.Event()).set()

    def _leader_ready(self, group: str, term: int) -> None:
        key = self._replicas.key_of(group)
        if key is not None:
            self.led[key] = LeaderEpoch(term)
            self._on_led(key, LeaderEpoch(term))
            self._tell_moved(key)

    def _role_changed(self, group: str, role: Role, _term: int) -> None:
        key = self._replicas.key_of(group)
        if key is not None:
            if role is not LEADER:
                self._lost(key)
            self._tell_moved(key)

    def _lost(self, key: TopicPartition) -> None:
        term = self.led.pop(key, None)
        self.on_ended(key)
        if term is not None:
            self._on_lost(key, term)

    def _tell_moved(self, key: TopicPartition) -> None:
        self._moved.pop(key, trio.Event()).set()
        self._on_moved(key)
