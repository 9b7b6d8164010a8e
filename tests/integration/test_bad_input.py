"""Input that no client sends: it meets an error or an end, costs bounded memory, and harms nobody else."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.raw_client import Closed, RawConnection
from tests.support.record_batches import Record, batch
from tests.support.today import now_ms
from tests.support.waiting import PATIENCE_S, eventually, patiently

MEBIBYTE = 1 << 20
ON_KAFKA = os.environ.get("TPC_TEST_BROKER") == "kafka"
NEEDS_OURS = pytest.mark.skipif(ON_KAFKA, reason="about our broker's promise, not Kafka's")
IDLE_CONNECTIONS = 5000


def metadata_request(correlation_id: int = 1) -> bytes:
    """Metadata 1 for no topics, with its length: written by hand, so that this file needs no Java."""
    payload = struct.pack(">hhihi", 3, 1, correlation_id, -1, 0)
    return struct.pack(">i", len(payload)) + payload


def api_versions_request(correlation_id: int) -> bytes:
    payload = struct.pack(">hhih", 18, 0, correlation_id, -1)
    return struct.pack(">i", len(payload)) + payload


def is_answered(connection: RawConnection) -> bool:
    connection.send_bytes(metadata_request(7))
    return connection.receive_frame()[:4] == b"\0\0\0\x07"


def total(broker: TpcBroker, name: str) -> int:
    return sum(core["connections"][name] for core in broker.counters())


@pytest.fixture
def bystander(broker) -> Iterator[RawConnection]:
    """A client that was there before on every port's first; it must be answered on the same connection afterwards."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(RawConnection("127.0.0.1", port)) for port in broker.ports]
        for peer in peers:
            assert is_answered(peer)
        yield peers[0]
        for peer in peers:
            assert is_answered(peer), "another client suffered"


@pytest.fixture(params=[0, -1], ids=["first-port", "last-port"])
def port(request, broker) -> int:
    return broker.ports[request.param]


def refused(port: int, data: bytes, *, end: bool = False, source: str = "") -> bytes:
    """Send and wait for the end of the connection; what the broker said before. Fails when it stays open."""
    with RawConnection("127.0.0.1", port, source=source) as peer:
        with contextlib.suppress(Closed):
            peer.send_bytes(data)
        if end:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_WR)
        return peer.wait_closed()


def lines_about(broker: TpcBroker, address: str) -> list[str]:
    return [line for line in broker.log_text().splitlines() if f"{address}:" in line]


@pytest.mark.parametrize("length", [2**31 - 1, 2**31 - 2, 101 * MEBIBYTE, -1, -2, -(2**31)])
def test_impossible_lengths_close_the_connection_before_their_bytes_come(bystander, port, length):
    assert refused(port, struct.pack(">i", length) + b"\0" * 100) == b""


def test_a_huge_length_takes_no_memory(broker, bystander, port):
    before = broker.resident_bytes()
    for _ in range(200):
        refused(port, struct.pack(">i", 2**31 - 1))
    assert broker.resident_bytes() - before < 64 * MEBIBYTE


@NEEDS_OURS  # Kafka allocates what is promised, and dies of it
def test_large_lengths_that_are_allowed_take_memory_only_as_bytes_come(broker, bystander, port):
    """A hundred peers that promise 90 MiB each and send nothing more."""
    before = broker.resident_bytes()
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(RawConnection("127.0.0.1", port)) for _ in range(100)]
        for peer in peers:
            peer.send_bytes(struct.pack(">i", 90 * MEBIBYTE) + b"\0" * 10)
        eventually(lambda: total(broker, "assembling_bytes") >= 100 * 10, "all of them are taken")
        assert is_answered(bystander)
        assert broker.resident_bytes() - before < 128 * MEBIBYTE


def test_random_bytes(bystander, port):
    chooser = random.Random(20261121)
    for _ in range(150):
        refused(port, chooser.randbytes(chooser.choice([1, 3, 4, 5, 8, 20, 100, 5000])), end=True)


def test_random_bytes_in_a_frame_of_the_right_length(bystander, port):
    """Past the framing: random headers, and random bodies behind real headers."""
    chooser = random.Random(4711)
    for _ in range(150):
        body = chooser.randbytes(chooser.choice([0, 1, 7, 8, 30, 200]))
        if chooser.random() < 0.7:
            key, version = chooser.choice([0, 1, 2, 3, 8, 9, 10, 11, 14, 18, 19, 20, 32, 44]), chooser.randrange(14)
            body = struct.pack(">hhih", key, version, 9, -1) + body
        refused(port, struct.pack(">i", len(body)) + body, end=True)


def test_truncated_frames(bystander, port):
    whole = metadata_request()
    for count in range(1, len(whole)):
        assert refused(port, whole[:count], end=True) == b""


