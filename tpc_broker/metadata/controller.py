"""Decides changes of topics, partitions, cores and producer ids: `(records, response)`, nothing else.

`Controller` reads an image and changes nothing; the package's docstring says what the driver does with the answer.
Because the driver replays the records of one decision before it asks for the next, no decision can contradict one under
way.

Expected failures are error codes in the response, one per topic, in Kafka's words; ids and times come in as arguments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_GROUPS, FIRST_WITH_SECURITY
from tpc_broker.metadata.acl_records import AclsChanged
from tpc_broker.metadata.assignment_requests import (
    REPLICAS_MAX,
    Refusal,
    assigned_for_creation,
    assigned_for_growth,
    assigned_to,
    check_min_insync_replicas,
)
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.metadata.core_counts import with_fewer_cores
from tpc_broker.metadata.describe import ConfigEntry, describe_topic
from tpc_broker.metadata.node_assignment import begun_anew, first_leaders, first_voters, place_over_nodes
from tpc_broker.metadata.records import (
    ClientQuotaChanged,
    ClusterCreated,
    CoresChanged,
    FeatureLevelChanged,
    MetadataRecord,
    MoveBegun,
    MoveDone,
    NodeRegistered,
    ProducerIdsReserved,
    ResourceConfigChanged,
    ScramCredentialChanged,
    TopicAssigned,
    TopicCreated,
    TopicDeleted,
)
from tpc_broker.metadata.topic_config import INTERNAL_TOPIC_CONFIGS, validate_topic_configs
from tpc_broker.metadata.topic_names import folded, topic_name_fault
from tpc_broker.model import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    CoreId,
    FirstVoter,
    NodeId,
    PartitionIndex,
    Replica,
    TopicId,
    TopicPartition,
    broker_id_of,
)
from tpc_broker.routing import Assignment, adapt_to_cores, assign_all, extend

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.mutation_quotas import Charge
    from tpc_broker.metadata.settings import BrokerConfiguration

    Placed = Sequence[tuple[Replica, ...]]

_Item = TypeVar("_Item")

_OF_SECURITY: Final = (AclsChanged, ClientQuotaChanged, ScramCredentialChanged)
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Partitions one CreateTopics request may make, as in Kafka."""

INTERNAL_REPLICAS: Final = 3
"""Of internal topics, and of others that are made without naming a number, where there are so many nodes."""

