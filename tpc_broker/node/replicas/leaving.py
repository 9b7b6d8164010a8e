"""Replicas that go from this core to another one of the node: what their groups may expect of them ends here.

The voter is the node, so it is the same replica on the other core. Another node leads it first, if one can; if not, it
takes nothing more and commits what there is. Then its machine leads, votes and acknowledges no more, and when all that
it has said is durable, the storage may let the files go (`storage.core_moves`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError

if TYPE_CHECKING:
    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.model import TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.hand_overs import ReplicaHandOvers
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver

HAND_OVER_S: Final = 3.0
COMMIT_S: Final = 1.0
LEAVE_S: Final = 10.0
LOOK_S: Final = 0.005


# Rule: A replica that changes its core is the same voter. Nothing is said for it between its last word here, which is
# durable, and the adoption there. Of a partition one replica moves so at a time. See also
# tpc_broker/broker/core_moves.py, tpc_broker/metadata/cluster_core_moves.py. Held by
# tests/node/test_replica_core_moves.py, tests/metadata/test_cluster_core_moves.py, tests/cluster/test_core_moves.py,
# tests/simulator/nodes_run.py.
class LeavingReplicas:
    """Of one core; touched by its thread only."""

    def __init__(self, replicas: CoreReplicas, hand_overs: ReplicaHandOvers, plane: RingDataPlane) -> None:
        self._replicas = replicas
        self._hand_overs = hand_overs
        self._plane = plane
        self._driver: ReplicaDriver

    def begin(self, driver: ReplicaDriver) -> None:
        """There is one."""
        self._driver = driver

    async def step_aside(self, key: TopicPartition) -> None:
        """`Leaving.step_aside`."""
        with trio.move_on_after(HAND_OVER_S):
            while (machine := self._replicas.look_at(key)) and machine.is_leader and not machine.votes_alone:
                self._hand_overs.transfer_to_best(key)
                await trio.sleep(LOOK_S)

    async def leave(self, key: TopicPartition) -> None:
        """`Leaving.leave`."""
        group = self._replicas.group_name(key)
        await self._commit_rest(key)
        self._driver.leave(group)
        with trio.move_on_after(LEAVE_S):
            while not self._driver.has_left(group):
                await trio.sleep(LOOK_S)
            return
        raise PartitionOfflineError(f"not all of the replica became durable in {LEAVE_S:g} s")

    def stay(self, key: TopicPartition) -> None:
        """`Leaving.stay`."""
        self._driver.stay(self._replicas.group_name(key))
        self._refuse(key, ErrorCode.NONE)

    async def _commit_rest(self, key: TopicPartition) -> None:
        """A leader without a successor: who waits for a commit is answered, unless there is no majority now."""
        with trio.move_on_after(COMMIT_S):
            while (machine := self._replicas.look_at(key)) and machine.is_leader:
                bounds = self._replicas.bounds_of(key)
                if bounds is None:
                    return
                self._refuse(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if bounds.high_watermark == bounds.log_end_offset:
                    return
                await trio.sleep(LOOK_S)

    def _refuse(self, key: TopicPartition, error_code: ErrorCode) -> None:
        with suppress(PartitionOfflineError):
            if self._replicas.bounds_of(key) is not None:
                handle = self._driver.handle_of(self._replicas.group_name(key))
                self._plane.refuse(handle, error_code, all_acks=True)
