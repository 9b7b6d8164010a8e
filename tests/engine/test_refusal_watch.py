"""Connections that are turned away in C are told once when it begins and once when it is over."""

from __future__ import annotations

import socket

from tests.engine.in_place_core import Bench, on_core
from tests.engine.test_trouble import lines_with, wait_until
from tests.support.descriptors import descriptors_left
from tpc_broker.storage.upkeep import refusals


class Listening(Bench):
    async def open(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.c = self.core.connections._connections
        self.c.listen(self.listener.fileno())

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.listener.getsockname())
        client.setblocking(False)
        return client


async def looks(bench, condition):
    def looked() -> bool:
        bench.core.refusals.look()
        return condition()

    await wait_until(looked)


def test_the_limit_of_connections_is_told_when_it_begins_and_when_it_is_over(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(refusals, "QUIET_S", 3600)  # it is over when the test says so, however slow the machine is

    async def body(bench):
        bench.c.limits = bench.c.limits.__class__(connections_max=2)
        bench.c.set_limits(bench.c.limits)
        bench.core.refusals.look()
        clients = [bench.connect() for _ in range(7)]
        await looks(bench, lambda: bench.c.statistics().refused == 5)
        clients += [bench.connect() for _ in range(3)]
        await looks(bench, lambda: bench.c.statistics().refused == 8)
        monkeypatch.setattr(refusals, "QUIET_S", 0)
        await looks(bench, lambda: lines_with(caplog, "8 connections were refused"))
        for opened in (*clients, bench.listener):
            opened.close()

    on_core(tmp_path, body, Listening)
    assert [line.partition(" (")[0] for line in lines_with(caplog, "the limit of connections")] == [
        "the limit of connections is reached: connections are refused until this is over",
        lines_with(caplog, "8 connections were refused")[0],
    ]
    assert "max.connections is 2" in caplog.text


def test_descriptors_that_ran_out_are_told(tmp_path, caplog):
    async def body(bench):
        client = socket.socket()
        client.setblocking(False)
        with descriptors_left(0):
            client.connect_ex(bench.listener.getsockname())
            await looks(bench, lambda: bench.c.statistics().accept_failures >= 2)
        await looks(bench, lambda: bench.c.statistics().opened == 1)
        await looks(bench, lambda: lines_with(caplog, "connections cannot be accepted: over"))
        for opened in (client, bench.listener):
            opened.close()

    on_core(tmp_path, body, Listening)
    assert len(lines_with(caplog, "connections cannot be accepted")) == 2
