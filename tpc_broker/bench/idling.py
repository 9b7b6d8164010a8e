"""Rounds with many connections on which nothing happens, beside a load.

Whether they cost the load anything is a ratio of two tails, each made by what happens a few times a second. So the load
runs without them and beside them in turn, and the ratio is that of the medians: of one minute, not of two.
"""

from __future__ import annotations

import resource
import socket
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.kafka_requests import api_versions_request
from tpc_broker.bench.load import LoadFailed, LoadResult, run_load
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored, make_round

if TYPE_CHECKING:
    from tpc_broker.bench.load import Plan
    from tpc_broker.bench.peers.kafka_like import Address

_PER_SOURCE: Final = 5_000
"""Connections per loopback source address: each has some 28,000 ports of its own."""
_SPARE_DESCRIPTORS: Final = 512
_SETTLED_BY_S: Final = 20.0
_PAIRS: Final = 3
"""Of runs, without the idle connections and beside them."""
_IP_BIND_ADDRESS_NO_PORT: Final = 24
"""ip(7). The port is chosen by `connect`, which may take one whose last connection to another port has just ended."""


def descriptors_max() -> int:
    """Raise this process's limit (which servers it starts inherit) as far as it may; the limit then."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _one(address: Address, place: int, hello: bytes) -> socket.socket:
    made = socket.socket()
    made.settimeout(30)
    made.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    made.bind((f"127.0.0.{2 + place // _PER_SOURCE}", 0))
    made.connect(address)
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


@dataclass
class _Runs:
    """Of the same plan on the same server, one after the other."""

    found: list[LoadResult] = field(default_factory=list)
    used_cpu_s: float = 0.0

    def add(self, stage: Stage, plan: Plan) -> None:
        stage.server.settle(_SETTLED_BY_S)
        before_s = stage.server.cpu_s()
        self.found.append(run_load(plan))
        self.used_cpu_s += stage.server.cpu_s() - before_s

    @property
    def requests_all(self) -> int:
        return sum(one.requests_all for one in self.found)

    def p99_us(self) -> float:
        """The median over the runs."""
        return median(one.histogram.percentiles_us()["99"] for one in self.found)

    def as_one(self) -> LoadResult:
        histogram = Histogram()
        for one in self.found:
            histogram.merge(one.histogram)
        return LoadResult(
            requests=sum(one.requests for one in self.found),
            requests_all=self.requests_all,
            elapsed_s=sum(one.elapsed_s for one in self.found),
            generator_cpu_share=max(one.generator_cpu_share for one in self.found),
            histogram=histogram,
            slots=[slot for one in self.found for slot in one.slots],
        )


def disconnect_idle(stage: Stage) -> None:
    for one in stage.idle:
        one.close()
    stage.idle.clear()


def idle_connections(workload: Workload, stage: Stage) -> Round:
    """An open-loop load beside `count` idle connections and, in turn, without; the server's memory for each of them."""
    shape, peer, topic = workload.shape, stage.peer, f"load-{workload.key}"
    plan = peer.produce_plan(topic, shape, (stage.extent.warm_up, stage.extent.measured))
    before = run_load(plan).requests_all  # what the load itself takes of memory is taken then
    without, beside, grown = _Runs(), _Runs(), 0.0
    for number in range(_PAIRS):
        disconnect_idle(stage)
        without.add(stage, plan)
        if not workload.count:
            continue
        stage.server.settle(_SETTLED_BY_S)
        resident = stage.server.resident_bytes()
        connect_idle(stage, workload.count)
        stage.server.settle(_SETTLED_BY_S)
        if not number:
            grown = stage.server.resident_bytes() - resident
        beside.add(stage, plan)
    check_stored(peer, topic, before + without.requests_all + beside.requests_all)
    shown = beside if workload.count else without
    made = make_round(shown.as_one(), stage, records=1, value_bytes=shape.value_bytes, used_cpu_s=shown.used_cpu_s)
    if workload.count:
        made.extra = {
            "kib_per_connection": grown / 1024 / workload.count,
            "idle_connections": workload.count,
            "p99_us_of_runs": beside.p99_us(),
            "p99_us_of_runs_without": without.p99_us(),
            "p99_ratio": beside.p99_us() / without.p99_us(),
            "cpu_us_per_request_without": without.used_cpu_s / without.requests_all * 1e6,
        }
    return made
