"""The cluster as its metadata log says: an immutable value that every core holds.

`ClusterImage.apply` gives the next image and leaves the old one as it was, so that a request works on one image from
start to end. Topics and settings are shared between images; a change costs a copy of the tables' top level, paid once
per batch of records.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tpc_broker.auth.acls import NO_RULES, Rules
from tpc_broker.auth.credentials import ScramMechanism
from tpc_broker.feature_levels import (
    FIRST_OF_CLUSTERS,
    FIRST_WITH_GROUPS,
    FIRST_WITH_SECURITY,
    FIRST_WITH_TRANSACTIONS,
    SPOKEN,
)
from tpc_broker.metadata.acl_records import AclsChanged, acl_records
from tpc_broker.metadata.records import (
    CLIENT_METRICS,
    GROUP,
    ONLY_NODE,
    BrokerConfigChanged,
    ClientQuotaChanged,
    ClusterCreated,
    CoresChanged,
    FeatureLevelChanged,
    MetadataDamagedError,
    MetadataRecord,
    MoveBegun,
    MoveDone,
    NodeRegistered,
    NodeRemoved,
    ProducerIdsReserved,
    ReplicasMoved,
    ReplicasMoving,
    ResourceConfigChanged,
    ScramCredentialChanged,
    TopicAssigned,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    credential_changed,
    from_json,
    to_json,
)
from tpc_broker.model import (
    INTERNAL_TOPICS,
    NO_NODE,
    NOT_HERE,
    BrokerId,
    CoreId,
    FirstVoter,
    MetadataVersion,
    NodeId,
    PartitionIndex,
    ProducerId,
    Replica,
    TopicId,
    TopicPartition,
    broker_id_of,
    node_of,
)
from tpc_broker.routing import Assignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tpc_broker.auth.credentials import ScramCredential

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_EMPTY_VERSION = MetadataVersion(0)
_FIRST_PRODUCER_ID = ProducerId(0)
_NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
_NO_QUOTAS: Mapping[str, float] = MappingProxyType({})
QuotaEntity = tuple[tuple[str, str | None], ...]
"""Types and names of whom quotas are, sorted by type; None: whoever has none of its own."""

NODE_DRAINING = "node.draining"
"""The setting, of a node's first broker."""
DELETIONS_REMEMBERED_MAX = 1_000
"""Deleted topics whose ids the image still names. A core that was down while more were deleted puts their files aside
instead of removing them.
"""
_FOUND_LATELY: deque[tuple[TopicImage | None, TopicImage, Sequence[int]]] = deque(maxlen=4)
REMOVALS_REMEMBERED_MAX = 1_000
"""Nodes that were removed last, whose data directories are refused."""


