"""A driver of the transaction coordinator for tests: a log in memory, a clock that is told, partitions for markers.

`log` holds what is durable. Writes become durable at once unless `hold` is set; `settle` then lets them. Markers are
written at once unless `hold_markers` is set; `write_markers` then lets them. Of ends in one step, which
`shares_journal` lets begin, markers are written with the record behind them.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tests.support.stored_records import stored_records
from tpc_broker.coordinator.transactions import TransactionCoordinator, TransactionLimits
from tpc_broker.coordinator.transactions.messages import (
    AddPartitionsRequest,
    EndRequest,
    InitProducerIdRequest,
    ListFilter,
)
from tpc_broker.coordinator.transactions.records import read_transaction, read_transaction_key
from tpc_broker.coordinator.transactions.transaction import TopicPartition
from tpc_broker.error_codes import ErrorCode

A, B, C = (TopicPartition("data", index) for index in range(3))


class Producer(NamedTuple):
    """What a client goes on with."""

    producer_id: int
    epoch: int


class TransactionScenario:
    def __init__(self, server_version=2, *, shares_journal=lambda _partition: False, **limits):
        self.shares_journal = shares_journal
        self.limits = TransactionLimits(**limits)
        self.server_version = server_version
        self.now = 1_000_000
        self.log = []
        self.ends = [0]
        """Of the writes in `log`, which are there whole or not at all."""
        self.markers = []
        """Written, in their order."""
        self.due = []
        """Markers that are not written."""
        self.replies: Mapping[str, object] = {}
        self.hold = self.hold_markers = False
        self.held = []
        self.fail_with = None
        self.has_failed = False
        """The write before."""
        self.marked_of_failed = 0
        """So many markers are written of a write that fails."""
        self.tokens = 0
        self.next_id = 0
        self.has_ids = True
        self.coordinator_epoch = 0
        self.start()

    # The driver

    def start(self):
        """A coordinator that begins with the log as it is."""
        self.coordinator_epoch += 1
        self.machine = TransactionCoordinator(
            self.coordinator_epoch, self.take_id, self.limits, lambda: self.server_version,
            shares_journal=self.shares_journal,
        )  # fmt: skip
        self.held, self.due = [], []
        for record in self.log:
            self.machine.replay(record.key, record.value)
        self.run(self.machine.finish_loading(self.now))

    def take_id(self):
        if not self.has_ids:
            return None
        self.next_id += 1
        return self.next_id

    def run(self, effects):
        for token, response in effects.replies:
            assert token not in self.replies, f"{token} answered twice"
            self.replies[token] = response
            self.on_reply(token, response)
        self.held.extend(effects.writes)
        self.due.extend(effects.markers)
        if not self.hold:
            self.settle()
        if not self.hold_markers:
            self.write_markers()

    def on_reply(self, token, response):
        """For those who watch."""

    def on_marker(self, marker):
        """The same."""

    def settle(self, count=None):
        """Lets writes become durable, or fail."""
        while self.held and count != 0:
            write = self.held.pop(0)
            follows_failed = bool(write.markers) and self.has_failed
            self.has_failed = self.fail_with is not None or follows_failed
            if self.has_failed:
                self.mark(() if follows_failed else write.markers[: self.marked_of_failed])
                error = self.fail_with or ErrorCode.KAFKA_STORAGE_ERROR
                self.run(self.machine.write_failed(write.write_id, error, self.now))
            else:
                self.mark(write.markers)
                self.log.extend(write.records)
                self.ends.append(len(self.log))
                self.run(self.machine.written(write.write_id, self.now))
            count = None if count is None else count - 1

    def mark(self, markers):
        for marker in markers:
            self.markers.append(marker)
            self.on_marker(marker)

    def write_markers(self, count=None):
        while self.due and count != 0:
            marker = self.due.pop(0)
            self.mark([marker])
            self.run(self.machine.markers_written([marker], self.now))
            count = None if count is None else count - 1

    def elapse(self, milliseconds):
        """Time passes, with all deadlines in it."""
        until, rounds = self.now + milliseconds, 0
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= until:
            rounds += 1
            assert rounds < 10_000, "it never comes to rest"
            self.now = max(self.now, deadline)
            self.run(self.machine.on_deadline(self.now))
        self.now = until

    def token(self, what):
        self.tokens += 1
        return f"{what} {self.tokens}"

    # Requests: each returns its token; the answer, when it is there, is in `replies`.

    def ask_init(self, name="t", producer=None, timeout_ms=60_000, **more):
        producer = producer or Producer(-1, -1)
        request = InitProducerIdRequest(
            transactional_id=name, timeout_ms=timeout_ms, producer_id=producer[0], producer_epoch=producer[1], **more
        )
        token = self.token("init")
        self.run(self.machine.init_producer_id(request, token, self.now))
        return token

    def ask_add(self, producer, *partitions, name="t", client_version=2, **more):
        request = AddPartitionsRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], partitions=partitions,
            client_version=client_version, **more,
        )  # fmt: skip
        token = self.token("add")
        self.run(self.machine.add_partitions(request, token, self.now))
        return token

    def ask_end(self, producer, *, commit, name="t", client_version=2, **more):
        request = EndRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], commit=commit,
            client_version=client_version, **more,
        )  # fmt: skip
        token = self.token("end")
        self.run(self.machine.end(request, token, self.now))
        return token

    # The same, answered at once: a producer, or an error.

    def init(self, name="t", producer=None, **more):
        return self.told(self.ask_init(name, producer, **more))

    def add(self, producer, *partitions, **more):
        return self.replies[self.ask_add(producer, *(partitions or (A,)), **more)].error_code

    def verify(self, producer, *partitions, **more):
        answer = self.replies[self.ask_add(producer, *partitions, verify_only=True, **more)]
        return [answer.error_of(each) for each in partitions]

    def end(self, producer, *, commit, **more):
        return self.told(self.ask_end(producer, commit=commit, **more))

    def told(self, token):
        answer = self.replies[token]
        if answer.error_code is not ErrorCode.NONE:
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
            return answer.error_code
        return Producer(answer.producer_id, answer.producer_epoch)

    def state(self, name="t"):
        return self.machine.describe(name).state

    def listed(self, matches=lambda _name: True, **wanted):
        found = self.machine.list_transactions(ListFilter(**wanted), self.now)
        return sorted(
            (each.transactional_id, each.producer_id, each.state)
            for part in found for each in part if matches(each.transactional_id)
        )  # fmt: skip

    def stored(self, name="t"):
        """As its last record says it."""
        return stored(self.log).get(name)

    def stored_records(self):
        return stored_records(self.machine)


def stored(log):
    """By id, what the last record of each says."""
    found = {}
    for key, value in log:
        name = read_transaction_key(key)
        found.pop(name, None)
        if value is not None:
            found[name] = read_transaction(value)
    return found


def replayed(log, **more):
    """A machine that has loaded a log, and the effects of that."""
    machine = TransactionCoordinator(9, lambda: None, **more)
    for key, value in log:
        machine.replay(key, value)
    return machine, machine.finish_loading(0)
