"""The metadata log's driver on core 0, and its followers on the other cores.

Core 0 (duties in order, one change at a time):

1. ask the controller for ``(records, response)``; without records answer at once;
2. append the records to ``__cluster_metadata`` and wait until they are durable;
3. apply them to the image, here and on every subscribed core, each of which opens and closes its partitions before it
   confirms; a core that does not confirm in time loses its subscription and takes the whole image when it is back;
4. answer.

When the log has grown over ``SNAPSHOT_RECORDS`` records since the last snapshot, the live state is appended again and
the log's start is moved to it, so that it neither grows nor loads without bound.

The other cores subscribe by fetching the whole image, at their start and whenever core 0 comes up, and keep serving
with the image they have while core 0 is away.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from tpc_broker.kafka.records import Record, build_batch, read_records
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import MetadataDamagedError, MetadataRecord, decode_record, encode_record
from tpc_broker.model import CoreId, LeaderEpoch, MetadataVersion, PartitionIndex, TopicId, TopicPartition

if TYPE_CHECKING:
    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.ports import Mailboxes
    from tpc_broker.broker.view import ClusterView
    from tpc_broker.storage.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

METADATA_CORE = CoreId(0)
SNAPSHOT_RECORDS = 10_000
PUSH_TIMEOUT_MS = 10_000
RESUBSCRIBE_S = 5.0
NOT_MADE_RETRY_S = 0.25

T = TypeVar("T")
ApplyImage = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
"""Brings this core from one image to the next: partitions opened, closed, altered. Called with (before, after)."""
Decide = Callable[[ClusterImage], tuple[list[MetadataRecord], Any]]


class MetadataService:
    def __init__(self, core_id: CoreId, view: ClusterView, mailboxes: Mailboxes, apply_image: ApplyImage) -> None:
        self._core_id = core_id
        self._view = view
        self._mailboxes = mailboxes
        self._apply_image = apply_image
        self._changing = trio.Lock()
        self._is_loaded = trio.Event()
        self._partition: Partition | None = None
        self._records_since_snapshot = 0
        self._subscribers: set[CoreId] = set()
        self.behind = trio.Event()
        """Set when a change does not follow the image here: the whole one has to be fetched."""
        mailboxes.serve("metadata.fetch", self._serve_fetch)
        mailboxes.serve("metadata.apply", self._serve_apply)
        mailboxes.serve("leaders", self._serve_leaders)

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

    async def change(self, decide: Decide) -> Any:
        """One change, durable and applied by all subscribed cores before the response is returned. Core 0 only.

        Other cores may ask before this one has loaded its log: decided is by the whole image, never by a part of it.
        """
        assert self._core_id == METADATA_CORE, "changes are made on core 0"
        await self._is_loaded.wait()
        async with self._changing:
            records, response = decide(self._view.image)
            if records:
                await self._commit(records)
        return response

    async def commit_before_start(self, records: list[MetadataRecord]) -> None:
        """Records that must hold before anything is opened: the cluster's identity, a new number of cores."""
        if records:
            version = await self._append(records)
            self._loaded = self._loaded.apply(records, version)

    async def _commit(self, records: list[MetadataRecord]) -> None:
        before = self._view.image.version
        version = await self._append(records)
        await self._advance(self._view.image.apply(records, version))
        async with trio.open_nursery() as nursery:
            for core in sorted(self._subscribers):
                nursery.start_soon(self._push, core, before, version, records)
        if self._records_since_snapshot > SNAPSHOT_RECORDS:
            await self._snapshot()

    async def _append(self, records: list[MetadataRecord]) -> MetadataVersion:
        assert self._partition is not None
        batch = build_batch([Record(encode_record(record)) for record in records])
        await self._partition.append_durably(batch)
        self._records_since_snapshot += len(records)
        return MetadataVersion(self._partition.bounds().high_watermark)

    async def _snapshot(self) -> None:
        assert self._partition is not None
        start = self._partition.bounds().log_end_offset
        await self._append(self._view.image.snapshot())
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

    async def _serve_fetch(self, caller: CoreId, _payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        if not self._is_loaded.is_set():
            return {"ready": False}, []
        async with self._changing:
            self._subscribers.add(caller)
            return {"ready": True}, [self._view.image.to_bytes()]

    # -- the other cores ---------------------------------------------------------------------------------------------

    async def subscribe(self) -> bool:
        """Take the whole image from core 0 and be told of changes from now on. False when core 0 is not ready."""
        payload, blobs = await self._mailboxes.call(METADATA_CORE, "metadata.fetch", {})
        if not payload["ready"]:
            return False
        image = ClusterImage.from_bytes(blobs[0])
        async with self._changing:
            if image.version > self._view.image.version:
                await self._advance(image)
        return True

    async def _serve_apply(self, _caller: CoreId, payload: dict[str, Any], blobs: list[bytes]) -> Any:
        async with self._changing:
            image = self._view.image
            if payload["before"] != image.version:  # a change came before the image that this core has asked for
                self.behind.set()
                return {"taken": False}, []
            await self._advance(image.apply([decode_record(blob) for blob in blobs], payload["version"]))
        return {"taken": True}, []

    async def between_changes(self, action: Callable[[], Awaitable[T]]) -> T:
        """Run something that no change of the image may overlap."""
        async with self._changing:
            return await action()

    # -- every core --------------------------------------------------------------------------------------------------

    async def exchange_leaders(self) -> None:
        """Tell every core that is up the leader epochs of the partitions led here, and learn theirs."""
        await self.announce_leaders(list(self._view.leaders_of(self._core_id)))

    async def announce_leaders(self, leaders: list[tuple[TopicPartition, LeaderEpoch]]) -> None:
        self._view.note_leaders(leaders)
        async with trio.open_nursery() as nursery:
            for core in self._view.others_up(self._core_id):
                nursery.start_soon(self._tell_leaders, core, leaders)

    async def _tell_leaders(self, core: CoreId, leaders: list[tuple[TopicPartition, LeaderEpoch]]) -> None:
        try:
            payload, _blobs = await self._mailboxes.call(
                core, "leaders", {"leaders": _leaders_to_json(leaders)}, timeout_ms=PUSH_TIMEOUT_MS
            )
        except Exception as error:  # it asks when it is back
            log.debug("leaders: core %d was not told (%s)", core, error)
            return
        self._view.note_leaders(_leaders_from_json(payload["leaders"]))

    async def _serve_leaders(self, caller: CoreId, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        self._view.note_heard(caller)
        self._view.note_leaders(_leaders_from_json(payload["leaders"]))
        own = list(self._view.leaders_of(self._core_id))
        return {"leaders": _leaders_to_json(own)}, []

    async def _advance(self, image: ClusterImage) -> None:
        before = self._view.image
        await self._apply_image(before, image)


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


def _leaders_to_json(leaders: list[tuple[TopicPartition, LeaderEpoch]]) -> list[list[Any]]:
    return [[partition.topic_id.hex, partition.partition, epoch] for partition, epoch in leaders]


def _leaders_from_json(rows: list[list[Any]]) -> list[tuple[TopicPartition, LeaderEpoch]]:
    return [
        (TopicPartition(TopicId(uuid.UUID(hex=topic)), PartitionIndex(partition)), LeaderEpoch(epoch))
        for topic, partition, epoch in rows
    ]