PRODUCER_IDS_PER_BLOCK: Final = 1000
"""As in Kafka. A core that starts again loses the rest of its block; 2**63 ids outlast that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic:
    """A topic to be made; -1 means the broker's default. `assignments` are (partition, broker ids) pairs."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """Result for one topic of CreateTopics."""

    name: str
    topic_id: TopicId = NO_TOPIC_ID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableTopic:
    """A topic to be deleted, by name or by id, never both."""

    name: str | None = None
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """Result for one topic of DeleteTopics."""

    name: str | None
    topic_id: TopicId
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowableTopic:
    """A topic to get partitions: `count` is the new total; `assignments` the broker ids of each new partition."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownTopic:
    """Result for one topic of CreatePartitions."""

    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def _free(_partitions: int) -> None:
    """Whoever asks has no quota."""


class Controller:
    """Decisions for the cluster of which `image` is the state. Made anew for each decision; it only caches."""

    def __init__(
        self, image: ClusterImage, configuration: BrokerConfiguration, absent: Collection[NodeId] = ()
    ) -> None:
        """`absent`: nodes of a cluster that get nothing new while others are there, those that could best first."""
        self._absent = absent
        self._image = image
        self._configuration = configuration
        self._settings = configuration.settings
        self._node = NodeId(configuration.settings.node_id)
        self._described: dict[tuple[object, ...], tuple[ConfigEntry, ...]] = {}

    @cached_property
    def _partitions_count(self) -> int:
        """Counted once for a request, which may name thousands of topics."""
        return self._image.partitions_count()

    @cached_property
    def _folded_names(self) -> Mapping[str, str]:
        """Existing names by how they look in metrics."""
        return {folded(name): name for name in self._image.ids}

    def begin(self, cluster_id: str, cores_count: int, *, rebalance: bool = False) -> list[MetadataRecord]:
        """What to write when the broker starts: its identity if it has none, and what another number of cores moves."""
        records: list[MetadataRecord] = []
        if not self._image.cluster_id:
            records.append(ClusterCreated(cluster_id))
        if self._image.cores_count == cores_count and not rebalance:
            return records
        if self._image.cores_count != cores_count:
            records.append(CoresChanged(cores_count))
            for key in self._image.moving:  # the hand-over at the start has brought every partition to its owner
                owner = self._image.owner_of(key)
                assert owner is not None, key
                records.append(MoveDone(key.topic_id, key.partition, owner))
        for topic in self._image.topics.values():
            adapted = adapt_to_cores(topic.assignment, topic.topic_id, cores_count, rebalance=rebalance)
            if adapted != topic.assignment:
                records.append(_assigned(topic.topic_id, adapted))
        return records

    def create_topics(
        self,
        topics: Sequence[CreatableTopic],
        topic_ids: Sequence[TopicId],
        now_ms: int,
        *,
        validate_only: bool = False,
        charge: Charge = _free,
    ) -> tuple[list[MetadataRecord], list[CreatedTopic]]:
        """CreateTopics. `topic_ids` are fresh random ids, at least one for each topic. `charge`: asked before anything
        is made, here and below, with the number of partitions (`mutation_quotas`).
        """
        assert len(topic_ids) >= len(topics)
        records: list[MetadataRecord] = []
        results: list[CreatedTopic] = []
        duplicates = _repeated([topic.name for topic in topics])
        added_count = 0
        placed: list[tuple[Replica, ...]] = []
        for topic, topic_id in zip(topics, topic_ids, strict=False):
            if topic.name in duplicates:
                continue
            try:
                record = self._created(topic, topic_id, (added_count, placed), now_ms)
                charge(len(record.owners))
            except Refusal as refusal:
                results.append(CreatedTopic(name=topic.name, error_code=refusal.code, error_message=refusal.message))
                continue
            added_count += len(record.owners)
            placed += record.replicas
            records.append(record)
            results.append(self._creation_result(record))
        results.extend(
            CreatedTopic(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name.")
            for name in duplicates
        )
        return ([] if validate_only else records), results

    def create_offsets_topic(self, topic_id: TopicId, now_ms: int) -> list[MetadataRecord]:
        """Makes `__consumer_offsets` with the settings it needs; nothing when it exists."""
        if self._image.topic(CONSUMER_OFFSETS_TOPIC) is not None:
            return []
        settings = self._settings
        counts = settings.offsets_topic_num_partitions, min(INTERNAL_REPLICAS, len(self._image.nodes))
        configs = {"segment.bytes": str(settings.offsets_topic_segment_bytes)}
        return [self._internal_topic(CONSUMER_OFFSETS_TOPIC, topic_id, counts, configs, now_ms)]

    def create_transactions_topic(self, topic_id: TopicId, now_ms: int) -> list[MetadataRecord]:
        """Makes `__transaction_state`; nothing when it exists, or the level does not know it."""
        if self._image.topic(TRANSACTION_STATE_TOPIC) is not None or not self._image.knows_transactions:
            return []
        settings = self._settings
        replication_factor = min(settings.transaction_state_log_replication_factor, len(self._image.nodes))
        majority = replication_factor // 2 + 1
        counts = settings.transaction_state_log_num_partitions, replication_factor
        configs = {
            "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            "min.insync.replicas": str(min(settings.transaction_state_log_min_isr, majority)),
        }
        return [self._internal_topic(TRANSACTION_STATE_TOPIC, topic_id, counts, configs, now_ms)]

    def _internal_topic(
        self, name: str, topic_id: TopicId, counts: tuple[int, int], configs: Mapping[str, str], now_ms: int
    ) -> TopicCreated:
        """`counts`: partitions, and replicas of each."""
        assignment, replicas = self._placed(topic_id, counts, {}, [])
        voters = first_voters(self._image, replicas, has_one=True)
        with_own = {**INTERNAL_TOPIC_CONFIGS, **configs}
        leaders = first_leaders(self._image, replicas)
        return TopicCreated(
            name, topic_id, assignment.owners, now_ms, (), with_own, replicas, voters, first_leaders=leaders
        )

    def delete_topics(
        self, topics: Sequence[DeletableTopic], *, charge: Charge = _free
    ) -> tuple[list[MetadataRecord], list[DeletedTopic]]:
        """DeleteTopics."""
        records: list[MetadataRecord] = []
        results: list[DeletedTopic] = []
        repeated_names = _repeated([topic.name for topic in topics if topic.name is not None])
        repeated_ids = _repeated([topic.topic_id for topic in topics if topic.topic_id != NO_TOPIC_ID])
        both_ways = self._named_both_ways(topics)
        for topic in topics:
            try:
                if topic.name in repeated_names:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                if topic.topic_id in repeated_ids:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
                found = self._deletable(topic)
                if found.topic_id not in both_ways:
                    charge(found.partitions_count)
            except Refusal as refusal:
                result = DeletedTopic(
                    name=topic.name, topic_id=topic.topic_id, error_code=refusal.code, error_message=refusal.message
                )
                if result not in results:
                    results.append(result)
                continue
            if found.topic_id in both_ways:
                message = "The provided topic name maps to an ID that was already supplied."
                result = DeletedTopic(
                    name=found.name,
                    topic_id=found.topic_id,
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message=message,
                )
                if result not in results:
                    results.append(result)
                continue
            records.append(TopicDeleted(found.topic_id))
            results.append(DeletedTopic(name=found.name, topic_id=found.topic_id))
        return records, results

    def create_partitions(
        self, topics: Sequence[GrowableTopic], *, validate_only: bool = False, charge: Charge = _free
    ) -> tuple[list[MetadataRecord], list[GrownTopic]]:
        """CreatePartitions."""
        records: list[MetadataRecord] = []
        results: list[GrownTopic] = []
        duplicates = _repeated([topic.name for topic in topics])
        results.extend(
            GrownTopic(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name.")
            for name in duplicates
        )
        added_count = 0
        placed: list[tuple[Replica, ...]] = []
        for topic in topics:
            if topic.name in duplicates:
                continue
            try:
                found, assignment, replicas = self._grown(topic, (added_count, placed))
                charge(topic.count - found.partitions_count)
            except Refusal as refusal:
                results.append(GrownTopic(name=topic.name, error_code=refusal.code, error_message=refusal.message))
                continue
            added_count += topic.count - found.partitions_count
            placed += replicas[found.partitions_count :]
            voters = first_voters(self._image, replicas, found.voters or ((),) * found.partitions_count)
            first = first_leaders(self._image, replicas[found.partitions_count :])
            records.append(replace(_assigned(found.topic_id, assignment, replicas, voters), first_leaders=first))
            results.append(GrownTopic(name=topic.name))
        return ([] if validate_only else records), results

    def follow_holder(self, core: CoreId, keys: Sequence[TopicPartition]) -> list[MetadataRecord]:
        """These partitions are in the journal of `core`: they are its own, as if they had been assigned by hand."""
        records: list[MetadataRecord] = []
        for topic_id in dict.fromkeys(key.topic_id for key in keys):
            topic = self._image.topic_by_id(topic_id)
            if topic is None:
                continue
            held = {key.partition for key in keys if key.topic_id == topic_id}
            before = topic.assignment
            owners = tuple(core if index in held else owner for index, owner in enumerate(before.owners))
            if owners != before.owners:
                records.append(_assigned(topic_id, Assignment(owners, before.manual | held)))
        return records

    def begin_move(
        self, topic: str, index: int, brokers: Sequence[int], *, move_id: int, now_ms: int
    ) -> list[MetadataRecord]:
        """A partition of a node alone is to be on another of its cores: nothing where it is there, or on its way.
        Refusal: it cannot be.
        """
        found = self._movable(topic, index)
        key = TopicPartition(found.topic_id, PartitionIndex(index))
        (place,) = assigned_to(brokers, self._cores_of_nodes())
        target = place.core
        moving = self._image.moving.get(key)
        if moving is not None and moving.target != target:
            raise Refusal(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"The partition is on its way to broker {broker_id_of(self._node, moving.target)}.",
            )
        if moving is not None or found.assignment.owners[index] == target:
            return []
        return [MoveBegun(found.topic_id, key.partition, target, move_id, now_ms)]

    def _movable(self, topic: str, index: int) -> TopicImage:
        if self._image.nodes:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions of a cluster of nodes cannot be reassigned yet."
            )
        found = self._image.topic(topic)
        if found is None or not 0 <= index < found.partitions_count:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        return found

    def move_of(self, topic: str, index: int) -> MoveBegun:
        """The move of a partition that is under way. Refusal: there is none."""
        found = self._movable(topic, index)
        moving = self._image.moving.get(TopicPartition(found.topic_id, PartitionIndex(index)))
        if moving is None:
            raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
        return moving

    def end_move(self, move: MoveBegun, owner: CoreId) -> list[MetadataRecord]:
        """It is over; nothing where it is not under way any more."""
        if self._image.moving.get(TopicPartition(move.topic_id, move.partition)) != move:
            return []
        return [MoveDone(move.topic_id, move.partition, owner)]

    def reserve_producer_ids(self, core: CoreId) -> tuple[list[MetadataRecord], ProducerIdsReserved]:
        """The next block of producer ids for a core; to be used only once the record is durable."""
        block = ProducerIdsReserved(core, self._image.next_producer_id, PRODUCER_IDS_PER_BLOCK)
        return [block], block

    def register_node(self, node: NodeRegistered, counts: Sequence[int] = ()) -> list[MetadataRecord]:
        """A node has started, or joins; nothing when all of it is known. With another data directory what it had alone
        begins anew, empty. `counts`: of cores, that it was started with since it was registered last, where it has
        handed over what more cores had (`core_counts`).
        """
        known = self._image.nodes.get(node.node)
        if known == node:
            return []
        placed = list(with_fewer_cores(self._image, node.node, (*counts, node.cores)))
        is_other = known is not None and known.incarnation != node.incarnation
        anew = begun_anew(self._image.apply(placed, self._image.version), node) if is_other else ()
        return [node, *placed, *anew]

    def begin_cluster(
        self,
        cluster_id: str,
        brought: ClusterImage | None,
        node: NodeId,
        level: int = FIRST_OF_CLUSTERS,
        incarnation: int | None = None,
    ) -> list[MetadataRecord]:
        """The first records of a cluster of nodes; `brought`: what the node has had while it was alone. With its
        `incarnation` that are groups of one replica, which can get others.
        """
        if self._image.cluster_id:
            return []
        records: list[MetadataRecord] = [ClusterCreated(cluster_id), FeatureLevelChanged(level, 1)]
        for record in brought.snapshot() if brought is not None else ():
            if isinstance(record, TopicCreated):
                replicas = tuple((Replica(node, core),) for core in record.owners)
                alone = () if incarnation is None else ((FirstVoter(node, incarnation),),) * len(replicas)
                records.append(replace(record, replicas=replicas, voters=alone, first_leaders=()))
            elif isinstance(record, MoveBegun):
                records.append(replace(record, node=node))
            elif isinstance(record, ResourceConfigChanged) and level < FIRST_WITH_GROUPS:
                continue  # a founder could not read it
            elif isinstance(record, _OF_SECURITY) and level < FIRST_WITH_SECURITY:
                continue  # the same, and who brings some of them founds no such cluster (`tpc_broker.cluster.founding`)
            elif not isinstance(record, ClusterCreated | CoresChanged):
                records.append(record)
        return records

    def _placed(
        self,
        topic_id: TopicId,
        size: tuple[int, int],
        assigned: Mapping[PartitionIndex, tuple[Replica, ...]],
        placed: Placed,
    ) -> tuple[Assignment, tuple[tuple[Replica, ...], ...]]:
        """Where the partitions of a new topic go; `size`: how many, and with how many replicas. `placed`: what else
        this request has placed already.
        """
        image = self._image
        partitions_count, replication_factor = size
        if not image.nodes:
            cores = {partition: replicas[0].core for partition, replicas in assigned.items()}
            return assign_all(topic_id, partitions_count, image.cores_count, cores), ()
        new = topic_id, 0, partitions_count
        replicas = place_over_nodes(image, new, replication_factor, assigned, placed, self._absent)
        owners = tuple(each[0].core for each in replicas)
        return Assignment(owners, frozenset(assigned)), replicas

    def _created(
        self, topic: CreatableTopic, topic_id: TopicId, before: tuple[int, Placed], now_ms: int
    ) -> TopicCreated:
        """`before`: how many partitions this request has added already, and where."""
        added_count, placed = before
        self._check_name(topic.name)
        overrides = self._overrides(topic)
        settings = self._settings
        assigned = assigned_for_creation(
            topic.assignments, self._cores_of_nodes(),
            num_partitions=topic.num_partitions, replication_factor=topic.replication_factor,
        )  # fmt: skip
        if assigned is None:
            replication_factor = self._replication_factor(topic.replication_factor)
            if topic.num_partitions == 0 or topic.num_partitions < -1:
                raise Refusal(
                    ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
                )
            partitions_count = settings.num_partitions if topic.num_partitions == -1 else topic.num_partitions
        else:
            partitions_count = len(assigned)
            replication_factor = len(assigned[PartitionIndex(0)])
        requested = added_count + partitions_count
        if requested > PARTITIONS_PER_REQUEST_MAX:
            raise Refusal(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        self._check_partitions_max(requested)
        if self._image.nodes:
            check_min_insync_replicas(overrides, replication_factor)
        size = partitions_count, replication_factor
        assignment, replicas = self._placed(topic_id, size, assigned or {}, placed)
        manual, voters = tuple(sorted(assignment.manual)), first_voters(self._image, replicas)
        return TopicCreated(
            topic.name, topic_id, assignment.owners, now_ms, manual, overrides, replicas, voters,
            first_leaders=first_leaders(self._image, replicas),
        )  # fmt: skip

    def _cores_of_nodes(self) -> dict[NodeId, int]:
        """How many cores each node has that a partition may be assigned to by hand."""
        nodes = self._image.nodes
        return {node: nodes[node].cores for node in nodes} if nodes else {self._node: self._image.cores_count}

    def _creation_result(self, record: TopicCreated) -> CreatedTopic:
        is_internal = record.name in INTERNAL_TOPICS
        key = (is_internal, *record.configs.items())
        described = self._described.get(key)
        if described is None:
            described = tuple(describe_topic(record.configs, self._configuration, is_internal=is_internal))
            self._described[key] = described
        return CreatedTopic(
            name=record.name,
            topic_id=record.topic_id,
            num_partitions=len(record.owners),
            replication_factor=len(record.replicas[0]) if record.replicas else 1,
            configs=described,
        )

    def _check_name(self, name: str) -> None:
        if name == METADATA_TOPIC:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        fault = topic_name_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if name in self._image.ids:
            raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        other = self._folded_names.get(folded(name))
        if other is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def _overrides(self, topic: CreatableTopic) -> dict[str, str]:
        nulls = sorted(name for name, value in topic.configs if value is None)
        if nulls:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
        try:
            return validate_topic_configs(topic.name, dict(topic.configs))
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None

    # Rule: Cores are shown as brokers, but replicas count nodes. Held by tests/metadata/test_controller.py.
    def _replication_factor(self, replication_factor: int) -> int:
        """How many replicas a new topic has. One node holds one, however many cores it shows as brokers."""
        if replication_factor == 0 or replication_factor < -1:
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        nodes_count = max(1, len(self._image.nodes))
        possible = min(nodes_count, REPLICAS_MAX)
        if replication_factor == -1:
            return min(self._default_replication_factor(), possible)
        if replication_factor > possible and self._settings.replication_factor_excess == "refuse":
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): the target replication factor of "
                f"{replication_factor} cannot be reached because "
                + (
                    f"a partition has at most {REPLICAS_MAX} replicas."
                    if nodes_count >= replication_factor
                    else f"the cluster has {nodes_count} node(s); brokers of one node are its cores and share its disk."
                ),
            )
        return min(replication_factor, possible)

    def _default_replication_factor(self) -> int:
        if self._image.nodes and not self._configuration.is_given("default.replication.factor"):
            return INTERNAL_REPLICAS
        return self._settings.default_replication_factor

    def _check_partitions_max(self, added_count: int) -> None:
        total = self._partitions_count + added_count
        if total > self._settings.partitions_max:
            raise Refusal(
                ErrorCode.INVALID_PARTITIONS,
                f"The cluster would have {total} partitions; partitions.max allows {self._settings.partitions_max}.",
            )

    def _deletable(self, topic: DeletableTopic) -> TopicImage:
        if not self._settings.delete_topic_enable:
            raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, None)
        if topic.name is None and topic.topic_id == NO_TOPIC_ID:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if topic.name is not None and topic.topic_id != NO_TOPIC_ID:
            raise Refusal(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        if topic.name is None:
            found = self._image.topic_by_id(topic.topic_id)
            if found is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            return found
        found = self._image.topic(topic.name)
        if found is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return found

    def _named_both_ways(self, topics: Sequence[DeletableTopic]) -> set[TopicId]:
        """Topics that are named by their name in one place and by their id in another: neither is carried out."""
        by_id = {topic.topic_id for topic in topics if topic.name is None}
        named = [self._image.topic(topic.name) for topic in topics if topic.name is not None]
        return {found.topic_id for found in named if found is not None} & by_id

    def _grown(
        self, topic: GrowableTopic, before: tuple[int, Placed]
    ) -> tuple[TopicImage, Assignment, tuple[tuple[Replica, ...], ...]]:
        added_count, placed = before
        found = self._image.topic(topic.name)
        if found is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
        present = found.partitions_count
        if topic.count == present:
            raise Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if topic.count < present:
            raise Refusal(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {present} partition(s); {topic.count} would not be an increase.",
            )
        if added_count + topic.count - present > PARTITIONS_PER_REQUEST_MAX:
            raise Refusal(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        self._check_partitions_max(added_count + topic.count - present)
        replication_factor = len(found.replicas[0]) if found.replicas else 1
        added = range(present, topic.count)
        assigned = assigned_for_growth(topic.assignments, added, replication_factor, self._cores_of_nodes())
        if not self._image.nodes:
            cores = {partition: replicas[0].core for partition, replicas in assigned.items()}
            return found, extend(found.assignment, found.topic_id, topic.count, self._image.cores_count, cores), ()
        new = found.topic_id, present, topic.count
        wanted = min(replication_factor, len(self._image.nodes))
        replicas = (*found.replicas, *place_over_nodes(self._image, new, wanted, assigned, placed, self._absent))
        owners = tuple(each[0].core for each in replicas)
        return found, Assignment(owners, found.assignment.manual | frozenset(assigned)), replicas


def _assigned(
    topic_id: TopicId,
    assignment: Assignment,
    replicas: tuple[tuple[Replica, ...], ...] = (),
    voters: tuple[tuple[FirstVoter, ...], ...] = (),
) -> TopicAssigned:
    return TopicAssigned(topic_id, assignment.owners, tuple(sorted(assignment.manual)), replicas, voters)


def _repeated(items: Iterable[_Item]) -> list[_Item]:
    return [item for item, count in Counter(items).items() if count > 1]
