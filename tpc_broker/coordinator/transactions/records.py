"""Keys and values of `__transaction_state`, byte for byte as Kafka 4.3 writes them.

A key begins with its type (int16, 0), a value with its version: 1 is written, or 0 where the cluster's
`transaction.version` is 0, and both are read. Values of later versions, or with states of later releases, are kept as
they are. A null value removes.
"""

from __future__ import annotations

from struct import Struct, pack
from typing import Final

from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.effects import Record
from tpc_broker.coordinator.records import decoded, encoded, leading_number
from tpc_broker.coordinator.transactions.states import AT_REST, PREPARED, STATUS, State
from tpc_broker.coordinator.transactions.transaction import NO_PRODUCER_ID, TopicPartition, Transaction
from tpc_broker.kafka import messages
from tpc_broker.kafka.source import uvarint

KEY_TYPE: Final = 0
VALUE_VERSION: Final = 1
_STORED: Final = {STATUS[state]: state for state in AT_REST | PREPARED | {State.ONGOING}}
_HEAD: Final = Struct(">hqhib")
"""Version, producer id, epoch, time-out, status: in the same places in both versions."""
_TIMES: Final = Struct(">qq")
_ID_TAG: Final = Struct(">BBq")
_VERSION_TAG: Final = Struct(">BBh")
"""A tag, the bytes behind it, and they."""
_KEY: Final = Struct(">hh")
"""Type, and the bytes of the id, which follow."""
_COUNT_BYTES: Final = {0: 4, 1: 1}
"""By version. Of the partitions, which stand behind the head; then come the times."""
_NO_PARTITIONS: Final = (b"\0", b"\1", b"\xff" * 4, b"\0" * 4)


def transaction_key(transactional_id: str) -> bytes:
    """The key of an id's records."""
    name = transactional_id.encode()
    return _KEY.pack(KEY_TYPE, len(name)) + name


def read_transaction_key(key: bytes) -> str | None:
    """The id that a key names; None for a type of later releases."""
    if leading_number(key) != KEY_TYPE:
        return None
    if len(key) < _KEY.size or _KEY.unpack_from(key)[1] != len(key) - _KEY.size:
        raise RecordDamagedError(f"{len(key)} bytes are no key of a transaction")
    try:
        return name_of(key)
    except UnicodeDecodeError as error:
        raise RecordDamagedError("the key of a transaction is not UTF-8") from error


def name_of(key: bytes) -> str:
    """The same of a key that was read before."""
    return key[_KEY.size :].decode()


def transaction_record(transactional_id: str, transaction: Transaction | None, version: int = VALUE_VERSION) -> Record:
    """The record that stores an id, or with None forgets it."""
    key = transaction_key(transactional_id)
    return Record(key, None if transaction is None else transaction_value(transaction, version))


def transaction_value(transaction: Transaction, version: int = VALUE_VERSION) -> bytes:
    """A transaction as it is stored. Version 0 has nothing of producer ids before and after, nor of clients."""
    return _value_1(transaction) if version == VALUE_VERSION else value_by_schema(transaction, version)


def _value_1(transaction: Transaction) -> bytes:
    """By hand: each transaction of a client writes three."""
    parts = [
        _HEAD.pack(
            VALUE_VERSION, transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms,
            STATUS[transaction.state],
        )
    ]  # fmt: skip
    of_topic: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        of_topic.setdefault(topic, []).append(partition)
    parts.append(b"\0" if transaction.state is State.EMPTY else uvarint(len(of_topic) + 1))
    for topic, ids in () if transaction.state is State.EMPTY else of_topic.items():
        name = topic.encode()
        parts += [uvarint(len(name) + 1), name, uvarint(len(ids) + 1), pack(f">{len(ids)}i", *ids), b"\0"]
    parts.append(_TIMES.pack(transaction.last_update_ms, transaction.start_ms))
    tags = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_ID_TAG.pack(0, 8, transaction.previous_producer_id))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append(_ID_TAG.pack(1, 8, transaction.next_producer_id))
    if transaction.client_version:
        tags.append(_VERSION_TAG.pack(2, 2, transaction.client_version))
    return b"".join([*parts, uvarint(len(tags)), *tags])


def value_by_schema(transaction: Transaction, version: int) -> bytes:
    """The same as Kafka's schema has it."""
    kind = messages.TransactionLogValue
    of_topic: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        of_topic.setdefault(topic, []).append(partition)
    value = kind(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=STATUS[transaction.state],
        transaction_partitions=None if transaction.state is State.EMPTY else [
            kind.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in of_topic.items()
        ],
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )  # fmt: skip
    if version > 0:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_version
    return encoded(version, "TransactionLogValue", version, value)


def is_of_later_release(value: bytes) -> bool:
    """Whether what a value says is not known here."""
    return leading_number(value) > VALUE_VERSION or _head(value)[4] not in _STORED


def read_transaction(value: bytes) -> Transaction:
    """A value of either version that `is_of_later_release` does not mean; RecordDamagedError otherwise."""
    version = leading_number(value)
    if version not in _COUNT_BYTES:
        raise RecordDamagedError(f"value of unknown version {version}")
    read = decoded("TransactionLogValue", version, value)
    if read.transaction_status not in _STORED:
        raise RecordDamagedError(f"state {read.transaction_status} is not one that is stored")
    partitions = [
        TopicPartition(each.topic, index) for each in read.transaction_partitions or () for index in each.partition_ids
    ]
    return Transaction(
        producer_id=read.producer_id,
        producer_epoch=read.producer_epoch,
        state=_STORED[read.transaction_status],
        timeout_ms=read.transaction_timeout_ms,
        last_update_ms=read.transaction_last_update_timestamp_ms,
        start_ms=read.transaction_start_timestamp_ms,
        partitions=tuple(partitions),
        previous_producer_id=read.previous_producer_id if version else NO_PRODUCER_ID,
        next_producer_id=read.next_producer_id if version else NO_PRODUCER_ID,
        client_version=read.client_transaction_version if version else 0,
    )


def state_of(value: bytes) -> State:
    """The state, without the rest being decoded."""
    return _STORED[_head(value)[4]]


def producer_id_of(value: bytes) -> int:
    """The producer id, the same."""
    producer_id: int = _head(value)[1]
    return producer_id


def times_at_rest(value: bytes) -> tuple[int, int]:
    """When an id at rest was changed last, and when its transaction began; the same, as it has no partitions."""
    head, count_bytes = value[_HEAD.size :], _COUNT_BYTES[leading_number(value)]
    if head[:count_bytes] not in _NO_PARTITIONS or len(head) < count_bytes + _TIMES.size:
        read = read_transaction(value)
        return read.last_update_ms, read.start_ms
    updated_ms, start_ms = _TIMES.unpack_from(head, count_bytes)
    return updated_ms, start_ms


def _head(value: bytes) -> tuple[int, int, int, int, int]:
    if len(value) < _HEAD.size:
        raise RecordDamagedError(f"{len(value)} bytes are no transaction")
    version, producer_id, epoch, timeout_ms, status = _HEAD.unpack_from(value)
    return version, producer_id, epoch, timeout_ms, status
