"""The cluster: its brokers and features, who leads what, and which replicas move."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.client.admin.asking import raise_worst
from tpc_broker.client.admin.topics import TIMEOUT_MS
from tpc_broker.client.conversation import CLIENT_SOFTWARE
from tpc_broker.client.errors import RefusedError, UnsupportedError, refusal_of
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.requests import TopicPartition, in_any_version
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpc_broker.client.admin.asking import Asker

_FENCED_VERSION: Final = 2
"""Of DescribeCluster: from it on, brokers that are away can be asked for."""
_DOWNGRADES_VERSION: Final = 1
"""Of UpdateFeatures: from it on, downgrades are of two kinds, and a change can be tried."""
_UPGRADE: Final = 1
_SAID_ANEW: Final = frozenset({ErrorCode.ELECTION_NOT_NEEDED})


class BrokerFacts(NamedTuple):
    """``is_fenced``: it is registered, and away."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class ClusterDescription(NamedTuple):
    """``controller`` -1: nobody just now. Of brokers without ZooKeeper any one that takes what is for it."""

    cluster_id: str
    controller: int
    brokers: tuple[BrokerFacts, ...]


class Feature(NamedTuple):
    """``level``: the one that the cluster has; 0: none. The others are what the broker that was asked supports."""

    name: str
    level: int
    level_min: int
    level_max: int


class Election(IntEnum):
    """``UNCLEAN``: also a replica that lacks records, where no other is left."""

    PREFERRED = 0
    UNCLEAN = 1


class Downgrade(IntEnum):
    """``SAFE``: a feature's level may be lowered where nothing is lost by it. ``UNSAFE``: also where something is."""

    SAFE = 2
    UNSAFE = 3


class Reassignment(NamedTuple):
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


# -- What is asked, and what the answers mean --------------------------------------------------------------------------


def to_describe(*, with_fenced: bool) -> Exchange[ClusterDescription]:
    kind = messages.DescribeClusterRequest

    def make(version: int) -> messages.DescribeClusterRequest:
        return kind(include_fenced_brokers=True) if with_fenced and version >= _FENCED_VERSION else kind()

    def read(answer: messages.DescribeClusterResponse) -> ClusterDescription:
        if answer.error_code:
            raise refusal_of(answer, "the cluster")
        brokers = (BrokerFacts(one.broker_id, one.host, one.port, one.rack, one.is_fenced) for one in answer.brokers)
        return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(sorted(brokers)))

    return Exchange(ApiKey.DESCRIBE_CLUSTER, make, read)


def to_tell_features() -> Exchange[list[Feature]]:
    name, version = CLIENT_SOFTWARE
    message = messages.ApiVersionsRequest(client_software_name=name, client_software_version=version)

    def read(answer: messages.ApiVersionsResponse) -> list[Feature]:
        if answer.error_code:
            raise RefusedError(answer.error_code, "the cluster's features")
        levels = {one.name: one.max_version_level for one in answer.finalized_features}
        known = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
        return [Feature(each, levels.get(each, 0), *known.get(each, (0, 0))) for each in sorted({*levels, *known})]

    return Exchange(ApiKey.API_VERSIONS, in_any_version(message), read)


def to_update_features(
    levels: Mapping[str, int], downgrade: Downgrade | None, *, validate_only: bool
) -> Exchange[None]:
    kind = messages.UpdateFeaturesRequest

    def make(version: int) -> messages.UpdateFeaturesRequest:
        if version < _DOWNGRADES_VERSION:
            if validate_only or downgrade is Downgrade.UNSAFE:
                raise UnsupportedError("the broker is too old for validate_only and unsafe downgrades (Kafka 3.3)")
            rows = [
                kind.FeatureUpdateKey(feature=name, max_version_level=level, allow_downgrade=downgrade is not None)
                for name, level in levels.items()
            ]
            return kind(timeout_ms=TIMEOUT_MS, feature_updates=rows)
        change = _UPGRADE if downgrade is None else int(downgrade)
        rows = [
            kind.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=change)
            for name, level in levels.items()
        ]
        return kind(timeout_ms=TIMEOUT_MS, feature_updates=rows, validate_only=validate_only)

    def read(answer: messages.UpdateFeaturesResponse) -> None:
        if answer.error_code:
            raise refusal_of(answer, "the update of features")
        raise_worst(refusal_of(row, f"feature {row.feature}") for row in answer.results if row.error_code)

    return Exchange(ApiKey.UPDATE_FEATURES, make, read)


