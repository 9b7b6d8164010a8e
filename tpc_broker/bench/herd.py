"""Clients that all come at once, as after a restart of what they run in.

    python -m tpc_broker.bench.herd --bootstrap 127.0.0.1:9092 --topic wide --clients 5000 --rate-connections 32

Each client connects, asks ApiVersions, all-topics Metadata, and fetches once from partition 0 of the topic; each step
when the one before is answered. The table tells how long after the start half, 99 % and all of the clients had each
step behind them. Then some connections ask for all-topics Metadata in a loop, which gives a rate. One thread in Python
makes all of this: where it used its whole CPU the figures are bounds from below, so that is told too.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import select
import socket
import sys
import time
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.kafka_requests import all_metadata_request, api_versions_request, single_fetch_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STEPS: Final = ("connect", "ApiVersions", "Metadata", "first fetch")
RECEIVE_BYTES: Final = 1 << 20
PATIENCE_S: Final = 120.0

Address = tuple[str, int]


class HerdError(Exception):
    """Clients that were not served: one line."""


class Client:
    """One connection with one request under way."""

    def __init__(self, address: Address, requests: Iterable[bytes]) -> None:
        self.requests: Iterator[bytes] = iter(requests)
        self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        self.socket.setblocking(False)  # noqa: FBT003 (the name of the method says it)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(address)
        self.is_connected = False
        self.steps = 0
        self._begun = b""
        self._left = -1

    def send_next(self) -> bool:
        """False when it has asked all it wanted."""
        request = next(self.requests, None)
        if request is not None:
            self.socket.send(request)
        return request is not None

    def take(self, data: memoryview) -> bool:
        """Whether this ends the answer; another one cannot follow it, since nothing else was asked."""
        if self._left < 0:
            self._begun += data
            if len(self._begun) < 4:
                return False
            self._left = int.from_bytes(self._begun[:4], "big") + 4 - len(self._begun)
            self._begun = b""
        else:
            self._left -= len(data)
        if self._left:
            return False
        self._left = -1
        return True


class Herd:
    """Clients on one epoll. `times`: for each step, how many seconds after the start each client had it behind it."""

    def __init__(self) -> None:
        self.times: list[list[float]] = [[] for _ in STEPS]
        self.answers = self.answer_bytes = 0
        self._epoll = select.epoll()
        self._clients: dict[int, Client] = {}
        self._buffer = bytearray(RECEIVE_BYTES)

    def add(self, address: Address, requests: Iterable[bytes]) -> None:
        client = Client(address, requests)
        self._clients[client.socket.fileno()] = client
        self._epoll.register(client.socket, select.EPOLLOUT)

    def run(self, begun_s: float, until_s: float) -> None:
        """Until every client is served, or the time is over."""
        while self._clients and time.monotonic() < until_s:
            for descriptor, _events in self._epoll.poll(max(0.0, until_s - time.monotonic()), 1024):
                self._attend(self._clients[descriptor], begun_s)

    def close(self) -> None:
        for client in self._clients.values():
            client.socket.close()
        self._epoll.close()

    @property
    def unserved(self) -> int:
        return len(self._clients)

    def _attend(self, client: Client, begun_s: float) -> None:
        if not client.is_connected:
            error = client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise HerdError(f"a client could not connect: errno {error}")
            client.is_connected = True
            self._epoll.modify(client.socket, select.EPOLLIN)
        else:
            received = client.socket.recv_into(self._buffer)
            if not received:
                raise HerdError("a connection was closed by the broker")
            self.answer_bytes += received
            if not client.take(memoryview(self._buffer)[:received]):
                return
            self.answers += 1
        if client.steps < len(STEPS):
            self.times[client.steps].append(time.monotonic() - begun_s)
        client.steps += 1
        if not client.send_next():
            del self._clients[client.socket.fileno()]
            self._epoll.unregister(client.socket)
            client.socket.close()


def come_at_once(address: Address, topic: str, clients: int) -> list[list[float]]:
    """How long it took, in seconds, sorted, for each of `STEPS`."""
    requests = (api_versions_request(), all_metadata_request(), single_fetch_request(topic, 0))
    herd = Herd()
    begun_s = time.monotonic()
    for _ in range(clients):
        herd.add(address, requests)
    herd.run(begun_s, begun_s + PATIENCE_S)
    if herd.unserved:
        raise HerdError(f"{herd.unserved} of {clients} clients were not served in {PATIENCE_S:.0f} s")
    herd.close()
    return [sorted(times) for times in herd.times]


def metadata_rate(address: Address, connections: int, seconds: float) -> tuple[float, float, float]:
    """All-topics Metadata in a loop: answers a second, bytes of one, and the share of a CPU that this program used."""
    herd = Herd()
    for _ in range(connections):
        herd.add(address, itertools.repeat(all_metadata_request()))
    begun_s, used_s = time.monotonic(), _cpu_s()
    herd.run(begun_s, begun_s + seconds)
    took_s, used_s = time.monotonic() - begun_s, _cpu_s() - used_s
    herd.close()
    return herd.answers / took_s, herd.answer_bytes / max(1, herd.answers), used_s / took_s


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--topic", required=True, help="one whose partition 0 is led there")
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--rate-connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the rate")
    options = parser.parse_args()
    host, _colon, port = options.bootstrap.rpartition(":")
    address = (host.strip("[]"), int(port))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        used_s, begun_s = _cpu_s(), time.monotonic()
        times = come_at_once(address, options.topic, options.clients)
        share = (_cpu_s() - used_s) / (time.monotonic() - begun_s)
        print(f"{options.clients} clients at once; seconds since the start (this program used {share:.0%} of a CPU)")
        for step, values in zip(STEPS, times, strict=True):
            p50, p99 = values[len(values) // 2], values[len(values) * 99 // 100]
            print(f"  {step:<12} half {p50:7.3f}   99 % {p99:7.3f}   all {values[-1]:7.3f}")
        rate, answer_bytes, share = metadata_rate(address, options.rate_connections, options.seconds)
    except (HerdError, OSError) as error:
        print(f"herd: {error}", file=sys.stderr)
        return 1
    print(
        f"all-topics Metadata: {rate:.0f}/s of {answer_bytes:.0f} bytes on {options.rate_connections} connections "
        f"(this program used {share:.0%} of a CPU)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
