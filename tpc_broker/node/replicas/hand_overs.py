"""Leaderships of a core that go to other nodes (`broker.replication_port.HandOvers`): to one that is named, to the best
one there is, or all of them before the core ends.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.raft.items import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.model import NodeId, TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver

log = logging.getLogger(__name__)

HAND_OVER_S: Final = 3.0
LOOK_S: Final = 0.02


class ReplicaHandOvers:
    """Of one core, touched by its thread only. `led`: what is led here; `has_space`: whether a core has segment space,
    as far as is known.
    """

    def __init__(
        self, replicas: CoreReplicas, led: Iterable[TopicPartition], has_space: Callable[[Address], bool]
    ) -> None:
        self._replicas = replicas
        self._led = led
        self._has_space = has_space
        self._driver: ReplicaDriver

    def begin(self, driver: ReplicaDriver) -> None:
        """There is one."""
        self._driver = driver

    async def hand_over(self) -> None:
        if not (led := self._led_of_several()):
            return
        count = len(led)
        with trio.move_on_after(HAND_OVER_S):
            while led := self._led_of_several():
                for key in led:
                    self.transfer_to_best(key)
                await trio.sleep(LOOK_S)
        log.info("%d of %d leaderships were handed over", count - len(led), count)

    def _led_of_several(self) -> list[TopicPartition]:
        """What is led here and others could lead."""
        machines = ((key, self._replicas.machine_of(key)) for key in self._led)
        return [key for key, machine in machines if machine is not None and not machine.votes_alone]

    def transfer(self, key: TopicPartition, node: NodeId) -> bool:
        """Begin to hand a leadership over to a voter's node; False: it is not led here, or that is no voter."""
        machine = self._replicas.machine_of(key)
        if machine is None or not machine.is_leader or machine.config is None:
            return False
        target = next((voter for voter in machine.config.voters if voter.node == node), None)
        if target is None or machine.transfer is not None:
            return False
        begin = partial(self._driver.core.transfer_leadership, self._replicas.group_name(key), target)
        return self._driver.act(begin) is None

    def transfer_to_best(self, key: TopicPartition) -> None:
        """To the voter that is heard and has most of the log; to one without segment space if there is no other."""
        machine = self._replicas.machine_of(key)
        if machine is None or machine.config is None or machine.transfer is not None:
            return
        self._replicas.look_at(key)
        now_ms = self._replicas.now_ms()
        heard = [each for each in machine.peers.values()
                 if each.voter in machine.config.voters and machine.is_heard(each.voter, now_ms)]  # fmt: skip
        if heard:
            able = [peer for peer in heard if self._has_space(machine.address_of(peer.voter))]
            self.transfer(key, max(able or heard, key=lambda peer: (peer.match, peer.voter)).voter.node)

    def is_handing_over(self, key: TopicPartition) -> bool:
        machine = self._replicas.machine_of(key)
        return machine is not None and machine.transfer is not None

    def has_space(self, key: TopicPartition, node: NodeId) -> bool:
        machine = self._replicas.machine_of(key)
        if machine is None:
            return True
        return self._has_space(Address(node, machine.cores.get(node, self._replicas.core_id)))
