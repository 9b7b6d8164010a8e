"""Many clients at once that ask for what is expensive: members of groups keep their sessions, and the core lives."""

from __future__ import annotations

import multiprocessing
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.differential.scenarios_groups import joining, syncing
from tests.support.broker_process import TpcBroker
from tests.support.definitions import encode_request
from tests.support.raw_client import RawConnection
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients

PARTITIONS = 1000
CONNECTIONS = 300
PIPELINED = 20
SESSION_MS = 6_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TpcBroker]:
    broker = TpcBroker(tmp_path_factory.mktemp("herd"), cores_count=1)
    broker.start()
    create_topic(broker, "wide", PARTITIONS)
    yield broker
    broker.kill()


def create_topic(broker: TpcBroker, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(PATIENCE_S)


def all_topics(connection: RawConnection, version: int = 12) -> dict[str, Any]:
    return connection.ask("Metadata", version, {"Topics": None})


def names_in(metadata: dict[str, Any]) -> set[str]:
    return {topic["Name"] for topic in metadata["Topics"]}


def prepared_answers(broker: TpcBroker) -> int:
    (counters,) = broker.counters()
    return counters["plane"]["prepared_answers"]


def ask_without_end(address: tuple[str, int], request: bytes, answered: Any) -> None:
    """A process of its own: each connection has `PIPELINED` requests under way, always."""
    epoll = select.epoll()
    clients = {}
    for _ in range(CONNECTIONS):
        client = socket.create_connection(address)
        client.sendall(request * PIPELINED)
        client.setblocking(False)
        clients[client.fileno()] = (client, bytearray())
        epoll.register(client, select.EPOLLIN)
    while True:
        for descriptor, _events in epoll.poll():
            client, data = clients[descriptor]
            data += client.recv(1 << 20)
            whole = 0
            while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4])):
                del data[:size]
                whole += 1
            if whole:
                with answered.get_lock():
                    answered.value += whole
                client.sendall(request * whole)


@contextmanager
def herd(broker: TpcBroker, request: bytes) -> Iterator[Any]:
    context = multiprocessing.get_context("fork")
    answered = context.Value("q", 0)
    address = (broker.host, broker.ports[0])
    process = context.Process(target=ask_without_end, args=(address, request, answered), daemon=True)
    process.start()
    try:
        yield answered
    finally:
        process.kill()
        process.join()


def frame(api: str, version: int, values: dict[str, Any]) -> bytes:
    payload = encode_request(api, version, values, 1, "herd")
    return struct.pack(">i", len(payload)) + payload


def join_group(connection: RawConnection, group: str) -> tuple[str, int]:
    values = joining(group, SessionTimeoutMs=SESSION_MS)
    first = connection.ask("JoinGroup", 5, values)
    if first["ErrorCode"] == 79:  # MEMBER_ID_REQUIRED
        first = connection.ask("JoinGroup", 5, {**values, "MemberId": first["MemberId"]})
    assert first["ErrorCode"] == 0
    member, generation = first["MemberId"], first["GenerationId"]
    answer = connection.ask("SyncGroup", 3, syncing(group, member, generation, {member: b"x"}))
    assert answer["ErrorCode"] == 0
    return member, generation


def wait_for_coordinator(connection: RawConnection, group: str) -> None:
    asked = {"Key": group, "KeyType": 0}
    eventually(lambda: not connection.ask("FindCoordinator", 3, asked)["ErrorCode"], "a coordinator")


def test_groups_with_short_sessions_keep_their_members(broker: TpcBroker) -> None:
    """All that the herd has under way at once is 6,000 answers of 1,000 partitions each, for which Python needs longer
    than a session lasts.
    """
    core = broker.core_process(0)
    with RawConnection(broker.host, broker.ports[0], timeout_seconds=PATIENCE_S) as connection:
        wait_for_coordinator(connection, "short")
        member, generation = join_group(connection, "short")
        values = {"GroupId": "short", "GenerationId": generation, "MemberId": member}
        with herd(broker, frame("Metadata", 12, {"Topics": [{"Name": "wide"}]})) as answered:
            until = time.monotonic() + 3 * SESSION_MS / 1000
            while time.monotonic() < until:
                assert connection.ask("Heartbeat", 2, values)["ErrorCode"] == 0
                time.sleep(1)
            assert answered.value > CONNECTIONS, "the herd is served too"
    assert broker.core_process(0).pid == core.pid


def test_members_of_a_machine_that_was_paused_may_show_themselves(broker: TpcBroker) -> None:
    with RawConnection(broker.host, broker.ports[0], timeout_seconds=PATIENCE_S) as connection:
        wait_for_coordinator(connection, "paused")
        member, generation = join_group(connection, "paused")
        processes = [psutil.Process(broker.process.pid), *broker.core_processes()]
        for process in processes:
            process.suspend()
        time.sleep(SESSION_MS / 1000 + 4)
        for process in processes:
            process.resume()
        time.sleep(1)
        values = {"GroupId": "paused", "GenerationId": generation, "MemberId": member}
        assert connection.ask("Heartbeat", 2, values)["ErrorCode"] == 0


def test_all_topics_are_told_from_one_answer_until_anything_changes(broker: TpcBroker) -> None:
    with RawConnection(broker.host, broker.ports[0], timeout_seconds=PATIENCE_S) as connection:
        first = all_topics(connection)
        before = prepared_answers(broker)
        assert [all_topics(connection) for _ in range(10)] == [first] * 10
        assert prepared_answers(broker) >= before + 10
        for version in (1, 4, 9, 12):  # each in its own form
            assert names_in(all_topics(connection, version)) == names_in(all_topics(connection, version))
        create_topic(broker, "new", 1)
        assert names_in(all_topics(connection)) == names_in(first) | {"new"}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics(["new"])["new"].result(PATIENCE_S)
        assert names_in(all_topics(connection)) == names_in(first)


def test_versions_are_told_alike_to_everybody(broker: TpcBroker) -> None:
    asked = {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"}
    with RawConnection(broker.host, broker.ports[0]) as connection:
        first = connection.ask("ApiVersions", 3, asked)
        before = prepared_answers(broker)
        assert connection.ask("ApiVersions", 3, asked) == first
        assert prepared_answers(broker) == before + 1
        refused = connection.ask("ApiVersions", 3, {**asked, "ClientSoftwareName": "!"})
        assert refused["ErrorCode"] == 42
