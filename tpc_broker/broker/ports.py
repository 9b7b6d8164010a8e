"""The small interfaces through which a core's broker sees the world: connections, mailboxes, data plane and storage.

A port is a Protocol, one for each use; `tpc_broker.engine` has the real ones, tests and the simulator have theirs.
What storage needs of the world is in `tpc_broker.storage.ports`. Errors of the environment come as OSError with the
kernel's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from tpc_broker.broker.grants_port import GrantsPort
from tpc_broker.broker.identity_port import IdentityPort
from tpc_broker.broker.prepared_port import PreparedAnswers
from tpc_broker.broker.producers_port import ProducersPort, TransactionsPort
from tpc_broker.broker.quotas_port import QuotasPort
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from tpc_broker.broker.fetch_port import Fetch
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.payloads import Answer, MailboxHandler, NodeHandler, Payload
    from tpc_broker.broker.view import Endpoint
    from tpc_broker.kafka.encoder import Piece
    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.metadata.settings import BrokerConfiguration
    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.model import CoreId, LeaderEpoch, MetadataVersion, NodeId, TopicId, TopicPartition
    from tpc_broker.routing import PartitionUse
    from tpc_broker.storage.ports import Bounds, Leave, PartitionState, SegmentWindow
    from tpc_broker.storage.replicas.installation import Judge
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.cleaning_status import CleaningBook

T = TypeVar("T")


class Clock(Protocol):
    """All that a core knows of time, but for trio's own clock."""

    def wall_ms(self) -> int:
        """Since the epoch; may be set back."""
        ...

    def monotonic_ms(self) -> int:
        """Of a clock that never goes back."""
        ...

    def monotonic_ns(self) -> int:
        """Of the same clock."""
        ...

    def cpu_ns(self) -> int:
        """The CPU time that this thread has had."""
        ...


class Chance(Protocol):
    """All that a core leaves to chance; one with a seed makes a run of it repeatable."""

    def uuid(self) -> uuid.UUID:
        """One that was never given out before, by any core."""
        ...

    def uniform(self, lowest: float, highest: float) -> float: ...


class Connections(IdentityPort, QuotasPort, Protocol):
    """All client connections of this core. Answers may come in any order and leave in the order of the requests."""

    def answer(self, request: Request, buffers: Sequence[Piece]) -> None:
        """Response header and body, without the length. Slices of the data plane are sent without copying."""
        ...

    def answer_none(self, request: Request) -> None: ...
    def close(self, connection: int, reason: str) -> None: ...

    def mark_of(self, connection: int) -> int:
        """Of the last answer with a mark that was prepared of its request, or given to it; 0: there was none."""
        ...

    def stop_accepting(self) -> None: ...

    def take_no_more(self) -> None:
        """No connection takes another request; each is closed when what it has asked is answered and sent."""
        ...

    def close_all(self) -> None:
        """At once; what is not answered or sent yet never will be."""
        ...

    def unanswered(self) -> int:
        """Requests that were taken and not answered."""
        ...

    def unsent_bytes(self) -> int:
        """Of answers."""
        ...


class Mailboxes(Protocol):
    """Calls to the other cores; errors are `tpc_broker.errors.MailboxError` and its kinds."""

    def serve(self, method: str, handler: MailboxHandler) -> None: ...

    async def notify(self, core: CoreId, method: str, payload: Payload, blobs: Sequence[bytes] = ()) -> bool: ...

    async def call(
        self,
        core: CoreId,
        method: str,
        payload: Payload,
        blobs: Sequence[bytes] = (),
        *,
        timeout_ms: int | None = None,
    ) -> Answer: ...


class QuorumReplica(NamedTuple):
    """A node's copy of the cluster's metadata. -1: not known. Times are of the wall clock."""

    node: NodeId
    incarnation: int
    log_end_offset: int
    heard_ms: int
    caught_up_ms: int
    """When it last had everything that there was."""


class Quorum(NamedTuple):
    """Who votes on the metadata, and who only follows, as the node that leads them knows."""

    leader: NodeId
    term: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


