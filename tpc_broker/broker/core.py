"""One core's broker, put together: what the handlers see.

Lives on every core. Core 0 also has the metadata log. It owns no kernel object: the ports it is given do
(`tpc_broker.engine` and `tpc_broker.node` have the real ones).

Start: recover the journal (the driver does, before this is made) → the image (core 0 replays its log, the others fetch
it) → open the partitions owned here → exchange leader epochs → listen → ready. Drain, in reverse: stop accepting →
finish what is in flight → write behind → checkpoint.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from tpc_broker import limits
from tpc_broker.broker.access import AccessControl
from tpc_broker.broker.authentication import Authentication
from tpc_broker.broker.cleaning_facts import CleaningFacts
from tpc_broker.broker.client_quotas import ClientQuotas
from tpc_broker.broker.client_telemetry import ClientTelemetry
from tpc_broker.broker.coordinators import CoordinatorsOfCore
from tpc_broker.broker.core_loads import CoreLoads
from tpc_broker.broker.core_moves import CoreMoves
from tpc_broker.broker.dispatch import Dispatcher
from tpc_broker.broker.grants import Grants
from tpc_broker.broker.group_service import GroupService
from tpc_broker.broker.handlers.forward import serve_forwarded
from tpc_broker.broker.handlers.table import FIRST_LEVELS, HANDLERS, PROMPT_APIS, offered_at
from tpc_broker.broker.helper_thread import InThread, in_thread
from tpc_broker.broker.holders import Holders
from tpc_broker.broker.lacking_partitions import RETRY_S
from tpc_broker.broker.leadership import Leadership, LeadershipOnDemand
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.broker.metadata_service import METADATA_CORE, RESUBSCRIBE_S, MetadataService
from tpc_broker.broker.partitions import Partitions
from tpc_broker.broker.producer_ids import ProducerIds
from tpc_broker.broker.purgatory import Purgatory
from tpc_broker.broker.reassignments import ClusterReassignments, Reassignments
from tpc_broker.broker.rebalancing import Rebalancing
from tpc_broker.broker.replica_moves import ReplicaMoves
from tpc_broker.broker.replica_watch import ReplicaWatch
from tpc_broker.broker.replicated import ReplicatedPartitions
from tpc_broker.broker.told_partitions import ToldPartitions
from tpc_broker.broker.transaction_service import TransactionService
from tpc_broker.broker.view import ClusterView, Leader
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError, MetadataUnreadableError, RecordsDamagedError
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.metadata.controller import Controller, CreatableTopic
from tpc_broker.metadata.image import changed_indexes, changed_topics
from tpc_broker.metadata.records import MetadataDamagedError
from tpc_broker.metadata.topic_names import topic_name_fault
from tpc_broker.model import (
    CONSUMER_OFFSETS_TOPIC,
    NO_LEADER_EPOCH,
    NOT_HERE,
    TRANSACTION_STATE_TOPIC,
    BrokerId,
    CoreId,
    NodeId,
    Replica,
    TopicId,
    TopicPartition,
    broker_id_of,
)
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from tpc_broker.auth.oauthbearer import Tokens
    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.broker.ports import (
        Chance,
        Clock,
        ClusterNode,
        Connections,
        CoreStorage,
        DataPlane,
        Mailboxes,
        Request,
    )
    from tpc_broker.broker.replication_port import Replication
    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.listeners import Listener
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.metadata.settings import BrokerConfiguration
    from tpc_broker.model import LeaderEpoch
    from tpc_broker.storage.ports import Disk

log = logging.getLogger(__name__)

FETCH_SESSION_EVICTION_MS = 120_000
DRAIN_ANSWERS_S = 5.0
"""For the answers to requests that were taken before a drain, at most half of the time that it has."""
DRAIN_SENDING_S = 1.0
"""For clients that are slow to take them."""
DRAIN_LOOK_S = 0.005
CREATE_INTERNAL = {
    CONSUMER_OFFSETS_TOPIC: "topics.create_offsets", TRANSACTION_STATE_TOPIC: "topics.create_transactions",
}  # fmt: skip
"""What core 0 is asked, to make them on their first use."""


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """Since the core started. A client that follows Metadata causes none, unless a partition has just changed hands."""

    asked_of_wrong_core: int
    """Partitions and groups that a request named here although another core owns them: the client was sent there."""
    requests_forwarded: int
    """To the core that decides."""
    partitions_offline: int
    """Of this core, now: they have no leader, because their files are damaged or failed."""
    moves_done: int
    """Of partitions between cores, conducted by this one."""
    moves_given_up: int
    moves_cancelled: int
    """After which the partition stayed, in a cluster."""
    machines_raised: int
    """Of coordinators: an error of this program each, after which one is loaded again from its log."""
    refused: int
    """What requests have named without the right to it."""


@dataclass(frozen=True, slots=True)
class GivenBeforeStart:
    """Records of the metadata that somebody left for this start, while no broker ran."""

    records: Sequence[MetadataRecord] = ()
    forget: Callable[[], None] = lambda: None
    """Called when they are durable. It blocks, for as long as a small file needs to be removed."""


@dataclass(frozen=True, slots=True)
class CoreIdentity:
    """Where this core stands: its node, its number, and what clients are told."""

    core_id: CoreId
    cores: int
    listeners: tuple[Listener, ...]
    data_path: Path
    cluster_id: str
    sasl_secret: bytes = field(default=b"", repr=False)
    """The broker's, for users that it does not have (`auth.scram`)."""


