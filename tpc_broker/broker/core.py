"""One core's broker, put together: what the handlers see.

Lives on every core. Core 0 also has the metadata log. It owns no kernel object: the ports it is given do
(`tpc_broker.runtime` has the real ones).

Start: recover the journal (the driver does, before this is made) → the image (core 0 replays its log, the others fetch
it) → open the partitions owned here → exchange leader epochs → listen → ready. Drain, in reverse: stop accepting →
finish what is in flight → write behind → checkpoint.
"""

from __future__ import annotations

import logging
import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker import limits
from tpc_broker.broker.dispatch import Dispatcher
from tpc_broker.broker.group_service import GroupService
from tpc_broker.broker.handlers.forward import serve_forwarded
from tpc_broker.broker.handlers.table import HANDLERS, OFFERED_APIS
from tpc_broker.broker.metadata_service import METADATA_CORE, NOT_MADE_RETRY_S, RESUBSCRIBE_S, MetadataService
from tpc_broker.broker.partitions import Partitions
from tpc_broker.broker.producer_ids import ProducerIds
from tpc_broker.broker.purgatory import Purgatory
from tpc_broker.broker.view import ClusterView
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError
from tpc_broker.metadata.controller import Controller, CreatableTopic
from tpc_broker.metadata.topic_names import topic_name_fault
from tpc_broker.model import BrokerId, CoreId, NodeId, TopicId, broker_id_of

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.broker.ports import Clock, Connections, CoreStorage, DataPlane, Disk, Mailboxes, Request
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.settings import BrokerConfiguration

log = logging.getLogger(__name__)

