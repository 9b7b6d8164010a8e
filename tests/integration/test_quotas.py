"""Quotas over a running broker: librdkafka is told and waits, others do not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.conftest import topic_name
from tests.support.broker_process import TpcBroker
from tests.support.definitions import decode_response
from tests.support.raw_client import RawConnection
from tests.support.record_batches import Record, batch
from tests.support.sasl_brokers import LoginLine, SaslBroker, make_users
from tests.support.waiting import PATIENCE_S, patiently
from tpc_broker.cli.main import main as tpc

pytestmark = pytest.mark.clients

RECORD = b"x" * 10_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TpcBroker]:
    broker = TpcBroker(tmp_path_factory.mktemp("quotas"), cores_count=1)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def topic(broker: TpcBroker, request: pytest.FixtureRequest) -> str:
    name = topic_name(request)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
        future.result(PATIENCE_S)
    return name


def quota(broker: TpcBroker, *words: str) -> None:
    done = CliRunner().invoke(tpc, ["quota", *words, "--bootstrap", broker.bootstrap], catch_exceptions=False)
    assert done.exit_code == 0, done.output


class Named(RawConnection):
    """Of a client with an id."""

    def __init__(self, broker: TpcBroker, client_id: str) -> None:
        super().__init__(broker.host, broker.ports[0])
        self._client_id = client_id

    def send(self, api: str, version: int, values: dict[str, Any], client_id: str | None = None) -> int:
        return super().send(api, version, values, client_id or self._client_id)


class Throttled:
    """What a client was told, by `throttle_cb`."""

    def __init__(self) -> None:
        self.told_ms: list[float] = []

    def settings(self, broker: TpcBroker, client_id: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": broker.bootstrap, "client.id": client_id,
            "throttle_cb": lambda event: self.told_ms.append(event.throttle_time * 1000), **more,
        }  # fmt: skip


def send(producer: Producer, topic: str, count: int, has_heard: Callable[[], bool]) -> int:
    """Until so many records are acknowledged and the client has heard what it is to hear; how many were."""
    acknowledged: list[Any] = []
    for _ in range(count):
        producer.produce(topic, RECORD, on_delivery=lambda error, _message: acknowledged.append(error))
        producer.flush(PATIENCE_S)
    for _ in patiently(lambda: f"{len(acknowledged)} of {count} acknowledged"):
        producer.poll(0.1)
        if len(acknowledged) == count and has_heard():
            break
    assert not any(acknowledged)
    return len(acknowledged)


def test_a_producer_is_told_and_waits_and_a_bystander_does_not(broker: TpcBroker, topic: str) -> None:
    """12 records are 120 kB: as much as 11 seconds may have, so that the last one is above it."""
    quota(broker, "set", "--client-id", "heavy", "producer_byte_rate=10000")
    told = Throttled()
    heavy = Producer(told.settings(broker, "heavy"))
    assert send(heavy, topic, 13, lambda: bool(told.told_ms)) == 13
    assert max(told.told_ms) >= 1
    free = Throttled()
    assert send(Producer(free.settings(broker, "light")), topic, 30, lambda: True) == 30
    assert free.told_ms == []
    quota(broker, "remove", "--client-id", "heavy")


def test_a_consumer_gets_all_of_it_in_its_time_and_hears_why(broker: TpcBroker, topic: str) -> None:
    free = Producer({"bootstrap.servers": broker.bootstrap})
    assert send(free, topic, 20, lambda: True) == 20
    quota(broker, "set", "--client-id", "reader", "consumer_byte_rate=18000")
    told = Throttled()
    consumer = Consumer(
        told.settings(
            broker, "reader", **{"group.id": topic, "auto.offset.reset": "earliest", "fetch.message.max.bytes": 30_000}
        )
    )
    consumer.subscribe([topic])
    values = []
    for _ in patiently(lambda: f"{len(values)} records, told {told.told_ms}"):
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            values.append(message.value())
        if len(values) == 20 and told.told_ms:
            break
    consumer.close()
    quota(broker, "remove", "--client-id", "reader")


def test_a_muted_connection_waits_while_others_of_the_broker_are_served(broker: TpcBroker) -> None:
    """Answered at once, with the time; the next request of it only then."""
    quota(broker, "set", "--client-id", "asks", "request_percentage=0.0001")
    with Named(broker, "asks") as muted, Named(broker, "else") as other:
        asked = {"Topics": [], "AllowAutoTopicCreation": False}
        for _ in patiently(lambda: "it is not throttled"):
            if muted.ask("Metadata", 12, asked)["ThrottleTimeMs"]:
                break
        answered: list[int] = []
        waiting = threading.Thread(target=lambda: answered.append(muted.ask("Metadata", 12, asked)["ThrottleTimeMs"]))
        waiting.start()
        assert [other.ask("Metadata", 12, asked)["ThrottleTimeMs"] for _ in range(20)] == [0] * 20
        waiting.join(PATIENCE_S)
        assert answered[0] == 1000, "at most a window at a time"
        told = muted.ask("ApiVersions", 3, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"})
        assert told["ThrottleTimeMs"] == 1000, "ApiVersions too"
    (counters,) = broker.counters()
    assert counters["quotas"]["request_throttled"] >= 3
    assert counters["quotas"]["request_throttled_ms"] >= 3000
    assert set(counters["quotas"]) >= {"muted", "produce_throttled", "fetch_throttled", "connection_throttled"}
    quota(broker, "remove", "--client-id", "asks")


def test_topics_above_the_quota_are_refused_over_the_wire(broker: TpcBroker, topic: str) -> None:
    quota(broker, "set", "--client-id", "maker", "controller_mutation_rate=0.5")
    with Named(broker, "maker") as maker:

        def make(name: str, partitions: int, version: int) -> tuple[int, int]:
            one = {
                "Name": f"{topic}-{name}", "NumPartitions": partitions, "ReplicationFactor": 1, "Assignments": [],
                "Configs": [],
            }  # fmt: skip
            answer = maker.ask("CreateTopics", version, {"Topics": [one], "timeoutMs": 10_000, "validateOnly": False})
            return answer["Topics"][0]["ErrorCode"], answer["ThrottleTimeMs"]

        assert make("a", 6, 7) == (0, 0)
        code, throttle_ms = make("b", 1, 7)
        assert code == 89
        assert 0 < throttle_ms <= 1000
        assert make("b", 1, 7) == (0, 0), "when that time is over"
    quota(broker, "remove", "--client-id", "maker")


@pytest.fixture(scope="module")
def login_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    broker = SaslBroker(tmp_path_factory.mktemp("quotas-of-users"), cores_count=1)
    broker.start()
    make_users(broker.bootstrap)
    yield broker
    broker.kill()


def throttled_ms(line: LoginLine, topic: str, client_id: str) -> int:
    """Of a Produce of 10 kB under that client id."""
    topic_data = [{"Name": topic, "PartitionData": [{"Index": 0, "Records": batch([Record(RECORD)])}]}]
    values = {"TransactionalId": None, "Acks": -1, "TimeoutMs": 30_000, "TopicData": topic_data}
    line.raw.send("Produce", 9, values, client_id)
    _correlation_id, answer = decode_response("Produce", 9, line.raw.receive_frame())
    assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0
    told: int = answer["ThrottleTimeMs"]
    return told


def test_a_user_s_quota_holds_for_all_that_the_user_calls_itself(login_broker: SaslBroker) -> None:
    """Attempt 110: another client id with each request, on other connections."""
    admin = AdminClient({"bootstrap.servers": login_broker.bootstrap})
    for future in admin.create_topics([NewTopic("of-users", 1, 1)]).values():
        future.result(PATIENCE_S)
    quota(login_broker, "set", "--user", "alice", "producer_byte_rate=1350")
    with LoginLine(login_broker) as one, LoginLine(login_broker) as other, LoginLine(login_broker) as bob:
        for line, user in ((one, "alice"), (other, "alice"), (bob, "bob")):
            assert line.log_in(user)["ErrorCode"] == 0
        assert throttled_ms(one, "of-users", "first") == 0
        assert throttled_ms(other, "of-users", "second") > 1000
        assert throttled_ms(bob, "of-users", "second") == 0
        assert throttled_ms(one, "of-users", "third") > 1000, "each connection is told when it asks"
    quota(login_broker, "remove", "--user", "alice")
