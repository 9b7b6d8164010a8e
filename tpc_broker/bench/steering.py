"""Rounds about steering: forwards and what one costs, connections placed by the kernel's program, datagrams.

They start brokers of their own, with two cores and listeners of several modes. Where the program cannot be loaded, the
reason is the workload's result.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.bench.compiled import program
from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.load import Connection, LoadFailed, LoadResult, Plan, run_load
from tpc_broker.bench.measured import CountsDiffer, Round, Stage, Workload
from tpc_broker.bench.peers.tpc import TpcPeer, cores_options
from tpc_broker.bench.server import Server, ServerFailed, free_ports
from tpc_broker.ebpf import kernel
from tpc_broker.native_bytes import crc32c
from tpc_broker.options import StartError
from tpc_broker.telemetry.status import read_status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CORES: Final = 2
CONNECTIONS: Final = 64
_OWNED_S: Final = 5.0
_READY_S: Final = 60.0
_LOOPBACK: Final = "127.0.0.1"


class SteeredPeer(TpcPeer):
    """A broker with a port for each core, one for all cores, and one for datagrams."""

    def __init__(self, folder: Path, mode: str, *, loader: str = "auto") -> None:
        super().__init__(folder, mode)
        self.loader = loader
        self.shared_port = self.datagram_port = 0

    def start(self) -> None:
        self.port = free_ports(CORES + 2)
        self.shared_port, self.datagram_port = self.port + CORES, self.port + CORES + 1
        command = [sys.executable, "-m", "tpc_broker.process.main", "serve", "--data", str(self.folder / "data")]
        command += ["--listen", f"PLAINTEXT://{self.bootstrap}", *cores_options(CORES)]
        command += ["--datagram", f"{_LOOPBACK}:{self.datagram_port}", f"--override=ebpf.loader={self.loader}"]
        if self.loader != "off":
            command += ["--listen", f"ALL://{_LOOPBACK}:{self.shared_port}", "--override=listener.ALL.mode=shared"]
            command += ["--override=listener.security.protocol.map=PLAINTEXT:PLAINTEXT,ALL:PLAINTEXT"]
        self.server = Server(command, self.folder / "tpc.log")
        self.server.start(range(self.port, self.port + CORES))
        give_up_at = time.monotonic() + _READY_S
        while not self._is_ready():
            if time.monotonic() > give_up_at:
                raise ServerFailed(f"the broker is not ready\n{self.server.log_tail()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return all("counters" in core for core in read_status(self.folder / "data")["cores"])
        except StartError:
            return False

    def counters(self) -> list[Any]:
        return [core["counters"] for core in read_status(self.folder / "data")["cores"]]

    def counted(self, part: str, *names: str) -> int:
        """Of all cores."""
        return sum(core[part][name] for core in self.counters() for name in names)

    def steered(self, listener: str) -> dict[str, Any]:
        (found,) = [one for one in read_status(self.folder / "data")["listeners"] if one["name"] == listener]
        steering: dict[str, Any] | None = found["steering"]
        if steering is None:
            raise LoadFailed(f"the kernel's program could not be loaded: {self.log_tail()}")
        return steering

    def log_tail(self) -> str:
        return self.server.log_tail() if self.server is not None else ""


@contextmanager
def _broker(stage: Stage, name: str, *, loader: str = "auto") -> Iterator[SteeredPeer]:
    peer = SteeredPeer(stage.peer.folder / name, "durable", loader=loader)
    try:
        peer.start()
        yield peer
    finally:
        peer.kill()


def _figures(stage: Stage, extra: dict[str, float], latency_us: dict[str, float] | None = None) -> Round:
    del stage
    return Round(latency_us=latency_us or {}, extra=extra)


def _over_one_port(plan: Plan, port: int) -> Plan:
    connections = [Connection(_LOOPBACK, port, one.requests) for one in plan.connections if isinstance(one, Connection)]
    return Plan(
        plan.protocol, connections, depth=plan.depth, records_per_request=plan.records_per_request,
        warm_up_s=plan.warm_up_s, measure_s=plan.measure_s,
    )  # fmt: skip


def _load(peer: SteeredPeer, plan: Plan) -> tuple[LoadResult, float, float]:
    """What came of it, microseconds of the broker's CPU time and forwards, each for a request."""
    assert peer.server is not None
    names = ("asked_of_wrong_core", "requests_forwarded")
    forwards = peer.counted("forwards", "parts") + peer.counted("broker", *names)
    before_s = peer.server.cpu_s()
    found = run_load(plan)
    used_s = peer.server.cpu_s() - before_s
    forwards = peer.counted("forwards", "parts") + peer.counted("broker", *names) - forwards
    return found, used_s / max(1, found.requests_all) * 1e6, forwards / max(1, found.requests_all)


