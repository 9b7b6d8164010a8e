"""What a core's broker asks of its replication: the real one is in `node`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.model import LeaderEpoch, NodeId, TopicPartition
    from tpc_broker.storage.replicas.installation import Install
    from tpc_broker.storage.segments.partition_storage import PartitionStorage


class ReplicaProgress(NamedTuple):
    """Of replicas that come: the one farthest behind has [log_start_offset, held_offset) of [log_start_offset,
    log_end_offset).
    """

    log_start_offset: int
    held_offset: int
    log_end_offset: int


class Leaderships(Protocol):
    """Who leads the replicas of a core."""

    def on_roles(
        self,
        led: Callable[[TopicPartition, LeaderEpoch], None],
        lost: Callable[[TopicPartition, LeaderEpoch], None],
    ) -> None:
        """`led`: called when one is led here in an epoch of which clients may be told; `lost`: when it is no more."""
        ...

    def on_moved(self, moved: Callable[[TopicPartition], None]) -> None:
        """`moved`: called when its role, term or leader is another."""
        ...

    def followed(self, key: TopicPartition) -> tuple[NodeId, int] | None:
        """Of one that follows a leader: that one's node, and its term."""
        ...

    def hears_leader(self, key: TopicPartition, told_epoch: int) -> bool:
        """Whether another node leads it, as far as was heard lately, and has told so: then clients can be told where it
        is. `told_epoch`: in which one another node has told that it leads; -1: none has.
        One of which nothing has come here yet is led, also where nothing of it ever comes: whoever gives its vote up
        hears no more of the group.
        """
        ...

    def leaderless(self) -> Iterable[TopicPartition]:
        """Those that are here, are not led here, and whose leader was not heard of lately."""
        ...

    def term_of(self, key: TopicPartition) -> int | None:
        """The newest term that the replica here has heard of; None: it has none here."""
        ...

    async def confirm(self, key: TopicPartition) -> bool:
        """Whether a quorum still follows this leader: for whoever decides by what is committed here."""
        ...

    async def wait_moved(self, key: TopicPartition) -> None:
        """Until its role, term or leader is another, or one has told that it leads."""
        ...

    def leader_told(self, key: TopicPartition) -> None:
        """Another node has told that it leads it: whoever waits looks again."""
        ...

    def all_moved(self) -> None:
        """The same of all."""
        ...


class HandOvers(Protocol):
    """Leaderships of a core that go to other nodes."""

    async def hand_over(self) -> None:
        """Let others lead what is led here: the core is about to end. Returns when they do, or after a while."""
        ...

    def transfer(self, key: TopicPartition, node: NodeId) -> bool:
        """Begin to hand a leadership over to a voter's node; False: it is not led here, or that is no voter."""
        ...

    def is_handing_over(self, key: TopicPartition) -> bool:
        """Whether it is led here, and takes nothing until another node leads it or that is given up (`wait_moved`)."""
        ...

    def has_space(self, key: TopicPartition, node: NodeId) -> bool:
        """Whether another node's replica has segment space: it has, unless its node says otherwise."""
        ...


class Followers(Protocol):
    """How far the followers are of what a core leads."""

    def in_sync(self, key: TopicPartition) -> tuple[NodeId, ...]:
        """Of one that is led here: the nodes whose replicas have nothing to catch up with."""
        ...

    def perhaps_in_sync(self) -> Iterable[TopicPartition]:
        """Of what is led here, those of which `in_sync` may be another than at the last call; some others, too."""
        ...

    def held(self, key: TopicPartition) -> dict[NodeId, int]:
        """Of one that is led here: up to what offset other nodes have it on their disks."""
        ...


