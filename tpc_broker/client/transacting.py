"""Transactions of one's own, from begin to end, by whoever knows their identity.

What a transaction is to everybody is one value, `OpenTransaction`: one process may begin it and write in it
(`producing.Producer`), another may look whether it is still open and end it. Only the transactions of KIP-890 are
spoken (`transaction.version` 2: partitions and groups need not be announced, and every end gives a new epoch), which
`level_spoken_by` asks for: Kafka 4.0 or newer has them, and this project's broker from feature level 5 on.

Functions try again what may be tried again, until the cluster's deadline. An end may be said twice: the coordinator
gives the same answer while the transactional id has not been begun anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.consumer.ports import GroupIdentity, Position
from tpc_broker.client.conversation import CLIENT_SOFTWARE
from tpc_broker.client.coordinators import CoordinatorKind, connection_to_coordinator, connections_to_coordinators
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.requests import TopicPartition, in_any_version
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpc_broker.client.cluster import Cluster
    from tpc_broker.client.connection import Connection
    from tpc_broker.client.transactions import Transaction

FEATURE: Final = "transaction.version"
FEATURE_LEVEL: Final = 2
_FENCING_VERSION: Final = 3
"""Of TxnOffsetCommit: from it on, a member of a group says who it is."""
_ENDS_AT_ONCE: Final = 200
"""In flight on one connection."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The producer's id and epoch are of this one transaction: its end, and every later one, have others."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.transactional_id} (producer {self.producer_id}, epoch {self.producer_epoch})"

    def is_open(self, told: Transaction | None) -> bool:
        """Whether it is this one that the coordinator tells of, and neither ended nor taken over."""
        if told is None or not told.is_open:
            return False
        return (told.producer_id, told.producer_epoch) == (self.producer_id, self.producer_epoch)


def to_tell_level() -> Exchange[int]:
    """The level of `FEATURE` that the cluster has finalized; 0: none."""
    name, version = CLIENT_SOFTWARE
    message = messages.ApiVersionsRequest(client_software_name=name, client_software_version=version)

    def read(answer: messages.ApiVersionsResponse) -> int:
        if answer.error_code:
            raise RefusedError(answer.error_code, "the cluster's features")
        return next((row.max_version_level for row in answer.finalized_features if row.name == FEATURE), 0)

    return Exchange(ApiKey.API_VERSIONS, in_any_version(message), read)


def to_begin(
    transactional_id: str, timeout_ms: int, before: OpenTransaction | None = None
) -> Exchange[OpenTransaction]:
    """Of the coordinator. ``before``: who has the id now, to go on with the next epoch if nobody took it over since."""
    message = messages.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1 if before is None else before.producer_id,
        producer_epoch=-1 if before is None else before.producer_epoch,
    )

    def read(answer: messages.InitProducerIdResponse) -> OpenTransaction:
        if answer.error_code:
            raise RefusedError(answer.error_code, f"a transaction of {transactional_id}")
        return OpenTransaction(transactional_id, answer.producer_id, answer.producer_epoch)

    return Exchange(ApiKey.INIT_PRODUCER_ID, in_any_version(message), read)


def to_end(transaction: OpenTransaction, *, commits: bool) -> Exchange[OpenTransaction]:
    """Of the coordinator: commit or abort. What comes next under the id has the identity that the answer gives; a
    coordinator before KIP-890 gives none, and it stays the same.
    """
    message = messages.EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=commits,
    )

    def read(answer: messages.EndTxnResponse) -> OpenTransaction:
        if answer.error_code:
            raise RefusedError(answer.error_code, f"the end of the transaction {transaction}")
        if answer.producer_id < 0:
            return transaction
        return OpenTransaction(transaction.transactional_id, answer.producer_id, answer.producer_epoch)

    return Exchange(ApiKey.END_TXN, in_any_version(message), read)


def to_add_partitions(transaction: OpenTransaction, places: Iterable[TopicPartition]) -> Exchange[None]:
    """Of the coordinator, below `FEATURE_LEVEL`: all of them, or none."""
    kind = messages.AddPartitionsToTxnRequest
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    message = kind(
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.producer_id,
        v3_and_below_producer_epoch=transaction.producer_epoch,
        v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=name, partitions=some) for name, some in topics.items()],
    )

    def read(answer: messages.AddPartitionsToTxnResponse) -> None:
        what = f"in the transaction {transaction}"
        errors = [
            RefusedError(row.partition_error_code, f"{topic.name}-{row.partition_index} {what}")
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
            if row.partition_error_code
        ]
        if errors:
            raise min(errors, key=lambda error: error.code == ErrorCode.OPERATION_NOT_ATTEMPTED)

    return Exchange(ApiKey.ADD_PARTITIONS_TO_TXN, in_any_version(message), read)


def to_add_group(transaction: OpenTransaction, group: str) -> Exchange[None]:
    """Of the transaction's coordinator, below `FEATURE_LEVEL`: before offsets of the group are committed in it."""
    message = messages.AddOffsetsToTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        group_id=group,
    )

    def read(answer: messages.AddOffsetsToTxnResponse) -> None:
        if answer.error_code:
            raise RefusedError(answer.error_code, f"group {group} in the transaction {transaction}")

    return Exchange(ApiKey.ADD_OFFSETS_TO_TXN, in_any_version(message), read)


