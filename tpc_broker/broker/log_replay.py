"""A stretch of a coordinator's log, read for what counts in it: `replayed`.

It is read by batches, in C, some records at a time. A step is short, whatever the batches are; in between the core does
other things.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.kafka.compression import DECOMPRESSED_BYTES_MAX
from tpc_broker.kafka.key_values import KeyValues, Kind
from tpc_broker.kafka.records import CONTROL_KEY, ControlType, read_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.coordinator.latest import LatestRecords

LOAD_STEP: Final = 256
"""Records, markers, and batches without any, that are looked at at once, some microseconds each at most."""


# Rule: A machine's log is replayed by batches: a control batch that ends no transaction, one without records and
# offsets that are in no batch are passed over, and hold up nothing. Held by
# tests/broker/test_coordinator_driver.py, tests/broker/test_gapped_logs.py.
def replayed(data: bytes, latest: LatestRecords, unpacked_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[int]:
    """In steps of LOAD_STEP, after each of which it says at which offset what it has not begun begins. DecodeError: it
    is damaged, or a batch unpacks to more than it may.
    """
    walk, left = KeyValues(data), LOAD_STEP
    while not walk.is_at_end:
        kind, records, looked_at = walk.take(left, is_none_open=not latest.has_open)
        left -= looked_at
        if kind == Kind.PLAIN:
            latest.take(records)
        elif kind == Kind.TRANSACTION:
            latest.take_open(*walk.producer, records)
        else:
            for count in latest.take_end(walk.producer[0], commit=kind == Kind.COMMIT):
                left -= count
                if left <= 0:
                    yield walk.next_offset
                    left = LOAD_STEP
        if walk.is_at_compressed:
            left -= _take_compressed(walk, data, latest, unpacked_bytes_max)
        if left <= 0:
            yield walk.next_offset
            left = LOAD_STEP
    yield walk.next_offset


def _take_compressed(walk: KeyValues, data: bytes, latest: LatestRecords, unpacked_bytes_max: int) -> int:
    """A batch that no coordinator has written so, all at once: how many records."""
    batch = read_batch(data, walk.position)
    records = [(record.key, record.value) for record in batch.records(unpacked_bytes_max)]
    looked_at = 1 + len(records)
    if not batch.is_control:
        if batch.is_transactional and batch.producer_id >= 0:
            latest.take_open(batch.producer_id, batch.producer_epoch, records)
        else:
            latest.take(records)
    elif batch.is_transactional and records:
        ends = {CONTROL_KEY.pack(0, kind): kind for kind in (ControlType.ABORT, ControlType.COMMIT)}
        kind = ends.get(records[0][0] or b"")
        if kind is not None:
            looked_at += sum(latest.take_end(batch.producer_id, commit=kind is ControlType.COMMIT))
    walk.pass_over(len(batch.data), batch.last_offset + 1)
    return looked_at
