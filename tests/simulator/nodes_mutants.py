"""Faults planted into the services of nodes, each of which the simulator of whole nodes must find."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import trio

from tests.simulator.nodes_run import Shape, plan
from tests.simulator.schedule import failure_of
from tpc_broker.broker.group_service import LoadedCoordinator
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.rebalancing import Rebalancing
from tpc_broker.coordinator import offsets as committed_offsets
from tpc_broker.coordinator.group import Group, GroupState
from tpc_broker.coordinator.membership import Membership, _synced
from tpc_broker.coordinator.records import group_record
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.node.membership import identity
from tpc_broker.node.metadata.voter_file import VoterFile, framed
from tpc_broker.node.replicas.replica_driver import ReplicaDriver
from tpc_broker.raft.output import LEADER

_turn = ReplicaDriver._turn


@dataclass(frozen=True)
class Mutant:
    """`replacement` takes the place of a method of `owner`, or of a function, while it is planted; `shape` is that of
    runs which show it soon, and `first_seed` the one that does, as the code is now; others follow it.
    """

    name: str
    owner: type | ModuleType
    method: str
    replacement: Callable[..., Any]
    shape: Shape
    first_seed: int = 1

    @contextmanager
    def planted(self) -> Iterator[None]:
        with mock.patch.object(self.owner, self.method, self.replacement):
            yield


SEEDS_MAX = 20
"""A mutant is looked for in so many runs, of which the first one finds it as the code is now."""


def each_of(mutants: Sequence[Mutant], in_the_gate: Collection[str]) -> pytest.MarkDecorator:
    """A test's parameter `mutant`; what is not in the gate is of the long tier."""
    return pytest.mark.parametrize(
        "mutant",
        [
            pytest.param(mutant, id=mutant.name, marks=() if mutant.name in in_the_gate else pytest.mark.sim)
            for mutant in mutants
        ],
    )


def look_for(mutant: Mutant, run: Callable[..., Any], steps: int) -> None:
    """The test fails unless a run does."""
    with mutant.planted():
        for seed in range(mutant.first_seed, mutant.first_seed + SEEDS_MAX):
            if failure_of(run, seed, *plan(seed, steps, mutant.shape)) is not None:
                return
    pytest.fail(f"{mutant.name} was not found in {SEEDS_MAX} runs")


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
    result = await self._append(len(data), lambda: self._plane.append(self.handle, data))
    if result.error_code:
        raise PartitionOfflineError(self.label)
    return result.base_offset


async def _not_begun(_self: Rebalancing, _image: object, _situation: object) -> bool:
    await trio.lowlevel.checkpoint()
    return True


def _never_at_fault(_group: object, _request: object) -> ErrorCode:
    return ErrorCode.NONE


def _told_at_once(self: Membership, group: Group, assignments: dict[str, bytes], effects: Any) -> None:
    record = group_record(group.group_id, group.metadata(assignments))
    self._writes.begin(effects, [record], lambda _effects, _now: None, lambda _effects, _error, _now: None)
    group.transition(GroupState.STABLE, 0)
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        if member.syncing is not None:
            effects.reply(member.syncing, _synced(group, member))
            member.syncing = None


def _never_told(self: Membership, request: Any, now_ms: int) -> ErrorCode:
    group = self._groups.get(request.group_id)
    if group is None or request.member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    self.refresh(group, request.member_id, now_ms)
    return ErrorCode.NONE


def _only_the_last(_told: object, _had: int, cores: int) -> tuple[int, ...]:
    return (cores,)


def _by_the_wall_clock(self: LoadedCoordinator) -> int:
    return self._core.clock.wall_ms()


CUT_OFF = Shape(3, 3, mean_ms=600, sync_ms=5, often=("isolate",))
PAUSED = Shape(3, 3, mean_ms=600, sync_ms=5, often=("pause", "isolate"))
LEAVING = Shape(4, 3, mean_ms=600, sync_ms=5, often=("leave", "crash"))
CRASHING = Shape(3, 3, mean_ms=300, sync_ms=60, often=("crash", "crash_all"))
SILENT = Shape(3, 3, mean_ms=600, sync_ms=5, often=("silence",))
SET = Shape(3, 3, mean_ms=300, sync_ms=5, often=("set_clock", "die"))
REGROUPING = Shape(3, 3, mean_ms=600, sync_ms=5, often=("isolate", "depart"))
FEWER = Shape(3, 3, mean_ms=300, sync_ms=5, often=("change_cores",), cores_max=3)

MUTANTS = (
    Mutant("acknowledged before the quorum", ReplicaDriver, "_turn", _committed_when_durable_here, CUT_OFF, 3),
    Mutant("an offset is told before it is committed", Partition, "append_durably", _not_waited_for, CUT_OFF, 2),
    Mutant("nothing moves by itself", Rebalancing, "_begin", _not_begun, LEAVING, 5),
    Mutant("what the metadata's voter promises is not synced", VoterFile, "append", _not_synced, CRASHING, 3),
    Mutant("only the last number of cores is told", identity, "counts_to_tell", _only_the_last, FEWER, 21),
    Mutant("whoever was a member commits", committed_offsets, "_commit_fault", _never_at_fault, SILENT, 3),
    Mutant(
        "partitions are told before they are durable", Membership, "_store_assignment", _told_at_once, REGROUPING, 3
    ),
    Mutant("sessions go by a clock that is set", LoadedCoordinator, "now_ms", _by_the_wall_clock, SET, 13),
    Mutant("a rebalance is not told", Membership, "heartbeat", _never_told, SILENT, 3),
)