def forwards(workload: Workload, stage: Stage) -> Round:
    """The same produces to a port a core, as clients that follow Metadata send them, and over one port for all."""
    with _broker(stage, "forwards") as peer:
        topic = f"load-{workload.key}"
        plan = peer.produce_plan(topic, workload.shape, (stage.extent.warm_up, stage.extent.measured))
        direct, direct_cpu_us, direct_forwards = _load(peer, plan)
        shared, shared_cpu_us, shared_forwards = _load(peer, _over_one_port(plan, peer.shared_port))
        stored = peer.stored_count(topic)
        if stored != direct.requests_all + shared.requests_all:
            raise CountsDiffer(f"{direct.requests_all + shared.requests_all} were acknowledged, {stored} are there")
    price_us = (shared_cpu_us - direct_cpu_us) / shared_forwards if shared_forwards else 0.0
    return _figures(stage, {
        "forwards per request, a port a core": round(direct_forwards, 4),
        "forwards per request, one port": round(shared_forwards, 3),
        "requests/s, a port a core": round(direct.requests_per_s),
        "requests/s, one port": round(shared.requests_per_s),
        "p50 us, a port a core": direct.histogram.percentiles_us()["50"],
        "p50 us, one port": shared.histogram.percentiles_us()["50"],
        "CPU us/request, a port a core": round(direct_cpu_us, 1),
        "CPU us/request, one port": round(shared_cpu_us, 1),
        "CPU us, a forward": round(price_us, 1),
    })  # fmt: skip


def placed_connections(workload: Workload, stage: Stage) -> Round:
    """64 connections at once to one port: how many each core got, and what a decision of the program takes."""
    del workload
    with _broker(stage, "placed") as peer, ExitStack() as held:
        try:
            held.callback(os.close, kernel.count_runs())
        except OSError as error:
            raise LoadFailed(f"the kernel does not measure its programs for us: {error}") from error
        before = peer.steered("ALL")
        for _ in range(CONNECTIONS):
            held.enter_context(socket.create_connection((_LOOPBACK, peer.shared_port)))
        after = peer.steered("ALL")
    placed = [now - then for now, then in zip(after["selected"], before["selected"], strict=True)]
    runs = after["runs_measured"] - before["runs_measured"]
    return _figures(stage, {
        "most of 64 on a core": float(max(placed)),
        "fewest": float(min(placed)),
        "largest / smallest": round(max(placed) / max(1, min(placed)), 2),
        "ns a decision": round((after["runs_measured_ns"] - before["runs_measured_ns"]) / max(1, runs)),
    })  # fmt: skip


def _send(port: int, workload: Workload, stage: Stage) -> dict[str, Any]:
    shape, extent = workload.shape, stage.extent
    topic = crc32c(f"load-{workload.key}".encode())
    arguments = [port, topic, shape.partitions, shape.connections, shape.depth, shape.value_bytes]
    arguments += [int(extent.warm_up * 1000), int(extent.measured * 1000)]
    done = subprocess.run(
        [str(program("datagram_load")), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LoadFailed(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _datagrams_to(peer: SteeredPeer, workload: Workload, stage: Stage) -> tuple[dict[str, Any], float, float]:
    """What came of it, microseconds of CPU time and forwards, each for a record."""
    assert peer.server is not None
    topic = f"load-{workload.key}"
    peer.create_topic(topic, workload.shape.partitions)
    if peer.loader != "off":
        give_up_at = time.monotonic() + _OWNED_S
        while sum(peer.steered("datagrams")["owned"]) < workload.shape.partitions and time.monotonic() < give_up_at:
            time.sleep(0.05)
    before_s = peer.server.cpu_s()
    found = _send(peer.datagram_port, workload, stage)
    used_s = peer.server.cpu_s() - before_s
    appended, forwarded = peer.counted("datagrams", "appended"), peer.counted("datagrams", "forwarded")
    if (peer.stored_count(topic) or 0) < found["acknowledged"]:
        raise CountsDiffer(f"{found['acknowledged']} were acknowledged, {peer.stored_count(topic)} are there")
    return found, used_s / max(1, appended) * 1e6, forwarded / max(1, appended)


def datagrams(workload: Workload, stage: Stage) -> Round:
    """Records acknowledged, with the program and without it, beside a bare server that answers each datagram."""
    extra: dict[str, float] = {}
    seconds = stage.extent.measured
    latency_us: dict[str, float] = {}
    for name, loader in (("by the program", "auto"), ("by hash and link", "off")):
        with _broker(stage, f"datagrams-{loader}", loader=loader) as peer:
            found, cpu_us, forwarded = _datagrams_to(peer, workload, stage)
        latency = Histogram((bucket, count) for bucket, count in found["buckets"]).percentiles_us()
        latency_us = latency_us or latency
        extra |= {
            f"records/s {name}": round(found["acknowledged"] / seconds),
            f"p50 us {name}": latency["50"],
            f"p99 us {name}": latency["99"],
            f"CPU us/record {name}": round(cpu_us, 1),
            f"forwards a record {name}": round(forwarded, 3),
        }
    port = free_ports(1)
    with subprocess.Popen([str(program("datagram_load")), "echo", str(port)]) as bare:
        try:
            extra["answers/s of a bare echo"] = round(_send(port, workload, stage)["acknowledged"] / seconds)
        finally:
            bare.kill()
    return _figures(stage, extra, latency_us)
