"""Rounds with many connections on which nothing happens, beside a load."""

from __future__ import annotations

import resource
import socket
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.kafka_requests import api_versions_request
from tpc_broker.bench.load import LoadFailed, run_load
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored, make_round

if TYPE_CHECKING:
    from tpc_broker.bench.peers.kafka_like import Address

_PER_SOURCE: Final = 5_000
"""Connections per loopback source address: each has some 28,000 ports of its own."""
_SPARE_DESCRIPTORS: Final = 512
_SETTLED_BY_S: Final = 20.0


def descriptors_max() -> int:
    """Raise this process's limit (which servers it starts inherit) as far as it may; the limit then."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _one(address: Address, place: int, hello: bytes) -> socket.socket:
    source = (f"127.0.0.{2 + place // _PER_SOURCE}", 0)
    made = socket.create_connection(address, timeout=30, source_address=source)
    made.sendall(hello)
    head = made.recv(4, socket.MSG_WAITALL)
    size = int.from_bytes(head, "big")
    if len(head) != 4 or len(made.recv(size, socket.MSG_WAITALL)) != size:
        made.close()
        raise LoadFailed(f"the server closed connection {place}")
    return made


def connect_idle(stage: Stage, count: int) -> None:
    """So many idle connections in all, each of which has asked for the API versions, as clients do."""
    if descriptors_max() < count + _SPARE_DESCRIPTORS:
        raise LoadFailed(f"{count} connections need a higher limit of open files (ulimit -Hn)")
    hello = api_versions_request()
    addresses = sorted(set(stage.kafka_like.broker_addresses()))
    for place in range(len(stage.idle), count):
        try:
            stage.idle.append(_one(addresses[place % len(addresses)], place, hello))
        except OSError as error:
            raise LoadFailed(f"connection {place}: {error}") from None


def idle_connections(workload: Workload, stage: Stage) -> Round:
    """An open-loop load beside `count` idle connections, and the server's memory for each of them."""
    shape, peer, topic = workload.shape, stage.peer, f"load-{workload.key}"
    plan = peer.produce_plan(topic, shape, (stage.extent.warm_up, stage.extent.measured))
    before = 0
    if "resident_without" not in stage.facts:
        before = run_load(plan).requests_all  # what the load itself takes is taken then
        stage.server.settle(_SETTLED_BY_S)
        stage.facts["resident_without"] = stage.server.resident_bytes()
    connect_idle(stage, workload.count)
    stage.server.settle(_SETTLED_BY_S)
    grown = stage.server.resident_bytes() - stage.facts["resident_without"]
    before_s = stage.server.cpu_s()
    found = run_load(plan)
    used_s = stage.server.cpu_s() - before_s
    check_stored(peer, topic, before + found.requests_all)
    made = make_round(found, stage, records=1, value_bytes=shape.value_bytes, used_cpu_s=used_s)
    if workload.count:
        made.extra = {"kib_per_connection": grown / 1024 / workload.count, "idle_connections": workload.count}
    return made
