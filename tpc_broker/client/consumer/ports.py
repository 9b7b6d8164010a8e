"""How the parts of a reading client see each other.

    membership   decides which partitions a stream reads, keeps what is committed    `membership/`
    reader       fetches, keeps positions, hands out batches                          `consumer/`
    front        ``async for``, batches, work, for_each                               `consumer/stream`, `work/`

The position of a partition moves when the next item is asked for: what is handed out and not `finished` is not
committed, and is read again by whoever has the partition next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Batch


class Position(NamedTuple):
    """Where to read on, and the leader epoch of the record before it (-1: not known). To begin at,
    `requests.EARLIEST` and `LATEST` are offsets too.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupIdentity(NamedTuple):
    """Who commits: for OffsetCommit, and for TxnOffsetCommit within a transaction."""

    group: str
    generation_or_epoch: int
    member_id: str
    instance_id: str | None


class Reader(Protocol):
    """What a membership tells and asks."""

    async def assign(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        """Read these, beside those that are read already. None: where nothing is committed, `start` decides."""

    async def revoke(self, partitions: Collection[TopicPartition], grace_seconds: float) -> None:
        """Hand out no more of them; returns when what was handed out is finished or given back, or the grace is over.
        What `finished` says of them then is to be committed before they are given back, and then `forget` them.
        """

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """They are another member's: drop them. Without `revoke` before: they were lost, at once."""

    def finished(self) -> dict[TopicPartition, Position]:
        """Of every partition read in which something was finished: what may be committed."""

    def handed_out(self) -> dict[TopicPartition, float]:
        """Of partitions with items under way: since when the oldest is (`time.monotonic`). For naming what is stuck.
        One that was forgotten stays in it as long as the reader knows that somebody works at it.
        """


class Membership(Protocol):
    """Who decides what is read: nobody (an assignment by hand), a classic group, or one of KIP-848."""

    async def run(self) -> None:
        """Until cancelled: join, hear of assignments, beat. Raises what cannot be mended."""

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """`RefusedError`, or another `ClientError` after the retries."""

    async def leave(self) -> None:
        """After `run` has ended; bounded by the caller."""

    @property
    def identity(self) -> GroupIdentity | None:
        """None: no group."""


class Watcher(Protocol):
    """A front that hears at once what becomes of partitions. Nothing here may wait or raise."""

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """They are read from now on."""

    def revoking(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing more of them is handed out. What is under way may be finished, until they are `gone`."""

    def gone(self, partitions: Collection[TopicPartition]) -> None:
        """The grace is over, or they were lost without one: what is under way is not ours any more. It is called before
        what was finished is committed, and once for each partition.
        """

    def taken_back(self, where: TopicPartition, offset: int) -> bool:
        """A transaction that had what was handed out from there on was aborted. True: the front still has it, and sees
        to it; False: it is handed out again.
        """

    def under_way(self) -> dict[TopicPartition, tuple[int, float]]:
        """Of partitions with records that were handed out: the offset of what is under way for longest, and since when
        (`time.monotonic`); since now where records only wait for others, or for another attempt. Of those that are gone
        as well, until who has their records has heard of it.
        """


class Source(Protocol):
    """What a front takes batches from: the reader, as `work/` sees it."""

    def held(self) -> Collection[TopicPartition]:
        """The partitions that are read now and are not about to be revoked."""

    def watch(self, watcher: Watcher) -> None:
        """Tell it what becomes of partitions, until `unwatch`. Those that are `held` already are not told."""

    def unwatch(self, watcher: Watcher) -> None: ...

    def keep(self, where: TopicPartition) -> None:
        """A revocation waits (within its grace) for `let_go` as it waits for what is handed out."""

    def let_go(self, where: TopicPartition) -> None: ...

    async def take(self, records_max: int | None = None, among: Collection[TopicPartition] | None = None) -> Batch:
        """The next batch of any partition (or of one `among` these). Waits until there is one. A cancelled wait takes
        nothing.
        """

    def finish(self, where: TopicPartition, next_offset: int) -> None:
        """All records below are done with."""

    def give_back(self, where: TopicPartition, offset: int) -> None:
        """What was handed out from this offset on is to be handed out again. Nothing, where it is so already."""

    def is_held(self, where: TopicPartition) -> bool:
        """Whether the partition is still this reader's, and not about to be revoked."""

    async def commit(self) -> None:
        """What is finished, now."""