FETCH_SESSION_EVICTION_MS = 120_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where this core stands: its node, its number, and what clients are told."""

    core_id: CoreId
    cores: int
    host: str
    first_port: int
    data_path: Path
    cluster_id: str


class Core:
    def __init__(  # noqa: PLR0913  (a core is put together from its ports here, and nowhere else)
        self,
        place: Place,
        configuration: BrokerConfiguration,
        *,
        connections: Connections,
        plane: DataPlane,
        storage: CoreStorage,
        disk: Disk,
        mailboxes: Mailboxes,
        clock: Clock,
        nursery: trio.Nursery,
    ) -> None:
        self.core_id = place.core_id
        self.data_path = place.data_path
        self.configuration = self._started_with = configuration
        self.connections = connections
        self.plane = plane
        self.disk = disk
        self.mailboxes = mailboxes
        self.clock = clock
        self._cluster_id = place.cluster_id
        self._cores = place.cores
        settings = configuration.settings
        node = NodeId(settings.node_id)
        self.broker_id: BrokerId = broker_id_of(node, place.core_id)
        self.view = ClusterView(node, place.cores, place.host, place.first_port, settings.broker_rack)
        self.purgatory = Purgatory(plane.watch)
        plane.on_advanced(self.purgatory.advanced)
        self._set_fetch_limits()
        self.partitions = Partitions(self, storage)
        self.metadata = MetadataService(place.core_id, self.view, mailboxes, self._apply_image)
        self.producer_ids = ProducerIds(self)
        self.groups = GroupService(self, nursery)
        self.dispatcher = Dispatcher(self, HANDLERS, nursery)
        self.offered_apis = OFFERED_APIS
        serve_forwarded(self, {int(key): handler for key, handler in HANDLERS.items()})
        self._creating = trio.Lock()
        self._nursery = nursery

    @property
    def settings(self) -> Any:
        """The effective broker settings, dynamic ones included."""
        return self.configuration.settings

    def _set_fetch_limits(self) -> None:
        settings = self.settings
        self.plane.set_fetch_limits(
            min(settings.fetch_max_bytes, limits.FETCH_RESPONSE_BYTES_MAX),
            settings.max_incremental_fetch_session_cache_slots,
            FETCH_SESSION_EVICTION_MS,
        )

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """From recovered files to open partitions. The mailboxes must be running."""
        if self.core_id == METADATA_CORE:
            await self._start_metadata()
        else:
            await self._subscribe_until_ready()
        self._nursery.start_soon(self._keep_subscribed)
        self._nursery.start_soon(self._retain_now_and_then)
        self._nursery.start_soon(self._make_missing_partitions)

    async def _start_metadata(self) -> None:
        partition = await self.partitions.open_metadata_log()
        await self.metadata.load(partition)
        controller = Controller(self.metadata.loaded, self.configuration)
        await self.metadata.commit_before_start(controller.begin(self._cluster_id, self._cores))
        await self.metadata.apply_loaded()

    async def _subscribe_until_ready(self) -> None:
        while True:
            try:
                if await self.metadata.subscribe():
                    return
            except MailboxError as error:
                log.debug("metadata: core 0 is not there yet (%s)", error)
            await trio.sleep(0.05)

    async def _make_missing_partitions(self) -> None:
        """What could not be made, for want of space or because a deleted topic's folder was in the way, comes later."""
        while True:
            await self.partitions.wait_lacking()
            await trio.sleep(NOT_MADE_RETRY_S)
            opened = await self.metadata.between_changes(self.partitions.make_what_could_not_be_made)
            await self.metadata.announce_leaders(opened)

    async def _keep_subscribed(self) -> None:
        """Fetch the image when a change was missed; also now and then, whatever was missed while core 0 restarted."""
        while True:
            with trio.move_on_after(RESUBSCRIBE_S * random.uniform(0.8, 1.2)):
                await self.metadata.behind.wait()
            self.metadata.behind = trio.Event()
            if self.core_id != METADATA_CORE:
                await self._subscribe_once()

    async def _retain_now_and_then(self) -> None:
        """Retention by age and size, and the end of deleted files."""
        while True:
            await trio.sleep(self.settings.log_retention_check_interval_ms / 1000)
            await self.partitions.retain_all()

    async def _subscribe_once(self) -> None:
        try:
            await self.metadata.subscribe()
        except MailboxError as error:
            log.debug("metadata: core 0 does not answer (%s)", error)

    async def cores_changed(self, up: list[CoreId]) -> None:
        """The supervisor says which cores are up."""
        came = self.view.set_up(up)
        if METADATA_CORE in came and self.core_id != METADATA_CORE:
            await self._subscribe_once()
        if came:
            await self.metadata.exchange_leaders()

    def is_available(self, core: CoreId) -> bool:
        return core == self.core_id or self.view.is_up(core)

    async def _apply_image(self, before: ClusterImage, after: ClusterImage) -> None:
        """Bring this core from one image to the next; returns when its partitions serve, or are gone."""
        here = after.configs_of_broker(self.broker_id)
        if before.broker_configs != after.broker_configs or not before.version:
            self.configuration = self._started_with.altered(after.configs_of_broker(None), here)
            self._set_fetch_limits()
        self.view.image = after
        opened = await self.partitions.follow(before, after)
        await self.groups.follow(before, after)
        await self.metadata.announce_leaders(opened)

    # -- what handlers ask for ---------------------------------------------------------------------------------------

    def produce_now(self, request: Request) -> bool:
        """Let the data plane take a Produce; False when Python has to deal with it."""
        return self.plane.produce(request)

    def check_topic_name(self, name: str) -> ErrorCode:
        return ErrorCode.INVALID_TOPIC_EXCEPTION if topic_name_fault(name) else ErrorCode.NONE

    async def create_topic_on_first_use(self, name: str) -> ErrorCode:
        """Make a topic with the defaults, wherever core 0 is. NONE also when somebody else was first."""
        fault = self.check_topic_name(name)
        if fault:
            return fault
        try:
            answer, _blobs = await self.mailboxes.call(METADATA_CORE, "topics.create", {"name": name})
        except MailboxError as error:
            log.warning("topic %s could not be created on first use: %s", name, error)
            return ErrorCode.LEADER_NOT_AVAILABLE
        return ErrorCode(answer["error_code"])

    async def create_offsets_topic(self) -> ErrorCode:
        try:
            await self.mailboxes.call(METADATA_CORE, "topics.create_offsets", {})
        except MailboxError as error:
            log.warning("__consumer_offsets could not be created: %s", error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def serve_metadata_calls(self) -> None:
        """What other cores ask of core 0 besides whole requests."""
        self.mailboxes.serve("topics.create", self._serve_create_topic)
        self.mailboxes.serve("topics.create_offsets", self._serve_create_offsets_topic)

    async def _serve_create_topic(self, _caller: CoreId, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        topic_id = TopicId(uuid.uuid4())
        now_ms = self.clock.wall_ms()
        results = await self.metadata.change(
            lambda image: Controller(image, self.configuration).create_topics(
                [CreatableTopic(name=payload["name"])], [topic_id], now_ms
            )
        )
        code = results[0].error_code
        return {"error_code": 0 if code == ErrorCode.TOPIC_ALREADY_EXISTS else int(code)}, []

    async def _serve_create_offsets_topic(self, _caller: CoreId, _payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        topic_id = TopicId(uuid.uuid4())
        now_ms = self.clock.wall_ms()
        await self.metadata.change(
            lambda image: (Controller(image, self.configuration).create_offsets_topic(topic_id, now_ms), None)
        )
        return {}, []

    # -- drain -------------------------------------------------------------------------------------------------------

    async def drain(self, deadline_s: float) -> None:
        """Stop accepting, finish what is in flight, bring everything to the disk."""
        self.connections.stop_accepting()
        await self.groups.prepare_drain()
        self.purgatory.release_all()
        self.plane.release_fetches()
        with trio.move_on_at(deadline_s):
            while self.connections.unanswered() and not self.dispatcher.is_idle():
                await trio.sleep(0.005)
        self.connections.close_all()
        self.plane.release_fetches()
        with trio.move_on_at(deadline_s):
            await self.partitions.drain()


