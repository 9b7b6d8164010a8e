"""Hosts of a test as network namespaces: one network for what nodes say to each other, one for their clients."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Final, TypeVar

from tpc_broker.bench import hosts as bench_hosts
from tpc_broker.bench.hosts import ip, why_no_namespaces

__all__ = ["Hosts", "RelayedHosts", "hosts", "why_no_loss", "why_no_namespaces", "why_no_relay"]

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
TUN_PACKETS: Final = 10_000
"""As many wait in a device until the relay takes them; more are lost."""


def why_no_loss() -> str | None:
    """Why a test cannot have packets lost here; None where it can."""
    if shutil.which("nft") is None:
        return "nft is not installed (Debian: nftables)"
    try:
        with hosts(1, Hosts) as made:
            made.lose(1, 20)
    except subprocess.CalledProcessError as error:
        return f"no packets can be lost by chance here: {error.stderr.strip()}"
    return None


class Hosts(bench_hosts.Hosts):
    """Those of the bench; between these packets get lost, and some do not hear each other."""

    def isolate(self, number: int) -> None:
        """Nothing goes between this host and the others, either way; clients reach it as before."""
        ip("link", "set", self._end("a", number), "nomaster")

    def heal(self, number: int) -> None:
        ip("link", "set", self._end("a", number), "master", self._bridge("a"))

    def lose(self, number: int, percent: int) -> None:
        """So many of the packets that reach this host from the others are lost, by chance; 0: none any more.

        With nftables, because kernels without netem have them.
        """
        inside = ["ip", "netns", "exec", self._name(number), "nft"]
        if percent:
            rules = (
                "add table netdev lossy\n"
                "add chain netdev lossy arriving { type filter hook ingress device neta priority 0; }\n"
                f"add rule netdev lossy arriving numgen random mod 100 < {percent} drop\n"
            )
            subprocess.run([*inside, "-f", "-"], input=rules, check=True, capture_output=True, text=True)
        else:
            subprocess.run([*inside, "delete", "table", "netdev", "lossy"], check=True, capture_output=True, text=True)

    def cut(self, source: int, target: int, *kinds: str) -> None:
        """What one host sends to another is lost where it arrives, of these protocols ("tcp", "udp") only."""
        rules = (
            "add table netdev cut\n"
            "add chain netdev cut arriving { type filter hook ingress device neta priority 0; }\n"
            f"add rule netdev cut arriving ip saddr {self.cluster_address(source)} "
            f"ip protocol {{ {', '.join(kinds)} }} drop\n"
        )
        inside = ["ip", "netns", "exec", self._name(target), "nft"]
        subprocess.run([*inside, "-f", "-"], input=rules, check=True, capture_output=True, text=True)

    def mend(self, target: int) -> None:
        """Nothing that is sent to this host is cut any more."""
        inside = ["ip", "netns", "exec", self._name(target), "nft"]
        subprocess.run([*inside, "add", "table", "netdev", "cut"], check=True, capture_output=True, text=True)
        subprocess.run([*inside, "delete", "table", "netdev", "cut"], check=True, capture_output=True, text=True)

    def mute(self, number: int, *others: int) -> None:
        """What this host sends to those is lost; what they send arrives."""
        for other in others:
            address = self.cluster_address(other)
            ip("-n", self._name(number), "route", "add", "blackhole", f"{address}/32")

    def unmute(self, number: int, *others: int) -> None:
        for other in others:
            address = self.cluster_address(other)
            ip("-n", self._name(number), "route", "del", "blackhole", f"{address}/32")


class RelayedHosts(Hosts):
    """Hosts whose packets to each other go through a relay of ours (`packet_relay`), over a TUN device in each."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._devices: list[int] = []
        self._relay: subprocess.Popen[str] | None = None
        self._cut: set[int] = set()
        self._disturbed: dict[str, float] = {}

    def make(self) -> None:
        super().make()
        command = [sys.executable, "-m", "tests.support.packet_relay", *map(str, self._devices)]
        self._relay = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=self._devices
        )
        self._tell()

    def _connect_to_others(self, number: int) -> None:
        name = self._end("a", number)
        self._devices.append(tun_device(name))
        ip("link", "set", name, "txqueuelen", str(TUN_PACKETS), "netns", self._name(number), "name", "neta")
        self._bring_up("neta", number, self.cluster_address(number))

    def remove(self) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()
        for device in self._devices:
            os.close(device)
        super().remove()

    def disturb(self, **how: float) -> dict[str, int]:
        """What becomes of each packet from now on, by `packet_relay.Disturbance`; what has become of those so far."""
        self._disturbed = how
        return self._tell()

    def isolate(self, number: int) -> None:
        self._cut.add(number)
        self._tell()

    def heal(self, number: int) -> None:
        self._cut.remove(number)
        self._tell()

    def _tell(self) -> dict[str, int]:
        assert self._relay is not None
        assert self._relay.stdin is not None
        assert self._relay.stdout is not None
        self._relay.stdin.write(json.dumps({**self._disturbed, "cut": sorted(self._cut)}) + "\n")
        self._relay.stdin.flush()
        told: dict[str, int] = json.loads(self._relay.stdout.readline())
        return told


def tun_device(name: str) -> int:
    """The descriptor of a new TUN device: reads give what is sent to the device, whole packets without a header."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


def why_no_relay() -> str | None:
    """Why a test cannot have its packets relayed here; None where it can."""
    try:
        os.close(tun_device(f"tpcprobe{os.getpid() % 10_000}"))
    except OSError as error:
        return f"no TUN devices here: {error}"
    return None


H = TypeVar("H", bound=Hosts)


@contextlib.contextmanager
def hosts(count: int, kind: type[H]) -> Iterator[H]:
    made = kind(count)
    try:
        made.make()
        yield made
    finally:
        made.remove()
