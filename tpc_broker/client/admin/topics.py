"""Topics: made, deleted, described, grown and cut. Requests and answers as plain values first, who asks them last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.client import requests
from tpc_broker.client.admin.asking import Asker, raise_worst
from tpc_broker.client.errors import ClientError, RefusedError, UnreachableError, refusal_of
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import TopicPartition, in_any_version
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Mapping, Sequence

TIMEOUT_MS: Final = 30_000
"""How long the controller may take with one request."""
TO_THE_END: Final = -1
"""Of `delete_records`: all that is committed."""
_BY_STATE_VERSION: Final = 6
"""Of DeleteTopics: from it on, topics are rows that have a name or an id."""
_DEFAULT_ASKED: Final = -1
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """``partitions`` and ``replication`` None: the cluster's default. ``assignments``: instead of both, for each
    partition the ids of the brokers that are to have it, the preferred leader first.
    """

    name: str
    partitions: int | None = None
    replication: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """As the broker says. None, and a `topic_id` of zeros: it does not say."""

    name: str
    topic_id: bytes
    partitions: int | None
    replication: int | None
    configs: Mapping[str, str | None]


class ListedTopic(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: int


class PartitionFacts(NamedTuple):
    """Ids of brokers. ``leader`` -1: none now. ``offline``: replicas whose broker or disk is away."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


class DescribedTopic(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionFacts, ...]


# -- What is asked, and what the answers mean --------------------------------------------------------------------------


def to_create(topics: Sequence[NewTopic], *, validate_only: bool) -> Exchange[list[CreatedTopic | RefusedError]]:
    """In the order asked."""
    kind = messages.CreateTopicsRequest
    message = kind(topics=[_new(topic) for topic in topics], timeout_ms=TIMEOUT_MS, validate_only=validate_only)

    def read(answer: messages.CreateTopicsResponse) -> list[CreatedTopic | RefusedError]:
        found = {row.name: row for row in answer.topics}
        return [_created(found[topic.name]) for topic in topics]

    return Exchange(ApiKey.CREATE_TOPICS, in_any_version(message), read)