class Core:
    given = GivenBeforeStart()
    tokens: Tokens | None = None
    """Where clients may log in by OAUTHBEARER."""

    def __init__(  # noqa: PLR0913, PLR0915  (a core is put together from its ports here, and nowhere else)
        self,
        place: CoreIdentity,
        configuration: BrokerConfiguration,
        *,
        connections: Connections,
        plane: DataPlane,
        storage: CoreStorage,
        disk: Disk,
        mailboxes: Mailboxes,
        clock: Clock,
        chance: Chance,
        nursery: trio.Nursery,
        on_settings: Callable[[Settings], None] = lambda _settings: None,
        cluster: ClusterNode | None = None,
        replication: Replication | None = None,
        in_thread: InThread = in_thread,
    ) -> None:
        """`cluster`: of core 0 of a node of several; `replication`: of each core of such a node."""
        self.cluster = cluster
        self.core_id = place.core_id
        self.data_path = place.data_path
        self.configuration = self._started_with = configuration
        self.connections, self.plane = connections, plane
        self.disk, self.mailboxes = disk, mailboxes
        self.clock, self.chance = clock, chance
        self.in_thread = in_thread
        self.log_limiter = LogLimiter(lambda: clock.monotonic_ms() / 1000)
        """Of all lines of this core that clients can cause."""
        self._cluster_id, self._cores = place.cluster_id, place.cores
        settings = configuration.settings
        node = NodeId(settings.node_id)
        self.broker_id: BrokerId = broker_id_of(node, place.core_id)
        is_in_cluster = replication is not None
        self.view = ClusterView(node, place.cores, place.listeners, settings.broker_rack, in_cluster=is_in_cluster)
        self.view.core = place.core_id
        self.told = ToldPartitions(self.view, self.is_available)
        self.purgatory = Purgatory(plane.watch)
        plane.on_advanced(self.purgatory.advanced)
        self._on_settings = on_settings
        self._apply_settings()
        self.holders = Holders(self, storage, place.cores)
        self.replicated = None if replication is None else ReplicatedPartitions(self, replication)
        self.leadership = None if replication is None else Leadership(self, replication)
        self.leadership_on_demand = None if cluster is None else LeadershipOnDemand(self)
        self.partitions = Partitions(self, storage)
        self.view.on_changed = self._view_changed
        self.metadata = MetadataService(
            place.core_id, self.view, mailboxes, self._apply_image, clock, nursery.start_soon, cluster
        )
        self.metadata.end_core = self._end
        if self.replicated is not None:
            self.replicated.begin()
        self.replica_watch = None if replication is None else ReplicaWatch(self, replication)
        self.replica_moves = None if replication is None else ReplicaMoves(self, replication)
        if self.replica_moves is not None:
            self.metadata.moves_told = self.replica_moves.rows
        self.producer_ids = ProducerIds(self)
        self.moves = CoreMoves(self, storage)
        self.loads = CoreLoads(self)
        self.cleaning_facts = CleaningFacts(self, storage)
        self.reassignments: Reassignments = self.moves if cluster is None else ClusterReassignments(self)
        self.groups = GroupService(self, nursery)
        self.transactions = TransactionService(self, nursery)
        self.coordinators = CoordinatorsOfCore(self.groups, self.transactions)
        self.client_telemetry = ClientTelemetry(self)
        self.access = AccessControl(self)
        self.authentication = Authentication(self, place.listeners, place.sasl_secret)
        self.quotas = ClientQuotas(self)
        self.dispatcher = Dispatcher(self, HANDLERS, PROMPT_APIS, nursery, FIRST_LEVELS)
        self.grants = Grants(self)
        self.dispatcher.on_gone = self.client_telemetry.closed
        serve_forwarded(self, {int(key): handler for key, handler in HANDLERS.items()})
        self._asked_of_wrong_core = self._requests_forwarded = self._machines_raised = 0
        self._nursery = nursery

    @property
    def offered_apis(self) -> tuple[ApiKey, ...]:
        return offered_at(self.view.image.level)

    @property
    def settings(self) -> Settings:
        """The effective broker settings, dynamic ones included."""
        return self.configuration.settings

    def _apply_settings(self) -> None:
        """Those that others act by: what reads `settings` each time needs no telling."""
        settings = self.settings
        self._on_settings(settings)
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
        self._nursery.start_soon(self._keep_told)
        if self.replicated is not None:
            self._nursery.start_soon(self.replicated.run)
        if self.leadership is not None:
            self._nursery.start_soon(self.leadership.run)
        if self.replica_watch is not None:
            self._nursery.start_soon(self.replica_watch.run)
        if self.replica_moves is not None:
            self._nursery.start_soon(self.replica_moves.run)
        with in_queue(TaskQueue.BACKGROUND):
            self._nursery.start_soon(self._retain_now_and_then)
        self._nursery.start_soon(self._make_missing_partitions)
        if self.cluster is not None:
            self._nursery.start_soon(Rebalancing(self, self.cluster).run)
        if self.core_id == METADATA_CORE:
            self._nursery.start_soon(self.moves.run)
            with in_queue(TaskQueue.BACKGROUND):
                self._nursery.start_soon(self.loads.run)

    async def _start_metadata(self) -> None:
        partition = await self.partitions.open_metadata_log()
        try:
            await self.metadata.load(partition)
        except (MetadataDamagedError, RecordsDamagedError, ValueError) as error:  # ValueError: no sound records
            raise MetadataUnreadableError(str(error)) from error
        controller = Controller(self.metadata.loaded, self.configuration)
        given = self.given
        # in a cluster: what this node brings
        if self.cluster is None or self.metadata.loaded.cores_count or given.records:
            begun = controller.begin(self._cluster_id, self._cores)
            await self.metadata.commit_before_start([*begun, *given.records])
            given.forget()  # before anybody is answered: what is changed later must not be undone
        if self.cluster is not None:
            await self.metadata.start_in_cluster(self._nursery, self.configuration)
            return
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
            await trio.sleep(RETRY_S)
            opened = await self.metadata.between_changes(self._make_missing)
            await self._announce(opened)

    async def _make_missing(self) -> list[tuple[TopicPartition, LeaderEpoch]]:
        opened = await self.partitions.make_what_could_not_be_made(due_only=True)
        if opened:
            await self.coordinators.follow(self.view.image, self.view.image)
        return opened

    async def _keep_subscribed(self) -> None:
        """Fetch the image when a change was missed; also now and then, whatever was missed while core 0 restarted."""
        while True:
            with trio.move_on_after(RESUBSCRIBE_S * self.chance.uniform(0.8, 1.2)):
                await self.metadata.behind.wait()
            self.metadata.behind = trio.Event()
            if self.core_id != METADATA_CORE:
                await self._subscribe_once()

    async def _keep_told(self) -> None:
        """Cores that could not be told who leads are told again."""
        while True:
            await trio.sleep(RESUBSCRIBE_S * self.chance.uniform(0.8, 1.2))
            await self.metadata.tell_untold()

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
        if came:
            self.moves.look()
        if METADATA_CORE in came and self.core_id != METADATA_CORE:
            await self._subscribe_once()
        if came:
            await self.metadata.exchange_leaders()

    def start_soon(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """A task of its own, that goes on until it is done or the core ends."""
        self._nursery.start_soon(function, *arguments)

    def _end(self, error: Exception) -> None:
        """By a task of its own, which nobody waits for."""

        async def fail() -> None:
            raise AssertionError("this core is not what the metadata say") from error

        self._nursery.start_soon(fail)

    def has_no_leader(self, key: TopicPartition) -> None:
        """A partition of this core can be led no more: every core's Metadata says so, and its groups hear it."""
        self.coordinators.end(key)
        self._nursery.start_soon(self._announce, [(key, NO_LEADER_EPOCH)])

    def leads_in_new_epochs(self, leaders: list[tuple[TopicPartition, LeaderEpoch]]) -> None:
        """Partitions of this core, which go on under a later leader epoch: every core's Metadata says so."""
        self._nursery.start_soon(self._announce, leaders)

    async def _announce(self, opened: list[tuple[TopicPartition, LeaderEpoch]]) -> None:
        """Leaders of partitions with one replica."""
        await self.metadata.announce_leaders([(key, Leader(epoch)) for key, epoch in opened])

    def is_available(self, place: Replica) -> bool:
        if place.node != self.view.node:
            return self.view.is_present(place.node)
        return place.core == self.core_id or self.view.is_up(place.core)

    def _view_changed(self) -> None:
        self.plane.forget_answers(int(ApiKey.METADATA))
        self.partitions.look_at_moves()
        if self.view.is_cut_off and self.replicated is not None:
            self.replicated.cut_off()

    def is_up(self, core: CoreId) -> bool:
        """Of this node."""
        return core == self.core_id or self.view.is_up(core)

    def controller(self, image: ClusterImage) -> Controller:
        """To decide a change of that image."""
        return Controller(image, self.configuration, (*self.full_nodes, *(self.view.absent | image.draining)))

    @property
    def full_nodes(self) -> frozenset[NodeId]:
        """Those with hardly any space on their disks, as core 0 knows."""
        return frozenset() if self.cluster is None else self.cluster.full()

    async def _apply_image(self, before: ClusterImage, after: ClusterImage) -> None:
        """Bring this core from one image to the next; returns when its partitions serve, or are gone."""
        here = after.configs_of_broker(self.broker_id)
        if before.broker_configs != after.broker_configs or not before.version:
            self.configuration = self._started_with.altered(after.configs_of_broker(None), here)
            self._apply_settings()
        self.access.follow(after.acls)
        self.view.image = after
        if before.client_metrics_configs != after.client_metrics_configs:
            self.client_telemetry.follow(after.client_metrics_configs)
        self.quotas.follow(before, after)
        told = [(each.feature_epoch, bool(each.nodes), each.cluster_id) for each in (before, after)]
        if told[0] != told[1]:
            self.plane.forget_answers(int(ApiKey.API_VERSIONS))
        self._tell_owners(before, after)
        if self.replicated is not None:
            await self.replicated.follow(after)
            await trio.lowlevel.checkpoint()  # one step less in which nobody is served
        opened = await self.partitions.follow(before, after)
        await self.coordinators.follow(before, after)
        await self._announce(opened)
        if before.moving != after.moving:
            self.moves.look()
        if not before.version:
            self._nursery.start_soon(self.holders.report_misplaced)

    def _tell_owners(self, before: ClusterImage, after: ClusterImage) -> None:
        """First what goes: a topic may have been made again under its name."""
        changed = list(changed_topics(before, after))
        for old, new in changed:
            if old is not None and new is None:
                self.plane.set_owners(old.name, old.topic_id, ())
                self.plane.set_datagram_owners(old.name, old.topic_id, ())
        for old, new in changed:
            if new is None or (old is not None and not self._has_other_owners(old, new)):
                continue
            here = new.cores_on(self.view.node)
            # What is on other nodes is each core's own to refuse: nodes do not carry for one another.
            owners = tuple(self.core_id if core == NOT_HERE else core for core in here)
            self.plane.set_owners(new.name, new.topic_id, owners)
            self.plane.set_datagram_owners(new.name, new.topic_id, here)

    def _has_other_owners(self, old: TopicImage, new: TopicImage) -> bool:
        """Of this node."""
        node = self.view.node
        is_same = (old.name, old.partitions_count) == (new.name, new.partitions_count)
        return not is_same or any(
            old.core_on(node, index) != new.core_on(node, index) for index in changed_indexes(old, new)
        )

    # -- what is counted ---------------------------------------------------------------------------------------------

    def note_asked(self, owner: CoreId | None) -> None:
        """A request named a partition that is not open here; `owner`: the core that has it."""
        self._asked_of_wrong_core += owner is not None and owner != self.core_id

    def note_damaged(self, partition: Partition, error: RecordsDamagedError) -> None:
        """Somebody asked for records of it that are damaged."""
        text = f"records that a client asked for cannot be read: {error}"
        self.log_limiter.say(log, "damaged", partition.label, text, level=logging.ERROR)

    def note_forwarded(self) -> None:
        self._requests_forwarded += 1

    def note_machine_raised(self) -> None:
        """Of a coordinator: it is loaded again."""
        self._machines_raised += 1

    def statistics(self) -> BrokerStatistics:
        moves = self.moves.statistics
        return BrokerStatistics(
            self._asked_of_wrong_core, self._requests_forwarded, self.partitions.offline_count, moves.done,
            moves.given_up, moves.taken_back, self._machines_raised, self.access.refusals,
        )  # fmt: skip

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
            text = f"topic {name} could not be created on first use: {error}"
            self.log_limiter.say(log, "creation on first use", name, text)
            return ErrorCode.LEADER_NOT_AVAILABLE
        return ErrorCode(answer["error_code"])

    async def create_coordinators_topic(self, name: str) -> ErrorCode:
        """`__consumer_offsets` or `__transaction_state`."""
        try:
            await self.mailboxes.call(METADATA_CORE, CREATE_INTERNAL[name], {})
        except MailboxError as error:
            self.log_limiter.say(log, "creation on first use", name, f"{name} could not be created: {error}")
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def serve_metadata_calls(self) -> None:
        """What other cores ask of core 0 besides whole requests."""
        self.metadata.serve_at_controller("topics.create", self._serve_create_topic)
        self.metadata.serve_at_controller(
            CREATE_INTERNAL[CONSUMER_OFFSETS_TOPIC], self._serves_creation(Controller.create_offsets_topic)
        )
        self.metadata.serve_at_controller(
            CREATE_INTERNAL[TRANSACTION_STATE_TOPIC], self._serves_creation(Controller.create_transactions_topic)
        )

    async def _serve_create_topic(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        topic_id = TopicId(self.chance.uuid())
        now_ms = self.clock.wall_ms()
        results = await self.metadata.change(
            lambda image: self.controller(image).create_topics(
                [CreatableTopic(name=payload["name"])], [topic_id], now_ms
            )
        )
        code = results[0].error_code
        return {"error_code": 0 if code == ErrorCode.TOPIC_ALREADY_EXISTS else int(code)}, []

    def _serves_creation(
        self, decide: Callable[[Controller, TopicId, int], list[MetadataRecord]]
    ) -> Callable[[CoreId, Payload, list[bytes]], Awaitable[Answer]]:
        async def serve(_caller: CoreId, _payload: Payload, _blobs: list[bytes]) -> Answer:
            topic_id, now_ms = TopicId(self.chance.uuid()), self.clock.wall_ms()
            await self.metadata.change(lambda image: (decide(self.controller(image), topic_id, now_ms), None))
            return {}, []

        return serve

    # -- drain -------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Before a drain, while clients are answered: other nodes lead what has replicas there."""
        if self.replicated is not None:
            await self.replicated.hand_over()

    async def drain(self) -> bool:
        """Take nothing more, answer what was taken, bring everything to the disk; within the deadline of the scope that
        it is called in. False: it ends as by `kill -9`.
        """
        self.connections.stop_accepting()
        self.connections.take_no_more()
        await self.coordinators.prepare_drain()
        left_s = trio.current_effective_deadline() - trio.current_time()
        with trio.move_on_after(min(DRAIN_ANSWERS_S, left_s / 2)):
            await self._wait_answered()
            with trio.move_on_after(DRAIN_SENDING_S):
                while self.connections.unsent_bytes():
                    await trio.sleep(DRAIN_LOOK_S)
        self.connections.close_all()
        return await self.partitions.drain()

    async def _wait_answered(self) -> None:
        """Until every request that was taken is answered; who waits for records is answered with what there is."""
        while True:
            self.purgatory.release_all()
            self.plane.release_fetches()
            if not self.connections.unanswered() and self.dispatcher.is_idle():
                return
            await trio.sleep(DRAIN_LOOK_S)
