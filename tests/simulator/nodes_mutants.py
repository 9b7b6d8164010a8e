"""Faults planted into the services of nodes, each of which the simulator of whole nodes must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import trio

from tests.simulator.nodes_run import Shape
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.rebalancing import Rebalancing
from tpc_broker.model import TopicPartition
from tpc_broker.raft.output import LEADER
from tpc_broker.runtime.cluster.replica_driver import ReplicaDriver
from tpc_broker.runtime.cluster.replication import CoreReplication
from tpc_broker.runtime.cluster.voter_file import VoterFile, framed

_turn = ReplicaDriver._turn


@dataclass(frozen=True)
class Mutant:
    """`replacement` takes the place of a method of `owner` while it is planted; `shape` is that of runs which show it
    soon, from `first_seed` on.
    """

    name: str
    owner: type
    method: str
    replacement: Callable[..., Any]
    shape: Shape
    first_seed: int = 1

    @contextmanager
    def planted(self) -> Iterator[None]:
        with mock.patch.object(self.owner, self.method, self.replacement):
            yield


def _committed_when_durable_here(self: ReplicaDriver) -> None:
    _turn(self)
    for replica in self._replicas.values():
        if replica.role is LEADER and replica.armed_term is not None and self._plane.leads(replica.handle):
            self._plane.commit(replica.handle, replica.armed_term, self._plane.state(replica.handle).durable_offset)


async def _not_synced(self: VoterFile, entries: Any) -> None:
    data = framed(entries)
    await self._disk.write_at(self._fd, data, self._position)
    self._position += len(data)


async def _not_waited_for(self: Partition, data: bytes) -> int:
    await trio.lowlevel.checkpoint()
    result = self._plane.append(self.handle, data)
    assert result is not None
    return result.base_offset


async def _by_its_own_word(self: CoreReplication, key: TopicPartition) -> bool:
    await trio.lowlevel.checkpoint()
    machine = self.machine_of(key)
    return machine is not None and machine.is_leader


async def _not_begun(_self: Rebalancing, _image: object, _situation: object) -> bool:
    await trio.lowlevel.checkpoint()
    return True


CUT_OFF = Shape(3, 3, mean_ms=600, sync_ms=5, often=("isolate",))
PAUSED = Shape(3, 3, mean_ms=600, sync_ms=5, often=("pause", "isolate"))
LEAVING = Shape(4, 3, mean_ms=600, sync_ms=5, often=("leave", "crash"))
CRASHING = Shape(3, 3, mean_ms=300, sync_ms=60, often=("crash", "crash_all"))

MUTANTS = (
    Mutant("acknowledged before the quorum", ReplicaDriver, "_turn", _committed_when_durable_here, CUT_OFF),
    Mutant("an offset is told before it is committed", Partition, "append_durably", _not_waited_for, CUT_OFF),
    Mutant("a leader is confirmed by its own word", CoreReplication, "confirm", _by_its_own_word, PAUSED, 18),
    Mutant("nothing moves by itself", Rebalancing, "_begin", _not_begun, LEAVING),
    Mutant("what the metadata's voter promises is not synced", VoterFile, "append", _not_synced, CRASHING),
)
