"""A stretch of a coordinator's log, read for what counts in it: `replayed`.

It is read by batches: what is plain goes through C some records at a time, and so does what is in transactions, of
which the batch says whose it is. A step is short, whatever the batches are; in between the core does other things.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator import Producer
from tpc_broker.kafka.key_values import KeyValues
from tpc_broker.kafka.records import COMPRESSION_MASK, CONTROL, CONTROL_KEY, TRANSACTIONAL, ControlType, read_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpc_broker.coordinator.latest import LatestRecords
    from tpc_broker.kafka.key_values import KeyValue

LOAD_STEP: Final = 256
"""Records, and batches without any, that are looked at at once, less than a microsecond each."""
_ENDS: Final[dict[int, bool]] = {ControlType.COMMIT: True, ControlType.ABORT: False}


# Rule: A machine's log is replayed by batches: a control batch that ends no transaction, one without records and
# offsets that are in no batch are passed over, and hold up nothing. Held by
# tests/broker/test_coordinator_driver.py, tests/broker/test_gapped_logs.py.
def replayed(data: bytes, latest: LatestRecords) -> Iterator[int]:
    """In steps of LOAD_STEP, after each of which it says at which offset what it has not begun begins."""
    walk, left = KeyValues(data), LOAD_STEP
    while not walk.is_at_end:
        if walk.is_at_other:
            left -= 1 + _take_some(walk, data, latest, left)
        else:
            records, looked_at = walk.take(left)
            latest.take(records)
            left -= looked_at
        if left <= 0:
            yield walk.next_offset
            left = LOAD_STEP
    yield walk.next_offset


def _take_some(walk: KeyValues, data: bytes, latest: LatestRecords, count_max: int) -> int:
    """Of the batch where it is; how many records."""
    attributes = walk.attributes
    if attributes & COMPRESSION_MASK:
        return _take_compressed(walk, data, latest)
    producer = Producer(*walk.producer)
    records, _looked_at = walk.take_other(count_max)
    _take(latest, attributes, producer, records)
    return len(records)


def _take_compressed(walk: KeyValues, data: bytes, latest: LatestRecords) -> int:
    """The same of a batch that no coordinator has written so: all at once."""
    batch = read_batch(data, walk.position)
    records = [(record.key, record.value) for record in batch.records()]
    _take(latest, batch.attributes, Producer(batch.producer_id, batch.producer_epoch), records)
    walk.pass_over(len(batch.data), batch.last_offset + 1)
    return len(records)


def _take(latest: LatestRecords, attributes: int, producer: Producer, records: Iterable[KeyValue]) -> None:
    if not attributes & CONTROL:
        if attributes & TRANSACTIONAL and producer.producer_id >= 0:
            latest.take_open(producer, records)
        else:
            latest.take(records)
    elif attributes & TRANSACTIONAL:
        for key, _value in records:
            commit = None if key is None else _commits(key)
            if commit is not None:
                latest.take_end(producer.producer_id, commit=commit)


def _commits(key: bytes) -> bool | None:
    """Of a control record, whether it commits or aborts; None: neither."""
    return _ENDS.get(CONTROL_KEY.unpack(key)[1]) if len(key) == CONTROL_KEY.size else None
