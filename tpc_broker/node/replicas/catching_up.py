"""How far this core's replicas have come, for a backup: everything that their leaders had committed when it began.

A replica alone does not know what it lacks. So the leader of each is asked for its high watermark, after a majority has
confirmed that it still leads (a read-index, as for everything that decides), and the replica's own high watermark is
waited for: from then on the replica has, and knows as committed, all that was acknowledged with acks=all before the
question. Who leads a partition itself asks itself in the same way.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from tpc_broker.errors import CallFailedError, MailboxError
from tpc_broker.metadata.rebalance import RAISED_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.model import TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.leaderships import ReplicaLeaderships
    from tpc_broker.raft.items import Address

log = logging.getLogger(__name__)

COMMITTED: Final = "replicas.committed"
GROUPS_AT_ONCE: Final = 1_000
LOOK_S: Final = 0.05
CONFIRM_S: Final = 3.0


class CaughtUp(NamedTuple):
    """One replica of this core. `is_sure`: it has all that its leader had committed; `committed_offset`: what it knows
    to be committed; `is_voter`: others count on it.
    """

    key: TopicPartition
    label: str
    committed_offset: int
    is_sure: bool
    is_voter: bool


# Rule: A backup of a cluster's node has of each replica what was acknowledged before it began. It is never that node
# again: it is restored without incarnation, votes and terms' voters, as another cluster. See also
# tpc_broker/operations/restored_node.py, tpc_broker/storage/recovery/ended_groups.py. Held by
# tests/cluster/test_backup.py.
class CatchingUp:
    """Of one core; touched by its thread only."""

    def __init__(self, replicas: CoreReplicas, leaderships: ReplicaLeaderships) -> None:
        self._replicas = replicas
        self._leaderships = leaderships

    @property
    def image(self) -> ClusterImage:
        """As this core has it now."""
        return self._replicas.image

    async def run(self, *, first: bool, patience_s: float) -> list[CaughtUp]:
        """All replicas of topics whose records tell of other topics' (`first`), or all others: when they have caught
        up, or when that takes too long.
        """
        left = {key for key in self._replicas.replicas_here() if self._names_others(key) == first}
        targets: dict[TopicPartition, int] = {}
        deadline_s = trio.current_time() + patience_s
        found = set(left)
        while left and trio.current_time() < deadline_s:
            with trio.move_on_at(deadline_s):
                await self._ask(left - targets.keys(), targets)
            left = {key for key in left if key not in targets or self._committed(key) < targets[key]}
            left &= set(self._replicas.replicas_here())
            if left:
                await trio.sleep(LOOK_S)
        rows = []
        for key in found & set(self._replicas.replicas_here()):
            machine, committed = self._replicas.look_at(key), self._committed(key)
            is_sure = key in targets and committed >= targets[key]  # it may have begun anew meanwhile
            label = f"{self._topic_name(key)}-{key.partition}"
            rows.append(CaughtUp(key, label, committed, is_sure, machine is None or machine.is_voter))
        return rows

    def _names_others(self, key: TopicPartition) -> bool:
        return self._topic_name(key) in RAISED_TOPICS

    def _topic_name(self, key: TopicPartition) -> str:
        topic = self._replicas.image.topic_by_id(key.topic_id)
        return "" if topic is None else topic.name

    def _committed(self, key: TopicPartition) -> int:
        bounds = self._replicas.bounds_of(key)
        return -1 if bounds is None else bounds.high_watermark

    async def _ask(self, keys: Iterable[TopicPartition], targets: dict[TopicPartition, int]) -> None:
        """What the leaders of these have committed, into `targets`; nothing of those that cannot be asked."""
        # None: this core leads it
        by_leader: dict[Address | None, list[TopicPartition]] = {}
        for key in keys:
            machine = self._replicas.look_at(key)
            if machine is not None and machine.is_leader:
                by_leader.setdefault(None, []).append(key)
            elif machine is not None and machine.leader is not None:
                by_leader.setdefault(machine.address_of(machine.leader), []).append(key)
        async with trio.open_nursery() as nursery:
            for address, group_keys in by_leader.items():
                for begin in range(0, len(group_keys), GROUPS_AT_ONCE):
                    nursery.start_soon(self._ask_one, address, group_keys[begin : begin + GROUPS_AT_ONCE], targets)

    async def _ask_one(
        self, address: Address | None, keys: list[TopicPartition], targets: dict[TopicPartition, int]
    ) -> None:
        groups = {self._replicas.group_name(key): key for key in keys}
        try:
            if address is None:
                told = await self._confirmed(list(groups))
            else:
                told = (await self._replicas.links.ask(address, COMMITTED, {"groups": list(groups)}))["committed"]
        except MailboxError as error:
            log.debug("%s was not asked what is committed: %s", address, error)
            return
        targets.update({groups[group]: int(offset) for group, offset in told.items() if group in groups})

    async def serve(self, _hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        """Another node asks how far groups are committed; answered is of those that are led here beyond doubt."""
        groups = list(map(str, payload["groups"]))
        if len(groups) > GROUPS_AT_ONCE:
            raise CallFailedError(f"{len(groups)} groups asked for; at most {GROUPS_AT_ONCE} are allowed at once")
        return {"committed": await self._confirmed(groups)}, ()

    async def _confirmed(self, groups: list[str]) -> dict[str, int]:
        told: dict[str, int] = {}

        async def confirm(group: str) -> None:
            key = self._replicas.key_of(group)
            machine = None if key is None else self._replicas.look_at(key)
            if key is None or machine is None or not (machine.is_leader and machine.is_ready):
                return
            offset = self._committed(key)
            if await self._leaderships.confirm(key):
                told[group] = offset

        with trio.move_on_after(CONFIRM_S):
            async with trio.open_nursery() as nursery:
                for group in groups:
                    nursery.start_soon(confirm, group)
        return told
