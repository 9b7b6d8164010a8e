"""A broker with an authorizer: what C grants and refuses by itself, on the core that a client speaks to and on the
others behind a listener that they share. Who asks is told apart by the address that it comes from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.definitions import decode_response
from tests.support.ports import free_port_range
from tests.support.raw_client import Closed, RawConnection
from tests.support.record_batches import Record, batch, read_batches
from tests.support.waiting import eventually
from tpc_broker.error_codes import ErrorCode as E

pytestmark = pytest.mark.usefixtures("kafka_tools")  # Kafka's definitions of its messages come with them

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
FRIEND, STRANGER = "127.0.0.1", "127.0.0.2"
TOPIC, LITERAL, ALLOW, READ, WRITE = 2, 3, 3, 3, 4
PARTITIONS = 4
LONG_MS = 60_000


class Shared(TpcBroker):
    """Two cores, and one listener for both."""

    def launch(self) -> None:
        self.shared_port = free_port_range(1)
        super().launch()

    def command(self) -> list[str]:
        shared = f"--listen=ONE://127.0.0.1:{self.shared_port}"
        return [*super().command(), shared, "--override=listener.ONE.mode=shared"]

    def connect(self, source: str) -> RawConnection:
        return RawConnection("127.0.0.1", self.shared_port, source=source)


@pytest.fixture(scope="module")
def broker(module_tmp_path) -> Iterator[Shared]:
    made = Shared(module_tmp_path / "broker", 2, {"ebpf.loader": "libbpf", **SETTINGS})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def friend(broker) -> Iterator[RawConnection]:
    with broker.connect(FRIEND) as client:
        yield client


@pytest.fixture
def stranger(broker) -> Iterator[RawConnection]:
    with broker.connect(STRANGER) as client:
        yield client


def rule(topic: str, operation: int, host: str) -> dict[str, Any]:
    return {
        "ResourceType": TOPIC, "ResourceName": topic, "ResourcePatternType": LITERAL, "Principal": "User:ANONYMOUS",
        "Host": host, "Operation": operation, "PermissionType": ALLOW,
    }  # fmt: skip


def allow(client: RawConnection, *rules: dict[str, Any]) -> None:
    answer = client.ask("CreateAcls", 3, {"Creations": list(rules)})
    assert [one["ErrorCode"] for one in answer["Results"]] == [0] * len(rules)


def forbid(client: RawConnection, one: dict[str, Any]) -> None:
    names = {"ResourceType": "ResourceTypeFilter", "ResourceName": "ResourceNameFilter", "Principal": "PrincipalFilter",
             "ResourcePatternType": "PatternTypeFilter", "Host": "HostFilter"}  # fmt: skip
    wanted = {names.get(name, name): value for name, value in one.items()}
    (found,) = client.ask("DeleteAcls", 3, {"Filters": [wanted]})["FilterResults"]
    assert (found["ErrorCode"], len(found["MatchingAcls"])) == (0, 1)


def make_topic(client: RawConnection, name: str) -> None:
    topic = {"Name": name, "NumPartitions": PARTITIONS, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
    (made,) = client.ask("CreateTopics", 5, {"Topics": [topic], "timeoutMs": 10_000})["Topics"]
    assert made["ErrorCode"] == 0
    eventually(lambda: set(produced(client, name)) == {E.NONE}, f"{name} is led")


def produce_of(topic: str, indexes: range | tuple[int, ...]) -> dict[str, Any]:
    parts = [{"Index": index, "Records": batch([Record(b"value")])} for index in indexes]
    return {"Acks": -1, "TimeoutMs": 10_000, "TopicData": [{"Name": topic, "PartitionData": parts}]}


def codes_of(answer: dict[str, Any]) -> list[int]:
    return [part["ErrorCode"] for topic in answer["Responses"] for part in topic["PartitionResponses"]]


def produced(client: RawConnection, topic: str, indexes=range(PARTITIONS)) -> list[int]:
    return codes_of(client.ask("Produce", 9, produce_of(topic, indexes)))


def fetch_of(topic: str, offset: int, wait_ms: int = 0, indexes=range(PARTITIONS), **more: int) -> dict[str, Any]:
    parts = [{"Partition": one, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20} for one in indexes]
    limits = {"MaxWaitMs": wait_ms, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionId": 0, "SessionEpoch": -1}
    return {**limits, "Topics": [{"Topic": topic, "Partitions": parts}], **more}


def read(answer: dict[str, Any]) -> list[tuple[int, int]]:
    """Error and number of batches of each partition."""
    parts = [part for topic in answer["Responses"] for part in topic["Partitions"]]
    return [(part["ErrorCode"], len(read_batches(part["Records"] or b""))) for part in parts]


def in_python(broker: Shared) -> int:
    """Requests that C has left so far, of any core."""
    counts = [counted["connections"] for counted in broker.counters()]
    return sum(one["requests"] - one["requests_hot"] for one in counts)


REFUSED = E.TOPIC_AUTHORIZATION_FAILED


def test_each_core_grants_its_part_to_whoever_has_the_right_and_refuses_the_others(broker, friend, stranger):
    make_topic(friend, "t")
    allow(friend, *(rule("t", operation, FRIEND) for operation in (READ, WRITE)), rule("t", 8, "*"))
    eventually(lambda: set(produced(stranger, "t")) == {REFUSED}, "every core knows the rules")
    before, left = read(friend.ask("Fetch", 12, fetch_of("t", 0))), in_python(broker)
    for _ in range(20):
        assert produced(stranger, "t") == [REFUSED] * PARTITIONS
        assert read(stranger.ask("Fetch", 12, fetch_of("t", 0))) == [(REFUSED, 0)] * PARTITIONS
        assert produced(friend, "t") == [E.NONE] * PARTITIONS
    after = read(friend.ask("Fetch", 12, fetch_of("t", 0)))
    assert [(code, count - 20) for code, count in after] == before
    assert in_python(broker) - left <= 2 * 2, "each core decides once for each subject and right"


def test_a_fetch_that_waits_at_its_owners_is_refused_when_its_right_goes(broker, friend):
    """Attempt 67, also where the core that it waits at is not the one that it came to."""
    make_topic(friend, "parked")
    allow(friend, rule("parked", READ, FRIEND))
    with broker.connect(FRIEND) as other:
        eventually(lambda: set(produced(friend, "parked")) == {REFUSED}, "every core knows the rules")
        for indexes in ((0,), (1,), range(PARTITIONS)):
            friend.send("Fetch", 12, fetch_of("parked", 1, LONG_MS, indexes))
            forbid(other, rule("parked", READ, FRIEND))
            allow(other, rule("parked", READ, "10.9.9.9"))
            _id, answer = decode_response("Fetch", 12, friend.receive_frame())
            # An owner that has not heard of it yet is waited for no more, and has nothing to tell.
            assert {REFUSED} <= {code for code, _count in read(answer)} <= {REFUSED, E.NONE}
            assert not any(count for _code, count in read(answer))
            forbid(other, rule("parked", READ, "10.9.9.9"))
            allow(other, rule("parked", READ, FRIEND))
            eventually(
                lambda: {code for code, _count in read(friend.ask("Fetch", 12, fetch_of("parked", 0)))} == {E.NONE},
                "every core knows the rules",
            )


def test_a_session_at_the_shared_listener_is_its_subjects(broker, friend, stranger):
    """Attempt 65."""
    make_topic(friend, "sessions")
    whole = fetch_of("sessions", 0) | {"SessionEpoch": 0}
    for client in (friend, stranger):
        eventually(lambda client=client: {code for code, _ in read(client.ask("Fetch", 12, whole))} == {0}, "it is led")
    session = friend.ask("Fetch", 12, whole)["SessionId"]
    assert session
    stolen = stranger.ask("Fetch", 12, whole | {"SessionId": session, "SessionEpoch": 1, "Topics": []})
    assert (stolen["ErrorCode"], stolen["Responses"]) == (E.FETCH_SESSION_ID_NOT_FOUND, [])
    assert friend.ask("Fetch", 12, whole | {"SessionId": session, "SessionEpoch": 1, "Topics": []})["ErrorCode"] == 0


def test_a_burst_is_refused_from_the_change_of_the_rules_on(broker, friend, stranger):
    """Attempt 68: of what a connection sends, none is taken behind one that is refused."""
    make_topic(friend, "burst")
    allow(friend, rule("burst", WRITE, STRANGER), rule("burst", READ, FRIEND))
    for _ in range(200):
        stranger.send("Produce", 9, produce_of("burst", (0,)))
    forbid(friend, rule("burst", WRITE, STRANGER))
    with broker.connect(STRANGER) as other:
        eventually(lambda: produced(other, "burst", (0,)) == [REFUSED], "the core that owns it knows the rules")
    for _ in range(200):
        stranger.send("Produce", 9, produce_of("burst", (0,)))
    told = [codes_of(decode_response("Produce", 9, stranger.receive_frame())[1])[0] for _ in range(400)]
    assert told[200:] == [REFUSED] * 200
    assert told == sorted(told), "none is taken behind one that is refused"
    assert set(told) <= {E.NONE, REFUSED}


def test_acks_0_without_the_right_closes_the_connection(broker, friend, stranger):
    make_topic(friend, "silent")
    allow(friend, rule("silent", WRITE, FRIEND))
    eventually(lambda: set(produced(stranger, "silent")) == {REFUSED}, "every core knows the rules")
    stranger.send("Produce", 9, produce_of("silent", (0,)) | {"Acks": 0})
    with contextlib.suppress(Closed):
        assert stranger.wait_closed() == b""


@pytest.fixture
def alone(tmp_path) -> Iterator[TpcBroker]:
    """One core."""
    made = TpcBroker(tmp_path / "alone", 1, dict(SETTINGS))
    made.start()
    yield made
    made.stop()


def test_acks_0_of_a_client_that_goes_right_behind_it_is_written(alone):
    """Python decides about it each time, for the rules are others, and the end of its client comes in the same turn."""
    host, port = alone.bootstrap.rsplit(":", 1)
    with RawConnection(host, int(port)) as client:
        make_topic(client, "left-alone")
        before = read(client.ask("Fetch", 12, fetch_of("left-alone", 0)))
        for number in range(10):
            allow(client, rule(f"other-{number}", WRITE, STRANGER))
            with RawConnection(host, int(port)) as other:
                other.send("Produce", 9, produce_of("left-alone", range(PARTITIONS)) | {"Acks": 0})
        expected = [(code, count + 10) for code, count in before]
        eventually(lambda: read(client.ask("Fetch", 12, fetch_of("left-alone", 0))) == expected, "all of it is there")


def records_in(client: RawConnection, topic: str) -> int:
    found = client.ask("Fetch", 12, fetch_of(topic, 0))["Responses"]
    return sum(len(one["records"]) for t in found for p in t["Partitions"] for one in read_batches(p["Records"] or b""))


def test_what_came_whole_before_its_client_went_is_appended_or_refused(broker, friend, stranger):
    """Producers with acks=0 send and go, perhaps before anybody has been told who they are."""
    make_topic(friend, "gone")
    allow(friend, *(rule("gone", operation, FRIEND) for operation in (READ, WRITE)))
    eventually(lambda: set(produced(stranger, "gone")) == {REFUSED}, "every core knows the rules")
    before = records_in(friend, "gone")
    for source in (FRIEND, STRANGER):
        for _client in range(10):
            with broker.connect(source) as client, contextlib.suppress(Closed):  # one that is refused is cut off
                for _ in range(5):
                    client.send("Produce", 9, {**produce_of("gone", range(PARTITIONS)), "Acks": 0})
    wanted = before + 10 * 5 * PARTITIONS
    eventually(lambda: records_in(friend, "gone") >= wanted, "all that may be written is written")
    assert records_in(friend, "gone") == wanted
