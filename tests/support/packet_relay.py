"""A program between TUN devices, one of each host: what comes out of one goes into the one that it is for, late,
twice, or after what was sent later.

The arguments are the devices' descriptors, that of host 1 first; host *n* is who has an IPv4 address that ends in *n*.
Each line on standard input is a disturbance as JSON, from then on, answered by a line with what has become of packets.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import os
import random
import select
import sys
import time
from typing import Final

_PACKET_BYTES_MAX: Final = 65_536
_HELD_MAX: Final = 100_000
"""Packets: more are lost, as in a router."""
_DESTINATION: Final = 16
_IPV4_HEADER_BYTES: Final = 20


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """Of every packet. Chances are between 0 and 1, each packet's own."""

    delay_ms: float = 0
    doubled: float = 0
    """Comes twice; the second time up to `jitter_ms` later."""
    late: float = 0
    """Comes up to `jitter_ms` later, and so after others that were sent after it."""
    jitter_ms: float = 0
    cut: tuple[int, ...] = ()
    """Hosts that neither get nor send any."""


@dataclasses.dataclass
class Counts:
    relayed: int = 0
    doubled: int = 0
    overtaken: int = 0
    lost: int = 0


class Relay:
    def __init__(self, devices: dict[int, int]) -> None:
        self.disturbance = Disturbance()
        self.counts = Counts()
        self._devices = devices
        self._chance = random.Random()
        self._held: list[tuple[float, int, int, int, bytes]] = []
        """(when due in s, number, from, to, packet): earliest first."""
        self._taken = 0
        self._newest: dict[tuple[int, int], int] = {}

    def take(self, host: int, packet: bytes, now_s: float) -> None:
        """One that this host sends."""
        if packet[0] >> 4 != 4 or len(packet) < _IPV4_HEADER_BYTES:
            return
        to, how = packet[_DESTINATION + 3], self.disturbance
        if to not in self._devices or host in how.cut or to in how.cut or len(self._held) >= _HELD_MAX:
            self.counts.lost += 1
            return
        self._taken += 1
        due_s = now_s + how.delay_ms / 1000
        times = [due_s + self._jitter_s() if self._chance.random() < how.late else due_s]
        if self._chance.random() < how.doubled:
            times.append(due_s + self._jitter_s())
            self.counts.doubled += 1
        for time_s in times:
            heapq.heappush(self._held, (time_s, self._taken, host, to, packet))

    def _jitter_s(self) -> float:
        return self._chance.uniform(0, self.disturbance.jitter_ms / 1000)

    def send_due(self, now_s: float) -> None:
        while self._held and self._held[0][0] <= now_s:
            _due_s, number, host, to, packet = heapq.heappop(self._held)
            self.counts.overtaken += number < self._newest.get((host, to), 0)
            self._newest[host, to] = max(number, self._newest.get((host, to), 0))
            try:
                os.write(self._devices[to], packet)
            except OSError:  # full, or the host is gone
                self.counts.lost += 1
            else:
                self.counts.relayed += 1

    def wait_ms(self, now_s: float) -> float | None:
        """Until the next one is due; None: there is none."""
        return max(0.0, (self._held[0][0] - now_s) * 1000) if self._held else None


def main() -> None:
    hosts = {int(text): number for number, text in enumerate(sys.argv[1:], 1)}
    relay = Relay({number: device for device, number in hosts.items()})
    poll = select.poll()
    for device in [*hosts, sys.stdin.fileno()]:
        poll.register(device, select.POLLIN)
    while True:
        for device, _events in poll.poll(relay.wait_ms(time.monotonic())):
            if device in hosts:
                take_all(relay, device, hosts[device])
            elif line := sys.stdin.readline():
                told = json.loads(line)
                relay.disturbance = Disturbance(**{**told, "cut": tuple(told["cut"])})
                print(json.dumps(dataclasses.asdict(relay.counts)), flush=True)
            else:
                return
        relay.send_due(time.monotonic())


def take_all(relay: Relay, device: int, host: int) -> None:
    """What a device has now, at most some hundreds, so that others have their turn."""
    for _ in range(256):
        try:
            packet = os.read(device, _PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        relay.take(host, packet, time.monotonic())


if __name__ == "__main__":
    main()
