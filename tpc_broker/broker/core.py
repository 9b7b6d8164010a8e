"""One core's broker, put together: what the handlers see.

Lives on every core. Core 0 also has the metadata log. It owns no kernel object: the ports it is given do
(`tpc_broker.engine` and `tpc_broker.node` have the real ones).

Start: recover the journal (the driver does, before this is made) → the image (core 0 replays its log, the others fetch
it) → open the partitions owned here → exchange leader epochs → listen → ready. Drain, in reverse: stop accepting →
finish what is in flight → write behind → checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker.broker.access import AccessControl
from tpc_broker.broker.authentication import Authentication
from tpc_broker.broker.cleaning_facts import CleaningFacts
from tpc_broker.broker.client_quotas import ClientQuotas
from tpc_broker.broker.client_telemetry import ClientTelemetry
from tpc_broker.broker.coordinators_of_core import CoordinatorsOfCore
from tpc_broker.broker.core_loads import CoreLoads
from tpc_broker.broker.core_moves import CoreMoves
from tpc_broker.broker.dispatch import Dispatcher
from tpc_broker.broker.forwarded import serve_forwarded
from tpc_broker.broker.grants import Grants
from tpc_broker.broker.group_service import GroupService
from tpc_broker.broker.handled import Handled
from tpc_broker.broker.helper_thread import InThread, in_thread
from tpc_broker.broker.holders import Holders
from tpc_broker.broker.lacking_partitions import RETRY_S
from tpc_broker.broker.leadership import Leadership, LeadershipOnDemand
from tpc_broker.broker.metadata_service import METADATA_CORE, RESUBSCRIBE_S
from tpc_broker.broker.partitions import Partitions
from tpc_broker.broker.producer_ids import ProducerIds
from tpc_broker.broker.reassignments import ClusterReassignments, Reassignments
from tpc_broker.broker.rebalancing import Rebalancing
from tpc_broker.broker.replica_moves import ReplicaMoves
from tpc_broker.broker.replica_watch import ReplicaWatch
from tpc_broker.broker.replicated import ReplicatedPartitions
from tpc_broker.broker.transaction_service import CoreWithTransactions, TransactionService
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError, MetadataUnreadableError, RecordsDamagedError
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.metadata.controller import Controller, CreatableTopic
from tpc_broker.metadata.image import changed_indexes, changed_topics
from tpc_broker.metadata.records import MetadataDamagedError
from tpc_broker.metadata.topic_names import topic_name_fault
from tpc_broker.model import (
    CONSUMER_OFFSETS_TOPIC,
    NOT_HERE,
    TRANSACTION_STATE_TOPIC,
    CoreId,
    TopicId,
    TopicPartition,
)
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tpc_broker.broker.core_ground import CoreIdentity
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.broker.ports import Chance, Clock, ClusterNode, Connections, CoreStorage, DataPlane, Mailboxes
    from tpc_broker.broker.replication_port import Replication
    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.metadata.settings import BrokerConfiguration
    from tpc_broker.model import LeaderEpoch
    from tpc_broker.storage.ports import Disk

log = logging.getLogger(__name__)

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


Handler = Callable[["Core", "Request", Any], Handled | Awaitable[Handled]]
"""Plain or async. `Any`: each takes the message of its API, which is what its place in the table says."""


@dataclass(frozen=True, slots=True)
class Apis:
    """Those that a core answers (`handlers.table`)."""

    handlers: Mapping[ApiKey, Handler]
    prompt: Collection[ApiKey]
    """Of group members."""
    first_levels: Mapping[ApiKey, int]
    """Of those that are not offered at every feature level."""
    offered_at: Callable[[int], tuple[ApiKey, ...]]
    """At a feature level."""


class Core(CoreWithTransactions):
    given = GivenBeforeStart()

    def __init__(  # noqa: PLR0913  (a core is put together here, and nowhere else)
        self,
        place: CoreIdentity,
        configuration: BrokerConfiguration,
        *,
        apis: Apis,
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
        super().__init__(
            place, configuration, connections=connections, plane=plane, disk=disk, mailboxes=mailboxes, clock=clock,
            chance=chance, nursery=nursery, apply_image=self._apply_image, on_settings=on_settings, cluster=cluster,
            is_in_cluster=replication is not None, in_thread=in_thread,
        )  # fmt: skip
        self._cluster_id, self._cores = place.cluster_id, place.cores
        self.holders = Holders(self, storage, place.cores)
        self.replicated = None if replication is None else ReplicatedPartitions(self, replication)
        self.leadership = (
            None if replication is None else Leadership(self, replication.hand_overs, replication.followers)
        )
        self.leadership_on_demand = None if cluster is None else LeadershipOnDemand(self)
        self.partitions = Partitions(self, storage)
        self.view.on_changed = self._view_changed
        if self.replicated is not None:
            self.replicated.begin()
        self.replica_watch = None if replication is None else ReplicaWatch(self, replication.leaderships)
        self.replica_moves = (
            None if replication is None else ReplicaMoves(self, replication.leaderships, replication.voters)
        )
        if self.replica_moves is not None:
            self.metadata.moves_told = self.replica_moves.rows
        self.producer_ids = ProducerIds(self)
        self.moves = CoreMoves(self, storage)
        self.loads = CoreLoads(self, self.moves)
        self.cleaning_facts = CleaningFacts(self, storage)
        self.reassignments: Reassignments = self.moves if cluster is None else ClusterReassignments(self)
        self.groups = GroupService(self, nursery)
        self.transactions = TransactionService(self, nursery)
        self.coordinators = CoordinatorsOfCore(self.groups, self.transactions)
        self.client_telemetry = ClientTelemetry(self)
        self.access = AccessControl(self)
        self.authentication = Authentication(self, place.listeners, place.sasl_secret)
        self.quotas = ClientQuotas(self)
        self._offered_at = apis.offered_at
        handlers = {key: partial(handler, self) for key, handler in apis.handlers.items()}
        self.dispatcher = Dispatcher(self, handlers, apis.prompt, nursery, apis.first_levels)
        self.grants = Grants(self)
        self.dispatcher.on_gone = self.client_telemetry.closed
        serve_forwarded(self, handlers)

    @property
    def offered_apis(self) -> tuple[ApiKey, ...]:
        return self._offered_at(self.view.image.level)

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

    def _view_changed(self) -> None:
        self.plane.forget_answers(int(ApiKey.METADATA))
        self.partitions.look_at_moves()
        if self.view.is_cut_off and self.replicated is not None:
            self.replicated.cut_off()

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

    def statistics(self) -> BrokerStatistics:
        moves = self.moves.statistics
        return BrokerStatistics(
            self._asked_of_wrong_core, self._requests_forwarded, self.partitions.offline_count, moves.done,
            moves.given_up, moves.taken_back, self._machines_raised, self.access.refusals,
        )  # fmt: skip

    # -- what handlers ask for ---------------------------------------------------------------------------------------

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