class Life(NamedTuple):
    """Of a replica on a node that had it before: the one before counts for nothing from a term on."""

    number: int
    term: int


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: identity, who owns its partitions, and its own settings (canonical texts)."""

    name: str
    topic_id: TopicId
    assignment: Assignment
    created_ms: int
    configs: Mapping[str, str] = field(default_factory=dict)
    replicas: tuple[tuple[Replica, ...], ...] = ()
    """Of each partition, in a cluster of nodes."""
    voters: tuple[tuple[FirstVoter, ...], ...] = ()
    """Of each partition the first ones of its group; none of those without one (`node_assignment.first_voters`)."""
    moves: Mapping[PartitionIndex, ReplicasMoving] = field(default_factory=dict)
    """Partitions whose replicas are on their way; until that is done `replicas` are those from before."""
    lives: Mapping[tuple[PartitionIndex, NodeId], Life] = field(default_factory=dict)
    """Of partitions, the nodes that had a replica and gave it up."""
    first_leaders: tuple[NodeId, ...] = ()
    """Of each partition who was named to lead the first term of its group, or `NO_NODE`; may end before the last."""

    def first_leader(self, index: int) -> NodeId:
        """Who was named to lead the first term of a partition, by the record that made it; or `NO_NODE`."""
        return self.first_leaders[index] if 0 <= index < len(self.first_leaders) else NO_NODE

    def places(self, index: int) -> tuple[Replica, ...]:
        """All that may have a replica of a partition now, in a cluster of nodes; the preferred leader first."""
        move = self.moves.get(PartitionIndex(index))
        return self.replicas[index] if move is None else move.places

    def wanted(self, index: int) -> tuple[Replica, ...]:
        """Where the replicas of a partition are to be."""
        move = self.moves.get(PartitionIndex(index))
        return self.replicas[index] if move is None else move.wanted

    def life_of(self, index: int, node: NodeId) -> int:
        """Which life a replica on that node has: it is another voter in each."""
        life = self.lives.get((PartitionIndex(index), node))
        return 0 if life is None else life.number

    def is_replicated(self, index: int) -> bool:
        """Whether a group of replicas decides who leads a partition."""
        return bool(self.voters) and 0 <= index < len(self.voters) and bool(self.voters[index])

    def leader_place(self, index: int, own: NodeId) -> Replica:
        """Where the preferred leader of a partition is; `own`: the only node, without a cluster."""
        return self.replicas[index][0] if self.replicas else Replica(own, self.assignment.owners[index])

    def owner_on(self, node: NodeId, index: int) -> CoreId | None:
        """The core of a node that owns a partition; NOT_HERE: one of another node; None: there is no such partition."""
        if not 0 <= index < self.partitions_count:
            return None
        place = self.leader_place(index, node)
        return place.core if place.node == node else NOT_HERE

    def is_on(self, place: Replica, index: int) -> bool:
        """Whether a core of a node has a partition, leading it or not."""
        if not 0 <= index < self.partitions_count:
            return False
        return place in self.places(index) if self.replicas else self.assignment.owners[index] == place.core

    def cores_on(self, node: NodeId) -> tuple[CoreId, ...]:
        """The core of a node that has each partition, leading it or not; NOT_HERE: none of them."""
        if not self.replicas:
            return self.assignment.owners
        found = [NOT_HERE] * len(self.replicas)
        for index, replicas in enumerate(self.replicas):
            for replica in replicas:
                if replica.node == node:
                    found[index] = replica.core
        for index in self.moves:
            found[index] = self.core_on(node, index)
        return tuple(found)

    def core_on(self, node: NodeId, index: int) -> CoreId:
        """Of one partition that there is."""
        if not self.replicas:
            return self.assignment.owners[index]
        return next((replica.core for replica in self.places(index) if replica.node == node), NOT_HERE)

    @property
    def partitions_count(self) -> int:
        """Partitions are numbered [0, partitions_count)."""
        return len(self.assignment.owners)

    @property
    def is_internal(self) -> bool:
        """Whether clients may only read it."""
        return self.name in INTERNAL_TOPICS

    def record(self) -> TopicCreated:
        """The record that makes this topic."""
        manual = tuple(sorted(self.assignment.manual))
        owners = self.assignment.owners
        lives = tuple((*key, *life) for key, life in self.lives.items())
        return TopicCreated(
            self.name, self.topic_id, owners, self.created_ms, manual, self.configs, self.replicas, self.voters, lives,
            self.first_leaders,
        )


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The state after the metadata log up to `version` (an offset, exclusive). The empty image has version 0."""

    version: MetadataVersion = _EMPTY_VERSION
    cluster_id: str = ""
    cores_count: int = 0
    topics: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    ids: Mapping[str, TopicId] = field(default_factory=dict)
    broker_configs: Mapping[BrokerId | None, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic settings by broker; those of all brokers under None."""
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What was set of groups, by their ids; of a group of which nothing is, there is nothing."""
    client_metrics_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The same of subscriptions to metrics of clients, by their names."""
    scram_users: Mapping[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=dict)
    """What is kept of the passwords of users, by name and mechanism."""
    acls: Rules = NO_RULES
    """Of access. Shared by all images between two changes of them."""
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    """Of clients, by Kafka's names; of an entity of which nothing is set, there is nothing."""
    next_producer_id: ProducerId = _FIRST_PRODUCER_ID
    producer_ids: Mapping[CoreId, ProducerIdsReserved] = field(default_factory=dict)
    """The latest block of each core, so that a core that starts again knows that it must not use it."""
    deleted: Mapping[TopicId, None] = field(default_factory=dict)
    """Topics that were deleted last, oldest first: only what is named here is ever removed from the disk."""
    nodes: Mapping[NodeId, NodeRegistered] = field(default_factory=dict)
    """Of the cluster; none without one."""
    removed: Mapping[int, NodeId] = field(default_factory=dict)
    """Nodes that were removed last, oldest first, by the incarnation of their data."""
    moving: Mapping[TopicPartition, MoveBegun] = field(default_factory=dict)
    """Partitions on their way to another core of their node; in a cluster a replica of theirs is, one of each at a
    time. Until that is done their owner is the old one.
    """
    feature_level: int = FIRST_OF_CLUSTERS
    """Of a cluster of nodes: what they may write (`feature_levels`)."""
    feature_epoch: int = 0

    def topic(self, name: str) -> TopicImage | None:
        """The topic of that name."""
        topic_id = self.ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        """The topic with that id."""
        return self.topics.get(topic_id)

    def is_deleted(self, topic_id: TopicId) -> bool:
        """Whether the log says that the topic was deleted. False of one that it never knew."""
        return topic_id in self.deleted

    def owner_of(self, partition: TopicPartition) -> CoreId | None:
        """The core that owns a partition; None when there is no such partition."""
        topic = self.topics.get(partition.topic_id)
        return None if topic is None else topic.assignment.owner_of(partition.partition)

    def partitions_of(self, core: CoreId) -> Iterator[TopicPartition]:
        """The partitions a core owns."""
        for topic_id, topic in self.topics.items():
            for index, owner in enumerate(topic.assignment.owners):
                if owner == core:
                    yield TopicPartition(topic_id, PartitionIndex(index))

    def partitions_count(self) -> int:
        """Partitions of all topics together."""
        return sum(topic.partitions_count for topic in self.topics.values())

    def configs_of_broker(self, broker: BrokerId | None) -> Mapping[str, str]:
        """Dynamic settings of one broker, or with None of all brokers."""
        return self.broker_configs.get(broker, _NO_CONFIGS)

    @property
    def level(self) -> int:
        """The feature level of what may be written: a broker alone is at the newest that it speaks."""
        return self.feature_level if self.nodes else SPOKEN.highest

    @property
    def knows_consumer_groups(self) -> bool:
        """Whether groups of KIP-848 may be served, and settings of groups be kept, by the level."""
        return self.level >= FIRST_WITH_GROUPS

    @property
    def knows_transactions(self) -> bool:
        """Whether there are transactions, by the level."""
        return self.level >= FIRST_WITH_TRANSACTIONS

    @property
    def knows_security(self) -> bool:
        """Whether users, rules of access and quotas may be kept, by the level."""
        return self.level >= FIRST_WITH_SECURITY

    def user_records(self) -> list[MetadataRecord]:
        """The users."""
        return [credential_changed(*key, credential) for key, credential in sorted(self.scram_users.items())]

    def resource_records(self) -> list[MetadataRecord]:
        """The settings of groups and of subscriptions to metrics."""
        tables = ((GROUP, self.group_configs), (CLIENT_METRICS, self.client_metrics_configs))
        return [ResourceConfigChanged(kind, *each) for kind, table in tables for each in sorted(table.items())]

    def quota_records(self) -> list[MetadataRecord]:
        """The quotas of clients."""
        entities = sorted(self.client_quotas.items(), key=lambda each: str(each[0]))
        return [ClientQuotaChanged(dict(entity), quotas) for entity, quotas in entities]

    @property
    def draining(self) -> frozenset[NodeId]:
        """Nodes that are to be left without leaderships and replicas."""
        return frozenset(
            node for node in self.nodes
            if self.configs_of_broker(broker_id_of(node, CoreId(0))).get(NODE_DRAINING) == "true"
        )  # fmt: skip

    def apply(self, records: Iterable[MetadataRecord], version: MetadataVersion) -> ClusterImage:
        """The image after these records; `version` is the log's end offset behind the last of them."""
        assert version >= self.version, (version, self.version)
        records = list(records)
        changes_users = any(isinstance(record, ScramCredentialChanged) for record in records)
        image = replace(
            self,
            version=version,
            topics=dict(self.topics),
            ids=dict(self.ids),
            broker_configs=dict(self.broker_configs),
            group_configs=dict(self.group_configs),
            client_metrics_configs=dict(self.client_metrics_configs),
            scram_users=dict(self.scram_users) if changes_users else self.scram_users,  # known by it: `authentication`
            client_quotas=dict(self.client_quotas),
            producer_ids=dict(self.producer_ids),
            deleted=dict(self.deleted),
            nodes=dict(self.nodes),
            removed=dict(self.removed),
            moving=dict(self.moving),
        )
        for record in records:
            image = _apply_one(image, record)
        assert image.topics.keys() == set(image.ids.values())
        return image

    def snapshot(self) -> list[MetadataRecord]:
        """Records that rebuild this image from nothing, and that change nothing when applied to it."""
        records: list[MetadataRecord] = [ClusterCreated(self.cluster_id)] if self.cluster_id else []
        if self.feature_epoch:
            records.append(FeatureLevelChanged(self.feature_level, self.feature_epoch))
        if self.cores_count:
            records.append(CoresChanged(self.cores_count))
        records.extend(NodeRemoved(node, incarnation) for incarnation, node in self.removed.items())
        records.extend(self.nodes[node] for node in sorted(self.nodes))
        records.extend(TopicDeleted(topic_id) for topic_id in self.deleted)
        for _name, topic_id in sorted(self.ids.items()):
            records.append(self.topics[topic_id].record())
            records.extend(self.topics[topic_id].moves.values())
        records.extend(self.moving.values())
        for broker, configs in self.broker_configs.items():
            records.extend(BrokerConfigChanged(broker, name, value) for name, value in configs.items())
        records.extend(self.resource_records())
        records.extend(self.user_records())
        records.extend(acl_records(self.acls))
        records.extend(self.quota_records())
        # The latest block of all is among them, and so `next_producer_id`.
        return [*records, *sorted(self.producer_ids.values(), key=lambda block: block.first)]

    def to_bytes(self) -> bytes:
        """The whole image, to be pushed to another core."""
        document = {"version": self.version, "records": [to_json(record) for record in self.snapshot()]}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> ClusterImage:
        """The image of `to_bytes`; MetadataDamagedError when it is none."""
        try:
            document = json.loads(data)
            version, members = document["version"], document["records"]
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataDamagedError(f"not a cluster image: {error!r}") from error
        return ClusterImage().apply([from_json(record) for record in members], MetadataVersion(version))


def changed_topics(before: ClusterImage, after: ClusterImage) -> Iterator[tuple[TopicImage | None, TopicImage | None]]:
    """Topics that differ, as (before, after) pairs: (None, topic) is new, (topic, None) is deleted."""
    for topic_id, topic in before.topics.items():
        if topic_id not in after.topics:
            yield topic, None
    for topic_id, topic in after.topics.items():
        old = before.topics.get(topic_id)
        if old is not topic and old != topic:
            yield old, topic


def changed_indexes(old: TopicImage | None, new: TopicImage) -> Sequence[int]:
    """Partitions of a topic that differ in anything; all of them where it is new, or has other settings. Several ask
    for each change of the metadata, so what was found last is kept.
    """
    for before, after, known in _FOUND_LATELY:
        if before is old and after is new:
            return known
    found = _find_changed(old, new)
    _FOUND_LATELY.append((old, new, found))
    return found


def _find_changed(old: TopicImage | None, new: TopicImage) -> Sequence[int]:
    count = new.partitions_count
    if old is None or old.partitions_count != count or (old.name, old.configs) != (new.name, new.configs):
        return range(count)
    found: set[int] = set()
    if old.moves != new.moves:
        found.update(index for index, _move in old.moves.items() ^ new.moves.items())
    if old.lives != new.lives:
        found.update(index for (index, _node), _life in old.lives.items() ^ new.lives.items())
    for before, after in (
        (old.replicas, new.replicas), (old.voters, new.voters), (old.assignment.owners, new.assignment.owners)
    ):  # fmt: skip
        if len(before) != len(after):
            return range(count)
        if before is not after:
            pairs = enumerate(zip(before, after, strict=True))
            found.update(index for index, (was, now) in pairs if was is not now and was != now)
    return tuple(sorted(found))


def changed_partitions(before: ClusterImage, after: ClusterImage) -> Iterator[TopicPartition]:
    """Of topics that are there after it."""
    for old, new in changed_topics(before, after):
        if new is not None:
            yield from (TopicPartition(new.topic_id, PartitionIndex(index)) for index in changed_indexes(old, new))


def _apply_one(image: ClusterImage, record: MetadataRecord) -> ClusterImage:
    """Applies to the tables of `image`, which `apply` has just copied; scalars need a new image."""
    match record:
        case ClusterCreated():
            return replace(image, cluster_id=record.cluster_id)
        case CoresChanged():
            return replace(image, cores_count=record.cores_count)
        case ProducerIdsReserved():
            _mutable(image.producer_ids)[record.core] = record
            behind = ProducerId(record.first + record.count)
            return replace(image, next_producer_id=max(image.next_producer_id, behind))
        case FeatureLevelChanged():
            return replace(image, feature_level=record.level, feature_epoch=record.epoch)
        case NodeRegistered():
            _mutable(image.nodes)[record.node] = record
        case NodeRemoved():
            _remove_node(image, record)
        case BrokerConfigChanged():
            configs = _changed(image.configs_of_broker(record.broker), record.name, record.value)
            _mutable(image.broker_configs)[record.broker] = configs
        case ResourceConfigChanged():
            _change_resource(image, record)
        case ScramCredentialChanged() | AclsChanged() | ClientQuotaChanged():
            return _with_security_changed(image, record)
        case _:
            _apply_to_topic(image, record)
    return image


def _with_security_changed(
    image: ClusterImage, record: ScramCredentialChanged | AclsChanged | ClientQuotaChanged
) -> ClusterImage:
    if isinstance(record, AclsChanged):
        return replace(image, acls=image.acls.changed(record.added, record.removed))
    if isinstance(record, ScramCredentialChanged):
        _change_user(image, record)
    else:
        _change_quotas(image, record)
    return image


def _change_resource(image: ClusterImage, record: ResourceConfigChanged) -> None:
    table = _mutable(image.group_configs if record.kind == GROUP else image.client_metrics_configs)
    configs = {**table.get(record.name, _NO_CONFIGS), **record.changes}
    kept = {name: value for name, value in configs.items() if value is not None}
    if kept:
        table[record.name] = kept
    else:
        table.pop(record.name, None)


def _change_user(image: ClusterImage, record: ScramCredentialChanged) -> None:
    key, credential = (record.user, ScramMechanism(record.mechanism)), record.credential
    if credential is None:
        _mutable(image.scram_users).pop(key, None)
    else:
        _mutable(image.scram_users)[key] = credential


def _change_quotas(image: ClusterImage, record: ClientQuotaChanged) -> None:
    table, entity = _mutable(image.client_quotas), tuple(sorted(record.entity.items()))
    quotas = {**table.get(entity, _NO_QUOTAS), **record.changes}
    kept = {key: value for key, value in quotas.items() if value is not None}
    if kept:
        table[entity] = kept
    else:
        table.pop(entity, None)


def _remove_node(image: ClusterImage, record: NodeRemoved) -> None:
    known = image.nodes.get(record.node)
    if known is not None and known.incarnation == record.incarnation:
        del _mutable(image.nodes)[record.node]
        for broker in [each for each in image.broker_configs if each is not None and node_of(each) == record.node]:
            del _mutable(image.broker_configs)[broker]
        for key in [key for key, move in image.moving.items() if move.node == record.node]:
            del _mutable(image.moving)[key]
    removed = _mutable(image.removed)
    removed.setdefault(record.incarnation, record.node)
    while len(removed) > REMOVALS_REMEMBERED_MAX:
        del removed[next(iter(removed))]


def _apply_to_topic(
    image: ClusterImage,
    record: TopicCreated
    | TopicAssigned
    | TopicDeleted
    | TopicConfigChanged
    | MoveBegun
    | MoveDone
    | ReplicasMoving
    | ReplicasMoved,
) -> None:
    topics, ids = _mutable(image.topics), _mutable(image.ids)
    if isinstance(record, TopicCreated):
        assignment = Assignment(record.owners, frozenset(record.manual))
        ids[record.name] = record.topic_id
        _mutable(image.deleted).pop(record.topic_id, None)
        lives = {(PartitionIndex(index), NodeId(node)): Life(*life) for index, node, *life in record.lives}
        topics[record.topic_id] = TopicImage(
            record.name, record.topic_id, assignment, record.created_ms, dict(record.configs), record.replicas,
            record.voters, lives=lives, first_leaders=record.first_leaders,
        )  # fmt: skip
        return
    topic = topics.get(record.topic_id)
    if isinstance(record, TopicDeleted):
        _forget(image, record.topic_id)
    if topic is None:
        return
    if isinstance(record, ReplicasMoving | ReplicasMoved):
        topics[record.topic_id] = _with_replicas_moved(topic, record)
        return
    match record:
        case TopicDeleted():
            del topics[record.topic_id]
            del ids[topic.name]
        case MoveBegun():
            _mutable(image.moving)[TopicPartition(record.topic_id, record.partition)] = record
        case MoveDone():
            _mutable(image.moving).pop(TopicPartition(record.topic_id, record.partition), None)
            topics[record.topic_id] = _with_core_changed(topic, record)
        case TopicAssigned():
            assignment = Assignment(record.owners, frozenset(record.manual))
            topics[record.topic_id] = replace(
                topic, assignment=assignment, replicas=record.replicas, voters=record.voters,
                first_leaders=_with_added(topic, record.first_leaders),
            )  # fmt: skip
        case TopicConfigChanged():
            topics[record.topic_id] = replace(topic, configs=_changed(topic.configs, record.name, record.value))


def _with_added(topic: TopicImage, added: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Who leads first, of the partitions that were there and of those that were added."""
    if not added:
        return topic.first_leaders
    return (*(topic.first_leader(index) for index in range(topic.partitions_count)), *added)


def _forget(image: ClusterImage, topic_id: TopicId) -> None:
    """A topic is deleted."""
    deleted, moving = _mutable(image.deleted), _mutable(image.moving)
    deleted[topic_id] = None
    while len(deleted) > DELETIONS_REMEMBERED_MAX:
        del deleted[next(iter(deleted))]
    for key in [key for key in moving if key.topic_id == topic_id]:
        del moving[key]


def _with_replicas_moved(topic: TopicImage, record: ReplicasMoving | ReplicasMoved) -> TopicImage:
    if isinstance(record, ReplicasMoving):
        return replace(topic, moves={**topic.moves, record.partition: record})
    index, replicas, owners = record.partition, list(topic.replicas), list(topic.assignment.owners)
    replicas[index], owners[index] = record.places, record.places[0].core
    lives = {(index, NodeId(node)): Life(*life) for node, *life in record.lives}
    return replace(
        topic,
        assignment=Assignment(tuple(owners), _by_hand(topic, index)),
        replicas=tuple(replicas),
        moves={key: move for key, move in topic.moves.items() if key != index},
        lives={**topic.lives, **lives},
    )


def _by_hand(topic: TopicImage, index: PartitionIndex) -> frozenset[PartitionIndex]:
    """Partitions of a topic that are where somebody wants them, when a move of one is done."""
    move = topic.moves.get(index)
    if move is None:
        return topic.assignment.manual
    return topic.assignment.manual | {index} if move.is_by_hand else topic.assignment.manual - {index}


def _with_core_changed(topic: TopicImage, record: MoveDone) -> TopicImage:
    """Of a cluster's partition the replica on one node; placed by hand is on which nodes they are, so that stays."""
    if record.node == ONLY_NODE:
        return replace(topic, assignment=_moved(topic.assignment, record))
    index, replicas, owners = record.partition, list(topic.replicas), list(topic.assignment.owners)
    place = Replica(record.node, record.owner)
    replicas[index] = tuple(place if each.node == place.node else each for each in replicas[index])
    owners[index] = replicas[index][0].core
    return replace(topic, assignment=Assignment(tuple(owners), topic.assignment.manual), replicas=tuple(replicas))


def _moved(before: Assignment, record: MoveDone) -> Assignment:
    if before.owners[record.partition] == record.owner:
        return before
    owners = list(before.owners)
    owners[record.partition] = record.owner
    return Assignment(tuple(owners), before.manual | {record.partition})


def _changed(configs: Mapping[str, str], name: str, value: str | None) -> dict[str, str]:
    changed = {key: text for key, text in configs.items() if key != name}
    if value is not None:
        changed[name] = value
    return changed


def _mutable(table: Mapping[_Key, _Value]) -> dict[_Key, _Value]:
    assert isinstance(table, dict)
    return table
