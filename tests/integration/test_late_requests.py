"""Over real sockets, with a proxy that holds them: what a client has sent and given up comes when its transaction is
over, and belongs to no later one (KIP-890). `tests/broker/test_late_messages.py` has this with all that chance brings.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_transactions import made, read
from tests.support.definitions import decode_response
from tests.support.holding_proxy import HoldingProxy
from tests.support.raw_client import RawConnection
from tests.support.raw_transactions import TRANSACTION, RawProducer, Shown, fetch_committed
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey

if TYPE_CHECKING:
    from tests.support.server_process import Broker

REFUSALS = {
    1: {ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_PRODUCER_EPOCH}, 2: {ErrorCode.INVALID_PRODUCER_EPOCH},
}  # fmt: skip
PRODUCE_VERSIONS = {1: 11, 2: 12}
"""By the version of the protocol of transactions; in the first one a client adds partitions by itself."""


class Client(RawProducer):
    """Of either version. Its topic has one partition."""

    def __init__(self, broker: Broker, topic: str, version: int) -> None:
        super().__init__(broker.bootstrap, f"{topic}-producer", 60_000, PATIENCE_S)
        self.topic, self.version, self.sequence = topic, version, 0
        self.init()

    @property
    def named(self) -> dict[str, Any]:
        return {"TransactionalId": self.name, "ProducerId": self.producer_id, "ProducerEpoch": self.epoch}

    def asked(self, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        """Of its coordinator, until that has time for it."""

        def once() -> dict[str, Any]:
            answer = self._of_coordinator(TRANSACTION, self.name, api, version, values)
            self._judge(answer.get("ErrorCode", 0))
            for each in answer.get("ResultsByTopicV3AndBelow", ()):
                self._judge(each["ResultsByPartition"][0]["PartitionErrorCode"])
            return answer

        return self._until_done(once, api)

    def begin(self) -> None:
        if self.version == 1:
            added = {**self.named, "Topics": [{"Name": self.topic, "Partitions": [0]}]}
            self.asked("AddPartitionsToTxn", 3, {f"V3AndBelow{name}": each for name, each in added.items()})

    def next_batch(self, value: bytes) -> dict[str, Any]:
        self.sequence += 1
        return self.produce(self.topic, 0, value, self.sequence - 1)

    def send(self, value: bytes) -> None:
        wanted = self.next_batch(value)

        def once() -> None:
            answer = self._lines.ask(self.leader, "Produce", PRODUCE_VERSIONS[self.version], wanted)
            self._judge(error_of(answer))

        self._until_done(once, "Produce")

    @property
    def leader(self) -> str:
        return self._until_done(lambda: self._leader(self.topic, 0), "Metadata")

    @property
    def coordinator(self) -> str:
        return self._coordinators[TRANSACTION, self.name]

    def finish(self, *, commit: bool) -> None:
        if self.version == 1:
            self.asked("EndTxn", 3, {**self.named, "Committed": commit})
        else:
            self.end(commit=commit)
            self.sequence = 0

    def begin_anew(self) -> None:
        """As who does not know which sequences were taken: in the first version an end gives no other epoch."""
        answer = self.asked("InitProducerId", 4, {**self.named, "TransactionTimeoutMs": 60_000})
        self.producer_id, self.epoch, self.sequence = answer["ProducerId"], answer["ProducerEpoch"], 0


def error_of(answer: dict[str, Any]) -> int:
    return int(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"])


def given_up(proxy: HoldingProxy, api: str, version: int, values: dict[str, Any]) -> bytes:
    """A request that was sent, and whose client hears nothing of it and closes."""
    with closing(RawConnection("127.0.0.1", proxy.port)) as line:
        line.send(api, version, values)
        return proxy.wait_held()


def ended(client: Client, end: int) -> list[bytes]:
    """When nothing is open any more in front of the log's end: all that was written, committed or not. Until then what
    comes late comes in time, into what is about to be aborted.
    """
    host, port = client.leader.rsplit(":", 1)
    with closing(RawConnection(host, int(port))) as line:

        def look() -> Shown | None:
            shown = fetch_committed(line, client.topic, 0, 0, max_bytes=1 << 20)
            assert isinstance(shown, Shown), shown
            return shown if shown.last_stable_offset == end else None

        return [value for _offset, _producer, value in eventually(look, "all transactions have ended").records]


def check(broker: Broker, client: Client, written: list[bytes], committed: list[bytes], markers: int) -> None:
    end = len(written) + markers
    assert ended(client, end) == written
    assert read(broker, client.topic, "read_committed") == (committed, end)


@pytest.mark.parametrize("when", ["in front of the next", "in the midst of the next", "behind the next"])
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with another batch"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_produce_that_comes_late_is_in_no_later_transaction(
    broker: Broker, topic: str, version: int, when: str, *, is_alone: bool
) -> None:
    """`is_alone`: from version 2 on the coordinator has never heard of the partition then."""
    made(broker, topic)
    with closing(Client(broker, topic, version)) as client:
        with HoldingProxy.between(client.leader, ApiKey.PRODUCE) as proxy:
            produce_version = PRODUCE_VERSIONS[version]

            def deliver() -> None:
                answer = decode_response("Produce", produce_version, proxy.deliver(late))[1]
                assert error_of(answer) in REFUSALS[version], ErrorCode(error_of(answer))

            client.begin()
            if not is_alone:
                client.send(b"first")
            late = given_up(proxy, "Produce", produce_version, client.next_batch(b"late"))
            client.finish(commit=False)
            ended(client, 0 if is_alone and version == 2 else 1 + (not is_alone))
            if when == "in front of the next":
                deliver()
            if version == 1:
                client.begin_anew()
            client.begin()
            client.send(b"second")
            if when == "in the midst of the next":
                deliver()
            client.send(b"third")
            client.finish(commit=True)
            if when == "behind the next":
                deliver()
        written = [b"second", b"third"] if is_alone else [b"first", b"second", b"third"]
        check(broker, client, written, [b"second", b"third"], markers=2 - (is_alone and version == 2))


def test_an_end_that_comes_late_does_not_end_the_next_transaction(broker: Broker, topic: str) -> None:
    """It was asked for again by another way. In the first version both transactions have one epoch, and it would."""
    made(broker, topic)
    with closing(Client(broker, topic, 2)) as client:
        client.send(b"first")
        with HoldingProxy.between(client.coordinator, ApiKey.END_TXN) as proxy:
            late = given_up(proxy, "EndTxn", 5, {**client.named, "Committed": True})
            client.finish(commit=True)
            client.send(b"second")
            answer = decode_response("EndTxn", 5, proxy.deliver(late))[1]
            assert answer["ErrorCode"] == ErrorCode.PRODUCER_FENCED, ErrorCode(answer["ErrorCode"])
            client.send(b"third")
            client.finish(commit=False)
        check(broker, client, [b"first", b"second", b"third"], [b"first"], markers=2)
