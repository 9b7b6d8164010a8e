"""Compressed batches of clients, which may unpack to anything: bounded in memory, and large ones off the core's loop.

The bound is `max.decompressed.message.bytes`. What is refused by it, or cannot be unpacked at all though its checksum
is right, is its producer's doing and no damage: INVALID_RECORD, as Kafka answers it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.kafka.errors import DecodeError
from tpc_broker.kafka.records import read_batches
from tpc_broker.native_bytes import keyless_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.kafka.records import Batch, Record

IN_STEP_BYTES: Final = 1024 * 1024
"""Unpacked on the loop, in some milliseconds; more in a helper thread."""
_ONE_PRODUCED: Final = trio.CapacityLimiter(1)
ONE_SEARCHED: Final = trio.CapacityLimiter(1)
"""Of a core at a time: memory is taken for one."""


class NotUnpackedError(Exception):
    """A batch as its producer made it cannot be unpacked, or is more than it may be."""


@contextmanager
def _told_apart(batch: Batch) -> Iterator[None]:
    """DecodeError in it: NotUnpackedError, unless the batch is not as it was sent."""
    try:
        yield
    except DecodeError as error:
        batch.check_crc()
        raise NotUnpackedError(f"the batch at offset {batch.base_offset}: {error.reason}") from error


def records_of(batch: Batch, bytes_max: int) -> Iterator[Record]:
    """One at a time. NotUnpackedError, DecodeError: there is damage; both may come behind some of them."""
    with _told_apart(batch):
        yield from batch.records(bytes_max)


def _places(batch: Batch, bytes_max: int) -> tuple[int, ...]:
    places = keyless_records(batch.plain(bytes_max), batch.records_count)
    if places is None and batch.compression:
        raise DecodeError("what it unpacks to are not its records")
    return places or ()


def _keyless(records: memoryview, bytes_max: int) -> tuple[int, ...]:
    found: list[int] = []
    try:
        for batch in read_batches(records):
            with _told_apart(batch):
                found += _places(batch, bytes_max)
    except DecodeError:
        return ()
    return tuple(found)


async def keyless_of(records: memoryview, bytes_max: int) -> tuple[int, ...]:
    """Places of the records without a key. What is not right otherwise is the data plane's to refuse, but what it does
    not look into: NotUnpackedError.
    """
    try:
        return _keyless(records, min(bytes_max, IN_STEP_BYTES))
    except NotUnpackedError:
        if bytes_max <= IN_STEP_BYTES:
            raise
    return await trio.to_thread.run_sync(_keyless, records, bytes_max, limiter=_ONE_PRODUCED)
