"""Hosts of a test as network namespaces: one network for what nodes say to each other, one for their clients."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Final, TypeVar

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
TUN_PACKETS: Final = 10_000
"""As many wait in a device until the relay takes them; more are lost."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_no_namespaces() -> str | None:
    """Why a test cannot have hosts of its own here; None where it can."""
    if shutil.which("ip") is None:
        return "ip is not installed (Debian: iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"tpcprobe{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "probe", "type", "bridge")
        _ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", name)
        return f"no network namespaces or bridges here: {error.stderr.strip()}"
    return None


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


class Hosts:
    """Host *n* has `cluster_address(n)` among the others, and `client_address(n)` for who runs the test."""

    def __init__(self, count: int) -> None:
        self._mark = f"{os.getpid() % 100_000:x}{random.randrange(256):02x}"
        self._subnet = random.randrange(1, 250)
        self.count = count

    def cluster_address(self, number: int) -> str:
        return f"10.{77}.{self._subnet}.{number}"

    def client_address(self, number: int) -> str:
        return f"10.{78}.{self._subnet}.{number}"

    def prefix(self, number: int) -> list[str]:
        """What stands before a command that is to run on that host."""
        return ["ip", "netns", "exec", self._name(number)]

    def _name(self, number: int) -> str:
        return f"tpc{self._mark}n{number}"

    def _end(self, kind: str, number: int) -> str:
        return f"t{kind}{self._mark}{number}"

    def make(self) -> None:
        for kind in ("a", "b"):
            _ip("link", "add", f"t{kind}{self._mark}br", "type", "bridge")
            _ip("link", "set", f"t{kind}{self._mark}br", "up")
        _ip("address", "add", f"{self.client_address(254)}/24", "dev", f"tb{self._mark}br")
        for number in range(1, self.count + 1):
            _ip("netns", "add", self._name(number))
            _ip("-n", self._name(number), "link", "set", "lo", "up")
            self._connect_to_others(number)
            self._connect("b", number, self.client_address(number))

    def _connect_to_others(self, number: int) -> None:
        self._connect("a", number, self.cluster_address(number))

    def _connect(self, kind: str, number: int, address: str) -> None:
        outside = self._end(kind, number)
        _ip("link", "add", outside, "type", "veth", "peer", "name", f"net{kind}", "netns", self._name(number))
        _ip("link", "set", outside, "master", f"t{kind}{self._mark}br", "up")
        self._bring_up(f"net{kind}", number, address)

    def _bring_up(self, device: str, number: int, address: str) -> None:
        _ip("-n", self._name(number), "address", "add", f"{address}/24", "dev", device)
        _ip("-n", self._name(number), "link", "set", device, "up")

    def remove(self) -> None:
        commands = [("netns", "del", self._name(number)) for number in range(1, self.count + 1)]
        commands += [("link", "del", f"t{kind}{self._mark}br") for kind in ("a", "b")]
        for command in commands:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*command)

    def isolate(self, number: int) -> None:
        """Nothing goes between this host and the others, either way; clients reach it as before."""
        _ip("link", "set", self._end("a", number), "nomaster")

    def heal(self, number: int) -> None:
        _ip("link", "set", self._end("a", number), "master", f"ta{self._mark}br")

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

    def mute(self, number: int, *others: int) -> None:
        """What this host sends to those is lost; what they send arrives."""
        for other in others:
            address = self.cluster_address(other)
            _ip("-n", self._name(number), "route", "add", "blackhole", f"{address}/32")

    def unmute(self, number: int, *others: int) -> None:
        for other in others:
            address = self.cluster_address(other)
            _ip("-n", self._name(number), "route", "del", "blackhole", f"{address}/32")


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
        _ip("link", "set", name, "txqueuelen", str(TUN_PACKETS), "netns", self._name(number), "name", "neta")
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
