"""What a simulated core has promised of its partitions, and whether what it holds, or shows, is that."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from tpc_broker.log.batch import walk_headers

STAMPED_BYTES = 21
"""Of a batch, those that an append changes: where it lies, and in which leader epoch."""
NOBODY = -1
CONTROL = 0x20
_CONTROL = struct.Struct(">h20xq")
"""Behind what is stamped: attributes, last offset, time stamps, producer."""


class Batch(NamedTuple):
    """One that was appended at an offset. `data` is what an append leaves as it is; of a marker, which C makes, nothing
    is known before it is read.
    """

    base_offset: int
    next_offset: int
    data: bytes
    producer_id: int = NOBODY
    last_sequence: int = -1
    kind: str = ""
    """"open": of a transaction; "end": its marker."""

    def is_in(self, lasting):
        """Whether that is what was read of it."""
        if self.kind != "end" or self.data:
            return self.data == lasting
        attributes, producer_id = _CONTROL.unpack_from(lasting)
        return bool(attributes & CONTROL) and producer_id == self.producer_id


def batches_of(data):
    """Base offset and lasting bytes of each, with the offset behind."""
    for header, place in walk_headers(data):
        lasting = bytes(data[place + STAMPED_BYTES : place + header.size_bytes])
        yield header.base_offset, header.next_offset, lasting


@dataclass
class PartitionTruth:
    """`promised` has to be there, from the log's start on; `asked` may be, or not."""

    topic: str
    key: object
    promised: dict[int, Batch] = field(default_factory=dict)
    asked: dict[int, list[Batch]] = field(default_factory=dict)
    log_start: int = 0
    log_start_asked: int = 0
    retaining: int = 0
    """So many ask for the log's start to be wherever retention finds it."""
    high_watermark: int = 0
    is_deleted: bool = False
    unsure: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """By producer, what it sent last and knows nothing of, with its first sequence: it will send that again."""
    sequences: dict[int, int] = field(default_factory=dict)

    def ask(self, batch):
        self.asked.setdefault(batch.base_offset, []).append(batch)

    def acknowledge(self, batch):
        before = self.promised.get(batch.base_offset)
        if before is None or before.kind == "end":
            self.promised[batch.base_offset] = batch if batch.data or before is None else before
        else:
            assert before.data == batch.data, f"{self.topic}: two batches at {batch.base_offset}"

    def visible_upto(self, high_watermark):
        assert high_watermark >= self.high_watermark, f"{self.topic}: {self.high_watermark} was shown"
        self.high_watermark = high_watermark

    def is_one_of(self, base_offset, data):
        """The batch that it is; None: it never was one."""
        known = self.promised.get(base_offset)
        candidates = [known] if known is not None else self.asked.get(base_offset, [])
        return next((one._replace(data=data) for one in candidates if one.is_in(data)), None)

    def shown(self, data):
        """What a reader got: it never goes again."""
        for base_offset, _next_offset, lasting in batches_of(data):
            batch = self.is_one_of(base_offset, lasting)
            assert batch is not None, f"{self.topic}: nobody appended what was read at {base_offset}"
            self.acknowledge(batch)

    # -- another life ----------------------------------------------------------------------------------------------

    def check_recovered(self, data, log_start_offset, end_offset):
        """What recovery has made of it; from now on that is what was promised."""
        told = f"{self.topic}, [{log_start_offset}, {end_offset})"
        most = end_offset if self.retaining else max(self.log_start, self.log_start_asked)
        assert self.log_start <= log_start_offset <= most, told
        found, offset = {}, None
        for base_offset, next_offset, lasting in batches_of(data):
            assert offset in (None, base_offset), f"{told}: {offset} is not there"
            offset = next_offset
            batch = self.is_one_of(base_offset, lasting)
            assert batch is not None, f"{told}: nobody appended what is at {base_offset}"
            found[base_offset] = batch
        assert offset in (None, end_offset), f"{told}: it ends at {offset}"
        assert end_offset >= self.high_watermark, f"{told}: {self.high_watermark} was shown"
        gone = [one for one in self.promised.values() if one.next_offset > log_start_offset]
        lost = [one.base_offset for one in gone if one.base_offset not in found]
        assert not lost, f"{told}: lost {lost}"
        before = {base: one for base, one in self.promised.items() if one.next_offset <= log_start_offset}
        self.promised = {**before, **found}
        self.asked, self.retaining = {}, 0
        self.log_start = self.log_start_asked = log_start_offset
        self.high_watermark = max(self.high_watermark, end_offset)

    def check_producers(self, state):
        """`state`: what recovery has found of them."""
        newest, opened = {}, {}
        for batch in sorted(self.promised.values()):
            if batch.kind == "end":
                opened.pop(batch.producer_id, None)
            elif batch.producer_id != NOBODY:
                newest[batch.producer_id] = batch
                if batch.kind == "open":
                    opened.setdefault(batch.producer_id, batch.base_offset)
        for producer_id, batch in newest.items():
            known, told = state.producers.get(producer_id), f"{self.topic}: producer {producer_id}"
            assert known is not None, f"{told} is not known"
            last = known.batches[-1]
            assert (last.last_sequence, last.last_offset) == (batch.last_sequence, batch.next_offset - 1), told
            assert known.transaction_first_offset == opened.get(producer_id, -1), f"{told}: its transaction"
        return opened
