"""A cluster whose links are encrypted, as it is seen on the wire; its secret is changed while it serves."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
from confluent_kafka import Producer

from tests.support.cluster_nodes import cluster, consume, create_topic
from tests.support.waiting import PATIENCE_S
from tpc_broker.engine.tls import is_built

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not is_built(), reason="built without OpenSSL")]

OLD, NEW = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
MARK = b"this stands in a record and nowhere else"


class Eavesdropper:
    """All TCP segments on loopback, by the pair of their ports."""

    def __init__(self):
        self.seen = []
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.bind(("lo", 0))
        self._is_over = False
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._is_over = True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"it is over", ("127.0.0.1", 9))
        self._thread.join()
        self._socket.close()

    def _listen(self):
        while not self._is_over:
            packet = self._socket.recv(1 << 17)
            if len(packet) < 54 or packet[23] != socket.IPPROTO_TCP:
                continue
            begin = 14 + (packet[14] & 15) * 4
            source, target = struct.unpack_from(">HH", packet, begin)
            self.seen.append((source, target, packet[begin + (packet[begin + 12] >> 4) * 4 :]))

    def of(self, ports):
        return [data for source, target, data in self.seen if ports & {source, target} and data]


def give_secret(made, *lines):
    for node in made.nodes:
        node.secret = made.folder / "secret"
    made.folder.joinpath("secret").write_text("\n".join(lines))
    made.folder.joinpath("secret").chmod(0o600)


def produce(made, value):
    producer = Producer({"bootstrap.servers": made.bootstrap, "acks": "all", "log_level": 0})
    failed = []
    producer.produce("t", value, partition=0, on_delivery=lambda error, _message: failed.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failed == [None]


def test_nobody_reads_records_between_nodes_and_the_secret_is_changed_node_by_node(tmp_path):
    try:
        eavesdropper = Eavesdropper()
    except PermissionError:
        pytest.skip("needs the right to listen to loopback (CAP_NET_RAW)")
    with eavesdropper, cluster(tmp_path) as made:
        give_secret(made, OLD)
        for node in made.nodes:
            node.overrides["cluster.links.encryption"] = "required"
        made.start()
        create_topic(made.bootstrap, "t", 1, replicas=3)
        produce(made, MARK)
        between = {node.port + core for node in made.nodes for core in range(2)}
        outside = {port for node in made.nodes for port in node.ports}
        assert any(MARK in data for data in eavesdropper.of(outside)), "a client's connection is plain"
        heard = eavesdropper.of(between)
        assert sum(map(len, heard)) > 10_000
        assert not any(MARK in data or b"metadata" in data for data in heard)
        told = [MARK.decode()]
        for lines in ((OLD, NEW), (NEW, OLD), (NEW,)):
            give_secret(made, *lines)
            for node in made.nodes:
                node.stop()
                made.start(node.number)
                produce(made, f"{lines[0][:2]} {node.number}".encode())
                told.append(f"{lines[0][:2]} {node.number}")
        assert sorted(consume(made.bootstrap, "t", len(told), "reader")) == sorted(told)
