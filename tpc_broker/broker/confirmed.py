"""Which leaders here a quorum follows: asked before anybody is told where a log ends.

A leader that was paused or cut off may not have heard yet that another one was elected, and has committed more. What it
is asked meanwhile waits in its sockets, and is read before it hears anything. So the quorum is asked in a round that
begins when the request is here (raft-rules 7.3): the log of whoever it follows then has all that was committed before.
What is told is looked up behind the answer; what was looked up in front of it may be out of date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.replicated import CoreWithPartitions
    from tpc_broker.model import LeaderEpoch, TopicPartition

CONFIRM_S: Final = 2.0
"""For so long a quorum is asked who leads: as long as an election takes ..."""
BESIDE_S: Final = 1.0
"""... and so long, if what the same request has to give of other partitions waits for that: time for a few rounds."""


class Confirmed:
    """Of some partitions, the epochs in which a quorum still followed their leaders here."""

    __slots__ = ("_epochs",)

    def __init__(self) -> None:
        self._epochs: dict[TopicPartition, LeaderEpoch] = {}

    def has(self, partition: Partition) -> bool:
        """Whether what is read of its log now, before another wait, is all that there was when the quorum was asked.
        So it is without a group.
        """
        if not partition.is_replicated:
            return True
        return partition.led_epoch is not None and self._epochs.get(partition.key) == partition.led_epoch

    def add(self, partition: Partition) -> None:
        """A quorum has just said that it follows the leader here, if it is one still."""
        if partition.led_epoch is not None:
            self._epochs[partition.key] = partition.led_epoch


# Rule: What tells where a log ends (an offset that is nowhere, the latest offset, no record of that time, the end of an
# epoch) is looked up behind a quorum's word that was asked for when the request was here; without it the answer is
# NOT_LEADER_OR_FOLLOWER. Why: docs/raft-rules.md. See also native/requests/fetch.c,
# tpc_broker/broker/handlers/fetch.py, tpc_broker/broker/handlers/offsets.py. Held by
# tests/broker/test_confirmed_ends.py, tests/engine/test_near_reads.py, tests/simulator/test_paused_leaders.py,
# tests/cluster/test_paused_leaders.py.
async def confirm(core: CoreWithPartitions, partitions: Iterable[Partition], within_s: float = CONFIRM_S) -> Confirmed:
    """Asks the quorums of those that have one, all at once; of which none answers in time, no one is confirmed."""
    confirmed, replicated = Confirmed(), core.replicated
    asked = {partition.key: partition for partition in partitions if partition.is_replicated}
    if not asked:
        return confirmed
    assert replicated is not None, "what is replicated is so in a cluster"
    leaderships = replicated.replication.leaderships

    async def ask(partition: Partition) -> None:
        if await leaderships.confirm(partition.key):
            confirmed.add(partition)

    with trio.move_on_after(within_s):
        async with trio.open_nursery() as nursery:
            for partition in asked.values():
                nursery.start_soon(ask, partition)
    return confirmed
