"""Transactions as their coordinators and the leaders of partitions tell them, and how they are ended from outside.

A transaction hangs in a partition when it is open there and its coordinator does not have it open there: nothing will
end it, and whoever reads committed records gets no further.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.client.coordinators import (
    CoordinatorKind,
    connection_to_coordinator,
    connections_to_coordinators,
)
from tpc_broker.client.errors import RefusedError, UnknownTopicError, UnreachableError, refusal_of
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.requests import TopicPartition, in_any_version
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.model import TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpc_broker.client.cluster import Cluster
    from tpc_broker.client.connection import Connection

ONGOING: Final = "Ongoing"
ENDING: Final = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The coordinator ends these by itself."""
_DESCRIBED_AT_ONCE: Final = 1_000
"""Ids; a broker tells some thousands at most."""
_PARTITIONS_AT_ONCE: Final = 100
"""That are asked for their producers: a broker tells some thousands of them at most."""
_NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """`started_ms` is None where none is open; `partitions` are those that it has by now, and has yet to end."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING

    def has_open(self, where: TopicPartition, producer: PartitionProducer) -> bool:
        """Whether it is this transaction that the partition has open. While it ends its epoch is another already."""
        if self.producer_id != producer.producer_id or where not in self.partitions:
            return False
        return self.state in ENDING or (self.is_open and self.producer_epoch == producer.producer_epoch)


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """What a partition has of a producer. None: no record, no transaction that is open."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_time_ms: int | None
    first_offset: int | None


@dataclass(frozen=True, slots=True)
class Hanging:
    """`transaction`: what the coordinator has of the producer, if it knows it at all."""

    where: TopicPartition
    producer: PartitionProducer
    transaction: Transaction | None


# -- What is asked, and what the answers mean --------------------------------------------------------------------------


def to_list(
    broker_id: int, states: Sequence[str] = (), producer_ids: Sequence[int] = (), longer_than_ms: int = -1
) -> Exchange[list[ListedTransaction]]:
    """Those that this broker coordinates. Empty conditions are none."""
    message = messages.ListTransactionsRequest(
        state_filters=states, producer_id_filters=producer_ids, duration_filter=longer_than_ms
    )

    def read(answer: messages.ListTransactionsResponse) -> list[ListedTransaction]:
        if answer.error_code:
            raise RefusedError(answer.error_code, "the list of transactions")
        return [
            ListedTransaction(one.transactional_id, one.transaction_state, one.producer_id, broker_id)
            for one in answer.transaction_states
        ]

    return Exchange(ApiKey.LIST_TRANSACTIONS, in_any_version(message), read)


def to_describe(broker_id: int, names: Sequence[str]) -> Exchange[dict[str, Transaction]]:
    """Of a coordinator; without those that it does not know."""
    message = messages.DescribeTransactionsRequest(transactional_ids=names)

    def read(answer: messages.DescribeTransactionsResponse) -> dict[str, Transaction]:
        found: dict[str, Transaction] = {}
        for told in answer.transaction_states:
            if told.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            if told.error_code:
                raise RefusedError(told.error_code, f"transactional id {told.transactional_id}")
            found[told.transactional_id] = _transaction(broker_id, told)
        return found

    return Exchange(ApiKey.DESCRIBE_TRANSACTIONS, in_any_version(message), read)


Producers = dict[TopicPartition, "list[PartitionProducer] | RefusedError"]


def to_tell_producers(places: Iterable[TopicPartition]) -> Exchange[Producers]:
    """Of a leader of these partitions. INVALID_REQUEST: they are too many for one answer. Of one partition that has too
    many by itself those with a transaction open are told, and some of the others.
    """
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        topics[topic].append(partition)
    is_one = sum(map(len, topics.values())) == 1
    kind = messages.DescribeProducersRequest
    message = kind(topics=[kind.TopicRequest(name=name, partition_indexes=asked) for name, asked in topics.items()])

    def read(answer: messages.DescribeProducersResponse) -> Producers:
        found: Producers = {}
        for topic in answer.topics:
            for told in topic.partitions:
                where = TopicPartition(topic.name, told.partition_index)
                if told.error_code:
                    found[where] = refusal_of(told, f"producers of {where}")
                elif told.error_message is not None and not is_one:
                    found[where] = RefusedError(ErrorCode.INVALID_REQUEST, told.error_message)
                else:
                    found[where] = [_producer(one) for one in told.active_producers]
        return found

    return Exchange(ApiKey.DESCRIBE_PRODUCERS, in_any_version(message), read)


