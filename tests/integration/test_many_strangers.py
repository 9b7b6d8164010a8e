"""Ten thousand connections at one core that never say who they are, beside those who do."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.raw_client import RawConnection
from tests.support.sasl_brokers import HELLO, LoginLine, SaslBroker, make_users
from tests.support.tls_brokers import TlsBroker
from tests.support.waiting import PATIENCE_S, eventually, let_pass
from tpc_broker.bench.idling import descriptors_max

pytestmark = [pytest.mark.machine, pytest.mark.usefixtures("kafka_tools")]

MANY = 10_000
KIB_EACH_MAX = 16
"""Of a connection that has sent nothing, or next to it."""


@contextlib.contextmanager
def many(host: str, port: int) -> Iterator[list[socket.socket]]:
    assert descriptors_max() > MANY + 1000, "too few descriptors (ulimit -Hn)"
    opened: list[socket.socket] = []
    try:
        for _ in range(MANY):
            opened.append(socket.create_connection((host, port), timeout=PATIENCE_S))
            opened[-1].setblocking(False)
        yield opened
    finally:
        for each in opened:
            each.close()


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(4096) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def closed_for(broker: SaslBroker | TlsBroker, reason: str) -> int:
    return sum(core["closed"].get(reason, 0) for core in broker.counters())


def test_silent_connections_keep_nobody_out_and_go_when_their_time_is_over(tmp_path: Path) -> None:
    """Attempt 11."""
    broker = SaslBroker(tmp_path / "broker", 1)
    broker.start()
    try:
        make_users(broker.bootstrap)
        with LoginLine(broker) as bystander:
            bystander.log_in("alice")
            before = broker.resident_bytes()
            with many(broker.host, broker.sasl_port) as silent:
                assert bystander.raw.ask("Metadata", 9, {"Topics": None})["Brokers"]
                with LoginLine(broker) as line:
                    assert line.log_in("bob")["ErrorCode"] == 0
                assert broker.resident_bytes() - before < MANY * KIB_EACH_MAX * 1024
                eventually(lambda: all(map(is_closed, silent)), "they are closed")
            assert closed_for(broker, "authentication_late") == MANY
            assert bystander.raw.ask("Metadata", 9, {"Topics": None})["Brokers"]
    finally:
        broker.stop()


class _TlsConnection(RawConnection):
    def __init__(self, broker: TlsBroker) -> None:
        super().__init__(broker.host, broker.first_tls_port)
        context = ssl.create_default_context(cafile=str(broker.certificates / "ca.pem"))
        self._socket = context.wrap_socket(self._socket, server_hostname=broker.host)


def first_words() -> bytes:
    outgoing = ssl.MemoryBIO()
    session = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def test_handshakes_of_a_byte_a_second_keep_nobody_out_and_end(tmp_path: Path, certificates: Path) -> None:
    """Attempt 10. A thousand of them are begun at most; for one more the oldest goes."""
    broker, words = TlsBroker(tmp_path / "broker", 1), first_words()
    broker.certificates = certificates
    broker.start()
    try:
        with _TlsConnection(broker) as bystander:
            before = broker.resident_bytes()
            with many(broker.host, broker.first_tls_port) as slow:
                waiting = list(slow)
                for byte in words:
                    for one in waiting:
                        with contextlib.suppress(OSError):
                            one.send(bytes([byte]))
                    assert bystander.ask("ApiVersions", 3, HELLO)["ApiKeys"]
                    assert broker.resident_bytes() - before < 100 << 20
                    waiting = [one for one in waiting if not is_closed(one)]
                    if not waiting:
                        break
                    with _TlsConnection(broker) as newcomer:
                        assert newcomer.ask("ApiVersions", 3, HELLO)["ApiKeys"]
                    let_pass(1.0)
                assert not waiting
            assert bystander.ask("ApiVersions", 3, HELLO)["ApiKeys"]
    finally:
        broker.stop()
