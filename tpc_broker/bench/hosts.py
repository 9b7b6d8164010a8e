"""Hosts as network namespaces: one network for what nodes say to each other, one for their clients. Needs root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import subprocess
import tempfile
import weakref
from functools import cached_property
from pathlib import Path
from typing import Final

_NODES: Final = 77
_CLIENTS: Final = 78
_SUBNETS: Final = range(1, 250)


def ip(*arguments: str, told: str | None = None) -> None:
    """`told` is its input."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, input=told)


def why_no_namespaces() -> str | None:
    """Why nobody can have hosts of its own here; None where one can."""
    if shutil.which("ip") is None:
        return "ip is not installed (Debian: iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"tpcprobe{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "probe", "type", "bridge")
        ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("netns", "del", name)
        return f"no network namespaces or bridges here: {error.stderr.strip()}"
    return None


def _is_in_use(subnet: str) -> bool:
    done = subprocess.run(["ip", "-4", "address", "show", "to", subnet], capture_output=True, text=True, check=True)
    return bool(done.stdout)


class Hosts:
    """Host *n* has `cluster_address(n)` among the others, and `client_address(n)` for who made it."""

    def __init__(self, count: int) -> None:
        self._mark = f"{os.getpid() % 100_000:x}{random.randrange(256):02x}"
        self.count = count

    @cached_property
    def _subnet(self) -> int:
        """The first that no other hosts of this machine have, for as long as this object lives."""
        for number in _SUBNETS:
            path = Path(tempfile.gettempdir()) / f"tpc-subnet-{number}"
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            if _is_in_use(f"10.{_CLIENTS}.{number}.0/24"):  # what was killed has left its bridge there
                os.close(lock)
                continue
            weakref.finalize(self, os.close, lock)
            return number
        raise RuntimeError("no subnet is left for hosts on this machine")

    def cluster_address(self, number: int) -> str:
        return f"10.{_NODES}.{self._subnet}.{number}"

    def client_address(self, number: int) -> str:
        return f"10.{_CLIENTS}.{self._subnet}.{number}"

    def prefix(self, number: int) -> list[str]:
        """What stands before a command that is to run on that host."""
        return ["ip", "netns", "exec", self._name(number)]

    def _name(self, number: int) -> str:
        return f"tpc{self._mark}n{number}"

    def _end(self, kind: str, number: int) -> str:
        return f"t{kind}{self._mark}{number}"

    def _bridge(self, kind: str) -> str:
        return f"t{kind}{self._mark}br"

    def make(self) -> None:
        for kind in ("a", "b"):
            ip("link", "add", self._bridge(kind), "type", "bridge")
            ip("link", "set", self._bridge(kind), "up")
        ip("address", "add", f"{self.client_address(254)}/24", "dev", self._bridge("b"))
        for number in range(1, self.count + 1):
            ip("netns", "add", self._name(number))
            ip("-n", self._name(number), "link", "set", "lo", "up")
            self._connect_to_others(number)
            self._connect("b", number, self.client_address(number))

    def _connect_to_others(self, number: int) -> None:
        self._connect("a", number, self.cluster_address(number))

    def _connect(self, kind: str, number: int, address: str) -> None:
        outside = self._end(kind, number)
        ip("link", "add", outside, "type", "veth", "peer", "name", f"net{kind}", "netns", self._name(number))
        ip("link", "set", outside, "master", self._bridge(kind), "up")
        self._bring_up(f"net{kind}", number, address)

    def _bring_up(self, device: str, number: int, address: str) -> None:
        ip("-n", self._name(number), "address", "add", f"{address}/24", "dev", device)
        ip("-n", self._name(number), "link", "set", device, "up")

    def remove(self) -> None:
        commands = [("netns", "del", self._name(number)) for number in range(1, self.count + 1)]
        commands += [("link", "del", self._bridge(kind)) for kind in ("a", "b")]
        for command in commands:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(*command)

    def cut_off(self, number: int) -> None:
        """Nothing goes between this host and anybody, either way."""
        ip("-batch", "-", told="".join(f"link set {self._end(kind, number)} nomaster\n" for kind in ("a", "b")))

    def reconnect(self, number: int) -> None:
        """After `cut_off`."""
        lines = (f"link set {self._end(kind, number)} master {self._bridge(kind)}\n" for kind in ("a", "b"))
        ip("-batch", "-", told="".join(lines))