def to_abort(found: Transaction) -> Exchange[None]:
    """Of its coordinator: abort it, and fence its producer. A producer of the same id takes its place, and does
    nothing.
    """
    message = messages.InitProducerIdRequest(
        transactional_id=found.transactional_id, transaction_timeout_ms=found.timeout_ms, producer_id=_NOBODY,
        producer_epoch=_NOBODY,
    )  # fmt: skip

    def read(answer: messages.InitProducerIdResponse) -> None:
        if answer.error_code:
            raise RefusedError(answer.error_code, f"transactional id {found.transactional_id}")

    return Exchange(ApiKey.INIT_PRODUCER_ID, in_any_version(message), read)


def to_mark_aborted(where: TopicPartition, producer: PartitionProducer) -> Exchange[None]:
    """Of a partition's leader: the marker that a coordinator would write."""
    kind = messages.WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name=where.topic, partition_indexes=[where.partition])
    marker = kind.WritableTxnMarker(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transaction_result=False,
        topics=[topic], coordinator_epoch=max(producer.coordinator_epoch, 0),
    )  # fmt: skip

    def read(answer: messages.WriteTxnMarkersResponse) -> None:
        (told,) = answer.markers[0].topics[0].partitions
        if told.error_code:
            raise RefusedError(told.error_code, f"the marker in {where}")

    return Exchange(ApiKey.WRITE_TXN_MARKERS, in_any_version(kind(markers=[marker])), read)


def _transaction(broker_id: int, told: messages.DescribeTransactionsResponse.TransactionState) -> Transaction:
    places = (TopicPartition(each.topic, index) for each in told.topics for index in each.partitions)
    started_ms = told.transaction_start_time_ms
    return Transaction(
        told.transactional_id,
        told.transaction_state,
        broker_id,
        told.producer_id,
        told.producer_epoch,
        told.transaction_timeout_ms,
        None if started_ms < 0 else started_ms,
        tuple(sorted(places)),
    )


def _producer(one: messages.DescribeProducersResponse.ProducerState) -> PartitionProducer:
    time_ms, first_offset = one.last_timestamp, one.current_txn_start_offset
    return PartitionProducer(
        one.producer_id,
        one.producer_epoch,
        one.coordinator_epoch,
        one.last_sequence,
        None if time_ms < 0 else time_ms,
        None if first_offset < 0 else first_offset,
    )


Opened = list[tuple[TopicPartition, PartitionProducer]]


def opened(told: Mapping[TopicPartition, Iterable[PartitionProducer]]) -> Opened:
    """Which transactions partitions have open."""
    return [(where, one) for where, found in told.items() for one in found if one.first_offset is not None]


def suspects(before: Opened, known: Mapping[int, Transaction | None]) -> list[Hanging]:
    """Those that no coordinator has open. ``known``: by producer id, what the coordinators tell."""
    found: list[Hanging] = []
    for where, one in before:
        transaction = known.get(one.producer_id)
        if transaction is None or not transaction.has_open(where, one):
            found.append(Hanging(where, one, transaction))
    return found


def hanging(suspected: Iterable[Hanging], after: Opened) -> list[Hanging]:
    """Those of the suspects that are open still, after the coordinators have answered."""
    still = {(where, one.producer_id, one.first_offset) for where, one in after}
    found = [one for one in suspected if (one.where, one.producer.producer_id, one.producer.first_offset) in still]
    return sorted(found, key=lambda one: one.where)


# -- Asking over blocking connections ----------------------------------------------------------------------------------


def list_transactions(
    cluster: Cluster, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
) -> list[ListedTransaction]:
    """Of all brokers, by name. Empty conditions are none."""
    conditions = list(states), list(producer_ids), longer_than_ms
    return cluster.answered(lambda: _list_once(cluster, conditions))


def _list_once(cluster: Cluster, conditions: tuple[list[str], list[int], int]) -> list[ListedTransaction]:
    found: dict[str, ListedTransaction] = {}
    for broker_id in cluster.broker_ids():
        connection = cluster.connection_to_broker(broker_id)
        if connection is None:
            continue
        found |= {one.transactional_id: one for one in to_list(broker_id, *conditions).over(connection)}
    return [found[name] for name in sorted(found)]


def describe_transactions(cluster: Cluster, transactional_ids: Iterable[str]) -> dict[str, Transaction]:
    """As their coordinators tell them; without those that these do not know."""
    left, found = list(transactional_ids), dict[str, Transaction]()
    while left:
        some, left = left[:_DESCRIBED_AT_ONCE], left[_DESCRIBED_AT_ONCE:]
        found |= cluster.answered(lambda some=some: _describe_once(cluster, some))  # type: ignore[misc]
    return found