@pytest.mark.parametrize("count", [2**31 - 1, 10**9, 100_000, -2, -(2**31)])
@pytest.mark.parametrize(("key", "version"), [(3, 1), (0, 3), (1, 4), (2, 1), (19, 2), (9, 1), (32, 1)])
def test_array_counts_beyond_the_frame(broker, bystander, port, key, version, count):
    before = broker.resident_bytes()
    fixed = {3: b"", 0: struct.pack(">hhi", -1, 1, 1000), 1: struct.pack(">iiiib", -1, 0, 0, 1, 0),
             2: struct.pack(">i", -1), 19: b"", 9: b"\0\x01g", 32: b""}[key]  # fmt: skip
    payload = struct.pack(">hhih", key, version, 3, -1) + fixed + struct.pack(">i", count)
    refused(port, struct.pack(">i", len(payload)) + payload, end=True)
    assert broker.resident_bytes() - before < 32 * MEBIBYTE


@pytest.mark.parametrize("key", [-1, 4, 7, 999, 32767])
def test_api_keys_that_do_not_exist(bystander, port, key):
    payload = struct.pack(">hhih", key, 0, 3, -1)
    assert refused(port, struct.pack(">i", len(payload)) + payload) == b""


@NEEDS_OURS
def test_null_records_in_a_produce(broker, bystander, port):
    """Kafka 4.3.1 never answers this one; anything but silence will do."""
    payload = struct.pack(">hhihh", 0, 3, 3, -1, -1) + struct.pack(">hii", -1, 1000, 1)
    payload += b"\0\x01t" + struct.pack(">iii", 1, 0, -1)
    with RawConnection("127.0.0.1", port) as peer:
        peer.send_frame(payload)
        with contextlib.suppress(Closed):
            assert peer.receive_frame()


def test_requests_before_api_versions(broker, bystander, port):
    with RawConnection("127.0.0.1", port) as peer:
        assert is_answered(peer)


def test_a_sender_byte_by_byte(bystander, port):
    with RawConnection("127.0.0.1", port) as slow:
        for byte in metadata_request(9) + api_versions_request(10):
            slow.send_bytes(bytes([byte]))
            assert is_answered(bystander)
        assert slow.receive_frame()[:4] == b"\0\0\0\x09"
        assert slow.receive_frame()[:4] == b"\0\0\0\x0a"


def test_many_slow_senders_at_once(broker, bystander, port):
    whole = api_versions_request(5)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(RawConnection("127.0.0.1", port)) for _ in range(100)]
        for byte in whole:
            for peer in peers:
                peer.send_bytes(bytes([byte]))
        for peer in peers:
            assert peer.receive_frame()[:4] == b"\0\0\0\x05"


def test_connections_that_come_and_go(broker, bystander, port):
    before = broker.resident_bytes()
    for number in range(1500):
        peer = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        if number % 3 == 0:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if number % 2 == 0:
            peer.sendall(metadata_request()[: number % 22])
        peer.close()
    assert is_answered(bystander)
    assert broker.resident_bytes() - before < 64 * MEBIBYTE


