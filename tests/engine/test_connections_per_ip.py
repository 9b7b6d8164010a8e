"""How many connections one address may have (max.connections.per.ip): counted and refused in C."""

from __future__ import annotations

import errno
import random
import socket
from collections import Counter
from dataclasses import replace

import pytest

from tests.engine.in_place_core import on_core
from tests.engine.test_connections_bound import alter, answers
from tests.engine.test_refusal_watch import Listening, looks
from tests.engine.test_trouble import lines_with
from tests.support.broker_process import TpcBroker
from tpc_broker import limits
from tpc_broker.engine.connection_bounds import connection_limits
from tpc_broker.metadata.settings import load_settings


def connect_from(bench, source, address=None):
    """A client with that address; None: it was refused."""
    before = bench.connections.statistics()
    client = socket.create_connection(address or bench.address, source_address=(source, 0))
    bench.until(lambda: _seen(bench.connections.statistics()) > _seen(before))
    if bench.connections.statistics().opened > before.opened:
        return client
    assert bench.read_end(client)
    client.close()
    return None


def _seen(statistics):
    return statistics.opened + statistics.refused


def close(bench, client):
    before = bench.connections.statistics().closed
    client.close()
    bench.until(lambda: bench.connections.statistics().closed > before)


def test_one_above_the_limit_is_refused_and_counted_and_others_are_not(make_connections):
    bench = make_connections(connections_per_ip_max=2)
    mine = [connect_from(bench, "127.0.0.1") for _ in range(2)]
    assert connect_from(bench, "127.0.0.1") is None
    others = connect_from(bench, "127.0.0.2")
    statistics = bench.connections.statistics()
    assert (statistics.opened, statistics.refused, statistics.refused_per_ip) == (3, 1, 1)
    assert bench.connections.listener_statistics()[0]["refused"] == 1
    close(bench, mine.pop())
    mine.append(connect_from(bench, "127.0.0.1"))
    for client in (*mine, others):
        bench.exchange(client)
        client.close()


def test_a_limit_that_is_lowered_leaves_those_that_are_there_and_counts_them(make_connections):
    bench = make_connections()
    clients = [connect_from(bench, "127.0.0.1") for _ in range(4)]
    bench.connections.set_limits(replace(bench.connections.limits, connections_per_ip_max=3))
    assert connect_from(bench, "127.0.0.1") is None
    for client in clients:
        bench.exchange(client)
    close(bench, clients.pop())
    assert connect_from(bench, "127.0.0.1") is None
    close(bench, clients.pop())
    clients.append(connect_from(bench, "127.0.0.1"))
    assert None not in clients
    for client in clients:
        client.close()


def test_an_address_of_ipv4_is_the_same_on_listeners_of_both_kinds(make_connections):
    bench = make_connections(connections_per_ip_max=2)
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        bench.connections.listen(both.fileno())
        mapped = ("127.0.0.1", both.getsockname()[1])
        clients = [connect_from(bench, "127.0.0.1"), connect_from(bench, "127.0.0.1", mapped)]
        assert connect_from(bench, "127.0.0.1") is connect_from(bench, "127.0.0.1", mapped) is None
        clients += [connect_from(bench, "::1", ("::1", mapped[1])) for _ in range(2)]
        assert None not in clients
        assert connect_from(bench, "::1", ("::1", mapped[1])) is None
        for client in clients:
            client.close()
        bench.connections.stop_accepting()
        bench.until(lambda: bench.connections.quiet)


def test_what_is_adopted_is_counted_and_sockets_without_an_address_are_not(make_connections):
    bench = make_connections(connections_per_ip_max=1)
    first = connect_from(bench, "127.0.0.1")
    pairs = [socket.socketpair() for _ in range(3)]
    for _ours, theirs in pairs:
        bench.connections.adopt(theirs.detach())
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _address = listener.accept()
        with accepted, pytest.raises(OSError, match="adopt") as caught:
            bench.connections.adopt(accepted.fileno())
        assert caught.value.errno == errno.EUSERS
        client.close()
    for ours in (first, *(ours for ours, _theirs in pairs)):
        ours.close()


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_a_dictionary_whoever_comes_and_goes(make_connections, seed):
    bench, chooser, held, counts = make_connections(connections_per_ip_max=3), random.Random(seed), [], Counter()
    for step in range(600):
        source = f"127.0.{chooser.randrange(2)}.{chooser.randrange(1, 120)}"
        if held and chooser.random() < (0.2 if step % 300 < 200 else 0.8):
            source, client = held.pop(chooser.randrange(len(held)))
            close(bench, client)
            counts[source] -= 1
        elif (client := connect_from(bench, source)) is None:
            assert counts[source] == 3, source
        else:
            held.append((source, client))
            counts[source] += 1
            assert counts[source] <= 3, source
    assert bench.connections.statistics().refused_per_ip > 0
    for _source, client in held:
        client.close()


def test_an_address_at_its_limit_is_told(tmp_path, caplog):
    async def body(bench):
        bench.c.set_limits(replace(bench.c.limits, connections_per_ip_max=2))
        clients = [bench.connect() for _ in range(7)]
        await looks(bench, lambda: bench.c.statistics().refused == 5)
        for opened in (*clients, bench.listener):
            opened.close()

    on_core(tmp_path, body, Listening)
    assert lines_with(caplog, "max.connections.per.ip is 2")
    assert not lines_with(caplog, "the limit of connections is reached")


@pytest.mark.parametrize("given", ["file", "override", "stored"])
@pytest.mark.parametrize("stored", [0, 1])
def test_a_limit_that_would_lock_everybody_out_ends_no_start_and_is_not_obeyed(stored, given, caplog):
    """Earlier releases took it, and it had no effect."""
    line = f"max.connections.per.ip={stored}"
    configuration = load_settings(line * (given == "file"), [line] * (given == "override"))
    changed = {"max.connections.per.ip": str(stored)} if given == "stored" else {}
    settings = configuration.altered(changed, {}).settings
    assert connection_limits(settings).connections_per_ip_max == limits.CONNECTIONS_PER_IP_MIN
    assert lines_with(caplog, f"not {stored} (max.connections.per.ip)")


def test_the_setting_acts_on_all_cores_from_the_start_and_when_it_is_altered(tmp_path):
    broker = TpcBroker(tmp_path, cores_count=2, overrides={"max.connections.per.ip": "40"})
    broker.start()
    opened = []
    try:
        opened += [answers(broker, core) for core in (0, 1) for _ in range(10)]
        words = "Invalid value 1 for configuration max.connections.per.ip: Value must be at least 2"
        assert alter(opened[0], "max.connections.per.ip", "1")[1] == words
        assert alter(opened[0], "max.connections.per.ip", "10") == (0, None)
        assert [answers(broker, core) for core in (0, 1)] == [None, None]
        assert [core["connections"]["refused_per_ip"] for core in broker.counters()] == [1, 1]
        assert alter(opened[0], "max.connections.per.ip", None) == (0, None)
        opened += [answers(broker, core) for core in (0, 1)]
        assert None not in opened
        for _ in range(28):
            opened.append(answers(broker, 0))
        assert None not in opened
        while (another := answers(broker, 0)) is not None:
            opened.append(another)
            assert len(opened) < 60
    finally:
        for connection in opened:
            if connection is not None:
                connection.close()
        broker.kill()