def to_commit_offsets(
    transaction: OpenTransaction,
    identity: GroupIdentity,
    positions: Mapping[TopicPartition, Position],
) -> Exchange[None]:
    """Of the group's coordinator, within a transaction; the group has them when that is committed."""
    kind = messages.TxnOffsetCommitRequest
    topics: dict[str, messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = {}
    for (topic, partition), position in positions.items():
        row = topics.setdefault(topic, kind.TxnOffsetCommitRequestTopic(name=topic))
        row.partitions.append(
            kind.TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch, committed_metadata=position.metadata,
            )
        )  # fmt: skip
    message = kind(
        transactional_id=transaction.transactional_id,
        group_id=identity.group,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        generation_id_or_member_epoch=identity.generation_or_epoch,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=list(topics.values()),
    )

    def make(version: int) -> Any:
        if version < _FENCING_VERSION and identity.member_id:
            text = f"the broker does not fence members of group {identity.group} in transactions (KIP-447, Kafka 2.5)"
            raise ClientError(text)
        return message

    def read(answer: messages.TxnOffsetCommitResponse) -> None:
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    where = TopicPartition(topic.name, row.partition_index)
                    what = f"the offset {positions[where].offset} of group {identity.group} in {where}"
                    raise RefusedError(row.error_code, f"{what} within the transaction {transaction}")

    return Exchange(ApiKey.TXN_OFFSET_COMMIT, make, read)


# -- Asking over blocking connections ----------------------------------------------------------------------------------


def level_spoken_by(cluster: Cluster) -> int:
    """The level of `FEATURE` that the cluster has finalized, asked anew; 0: none."""
    return cluster.answered(lambda: to_tell_level().over(cluster.any_connection()))


def begin(cluster: Cluster, transactional_id: str, timeout_ms: int) -> OpenTransaction:
    """A new transaction, which the first batch opens. What was open under the id before is aborted when this returns,
    and whoever was at it is refused from now on.
    """
    exchange = to_begin(transactional_id, timeout_ms)

    def ask() -> OpenTransaction:
        return exchange.over(connection_to_coordinator(cluster, CoordinatorKind.TRANSACTION, transactional_id))

    return cluster.answered(ask)


def end_all(
    cluster: Cluster, transactions: Iterable[OpenTransaction], *, commits: bool
) -> dict[OpenTransaction, RefusedError]:
    """Commit or abort all of them; gives those that were refused for good: aborted meanwhile, or taken over."""
    left = list(transactions)
    refused: dict[OpenTransaction, RefusedError] = {}
    for failed in cluster.attempts():
        errors: list[ClientError] = []
        waiting: list[OpenTransaction] = []
        for first in range(0, len(left), _ENDS_AT_ONCE):
            waiting += _end_once(cluster, left[first : first + _ENDS_AT_ONCE], commits, refused, errors)
        left = waiting
        if not left:
            return refused
        failed(errors[0])
    raise AssertionError


def _end_once(
    cluster: Cluster,
    transactions: Sequence[OpenTransaction],
    commits: bool,  # noqa: FBT001 - handed on
    refused: dict[OpenTransaction, RefusedError],
    errors: list[ClientError],
) -> list[OpenTransaction]:
    """Those that have to be tried again, with an error for each reason."""
    by_id = {transaction.transactional_id: transaction for transaction in transactions}
    left: list[OpenTransaction] = []
    try:
        places = connections_to_coordinators(cluster, CoordinatorKind.TRANSACTION, by_id)
    except ClientError as error:
        errors.append(error)
        return list(transactions)
    for (_broker_id, connection), names in places.items():
        asked = [by_id[name] for name in names]
        try:
            exchanges = [to_end(transaction, commits=commits) for transaction in asked]
            for exchange in exchanges:
                connection.send(exchange.key, exchange.make)
            for exchange in exchanges:
                answer = connection.receive()
                transaction = asked.pop(0)
                try:
                    exchange.read(answer)
                except RefusedError as refusal:
                    if refusal.is_retriable:
                        left.append(transaction)
                        errors.append(refusal)
                    else:
                        refused[transaction] = refusal
        except ClientError as error:
            left += asked
            errors.append(error)
    return left


def commit_offset(  # noqa: PLR0913 - what of which group, within which transaction
    cluster: Cluster, transaction: OpenTransaction, group: str, where: TopicPartition, offset: int, metadata: str
) -> None:
    """Within a transaction; the group has it when that is committed."""
    positions = {where: Position(offset, metadata=metadata)}
    exchange = to_commit_offsets(transaction, GroupIdentity(group, -1, "", None), positions)
    cluster.answered(lambda: exchange.over(_group(cluster, group)))


def stable_offset(
    cluster: Cluster, group: str, where: TopicPartition, wait_seconds: float | None = None
) -> tuple[int, str] | None:
    """The offset of a group with its metadata, when no transaction is about to change it. None: there is none.
    ``wait_seconds``: for all attempts; `RefusedError` with UNSTABLE_OFFSET_COMMIT when a transaction takes longer.
    """
    request = messages.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopics(name=where.topic, partition_indexes=[where.partition])
    asked = request.OffsetFetchRequestGroup(group_id=group, topics=[topic])
    message = request(groups=[asked], require_stable=True)

    def ask() -> tuple[int, str] | None:
        answer = _group(cluster, group).call(ApiKey.OFFSET_FETCH, in_any_version(message)).groups[0]
        rows = [row for topic_row in answer.topics for row in topic_row.partitions]
        code = answer.error_code or next((row.error_code for row in rows if row.error_code), 0)
        if code:
            raise RefusedError(code, f"the offset of group {group}")
        return next(((row.committed_offset, row.metadata or "") for row in rows if row.committed_offset >= 0), None)

    return cluster.answered(ask, wait_seconds)


def _group(cluster: Cluster, group: str) -> Connection:
    return connection_to_coordinator(cluster, CoordinatorKind.GROUP, group)