def test_five_thousand_idle_connections(broker, bystander, port):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE_CONNECTIONS + 500:
        pytest.skip(f"the hard limit of file descriptors is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = broker.resident_bytes()
    idle: list[socket.socket] = []
    try:
        for number in range(IDLE_CONNECTIONS):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            if number % 500 == 0:
                assert is_answered(bystander)
        with RawConnection("127.0.0.1", port) as newcomer:
            assert is_answered(newcomer)
        grown = broker.resident_bytes() - before
        assert grown < 150 * MEBIBYTE, f"{grown // IDLE_CONNECTIONS} bytes a connection"
        for number in (0, 2500, 4999):
            idle[number].sendall(metadata_request(7))
            assert idle[number].recv(8, socket.MSG_WAITALL)[4:] == b"\0\0\0\x07"
    finally:
        for peer in idle:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    eventually(lambda: is_answered(bystander), "answers after they left")


def fill(broker, topic: str, records_count: int, record_bytes: int) -> int:
    """Make a topic of one partition with large records; returns the port of its leader."""
    data = batch([Record(bytes(record_bytes))], base_timestamp_ms=now_ms())
    name = struct.pack(">h", len(topic)) + topic.encode()
    with RawConnection("127.0.0.1", broker.ports[0]) as peer:
        leader = -1
        for _ in patiently(f"{topic} has a leader"):
            if leader >= 0:
                break
            peer.send_frame(struct.pack(">hhihi", 3, 1, 1, -1, 1) + name)
            answer = peer.receive_frame()
            brokers: dict[int, int] = {}
            position = 8
            for _ in range(struct.unpack_from(">i", answer, 4)[0]):
                identifier, host_bytes = struct.unpack_from(">ih", answer, position)
                (brokers[identifier],) = struct.unpack_from(">i", answer, position + 6 + host_bytes)
                position += 10 + host_bytes
                position += 2 + max(0, struct.unpack_from(">h", answer, position)[0])
            position += 4 + 4 + 2 + 2 + len(topic) + 1
            (partitions_count,) = struct.unpack_from(">i", answer, position)
            if partitions_count == 1:
                error, _, leader = struct.unpack_from(">hii", answer, position + 4)
                leader = leader if error == 0 else -1
    with RawConnection("127.0.0.1", brokers[leader]) as peer:
        for number in range(records_count):
            head = struct.pack(">hhihhhii", 0, 3, number, -1, -1, -1, 10_000, 1)
            peer.send_frame(head + name + struct.pack(">iii", 1, 0, len(data)) + data)
            answer = peer.receive_frame()
            assert struct.unpack_from(">h", answer, 4 + 4 + len(name) + 4 + 4)[0] == 0, answer
    return brokers[leader]


def fetch_frame(topic: str, bytes_max: int) -> bytes:
    head = struct.pack(">hhih", 1, 4, 1, -1) + struct.pack(">iiiib", -1, 0, 1, bytes_max, 0)
    name = struct.pack(">h", len(topic)) + topic.encode()
    payload = head + struct.pack(">i", 1) + name + struct.pack(">iiqi", 1, 0, 0, bytes_max)
    return struct.pack(">i", len(payload)) + payload


def test_clients_that_never_read(broker, bystander, topic):
    """Forty of them ask for 30 MiB each, many times over, and leave the answers in the socket."""
    port = fill(broker, topic, 32, 1_000_000)
    before = broker.resident_bytes()
    with contextlib.ExitStack() as outside, contextlib.ExitStack() as stack:
        peers = []
        for _ in range(40):
            peer = stack.enter_context(RawConnection("127.0.0.1", port))
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.send_bytes(fetch_frame(topic, 30 * MEBIBYTE) * 20)
            peers.append(peer)
        for _ in range(1000):
            assert is_answered(bystander)
        if not ON_KAFKA:
            unsent = [-1]

            def takes_no_more() -> bool:
                unsent.append(total(broker, "answer_bytes_unsent"))
                return unsent[-1] > 0 and unsent[-2] == unsent[-1]

            eventually(takes_no_more, "all that is answered to the crowd waits")
            assert broker.resident_bytes() - before < 400 * MEBIBYTE
        honest = outside.enter_context(RawConnection("127.0.0.1", port))
        for _ in range(3):  # the crowd makes answers smaller, down to one batch, and nobody waits for it
            honest.send_bytes(fetch_frame(topic, 2 * MEBIBYTE))
            assert len(honest.receive_frame()) > 1_000_000
        stack.close()

        def whole_answer() -> bool:
            honest.send_bytes(fetch_frame(topic, 2 * MEBIBYTE))
            return len(honest.receive_frame()) > 2_000_000

        eventually(whole_answer, "the crowd has gone, and what it held with it", pause_s=0)


def test_endless_requests_without_reading(broker, bystander, port):
    """Small requests as fast as they go in; the broker must stop taking them when the answers are not read."""
    before = broker.resident_bytes()
    with RawConnection("127.0.0.1", port) as flood:
        flood.socket.setblocking(False)
        block = api_versions_request(1) * 1000
        sent = refused_in_a_row = 0
        while refused_in_a_row < 2000 and sent < 200 * MEBIBYTE:
            try:
                sent += flood.socket.send(block)
                refused_in_a_row = 0
            except BlockingIOError:
                assert is_answered(bystander)
                refused_in_a_row += 1
            except (BrokenPipeError, ConnectionResetError):
                break
        assert is_answered(bystander)
        if not ON_KAFKA:
            assert broker.resident_bytes() - before < 100 * MEBIBYTE


@NEEDS_OURS
def test_the_log_says_who_and_why_and_not_too_often(broker, bystander):
    ours = "127.7.0.1"  # of others there was a line perhaps, and the next one comes in a minute
    for _ in range(300):
        refused(broker.ports[0], struct.pack(">i", 2**31 - 1), source=ours)
    lines = eventually(lambda: lines_about(broker, ours), "a line about it")
    assert len(lines) < 60, "one line per bad peer would fill the disk"
    assert any(str(2**31 - 1) in line for line in lines), lines[:3]


@NEEDS_OURS
def test_a_tls_client_is_told_to_the_operator_by_its_name(broker, port):
    """Not as a request of 369,295,621 bytes."""
    ours = f"127.7.1.{broker.ports.index(port)}"
    for _ in range(20):
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S, (ours, 0))
        with plain, pytest.raises(OSError, match=r"EOF|reset|closed"):  # ssl.SSLError is one
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
    said = eventually(lambda: lines_about(broker, ours), "it is told")
    assert "TLS hello" in said[0]
    assert "security.protocol=PLAINTEXT" in said[0]
