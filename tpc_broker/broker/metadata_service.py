"""The metadata log's driver on core 0, and its followers on the other cores.

Core 0 (duties in order, one change at a time):

1. ask the controller for ``(records, response)``; without records answer at once;
2. append the records to ``__cluster_metadata`` and wait until they are durable;
3. apply them to the image, here and on every subscribed core, each of which opens and closes its partitions before it
   confirms; a core that does not confirm in time loses its subscription and takes the whole image when it is back;
4. answer.

What is durable is carried out, or the core ends: a change that cannot be applied is not appended, and after an error on
the way to the next image the core neither decides nor answers anything more, and begins anew with the whole log.

When the log has grown over ``SNAPSHOT_RECORDS`` records since the last snapshot, the live state is appended again and
the log's start is moved to it, so that it neither grows nor loads without bound.

The other cores subscribe by fetching the whole image, at their start and whenever core 0 comes up, and keep serving
with the image they have while core 0 is away.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import trio

from tpc_broker import limits
from tpc_broker.broker.core_news import CoreNews
from tpc_broker.broker.leader_news import LeaderNews
from tpc_broker.broker.view import Leader
from tpc_broker.errors import JournalStoppedError, NotDeliveredError, PartitionOfflineError
from tpc_broker.kafka.records import Record, build_batch, in_parts, read_records
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import MetadataDamagedError, MetadataRecord, decode_record, encode_record
from tpc_broker.model import (
    CoreId,
    LeaderEpoch,
    MetadataVersion,
    NodeId,
    PartitionIndex,
    Replica,
    TopicId,
    TopicPartition,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.payloads import Answer, MailboxHandler, Payload, Row
    from tpc_broker.broker.ports import ClusterNode, Mailboxes
    from tpc_broker.broker.view import ClusterView
    from tpc_broker.metadata.settings import BrokerConfiguration
    from tpc_broker.storage.ports import Clock
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

METADATA_CORE = CoreId(0)
SNAPSHOT_RECORDS = 10_000
PUSH_TIMEOUT_MS = 10_000
RESUBSCRIBE_S = 5.0
CONTROLLER_TIMEOUT_S = 15.0
CONTROLLER_RETRY_S = 0.05
CATCH_UP_S = 5.0
NO_VERSION = MetadataVersion(-1)

T = TypeVar("T")
ApplyImage = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
"""Brings this core from one image to the next: partitions opened, closed, altered. Called with (before, after)."""


class MetadataService:
    def __init__(  # noqa: PLR0913  (whatever ties a core to the others)
        self,
        core_id: CoreId,
        view: ClusterView,
        mailboxes: Mailboxes,
        apply_image: ApplyImage,
        clock: Clock,
        start_soon: Callable[..., None],
        cluster: ClusterNode | None = None,
    ) -> None:
        self._cluster = cluster
        self._core_id = core_id
        self._view = view
        self._mailboxes = mailboxes
        self._apply_image = apply_image
        self._changing = trio.Lock()
        self._is_loaded = trio.Event()
        self._partition: Partition | None = None
        self._records_since_snapshot = 0
        self._subscribers: set[CoreId] = set()
        self._clock = clock
        self._nodes_number = -1
        """Of who is away and who decides: the newest word that this core has said, or heard. It rises with each change,
        so it is not ahead of the clock, and over restarts of core 0.
        """
        self._core_news = CoreNews(self._tell_leaders, start_soon)
        self._untold: dict[CoreId, set[TopicPartition]] = {}
        """Of which partitions' leaders cores may not have heard."""
        self._applied = trio.Event()
        self.moves_told: Callable[[], list[Payload]] = list
        """What is told of replicas on their way; of core 0."""
        self.end_core: Callable[[Exception], None] = _raise
        """Called when this core may not go on."""
        self.behind = trio.Event()
        """Set when a change does not follow the image here: the whole one has to be fetched."""
        mailboxes.serve("metadata.fetch", self._serve_fetch)
        mailboxes.serve("metadata.apply", self._serve_apply)
        mailboxes.serve("leaders", self._serve_leaders)
        mailboxes.serve("nodes", self._serve_nodes)
        self.serve_at_controller("metadata.newest", self._serve_newest)
        mailboxes.serve("nodes.facts", self._serve_facts)
        if cluster is not None:
            cluster.serve("leaders", self._serve_leaders_of_node)
            others = lambda: view.image.nodes.keys() - {view.node} - view.absent  # noqa: E731
            self._news = LeaderNews(cluster, view.node, view.leaders_on, _leaders_to_json, others)
            cluster.on_absent_changed = self._absent_changed
            cluster.on_controller_changed = self._controller_changed

    # -- core 0 ------------------------------------------------------------------------------------------------------

    async def load(self, partition: Partition) -> None:
        """Replay the log (core 0 only). The image is not applied yet: `apply_loaded` does that."""
        self._partition = partition
        image = ClusterImage()
        bounds = partition.bounds()
        offset = bounds.log_start_offset
        while offset < bounds.high_watermark:
            data = await partition.read_bytes(offset, bounds.high_watermark, 1 << 20)
            records = []
            for record in read_records(data):
                offset = record.offset + 1
                assert record.value is not None
                records.append(decode_record(record.value))
            if not records:
                raise MetadataDamagedError(f"the metadata log holds nothing readable at offset {offset}")
            image = image.apply(records, MetadataVersion(offset))
            self._records_since_snapshot += len(records)
        self._loaded = image

    async def apply_loaded(self) -> None:
        async with self._changing:
            await self._advance(self._loaded)
        self._is_loaded.set()

    @property
    def loaded(self) -> ClusterImage:
        return self._loaded

    @property
    def log(self) -> Partition:
        """Of a broker without a cluster, on core 0."""
        assert self._partition is not None
        return self._partition

    async def change(self, decide: Callable[[ClusterImage], tuple[list[MetadataRecord], T]]) -> T:
        """One change, durable and applied by all subscribed cores before the response is returned. Core 0 only.

        Other cores may ask before this one has loaded its log: decided is by the whole image, never by a part of it.
        """
        assert self._core_id == METADATA_CORE, "changes are made on core 0"
        await self._is_loaded.wait()
        if self._cluster is not None:
            version, response = await self._cluster.change(decide)
            await self._wait_applied(version)
            return response
        async with self._changing:
            records, response = decide(self._view.image)
            if records:
                await self._commit(records)
        return response

    # -- core 0 of a node of a cluster ---------------------------------------------------------------------------------

    async def start_in_cluster(self, nursery: trio.Nursery, configuration: BrokerConfiguration) -> None:
        """Found or join the cluster with what this node has had alone, take its newest image, and follow it from now
        on.
        """
        assert self._cluster is not None
        self._loaded = await self._cluster.start(self._loaded, configuration)
        self._absent_changed(self._cluster.absent())
        await self.apply_loaded()
        nursery.start_soon(self._follow_cluster)

    async def _follow_cluster(self) -> None:
        assert self._cluster is not None
        while True:
            records, image = await self._cluster.next_image(self._view.image)
            before = self._view.image.version
            async with self._changing:
                await self._advance(image)
                async with trio.open_nursery() as nursery:
                    for core in sorted(self._subscribers):  # without records: a core takes the whole image
                        nursery.start_soon(
                            self._push, core, before if records else NO_VERSION, image.version, records or []
                        )
            self._applied.set()
            self._applied = trio.Event()

    async def _wait_applied(self, version: MetadataVersion) -> None:
        while self._view.image.version < version:
            await self._applied.wait()
        async with self._changing:  # and by the other cores
            return

    async def wait_image(self, is_so: Callable[[ClusterImage], bool]) -> None:
        """Until the image is so."""
        while not is_so(self._view.image):
            await self._applied.wait()

    async def at_controller(
        self, method: str, payload: Payload, blobs: Sequence[bytes], here: Callable[[], Awaitable[T]]
    ) -> T | Answer:
        """`here` if this node leads the cluster's metadata, else what the node that does answers. Both are safe to try
        again while nothing was done: until then, or until it has taken too long (NotDeliveredError).
        """
        if self._cluster is None:
            return await here()
        deadline_s = trio.current_time() + CONTROLLER_TIMEOUT_S
        while True:
            try:
                if self._cluster.is_controller:
                    return await here()
                answer, found = await self._cluster.call_controller(method, payload, blobs)
            except NotDeliveredError:
                if trio.current_time() > deadline_s:
                    raise
                await trio.sleep(CONTROLLER_RETRY_S)
            else:
                await self._catch_up(MetadataVersion(answer.pop("version", 0)))
                return answer, found

    async def _catch_up(self, version: MetadataVersion) -> None:
        """What was just changed is seen here too, unless this node is far behind."""
        with trio.move_on_after(CATCH_UP_S):
            await self._wait_applied(version)

    def serve_at_controller(self, method: str, handler: MailboxHandler) -> None:
        """Answer cores of this node, and other nodes' core 0, where the metadata are led."""

        async def serve(caller: CoreId, payload: Payload, blobs: list[bytes]) -> Answer:
            async def here() -> Answer:
                return await handler(caller, payload, blobs)

            return await self.at_controller(method, payload, blobs, here)

        self._mailboxes.serve(method, serve)
        self.serve_nodes(method, handler)

    def serve_nodes(self, method: str, handler: MailboxHandler) -> None:
        """Answer other nodes, which take this one for the leader of the metadata. Their number of a core is 0."""
        if self._cluster is None:
            return

        async def serve(payload: Payload, blobs: list[bytes]) -> Answer:
            answer, found = await handler(METADATA_CORE, payload, blobs)
            return {**answer, "version": self._view.image.version}, found

        self._cluster.serve_controller(method, serve)

    async def node_facts(self) -> Payload:
        """The nodes and how they are, as core 0 knows."""
        payload, _blobs = await self._mailboxes.call(METADATA_CORE, "nodes.facts", {})
        return payload

    async def _serve_facts(self, _caller: CoreId, _payload: Payload, _blobs: list[bytes]) -> Answer:
        facts = self._cluster.facts() if self._cluster is not None else {}
        led = self._view.leads_of_nodes()
        held = Counter(
            replica.node
            for topic in self._view.image.topics.values()
            for index in range(len(topic.replicas))
            for replica in topic.places(index)
        )
        for row in facts.get("nodes", ()):
            row["leads"] = led[row["node"]] if row["node"] not in self._view.absent else 0
            row["replicas"] = held[row["node"]]
        total = self._view.image.partitions_count()
        leaderless = total - sum(count for node, count in led.items() if self._view.is_present(node))
        await trio.lowlevel.checkpoint()
        told = {"partitions": total, "partitions_without_leader": leaderless, "moves": self.moves_told()}
        return {**facts, **told}, []

    def _absent_changed(self, absent: frozenset[NodeId]) -> None:
        assert self._cluster is not None
        back = self._view.absent - absent
        self._view.note_absent(absent, is_cut_off=self._cluster.is_cut_off())
        self._tell_new_word()
        self._news.are_back(back)

    def _controller_changed(self, node: NodeId | None) -> None:
        self._view.controller = node
        self._tell_new_word()

    def _tell_new_word(self) -> None:
        self._nodes_number = max(self._nodes_number + 1, self._clock.monotonic_ms())
        self._tell_cores_of_nodes([])

    def _tell_cores_of_nodes(self, leaders: list[tuple[TopicPartition, Leader]]) -> None:
        assert self._cluster is not None
        for core in self._view.others_up(self._core_id):
            self._cluster.start_soon(self._mailboxes.notify, core, "nodes", self._about_nodes(leaders))

    def _about_nodes(self, leaders: list[tuple[TopicPartition, Leader]]) -> Payload:
        view = self._view
        nodes = {"absent": sorted(view.absent), "is_cut_off": view.is_cut_off, "controller": view.controller}
        return {"number": self._nodes_number, **nodes, "leaders": _leaders_to_json(leaders)}

    def _tell_nodes(self, leaders: list[tuple[TopicPartition, Leader]]) -> None:
        if self._cluster is not None:
            self._news.tell(leaders)

    async def _serve_leaders_of_node(self, payload: Payload, _blobs: list[bytes]) -> Answer:
        if await self._news.pass_on(payload):
            return {}, []
        leaders = _leaders_from_json(payload["leaders"])
        self._view.note_leaders(leaders)
        self._tell_cores_of_nodes(leaders)
        return {}, []

    async def _serve_nodes(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """On the other cores: what core 0 knows of other nodes."""
        self._take_nodes(payload)
        return {}, []

    def _take_nodes(self, payload: Payload) -> None:
        """What was said before something that is known changes nothing; who leads is fenced by epochs."""
        number = payload.get("number", self._nodes_number + 1)  # a core 0 of an earlier release gives none
        if number > self._nodes_number:
            self._nodes_number = number
            self._take_absent(payload)
        self._view.note_leaders(_leaders_from_json(payload.get("leaders", [])))

    def _take_absent(self, payload: Payload) -> None:
        absent = frozenset(map(NodeId, payload.get("absent", ())))
        is_cut_off = bool(payload.get("is_cut_off"))
        if (absent, is_cut_off) != (self._view.absent, self._view.is_cut_off):
            self._view.note_absent(absent, is_cut_off=is_cut_off)
        controller = payload.get("controller")
        self._view.controller = None if controller is None else NodeId(controller)

    # -- core 0 --------------------------------------------------------------------------------------------------------

    async def commit_before_start(self, records: list[MetadataRecord]) -> None:
        """Records that must hold before anything is opened: the cluster's identity, a new number of cores."""
        if records:
            version = await self._append(records)
            self._loaded = self._loaded.apply(records, version)

    async def _commit(self, records: list[MetadataRecord]) -> None:
        before = self._view.image.version
        after = self._view.image.apply(records, before)  # what cannot be applied is not appended either
        version = await self._append(records)
        await self._advance_or_end(replace(after, version=version))
        async with trio.open_nursery() as nursery:
            for core in sorted(self._subscribers):
                nursery.start_soon(self._push, core, before, version, records)
        if self._records_since_snapshot > SNAPSHOT_RECORDS:
            try:
                await self._snapshot()
            except PartitionOfflineError as error:  # the change is made; the next one tries again
                log.warning("metadata: no snapshot could be written (%s)", error)

    async def _append(self, records: list[MetadataRecord]) -> MetadataVersion:
        """As one batch: all of a change holds, or nothing."""
        assert self._partition is not None
        batch = build_batch([Record(encode_record(record)) for record in records])
        await self._partition.append_durably(batch)
        self._records_since_snapshot += len(records)
        return MetadataVersion(self._partition.bounds().high_watermark)

    async def _snapshot(self) -> None:
        assert self._partition is not None
        start = self._partition.bounds().log_end_offset
        records = (Record(encode_record(record)) for record in self._view.image.snapshot())
        for part in in_parts(
            records, bytes_max=limits.OWN_BATCH_BYTES_MAX, overhead_bytes=limits.OWN_RECORD_OVERHEAD_BYTES,
            records_max=SNAPSHOT_RECORDS,
        ):  # fmt: skip
            await self._partition.append_durably(build_batch(part))
        await self._partition.move_log_start(start)
        self._records_since_snapshot = 0

    async def _push(
        self, core: CoreId, before: MetadataVersion, version: MetadataVersion, records: list[MetadataRecord]
    ) -> None:
        payload = {"before": before, "version": version}
        blobs = [encode_record(record) for record in records]
        try:
            answer, _blobs = await self._mailboxes.call(
                core, "metadata.apply", payload, blobs, timeout_ms=PUSH_TIMEOUT_MS
            )
            if not answer["taken"]:
                self._subscribers.discard(core)
                log.info("metadata: core %d has an older image than version %d and takes the whole one", core, before)
        except Exception as error:  # that core takes the whole image when it is back
            self._subscribers.discard(core)
            log.warning("metadata: core %d did not take version %d (%s)", core, version, error)

    async def _serve_fetch(self, caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        if not self._is_loaded.is_set():
            return {"ready": False}, []
        async with self._changing:
            self._subscribers.add(caller)
            others = list(self._view.leaders_elsewhere())
            image = self._view.image
            whole = [image.to_bytes()] if image.version != payload["version"] else []
            return {"ready": True, **self._about_nodes(others)}, whole

    # -- the other cores ---------------------------------------------------------------------------------------------

    # Rule: Cores that are up agree on the topics and on who leads them, whichever of their calls was lost, and have
    # what was acknowledged. See also tpc_broker/broker/core.py. Held by tests/broker/test_node_random.py,
    # tests/broker/test_core.py (whole cores in memory, from seeds).
    async def subscribe(self) -> bool:
        """Take the whole image from core 0, unless it is the one here, and be told of changes from now on. False when
        core 0 is not ready.
        """
        payload, blobs = await self._mailboxes.call(
            METADATA_CORE, "metadata.fetch", {"version": self._view.image.version}
        )
        if not payload["ready"]:
            return False
        if blobs:
            image = ClusterImage.from_bytes(blobs[0])
            async with self._changing:
                if image.version > self._view.image.version:
                    await self._advance(image)
        self._take_nodes(payload)
        return True

    async def _serve_apply(self, _caller: CoreId, payload: Payload, blobs: list[bytes]) -> Answer:
        async with self._changing:
            image = self._view.image
            if payload["before"] != image.version:  # a change came before the image that this core has asked for
                self.behind.set()
                return {"taken": False}, []
            await self._advance_or_end(image.apply([decode_record(blob) for blob in blobs], payload["version"]))
        return {"taken": True}, []

    async def between_changes(self, action: Callable[[], Awaitable[T]]) -> T:
        """Run something that no change of the image may overlap."""
        async with self._changing:
            return await action()

    # -- every core --------------------------------------------------------------------------------------------------

    async def take_newest(self) -> None:
        """Until this core has an image in which everything is that was decided before this call. MailboxError."""
        answer, _blobs = await self._mailboxes.call(METADATA_CORE, "metadata.newest", {})
        version = MetadataVersion(answer["at"])
        while self._view.image.version < version:
            if self._core_id == METADATA_CORE:
                await self._applied.wait()
            elif not await self.subscribe() or self._view.image.version < version:
                await trio.sleep(CONTROLLER_RETRY_S)

    async def _serve_newest(self, _caller: CoreId, _payload: Payload, _blobs: list[bytes]) -> Answer:
        version = await self.change(lambda image: ([], image.version))  # decided is by what is the newest for certain
        return {"at": version}, []

    async def exchange_leaders(self) -> None:
        """Tell every core that is up the leader epochs of the partitions led here, and learn theirs."""
        own = list(self._view.leaders_of(self._core_id))
        self._tell_nodes(own)
        self._core_news.tell(self._view.others_up(self._core_id), own)
        await self._core_news.wait_told(PUSH_TIMEOUT_MS / 1000)

    def tell_leaders(self, leaders: list[tuple[TopicPartition, Leader]]) -> None:
        """Every core of every node, in time: nobody is waited for."""
        if leaders:
            self._view.note_leaders(leaders)
            self._tell_nodes(leaders)
            self._core_news.tell(self._view.others_up(self._core_id), leaders)

    async def wait_told(self) -> None:
        """Until the cores of this node that answer have heard what was told."""
        await self._core_news.wait_told()

    async def announce_leaders(self, leaders: list[tuple[TopicPartition, Leader]]) -> None:
        """Tell, and wait."""
        if leaders:
            self.tell_leaders(leaders)
            await self.wait_told()

    async def tell_untold(self) -> None:
        """Leaders to cores that were up and could not be told: overloaded, or paused for long. One that was down asks
        when it is back.
        """
        untold, self._untold = self._untold, {}
        async with trio.open_nursery() as nursery:
            for core in self._view.others_up(self._core_id):
                if core in untold:
                    nursery.start_soon(self._tell_leaders, core, self._view.leaders_known(untold[core]))

    async def _tell_leaders(self, core: CoreId, leaders: list[tuple[TopicPartition, Leader]]) -> None:
        try:
            payload, _blobs = await self._mailboxes.call(
                core, "leaders", {"leaders": _leaders_to_json(leaders)}, timeout_ms=PUSH_TIMEOUT_MS
            )
        except Exception as error:
            log.debug("leaders: core %d was not told (%s)", core, error)
            self._untold.setdefault(core, set()).update(partition for partition, _leader in leaders)
            return
        self._view.note_leaders(_leaders_from_json(payload["leaders"]))

    async def _serve_leaders(self, caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        self._view.note_heard(caller)
        leaders = _leaders_from_json(payload["leaders"])
        self._view.note_leaders(leaders)
        self._tell_nodes(leaders)
        own = list(self._view.leaders_of(self._core_id))
        return {"leaders": _leaders_to_json(own)}, []

    async def _advance(self, image: ClusterImage) -> None:
        before = self._view.image
        await self._apply_image(before, image)

    async def _advance_or_end(self, image: ClusterImage) -> None:
        """For a task whose errors are told to who asked. What was made would be missing here, wholly or in part, and
        the next change be decided without it: so nothing is let in any more until the core has ended.
        """
        try:
            await self._advance(image)
        except Exception as error:
            if _is_of_the_end(error):
                raise
            log.critical("metadata: version %d is made and cannot be carried out: %r", image.version, error)
            self.end_core(error)
            await trio.sleep_forever()


async def read_image(storage: PartitionStorage) -> ClusterImage:
    """The cluster as a recovered metadata log says. MetadataDamagedError, ValueError: it cannot be read."""
    image, offset = ClusterImage(), storage.log_start_offset
    while offset < storage.written_end_offset:
        records = list(read_records(await storage.read(offset, 1 << 20)))
        if not records:
            raise MetadataDamagedError(f"the metadata log holds nothing readable at offset {offset}")
        offset = records[-1].offset + 1
        decoded = [decode_record(record.value or b"") for record in records]
        image = image.apply(decoded, MetadataVersion(offset))
    return image


def _raise(error: Exception) -> None:
    raise error


def _is_of_the_end(error: Exception) -> bool:
    """Whether it is only that the core is ending already."""
    if isinstance(error, ExceptionGroup):
        return error.split(JournalStoppedError)[1] is None
    return isinstance(error, JournalStoppedError)


def _leaders_to_json(leaders: list[tuple[TopicPartition, Leader]]) -> list[Row]:
    return [
        [partition.topic_id.hex, partition.partition, epoch, serial, place, in_sync]
        for partition, (epoch, serial, place, in_sync) in leaders
    ]


def _leaders_from_json(rows: list[Row]) -> list[tuple[TopicPartition, Leader]]:
    found = []
    for topic, partition, epoch, serial, place, in_sync in rows:
        where = None if place is None else Replica(*place)
        leader = Leader(LeaderEpoch(epoch), serial, where, tuple(in_sync))
        found.append((TopicPartition(TopicId(uuid.UUID(hex=topic)), PartitionIndex(partition)), leader))
    return found