def _new(topic: NewTopic) -> messages.CreateTopicsRequest.CreatableTopic:
    kind = messages.CreateTopicsRequest
    if topic.assignments is not None and (topic.partitions is not None or topic.replication is not None):
        raise ValueError(f"topic {topic.name}: either assignments, or partitions and replication")
    if topic.partitions is not None and topic.partitions < 1:
        raise ValueError(f"topic {topic.name}: {topic.partitions} partitions; allowed are 1 and more, or None")
    if topic.replication is not None and topic.replication < 1:
        raise ValueError(f"topic {topic.name}: {topic.replication} replicas; allowed are 1 and more, or None")
    return kind.CreatableTopic(
        name=topic.name,
        num_partitions=_DEFAULT_ASKED if topic.partitions is None else topic.partitions,
        replication_factor=_DEFAULT_ASKED if topic.replication is None else topic.replication,
        assignments=[
            kind.CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in enumerate(topic.assignments or ())
        ],
        configs=[kind.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _created(row: messages.CreateTopicsResponse.CreatableTopicResult) -> CreatedTopic | RefusedError:
    if row.error_code:
        return refusal_of(row, f"making the topic {row.name}")
    configs = {one.name: one.value for one in row.configs or ()}
    partitions, replication = row.num_partitions, row.replication_factor
    return CreatedTopic(
        row.name, bytes(row.topic_id), partitions if partitions > 0 else None, replication if replication > 0 else None,
        configs,
    )  # fmt: skip


def to_delete(names: Sequence[str]) -> Exchange[dict[str, RefusedError]]:
    """Those that were refused."""
    kind = messages.DeleteTopicsRequest

    def make(version: int) -> Any:
        if version >= _BY_STATE_VERSION:
            return kind(topics=[kind.DeleteTopicState(name=name) for name in names], timeout_ms=TIMEOUT_MS)
        return kind(topic_names=names, timeout_ms=TIMEOUT_MS)

    def read(answer: messages.DeleteTopicsResponse) -> dict[str, RefusedError]:
        return {
            row.name or "": refusal_of(row, f"deleting the topic {row.name}")
            for row in answer.responses
            if row.error_code
        }

    return Exchange(ApiKey.DELETE_TOPICS, make, read)


def to_describe(names: Sequence[str] | None) -> Exchange[dict[str, DescribedTopic | RefusedError]]:
    """None: all topics."""

    def read(answer: messages.MetadataResponse) -> dict[str, DescribedTopic | RefusedError]:
        return {row.name or "": _described(row) for row in answer.topics}

    return Exchange(ApiKey.METADATA, in_any_version(requests.metadata_request(names)), read)


def _described(row: messages.MetadataResponse.MetadataResponseTopic) -> DescribedTopic | RefusedError:
    if row.error_code:
        return RefusedError(row.error_code, f"topic {row.name}")
    partitions = (
        PartitionFacts(
            one.partition_index, one.leader_id, one.leader_epoch, tuple(one.replica_nodes), tuple(one.isr_nodes),
            tuple(one.offline_replicas),
        )
        for one in row.partitions
    )  # fmt: skip
    return DescribedTopic(row.name or "", bytes(row.topic_id), row.is_internal, tuple(sorted(partitions)))


def to_add_partitions(
    name: str, total: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool
) -> Exchange[None]:
    kind = messages.CreatePartitionsRequest
    new = None
    if assignments is not None:
        new = [kind.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments]
    topic = kind.CreatePartitionsTopic(name=name, count=total, assignments=new)
    message = kind(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)

    def read(answer: messages.CreatePartitionsResponse) -> None:
        for row in answer.results:
            if row.error_code:
                raise refusal_of(row, f"{total} partitions for the topic {row.name}")

    return Exchange(ApiKey.CREATE_PARTITIONS, in_any_version(message), read)


def to_delete_records(before: Mapping[TopicPartition, int]) -> Exchange[dict[TopicPartition, int | RefusedError]]:
    """Of partitions' leader; where each begins then."""
    kind = messages.DeleteRecordsRequest
    topics: dict[str, messages.DeleteRecordsRequest.DeleteRecordsTopic] = {}
    for (name, partition), offset in before.items():
        row = topics.setdefault(name, kind.DeleteRecordsTopic(name=name))
        row.partitions.append(kind.DeleteRecordsPartition(partition_index=partition, offset=offset))
    message = kind(topics=list(topics.values()), timeout_ms=TIMEOUT_MS)

    def read(answer: messages.DeleteRecordsResponse) -> dict[TopicPartition, int | RefusedError]:
        found: dict[TopicPartition, int | RefusedError] = {}
        for topic in answer.topics:
            for one in topic.partitions:
                where = TopicPartition(topic.name, one.partition_index)
                what = f"deleting records of {where} before offset {before[where]}"
                found[where] = RefusedError(one.error_code, what) if one.error_code else one.low_watermark
        return found

    return Exchange(ApiKey.DELETE_RECORDS, in_any_version(message), read)


def to_list_offsets(
    wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> Exchange[dict[TopicPartition, int | RefusedError]]:
    """Of partitions' leader. ``wanted``: a time in ms, `EARLIEST` or `LATEST` for each. -1: no record is so late."""

    def read(answer: messages.ListOffsetsResponse) -> dict[TopicPartition, int | RefusedError]:
        return {
            where: RefusedError(told.error_code, f"offsets of {where}") if told.error_code else told.offset
            for where, told in requests.offsets_answer(answer).items()
        }

    return Exchange(ApiKey.LIST_OFFSETS, in_any_version(requests.offsets_request(wanted, isolation)), read)


# -- Who asks ----------------------------------------------------------------------------------------------------------


class Topics:
    """`client.admin.topics`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def list(self, *, with_internal: bool = False) -> builtins.list[ListedTopic]:
        """All that this client may see, by name."""
        told = await self._asker.any_broker(to_describe(None))
        found = [one for one in told.values() if not isinstance(one, RefusedError)]
        return sorted(
            ListedTopic(one.name, one.topic_id, one.is_internal, len(one.partitions))
            for one in found
            if with_internal or not one.is_internal
        )

    async def describe(self, *names: str) -> builtins.list[DescribedTopic]:
        """In the order asked. `UnknownTopicError` names what there is not."""
        exchange = to_describe(names)

        async def ask() -> dict[str, DescribedTopic | RefusedError]:
            told = await exchange.through(await self._asker.fleet.any_channel())
            raise_worst(one for one in told.values() if isinstance(one, RefusedError))
            return told

        told = await self._asker.answered(ask) if names else {}
        return [one for one in map(told.get, names) if isinstance(one, DescribedTopic)]

    async def create(  # noqa: PLR0913 - what Kafka has for one topic
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        configs: Mapping[str, str] | None = None,
        assignments: Sequence[Sequence[int]] | None = None,
        exist_ok: bool = False,
        validate_only: bool = False,
    ) -> CreatedTopic | None:
        """Make a topic; what is None is the cluster's default. ``assignments``: see `NewTopic`. ``exist_ok``: None when
        there is one already, however it is made. ``validate_only``: make nothing, only hear whether it would be made.

        `RefusedError` with the broker's reason, TOPIC_ALREADY_EXISTS among them.
        """
        new = NewTopic(name, partitions, replication, configs or {}, assignments)
        made = await self.create_all([new], exist_ok=exist_ok, validate_only=validate_only)
        return made[0] if made else None

    async def create_all(
        self, topics: Iterable[NewTopic], *, exist_ok: bool = False, validate_only: bool = False
    ) -> builtins.list[CreatedTopic]:
        """Several with one request: those that were made. Each is made or not by itself: the error that is raised is
        the first refused topic's, with the others' as notes.
        """
        left = list(topics)
        made: list[CreatedTopic] = []
        is_unanswered = False

        async def ask() -> None:
            nonlocal is_unanswered
            try:
                exchange = to_create(left, validate_only=validate_only)
                told = await exchange.through(await self._asker.controller_channel())
            except UnreachableError:
                is_unanswered = True
                raise
            refused: list[ClientError] = []
            for topic, one in zip(tuple(left), told, strict=True):
                if isinstance(one, CreatedTopic):
                    made.append(one)
                elif not (exist_ok and one.code == ErrorCode.TOPIC_ALREADY_EXISTS):
                    if is_unanswered and one.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                        one.add_note("a request before it was not answered, and may have made it")
                    refused.append(one)
                    continue
                left.remove(topic)
            raise_worst(refused)

        if left:
            await self._asker.changing(ask)
        return made

    async def delete(self, *names: str, missing_ok: bool = False) -> None:
        """`UnknownTopicError` names what there is not, unless ``missing_ok``. The others are deleted nevertheless."""
        left = dict.fromkeys(names)
        is_unanswered = False

        async def ask() -> None:
            nonlocal is_unanswered
            try:
                refused = await to_delete(tuple(left)).through(await self._asker.controller_channel())
            except UnreachableError:
                is_unanswered = True
                raise
            for name in tuple(left):
                error = refused.get(name)
                if error is None or (error.code in _GONE and (missing_ok or is_unanswered)):
                    refused.pop(name, None)
                    del left[name]
            raise_worst(refused.values())

        if left:
            await self._asker.changing(ask)

    async def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Let the topic have ``total`` partitions; it cannot have fewer than it has. ``assignments``: for each new one
        the ids of the brokers that are to have it. Keys go to other partitions from then on.
        """
        exchange = to_add_partitions(name, total, assignments, validate_only=validate_only)

        async def ask() -> None:
            await exchange.through(await self._asker.controller_channel())

        await self._asker.changing(ask)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete what is before these offsets (`TO_THE_END`: all that is committed). Where each begins then."""
        return await self._asker.leaders(
            before, lambda places: to_delete_records({where: before[where] for where in places})
        )

    async def offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: Isolation = Isolation.READ_COMMITTED
    ) -> dict[TopicPartition, int]:
        """The first offset at or after a time in ms since 1970, or at `requests.EARLIEST` or `LATEST`; -1: no record is
        so late. `LATEST` is the end of what readers of that isolation see.
        """
        return await self._asker.leaders(
            wanted, lambda places: to_list_offsets({where: wanted[where] for where in places}, isolation)
        )

    async def partitions(self, *names: str) -> builtins.list[TopicPartition]:
        """All of these topics."""
        described = await self.describe(*names)
        return [TopicPartition(topic.name, one.partition) for topic in described for one in topic.partitions]