def to_elect(places: Sequence[TopicPartition] | None, election: Election) -> Exchange[dict[TopicPartition, bool]]:
    """Which partitions have another leader by it."""
    kind = messages.ElectLeadersRequest
    topics: dict[str, list[int]] = {}
    for topic, partition in places or ():
        topics.setdefault(topic, []).append(partition)
    rows = [kind.TopicPartitions(topic=topic, partitions=asked) for topic, asked in topics.items()]
    message = kind(
        election_type=int(election), topic_partitions=None if places is None else rows, timeout_ms=TIMEOUT_MS
    )

    def read(answer: messages.ElectLeadersResponse) -> dict[TopicPartition, bool]:
        if answer.error_code:
            raise RefusedError(answer.error_code, "the election of leaders")
        found: dict[TopicPartition, bool] = {}
        errors = []
        for topic in answer.replica_election_results:
            for row in topic.partition_result:
                where = TopicPartition(topic.topic, row.partition_id)
                if row.error_code and row.error_code not in _SAID_ANEW:
                    errors.append(refusal_of(row, f"the election of a leader of {where}"))
                found[where] = not row.error_code
        raise_worst(errors)
        return found

    return Exchange(ApiKey.ELECT_LEADERS, in_any_version(message), read)


def to_reassign(replicas: Mapping[TopicPartition, Sequence[int] | None]) -> Exchange[None]:
    kind = messages.AlterPartitionReassignmentsRequest
    topics: dict[str, messages.AlterPartitionReassignmentsRequest.ReassignableTopic] = {}
    for (topic, partition), wanted in replicas.items():
        row = topics.setdefault(topic, kind.ReassignableTopic(name=topic))
        brokers = None if wanted is None else list(wanted)
        row.partitions.append(kind.ReassignablePartition(partition_index=partition, replicas=brokers))
    message = kind(topics=list(topics.values()), timeout_ms=TIMEOUT_MS)

    def read(answer: messages.AlterPartitionReassignmentsResponse) -> None:
        if answer.error_code:
            raise refusal_of(answer, "the reassignment")
        raise_worst(
            refusal_of(row, f"the replicas of {topic.name}-{row.partition_index}")
            for topic in answer.responses
            for row in topic.partitions
            if row.error_code
        )

    return Exchange(ApiKey.ALTER_PARTITION_REASSIGNMENTS, in_any_version(message), read)


def to_list_reassignments(places: Sequence[TopicPartition] | None) -> Exchange[dict[TopicPartition, Reassignment]]:
    kind = messages.ListPartitionReassignmentsRequest
    topics: dict[str, list[int]] = {}
    for topic, partition in places or ():
        topics.setdefault(topic, []).append(partition)
    rows = [
        kind.ListPartitionReassignmentsTopics(name=topic, partition_indexes=asked) for topic, asked in topics.items()
    ]
    message = kind(topics=None if places is None else rows, timeout_ms=TIMEOUT_MS)

    def read(answer: messages.ListPartitionReassignmentsResponse) -> dict[TopicPartition, Reassignment]:
        if answer.error_code:
            raise refusal_of(answer, "the list of reassignments")
        return {
            TopicPartition(topic.name, row.partition_index): Reassignment(
                tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
            )
            for topic in answer.topics
            for row in topic.partitions
        }

    return Exchange(ApiKey.LIST_PARTITION_REASSIGNMENTS, in_any_version(message), read)


# -- Who asks ----------------------------------------------------------------------------------------------------------


class ClusterAdmin:
    """`client.admin.cluster`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def describe(self, *, with_fenced: bool = False) -> ClusterDescription:
        """``with_fenced``: also brokers that are registered and away, where the broker tells them (Kafka 4.0)."""
        return await self._asker.any_broker(to_describe(with_fenced=with_fenced))

    async def features(self) -> list[Feature]:
        """By name."""
        return await self._asker.any_broker(to_tell_features())

    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: Downgrade | None = None, validate_only: bool = False
    ) -> None:
        """Bring features to these levels, all of them or none; 0 takes a feature away. A lower level than there is
        needs ``downgrade``. ``validate_only``: say only whether it could be done.
        """
        await self._asker.controller(to_update_features(levels, downgrade, validate_only=validate_only))

    async def elect_leaders(
        self, places: Iterable[TopicPartition] | None = None, *, election: Election = Election.PREFERRED
    ) -> dict[TopicPartition, bool]:
        """Let the preferred replicas lead, of these partitions or of all. Which of them have another leader by it;
        the others had the right one.
        """
        return await self._asker.controller(to_elect(None if places is None else list(places), election))

    async def reassign(self, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Begin to move replicas to these brokers, the preferred leader first. None: stop moving them, and go back."""
        await self._asker.controller(to_reassign(replicas))

    async def reassignments(
        self, places: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Those that are under way."""
        asked = None if places is None else list(places)
        return await self._asker.controller(to_list_reassignments(asked))
