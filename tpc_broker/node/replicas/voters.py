"""Which voters the groups have that a core leads (`broker.replication_port.Voters`): looks, again and again, whether
they are those that the metadata want. What is done about it `voter_changes` decides.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from tpc_broker.node.replicas.voter_changes import VoterChanges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.broker.replication_port import ReplicaProgress
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.model import LeaderEpoch, TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.node.replicas.steady_carrier import AwakeGroups


class ReplicaVoters:
    """Of one core, touched by its thread only. `led`: what is led here. Nobody asks before the first image."""

    def __init__(self, replicas: CoreReplicas, led: Mapping[TopicPartition, LeaderEpoch]) -> None:
        self._replicas = replicas
        self._led = led
        self._driver: ReplicaDriver
        self._changes: VoterChanges
        self._awake: AwakeGroups

    def begin(self, driver: ReplicaDriver) -> None:
        """There is one."""
        self._driver, self._awake = driver, driver.carrier.watch_awake()
        self._changes = VoterChanges(driver.core)

    def follow(self, image: ClusterImage) -> None:
        self._changes.image = image

    def allow_moves(self, keys: frozenset[TopicPartition]) -> None:
        self._changes.allowed = keys

    def changes_to_confirm(self) -> dict[TopicPartition, int]:
        return self._changes.to_confirm()

    def confirm_changes(self, terms: Mapping[TopicPartition, int], version: int) -> None:
        self._changes.confirm(terms, version)

    def settled_term(self, key: TopicPartition) -> int | None:
        machine = self._replicas.machine_of(key)
        return None if machine is None or key not in self._led else self._changes.settled_term(key, machine)

    def begin_next_term(self, key: TopicPartition) -> None:
        """Of one that is led here: as it is, in a later term."""
        if self._replicas.machine_of(key) is not None:
            self._driver.act(partial(self._changes.begin_next_term, self._replicas.group_name(key)))

    def progress(self, key: TopicPartition) -> ReplicaProgress | None:
        machine = self._replicas.machine_of(key)
        return None if machine is None else self._changes.progress(key, machine)

    def forget(self, key: TopicPartition) -> None:
        """It is not led here, or not here any more."""
        self._changes.forget(key)

    async def look_until(self, ends_s: float) -> None:
        """Change what is to be changed; again while some wait for their turn, until trio's clock says so."""
        self._look()
        while (wait_s := self._changes.look_again_s(self._replicas.now_ms())) is not None:
            if trio.current_time() + wait_s > ends_s:
                break
            await trio.sleep(wait_s)
            self._look()

    def _look(self) -> None:
        due = self._changes.due(self._led, self._replicas.known(self._awake.take()))
        led = [(key, machine) for key in due if (machine := self._replicas.machine_of(key)) is not None]
        self._driver.act(partial(self._changes.look, led))
