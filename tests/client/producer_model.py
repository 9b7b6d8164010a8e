"""A partition's leader as a producer's lane sees it, in memory: Kafka's rules for sequence numbers, and what goes wrong
between the two.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tpc_broker.client.batches import ProducerIdentity
from tpc_broker.client.errors import RefusedError, UnreachableError
from tpc_broker.client.producer.batch import Batch, record_size
from tpc_broker.client.producer.budget import Budget
from tpc_broker.client.producer.lane import Lane
from tpc_broker.client.producer.session import Session
from tpc_broker.client.producer.settings import ProducerSettings
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Fate
from tpc_broker.kafka import ErrorCode
from tpc_broker.kafka.records import read_batches

KEPT = 5
SEQUENCES = 2**31


@dataclass
class Leader:
    """One producer at a time; `log` has the values in order."""

    bytes_max: int = 10_000
    log: list[bytes] = field(default_factory=list)
    epoch: int = -1
    producer_id: int = -1
    next_sequence: int = 0
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def append(self, data: bytes) -> tuple[int, int]:
        """Error code and base offset."""
        (batch,) = read_batches(data)
        if len(data) > self.bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        values = [record.value for record in batch.records()]
        if any(value.startswith(b"bad") for value in values):
            return ErrorCode.INVALID_RECORD, -1
        if batch.producer_id == self.producer_id >= 0:
            if batch.producer_epoch < self.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if batch.producer_epoch > self.epoch:
                if batch.base_sequence:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                self.recent.clear()
            else:
                for first, count, offset in self.recent:
                    if (first, count) == (batch.base_sequence, len(values)):
                        return ErrorCode.NONE, offset
                if batch.base_sequence != self.next_sequence:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = len(self.log)
        self.log += values
        self.producer_id, self.epoch = batch.producer_id, batch.producer_epoch
        self.next_sequence = (batch.base_sequence + len(values)) % SEQUENCES
        self.recent.append((batch.base_sequence, len(values), offset))
        return ErrorCode.NONE, offset


class Story:
    """A lane and its leader; each method is one thing that may happen."""

    def __init__(self, *, first_epoch: int = 0, first_sequence: int = 0, batch_bytes: int = 200) -> None:
        self.settings = ProducerSettings(batch_bytes=batch_bytes, delivery_seconds=10.0, memory_bytes=10**6)
        self.session = Session(self.settings)
        self.session.identity = ProducerIdentity(7, first_epoch)
        self.budget = Budget(self.settings.memory_bytes)
        self.ended: list[Batch] = []
        self.lane = Lane(TopicPartition("t", 0), self.session, self.budget, self.ended.append)
        if first_sequence:
            self.lane.identify()
            self.lane._next_sequence = first_sequence
        self.leader = Leader()
        self.now = 0.0
        self.posted: list[tuple[Batch, int, bytes]] = []
        self.requests: deque[tuple[Batch, bytes]] = deque()
        self.answers: deque[tuple[Batch, int, int]] = deque()
        self.late: deque[bytes] = deque()
        self.sent: set[bytes] = set()

    def post(self, text: str = "r", size: int = 0) -> None:
        value = f"{text}{len(self.posted)}".encode().ljust(size, b".")
        record = record_size(None, value, ())
        assert self.budget.try_take(self.lane, record)
        batch = self.lane.room_in(record, self.now)
        self.posted.append((batch, batch.add(None, value, (), 0, record), value))

    def withdraw(self) -> None:
        batch, row, value = self.posted[-1]
        could = batch.fate_of(row) is Fate.WAITING
        assert self.lane.withdraw(batch, row, record_size(None, value, ())) is could
        assert not could or batch.fate_of(row) is Fate.WITHDRAWN

    def send(self) -> None:
        while self.lane.can_send(self.now) and self.lane.identify():
            batch = self.lane.next_batch()
            data = bytes(batch.encoded())
            self.sent |= {record.value or b"" for found in read_batches(data) for record in found.records()}
            self.requests.append((batch, data))
        if self.session.identity is None:
            self.session.identity = ProducerIdentity(8, 0)

    def carry_out(self, code: int = 0, *, appends: bool = True) -> None:
        """The leader takes the oldest request; ``code``: what it says though it ``appends`` or not."""
        if self.requests:
            batch, data = self.requests.popleft()
            found, offset = self.leader.append(data) if appends else (code, -1)
            self.answers.append((batch, code or found, offset))

    def answer(self) -> None:
        if self.answers:
            batch, code, offset = self.answers.popleft()
            if code:
                self.lane.refused(batch, RefusedError(code, "t-0"), self.now)
            else:
                self.lane.delivered(batch, offset, -1, self.now)

    def cut(self) -> None:
        """The connection ends. What was on its way to the leader may still arrive."""
        lost = [batch for batch, _code, _offset in self.answers] + [batch for batch, _data in self.requests]
        self.late.extend(data for _batch, data in self.requests)
        self.answers.clear()
        self.requests.clear()
        for batch in lost:
            self.lane.unanswered(batch, UnreachableError("cut"), self.now)

    def arrive_late(self) -> None:
        if self.late:
            self.leader.append(self.late.popleft())

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.lane.expire(self.now)

    def settle(self) -> None:
        """Everything goes well from now on."""
        for _turn in range(400):
            self.send()
            while self.requests:
                self.carry_out()
            while self.answers:
                self.answer()
            if not self.lane.has_work:
                break
            self.pass_time(1.01)
        assert not self.lane.has_work, "it never comes to an end"

    def check(self) -> None:
        """What is always so."""
        order = {value: place for place, (_batch, _row, value) in enumerate(self.posted)}
        places = [order[value] for value in self.leader.log]
        assert places == sorted(set(places)), f"out of order or twice: {self.leader.log}"
        there = set(self.leader.log)
        for batch, row, value in self.posted:
            fate = batch.fate_of(row)
            if fate is Fate.DELIVERED:
                offset = batch.result_of(row).offset
                assert value in there if offset < 0 else self.leader.log[offset] == value, value
            elif fate in (Fate.REFUSED, Fate.WITHDRAWN, Fate.WAITING):
                assert value not in there, (value, fate)
                assert fate is Fate.REFUSED or value not in self.sent

    def check_end(self) -> None:
        self.check()
        assert self.budget.bytes_used == 0 == self.lane.bytes_held
        ends = [id(batch) for batch in self.ended]
        assert len(ends) == len(set(ends)), "the end of a batch was told twice"
        assert set(ends) == {id(batch) for batch, _row, _value in self.posted if batch.fate is not Fate.DELIVERED}