class ClusterNode(Protocol):
    """A node among others: the cluster's metadata, who is there, and requests to them. Core 0's."""

    on_peer_up: Callable[[NodeId], None]
    on_absent_changed: Callable[[frozenset[NodeId]], None]
    on_controller_changed: Callable[[NodeId | None], None]
    """Who leads the metadata, as far as this node knows."""

    async def start(self, local: ClusterImage, configuration: BrokerConfiguration) -> ClusterImage:
        """Found or join the cluster, wait as long as that takes, register this node; the newest image. `local`: what
        this node has had without a cluster.
        """
        ...

    async def next_image(self, current: ClusterImage) -> tuple[list[MetadataRecord] | None, ClusterImage]:
        """Waits for a newer image than that; with the records between the two, or None where they are not known."""
        ...

    @property
    def is_controller(self) -> bool:
        """Whether changes are decided here now."""
        ...

    async def change(
        self, decide: Callable[[ClusterImage], tuple[list[MetadataRecord], T]]
    ) -> tuple[MetadataVersion, T]:
        """Decide, and commit what was decided. NotDeliveredError: this node is not the controller, nothing was done."""
        ...

    def why_not_gone(self, node: NodeId) -> str:
        """Why a node is not to be taken for gone for good, for people; empty: it may be."""
        ...

    async def quorum(self) -> Quorum:
        """Where this node is the controller; NotDeliveredError where it is not."""
        ...

    async def call_controller(self, method: str, payload: Payload, blobs: Sequence[bytes]) -> Answer:
        """Ask the controller, once. NotDeliveredError: nothing was done; another MailboxError: that is not known."""
        ...

    def serve_controller(self, method: str, handler: NodeHandler) -> None:
        """What others ask the controller."""
        ...

    def serve(self, method: str, handler: NodeHandler) -> None: ...

    def linked(self) -> list[NodeId]:
        """Other nodes to which there is a link now."""
        ...

    def tell(self, node: NodeId | None, method: str, payload: Payload) -> None:
        """A node, or all (None), without waiting; it may be lost where a link ends, or is full."""
        ...

    async def ask(self, node: NodeId, method: str, payload: Payload) -> Answer:
        """What a node answers. MailboxError: whether it has taken it is not known."""
        ...

    # Nodes that seem to be gone, whether this one is cut off from most others, and whose disks are full.
    def absent(self) -> frozenset[NodeId]: ...
    def is_cut_off(self) -> bool: ...
    def full(self) -> frozenset[NodeId]: ...
    def start_soon(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None: ...

    def facts(self) -> Payload:
        """The nodes and how they are, for people."""
        ...


class AppendResult(NamedTuple):
    """An append of the broker's own: [base_offset, end_offset) of the log, in a leader epoch."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    error_code: int


class AppendedRange(NamedTuple):
    """What a leader of a replicated partition has appended: [base_offset, end_offset) in a leader epoch."""

    handle: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    sequence: int
    """Of the journal's commit that carries the last of it."""


class ReplicaAppend(NamedTuple):
    """What became of an append of a follower. With an error code nothing was appended."""

    end_offset: int
    sequence: int
    error_code: int


class ProduceFallback(IntEnum):
    """Why the data plane left a Produce to Python (`enum tpc_produce_fallback`)."""

    NONE = 0
    MALFORMED = 1
    VERSION = 2
    TOO_MANY = 3
    UNKNOWN = 4
    PYTHON_VALIDATES = 5
    JOURNAL_FULL = 6
    NOT_ADMITTED = 7
    NO_MEMORY = 8
    GAP = 9
    UNCOMMITTED = 10
    VERIFY = 11
    AUTHORIZE = 12


PYTHON_DECIDES: Final = frozenset({
    ProduceFallback.MALFORMED, ProduceFallback.VERSION, ProduceFallback.TOO_MANY, ProduceFallback.UNKNOWN,
    ProduceFallback.PYTHON_VALIDATES, ProduceFallback.GAP, ProduceFallback.VERIFY,
    ProduceFallback.AUTHORIZE,
})  # fmt: skip
"""Reasons that do not go away by themselves: asked again, the data plane would decode the request for nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Python says of one partition of a Produce; NONE: go on. ``is_final``: need not be asked again."""

    error_code: ErrorCode
    message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    is_final: bool = True
    keyless: tuple[int, ...] = ()
    """Positions in the batch of the records that a compacted topic refuses."""
    gap: ErrorCode = ErrorCode.NONE
    """What a batch is refused with that lacks what came before it, by a quorum's word; NONE: it was not asked (GAP)."""
    guard: int = 0
    """Of the verification behind which it may begin a transaction; 0: there was none (VERIFY)."""


class AskedPart(NamedTuple):
    """One partition of a Produce."""

    topic: str | uuid.UUID
    """Its name, or from version 13 on its id."""
    partition: int
    records_place: int
    """Where they begin in the request's body."""
    records_bytes: int


class AskedProduce(NamedTuple):
    """What a Produce asks for, in the order of the request."""

    parts: list[AskedPart]
    timeout_ms: int
    transactional_id: str | None = None


class ProducePort(Protocol):
    """Appends to the partitions led here, by requests and by the broker itself."""

    def produce(self, request: Request) -> bool:
        """Take a Produce; False: nothing was done, Python deals with it."""
        ...

    def asked(self, request: Request) -> AskedProduce | ProduceFallback:
        """What a Produce that was left asks for, or why that cannot be had: MALFORMED, TOO_MANY or NO_MEMORY. It is not
        read again for it. DecodeError: the name of a topic is no text.
        """
        ...

    def produce_with(
        self, request: Request, verdicts: Sequence[Verdict | None], endpoints: Sequence[Endpoint]
    ) -> ProduceFallback:
        """A Produce with what Python says of its partitions; NONE when it was taken."""
        ...

    def append(self, handle: int, batches: bytes) -> AppendResult | None:
        """None: the journal has no room now."""
        ...

    async def wait_committed(self, handle: int, end_offset: int, leader_epoch: int) -> None:
        """Until what was appended in a leader epoch, and ends at an offset, is committed: readers see it, and no
        failover loses it.

        Raises PartitionOfflineError when the journal failed before, LeadershipLostError when the epoch ended: then
        nobody here knows what became of it.
        """
        ...


class ReplicationPort(Protocol):
    """Partitions with replicas on other nodes; how they are driven: docs/decisions/2026-11-23-replicated-partitions.md.

    None of these awaits. LeadershipLostError: the partition has another role or term than the call is for, as after a
    failure of the journal, which ends the roles of all partitions that it touched. ValueError: a bug of the caller.
    """

    def on_appended(self, callback: Callable[[], None]) -> None:
        """Called when `take_appended` has something, once until it was called."""
        ...

    def take_appended(self) -> list[AppendedRange]:
        """What leaders have appended since the last call, a range for each partition."""
        ...

    def on_durable(self, callback: Callable[[int], None]) -> None:
        """Called with the journal's durable sequence whenever it rises, up to what `watch_durable` asked for."""
        ...

    def watch_durable(self, sequence: int) -> bool:
        """Whether the journal has come so far; if not, `on_durable`'s callback is called when it has."""
        ...

    def durable_sequence(self) -> int:
        """Everything up to this commit of the journal is durable."""
        ...

    def on_journal_failed(self, callback: Callable[[int], None]) -> None:
        """Called with the errno, when everything behind `durable_sequence` is undone."""
        ...

    def set_replicated(self, handle: int, *, on: bool) -> None:
        """Whether `commit` alone moves the high watermark. Off: what is durable is committed, at once."""
        ...

    def lead(self, handle: int, term: int) -> None:
        """Take appends in a term, whose marker is in the journal. What waits goes on."""
        ...

    def leads(self, handle: int) -> bool:
        """Whether it takes appends: what was undone, as when the journal failed, has ended that."""
        ...

    def follow(self, handle: int, term: int) -> None:
        """Take what this term's leader sends. What waits is told NOT_LEADER_OR_FOLLOWER."""
        ...

    def disarm(self, handle: int, *, keep_waits: bool = False) -> None:
        """No role. What waits is told NOT_LEADER_OR_FOLLOWER, unless its leader is about to lead again."""
        ...

    def refuse(self, handle: int, error_code: ErrorCode, *, all_acks: bool = False) -> None:
        """Refuse appends that wait for the commit, with `all_acks` all of them, until it is NONE: too few replicas are
        in touch, or too much waits for them. What was appended goes on waiting.
        """
        ...

    def commit(self, handle: int, term: int, end_offset: int) -> bool:
        """The log is committed up to an offset, not above what is durable here; whether that moved anything."""
        ...

    def append_replica(self, handle: int, term: int, batches: bytes) -> ReplicaAppend | None:
        """A follower's append; None: no room in the journal or in the segments."""
        ...

    def read_log(self, handle: int, offset: int, upto: int, bytes_max: int) -> bytes | None:
        """Whole batches from memory, committed or not, at least one if there is any; None: the segments have them."""
        ...

    def serve_reads(self, handle: int, term: int | None) -> None:
        """Answer consumers as a follower in this term, up to its high watermark; None: none. Who waits looks again."""
        ...

    def set_racks(self, names: Sequence[str]) -> None:
        """What the bits of `set_near_racks` mean: bit i is the i-th name, and bit 63 all that come behind."""
        ...

    def set_near_racks(self, handle: int, racks: int) -> None:
        """Of a leader: fetches of consumers in these racks come to Python, which says where to read."""
        ...


class FetchPort(Protocol):
    """Reads of the partitions led here, and of their offsets."""

    def begin_fetch(self, request: Request) -> Fetch:
        """The state of a Fetch that was left to Python. DecodeError when it is malformed."""
        ...

    def set_fetch_limits(self, response_bytes_max: int, sessions_max: int, eviction_ms: int) -> None: ...
    def bounds(self, handle: int) -> Bounds: ...

    def state(self, handle: int) -> PartitionState:
        """Of one moment: what belongs together is read together."""
        ...

    def use(self, handle: int) -> PartitionUse:
        """What was appended and read since the partition was registered; nothing of one that is not any more."""
        ...

    def count_read(self, handle: int, size: int) -> None:
        """Python has answered with so many bytes of records."""
        ...

    def read(
        self, handle: int, offset: int, upto: int, bytes_max: int, at_least_one: bool  # noqa: FBT001
    ) -> tuple[list[Piece], int] | None:
        """Whole batches from memory; None: they are in the segments."""
        ...

    def wants_window(self, handle: int, offset: int, bytes_max: int) -> bool:
        """Whether the data plane could read this by itself if it had a window of the segment."""
        ...

    def open_window(self, handle: int, window: SegmentWindow) -> None: ...

    def watch(self, handle: int) -> None: ...

    def on_advanced(self, callback: Callable[[int], None]) -> None:
        """Called with the handle of a watched partition that moved."""
        ...

    def release_fetches(self) -> None:
        """Fetches that wait in the data plane are answered with what there is."""
        ...


class Forwarding(Protocol):
    """Requests for what other cores own, on listeners that all cores share."""

    def set_owners(self, topic: str, topic_id: TopicId, owners: Sequence[CoreId]) -> None:
        """The owner of each partition of a topic; none: the topic is gone."""
        ...

    def set_datagram_owners(self, topic: str, topic_id: TopicId, owners: Sequence[CoreId]) -> None:
        """The same for datagrams, which are carried between the cores of a node; NOT_HERE: a partition of others."""
        ...


class DataPlane(
    ProducePort, ProducersPort, TransactionsPort, FetchPort, ReplicationPort, PreparedAnswers, Forwarding, GrantsPort,
    Protocol,
):
    """All of the data plane that requests use."""


class CoreStorage(Protocol):
    """The files and journal of one core, behind its partitions."""

    @property
    def cleaning(self) -> CleaningBook:
        """What is known of the compaction of its partitions."""
        ...

    async def prepare(self, wanted: Sequence[tuple[TopicPartition, str]]) -> None:
        """Before many are opened: what they lack is made for all at once. What cannot be is left to `open`."""
        ...

    def has(self, key: TopicPartition) -> bool:
        """Whether this core's journal or checkpoint knows the partition, whatever became of it."""
        ...

    def remembers(self, keys: Iterable[TopicPartition]) -> bool:
        """Whether a start now would find anything of what one of these was here before: `checkpoint` ends that."""
        ...

    def unclaimed(self) -> list[TopicPartition]:
        """What was recovered, is sound, and was not opened."""
        ...

    def unclaimed_terms(self) -> list[tuple[TopicPartition, int]]:
        """The same, with the newest term that each has heard of."""
        ...

    def damaged(self) -> list[TopicPartition]:
        """What could not be opened, or was given up and set aside."""
        ...

    async def is_left_over(self, key: TopicPartition, topic: str) -> bool:
        """Whether its folder is there although `has` says no: half made, or another core's. PartitionNotMadeError."""
        ...

    async def forget_mark(self, key: TopicPartition) -> None:
        """Another replica takes the place of what was set aside without a folder. PartitionNotMadeError: not now."""
        ...

    async def open(self, key: TopicPartition, topic: str, config: TopicConfig) -> PartitionStorage:
        """Recovered, or made. PartitionOfflineError when damaged."""
        ...

    async def release(
        self, handle: int, target: CoreId, move_id: int, then: Callable[[], None], leave: Leave | None = None
    ) -> PartitionCheckpoint:
        """`storage.core_moves.CoreMoves.release`."""
        ...

    async def adopt(self, released: PartitionCheckpoint, config: TopicConfig) -> None:
        """Take one over that another core has let go, durably; `open` finds it. PartitionOfflineError: its files cannot
        be used, and nothing was done; or the process ends.
        """
        ...

    def released(self, key: TopicPartition) -> PartitionCheckpoint | None:
        """What goes over, of a partition that was released here; `open` takes it back."""
        ...

    def all_released(self) -> list[TopicPartition]:
        """Partitions that were released here, and are not known to be another core's."""
        ...

    def forget_release(self, key: TopicPartition) -> None:
        """Another core has it."""
        ...

    async def begin_epoch(self, files: PartitionStorage, note: bytes = b"") -> None:
        """A leader epoch above every earlier one, durable when this returns. `note`: of a group's."""
        ...

    async def begin_epochs(self, opened: Sequence[PartitionStorage]) -> None:
        """The same for many at once; after an error all of them are to be opened again."""
        ...

    def register(
        self, files: PartitionStorage, config: TopicConfig, *, is_internal: bool, is_replicated: bool = False
    ) -> int:
        """A place in the data plane; its handle. A replicated one has no role yet, others are led in their epoch."""
        ...

    async def install(self, key: TopicPartition, config: TopicConfig, judge: Judge, then: Callable[[], None]) -> bool:
        """A replica's files give way to a filled folder's (`storage.replicas.installation`); `open` finds them."""
        ...

    def begin_term(self, handle: int, term: int, note: bytes = b"") -> int | None:
        """A replicated partition's log has a term's marker at its end: it goes into the journal, whose sequence is
        returned. None: the journal has no room now. `note` is in `PartitionStorage.notes`, also after a crash.
        """
        ...

    def note_term(self, handle: int, term: int, note: bytes = b"") -> int | None:
        """It has got to a term, and voted as the note says; as `begin_term`."""
        ...

    async def cut(self, handle: int, offset: int, last_epoch_kept: int) -> None:
        """End its log at an offset, behind the beginning of an epoch (0: of none), in journal, memory and files. It has
        no role afterwards. PartitionOfflineError when it is closed or the journal fails.
        """
        ...

    def alter(
        self, files: PartitionStorage, handle: int, config: TopicConfig, *, is_internal: bool,
        is_replicated: bool = False,
    ) -> None: ...  # fmt: skip

    async def delete(self, files: PartitionStorage, handle: int) -> None: ...

    def keep_aside(self, key: TopicPartition, reason: str) -> None:
        """When it is deleted next its files are damaged, and go to `lost+found`."""
        ...

    async def delete_offline(self, key: TopicPartition) -> None:
        """Forget a partition that could not be opened, or was given up, and free what is left of it."""
        ...

    def on_epochs_begun(self, callback: Callable[[list[tuple[TopicPartition, LeaderEpoch]]], None]) -> None:
        """Called with leader epochs that had to begin because the journal failed, when they are durable."""
        ...

    def on_given_up(self, callback: Callable[[TopicPartition, str], None]) -> None:
        """Called when a partition can be led no more, until an operator mends its files, and why."""
        ...

    async def set_log_start(self, handle: int, offset: int) -> None:
        """The log starts here from now on, durably."""
        ...

    def follow_level(self, image: ClusterImage) -> None: ...
    async def forget_unclaimed(self, image: ClusterImage) -> None:
        """Delete what was recovered and belongs to no topic of the image."""
        ...

    async def purge_folders(self) -> None: ...
    async def checkpoint(self) -> bool: ...

    async def make_room(self, files: PartitionStorage, handle: int, size: int) -> None:
        """Segment space for so many bytes of records; OSError when there is none."""
        ...

    async def wait_journal_room(self) -> None:
        """For whoever was told that the journal is full: until it is worth trying again."""
        ...

    async def retain(self, files: PartitionStorage, handle: int, now_ms: int) -> int:
        """One round of retention by age and size; how many segments went."""
        ...

    async def drain(self) -> bool:
        """Take nothing more, bring everything to the segments, checkpoint, close the files. False: that could not be
        done, and the process has to end as by `kill -9`: the next start replays the journal.
        """
        ...