def _describe_once(cluster: Cluster, names: Iterable[str]) -> dict[str, Transaction]:
    found: dict[str, Transaction] = {}
    places = connections_to_coordinators(cluster, CoordinatorKind.TRANSACTION, names)
    for (broker_id, connection), ids in places.items():
        found |= to_describe(broker_id, ids).over(connection)
    return found


def partition_producers(
    cluster: Cluster, places: Iterable[TopicPartition]
) -> dict[TopicPartition, list[PartitionProducer]]:
    """As the partitions' leaders tell them; also those that are idempotent and no more. What is gone meanwhile is left
    out.
    """
    left, found = list(places), dict[TopicPartition, list[PartitionProducer]]()
    while left:
        some, left = left[:_PARTITIONS_AT_ONCE], left[_PARTITIONS_AT_ONCE:]
        found |= cluster.answered(lambda some=some: _producers_once(cluster, some))  # type: ignore[misc]
    return found


def _producers_once(cluster: Cluster, places: list[TopicPartition]) -> dict[TopicPartition, list[PartitionProducer]]:
    by_leader: dict[Connection, list[TopicPartition]] = defaultdict(list)
    for where in places:
        by_leader[cluster.connection_to_leader(where)].append(where)
    found: dict[TopicPartition, list[PartitionProducer]] = {}
    for connection, part in by_leader.items():
        for where, told in to_tell_producers(part).over(connection).items():
            if not isinstance(told, RefusedError):
                found[where] = told
            elif told.code == ErrorCode.INVALID_REQUEST and len(places) > 1:  # too many for one answer
                found |= _producers_once(cluster, [where])
            else:
                raise told
    return found


def find_hanging(cluster: Cluster, places: Iterable[TopicPartition]) -> list[Hanging]:
    """Those that hang in these partitions.

    A partition is asked, then the coordinators, then the partition again. A coordinator has a partition before anything
    is open there and until its marker is written, so that what is open on both sides of an answer that does not have
    it hangs.
    """
    before = _opened(cluster, places)
    suspected = suspects(before, _by_producers(cluster, {one.producer_id for _where, one in before}))
    return hanging(suspected, _opened(cluster, {each.where for each in suspected}))


# Rule: What no coordinator tells of hangs only where all of them were asked: of one that is away, or moves just now,
# everything would seem to, and who ends it tears what is committed later. Held by tests/client/test_transactions.py.
def _by_producers(cluster: Cluster, producer_ids: set[int]) -> dict[int, Transaction | None]:
    if not producer_ids:
        return {}
    found = _listed_once(cluster, producer_ids)
    return found if found.keys() >= producer_ids else cluster.answered(lambda: _listed_by_all(cluster, producer_ids))


def _listed_once(cluster: Cluster, producer_ids: set[int]) -> dict[int, Transaction | None]:
    listed = list_transactions(cluster, (), sorted(producer_ids))
    described = describe_transactions(cluster, (one.transactional_id for one in listed))
    return {one.producer_id: described.get(one.transactional_id) for one in listed}


def _listed_by_all(cluster: Cluster, producer_ids: set[int]) -> dict[int, Transaction | None]:
    before = _coordinators(cluster)
    found = _listed_once(cluster, producer_ids)
    if _coordinators(cluster) != before:
        raise UnreachableError("coordinators of transactions move just now")
    return found


def _coordinators(cluster: Cluster) -> dict[int, int]:
    """Which broker coordinates each partition; `UnreachableError`: of one there is nobody."""
    try:
        cluster.forget_topics()
        for where in cluster.partitions(TRANSACTION_STATE_TOPIC):
            cluster.connection_to_leader(where)
        return dict(cluster.topic(TRANSACTION_STATE_TOPIC).leaders)
    except UnknownTopicError:
        return {}


def _opened(cluster: Cluster, places: Iterable[TopicPartition]) -> Opened:
    return opened(partition_producers(cluster, places))


def abort_by_coordinator(cluster: Cluster, found: Transaction) -> None:
    """`to_abort`; it returns when the markers are written."""
    exchange, name = to_abort(found), found.transactional_id
    cluster.answered(lambda: exchange.over(connection_to_coordinator(cluster, CoordinatorKind.TRANSACTION, name)))


def abort_in_partition(cluster: Cluster, where: TopicPartition, producer: PartitionProducer) -> None:
    """For what hangs, as no coordinator will."""
    exchange = to_mark_aborted(where, producer)
    cluster.answered(lambda: exchange.over(cluster.connection_to_leader(where)))