class Voters(Protocol):
    """Which replicas vote, of what a core leads."""

    def allow_moves(self, keys: frozenset[TopicPartition]) -> None:
        """Of partitions whose replicas the metadata want elsewhere: those that may go on now, if they are led here."""
        ...

    def changes_to_confirm(self) -> dict[TopicPartition, int]:
        """Of what is led here: groups whose voters are to change, with their terms. They begin when it is known that
        the metadata that want it are no older than the leadership (`confirm_changes`).
        """
        ...

    def confirm_changes(self, terms: Mapping[TopicPartition, int], version: int) -> None:
        """Asked after `changes_to_confirm` had said so, the controller has this version of the metadata."""
        ...

    def settled_term(self, key: TopicPartition) -> int | None:
        """Of one that is led here: the term in which its group has committed just the voters that the metadata want."""
        ...

    def progress(self, key: TopicPartition) -> ReplicaProgress | None:
        """Of one that is led here and gets other replicas."""
        ...


class LaterStarts(Protocol):
    """Where the logs of followers start, of whom clients have asked for less."""

    def on_lacking(self, lacks: Callable[[TopicPartition, NodeId, int], None]) -> None:
        """`lacks`: called with a partition that is led here, a node, and the offset where its replica's log starts."""
        ...

    async def tell_start(self, key: TopicPartition, log_start_offset: int) -> None:
        """Of one that follows a leader: let that know where the log starts here. MailboxError: it may not know."""
        ...


class Leaving(Protocol):
    """Replicas that go to another core of their node."""

    async def step_aside(self, key: TopicPartition) -> None:
        """It is about to leave this core: have another node lead it, or else take nothing more and commit what there
        is. Returns when that is so, or after a while.
        """
        ...

    async def leave(self, key: TopicPartition) -> None:
        """It leads, votes and acknowledges nothing here from the call on, and all that it has is durable when this
        returns. PartitionOfflineError: it cannot be brought to that now, and is to `stay`.
        """
        ...

    def stay(self, key: TopicPartition) -> None:
        """What was to leave takes part again. No effect on one that is not here."""
        ...


class Replication(Protocol):
    """Of a core of a node of a cluster: the partitions that have replicas on other nodes too.

    An answer, also of its parts, is of this moment: after an await another node may lead.
    """

    @property
    def leaderships(self) -> Leaderships: ...

    @property
    def hand_overs(self) -> HandOvers: ...

    @property
    def followers(self) -> Followers: ...

    @property
    def voters(self) -> Voters: ...

    @property
    def later_starts(self) -> LaterStarts: ...

    @property
    def leaving(self) -> Leaving: ...

    def on_filled(self, install: Install, bytes_per_s: Callable[[], int]) -> None:
        """`install`: called when what another replica has shipped is here; fetched at no more than `bytes_per_s`."""
        ...

    def on_damaged(
        self,
        renew: Callable[[TopicPartition, NodeId, int, int], Awaitable[None]],
        offline: Callable[[], Iterable[TopicPartition]],
    ) -> None:
        """`renew`: called with a partition that is led here, a node whose replica of it is damaged, the life that it
        has, and the leader's term; `offline`: which replicas here could not be opened.
        """
        ...

    def on_left_out(
        self,
        leave_out: Callable[[TopicPartition, NodeId, int, int], Awaitable[None]],
        staying: Callable[[], Iterable[tuple[TopicPartition, int]]],
    ) -> None:
        """`leave_out`: called with a partition that is led here, a node without which its group goes on, the life that
        its next replica would have, and the leader's term; `staying`: which replicas here the metadata have left out
        in an earlier term than the newest one that they have heard of, and that one.
        """
        ...

    async def follow(self, image: ClusterImage) -> None:
        """Before the partitions of the first image are added, and with every later one."""
        ...

    def add(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage, handle: int) -> None:
        """A partition that is registered as replicated."""
        ...

    def remove(self, key: TopicPartition) -> None:
        """It is deleted, or damaged; nothing is said for it any more. Again: nothing happens."""
        ...

    def first_note(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage) -> bytes:
        """Of a partition that was led here before it had a group: the note of its next epoch, with which the group
        begins. Nothing for any other one.
        """
        ...

    def has_other_life(self, topic: TopicImage, key: TopicPartition) -> bool:
        """Whether what is on the disk of the replica here, if anything, was given up, as the metadata say."""
        ...

    async def begin_lives(self, topic: TopicImage, keys: Sequence[TopicPartition]) -> None:
        """Nothing of earlier lives is on the disk any more; durable when this returns. OSError: it is not."""
        ...
