"""Log lines that clients cause: one a minute of a cause and host, then counts; a bound on lines, and on memory."""

from __future__ import annotations

import logging
import ssl
from types import SimpleNamespace

import pytest
import trio

from tests.broker.test_dispatch import SlowHandlers
from tpc_broker import limits
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.engine.client_connections import ClientConnections
from tpc_broker.engine.connections import CloseReason
from tpc_broker.foreign_protocols import foreign_protocol

log = logging.getLogger(__name__)
PERIOD_S = limits.LOG_LINE_PERIOD_S


class Bench:
    def __init__(self, caplog):
        self.now_s, self._caplog = 1_000.0, caplog
        self.limiter = LogLimiter(lambda: self.now_s)

    def say(self, cause, who, text=None, **more):
        self.limiter.say(log, cause, who, text or f"{who}: {cause}", **more)

    def lines(self):
        """Since the last look."""
        found = self._caplog.messages
        self._caplog.clear()
        return found


@pytest.fixture
def bench(caplog):
    caplog.set_level(logging.INFO)
    return Bench(caplog)


def test_of_what_comes_all_the_time_there_is_a_line_a_minute_with_the_count(bench):
    for _ in range(10 * 60 * 8):  # ten minutes, eight a second
        bench.say("hello", "10.0.0.1")
        bench.now_s += 0.125
    lines = bench.lines()
    assert lines[0] == "10.0.0.1: hello"
    assert lines[1] == "10.0.0.1: hello (479 times since this was last logged)"
    assert len(lines) == 10


def test_the_count_is_told_also_where_nothing_comes_any_more(bench):
    for _ in range(7):
        bench.say("hello", "10.0.0.1")
    assert bench.lines() == ["10.0.0.1: hello"]
    bench.limiter.tell()
    assert not bench.lines()
    bench.now_s += PERIOD_S
    bench.limiter.tell()
    assert bench.lines() == ["10.0.0.1: hello (6 times since this was last logged)"]
    bench.now_s += PERIOD_S
    bench.limiter.tell()
    assert not bench.lines()
    bench.say("hello", "10.0.0.1")
    assert bench.lines() == ["10.0.0.1: hello"]


def test_causes_and_hosts_are_told_apart(bench):
    for who in ("10.0.0.1", "10.0.0.2"):
        for cause in ("hello", "goodbye"):
            bench.say(cause, who)
            bench.say(cause, who)
    assert bench.lines() == ["10.0.0.1: hello", "10.0.0.1: goodbye", "10.0.0.2: hello", "10.0.0.2: goodbye"]


def test_a_hundred_thousand_addresses_write_few_lines_and_take_little_memory(bench):
    """Over an hour."""
    for number in range(100_000):
        bench.say("hello", f"2001:db8::{number:x}")
        bench.now_s += 0.036
    lines = bench.lines()
    assert len(lines) <= (limits.LOG_LINES_OF_CAUSE_MAX + 1) * 60
    assert any(line.endswith("since this was last logged, not only this one's)") for line in lines)
    assert len(bench.limiter._lines) <= limits.LOG_LINES_OF_CAUSE_MAX + 1


def test_causes_are_bounded_too(bench):
    for number in range(10 * limits.LOG_CAUSES_MAX):
        bench.say(f"cause {number}", "10.0.0.1")
    assert len(bench.lines()) == limits.LOG_CAUSES_MAX + 1
    bench.now_s += PERIOD_S
    bench.limiter.tell()
    bench.now_s += PERIOD_S
    bench.limiter.tell()
    assert not bench.limiter._lines
    assert not bench.limiter._told_apart


def test_a_cause_may_have_a_time_of_its_own(bench):
    for _ in range(60):
        bench.say("not here", "a client id", period_s=3_600)
        bench.say("hello", "10.0.0.1")
        bench.now_s += PERIOD_S
    lines = bench.lines()
    assert lines.count("a client id: not here") == 1
    assert len(lines) == 1 + 60


def test_what_clients_chose_stays_within_one_line_of_a_bounded_length(bench):
    bench.say("hello", "x", "client id \n12:00:00 error   core 0     all is lost\x1b[2J" + "y" * 40_000)
    (line,) = bench.lines()
    assert "\n" not in line
    assert "\x1b" not in line
    assert r"client id \n12:00" in line
    assert len(line) < 2 * limits.LOG_LINE_LENGTH_MAX


def first_of_a_tls_client():
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="broker.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()[:4]


@pytest.mark.parametrize(
    ("first", "what", "advice"),
    [
        (first_of_a_tls_client(), "TLS", "security.protocol=PLAINTEXT"),
        (b"GET /ready HTTP/1.1"[:4], "HTTP", "--admin"),
        (b"PRI * HTTP/2.0"[:4], "HTTP", "--admin"),
        (b"PROXY TCP4"[:4], "PROXY", "load balancer"),
        (b"\r\n\r\n\0\r\nQUIT\n"[:4], "PROXY", "load balancer"),
        (b"SSH-2.0"[:4], "SSH", "port for Kafka clients"),
    ],
)
async def test_who_speaks_another_protocol_is_told_so_once_a_minute(caplog, first, what, advice):
    async with trio.open_nursery() as nursery:
        bench, connections = SlowHandlers(nursery, {}), SimpleNamespace(carried_subject=lambda _connection: None)
        ClientConnections(connections).attend(bench.dispatcher, None)
        assert foreign_protocol(first) == what
        for number in range(145):
            connections.on_opened(number, f"127.0.0.1:{50_000 + number}", 0)
            connections.on_closed(number, CloseReason.FRAME_TOO_LARGE, int.from_bytes(first, "big"))
        (line,) = caplog.messages
        assert line.startswith("127.0.0.1:50000: connection closed: ")
        assert what in line
        assert advice in line
        assert "larger" not in line
        connections.on_opened(200, "127.0.0.1:60000", 0)
        connections.on_closed(200, CloseReason.FRAME_TOO_LARGE, 200_000_000)
        too_large = "it announced a request larger than socket.request.max.bytes (200000000 bytes)"
        assert caplog.messages[1:] == [f"127.0.0.1:60000: connection closed: {too_large}"]
        nursery.cancel_scope.cancel()


def test_lengths_of_requests_are_taken_for_no_other_protocol():
    assert not any(foreign_protocol(length.to_bytes(4, "big")) for length in range(0, 200 << 20, 9_973))
