"""The program in the kernel, brought there by either loader: which of four sockets a connection or a datagram reaches.

Where the host has no loader the tests of it are skipped, with its reason.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from tpc_broker.ebpf import loaders, steering
from tpc_broker.ebpf.build import NotBuiltError, build_object
from tpc_broker.ebpf.loaders import LoaderUnavailableError
from tpc_broker.ebpf.steering import LOAD, Select, Steering, disown, own

CORES, CONNECTIONS = 4, 64
LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module", params=["libbpf", "bcc"])
def steered(request, tmp_path_factory) -> Iterator[Steering]:
    """One for all tests of a loader: bcc compiles for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "libbpf":
            try:
                built = build_object(tmp_path_factory.mktemp("ebpf") / "steer.o")
            except NotBuiltError as reason:
                pytest.skip(str(reason))
            patch.setattr(loaders.load_by_libbpf, "__kwdefaults__", {"object_file": built})
        try:
            made = Steering(request.param, CORES, Select.LOAD)
        except LoaderUnavailableError as reason:
            pytest.skip(str(reason))
    assert made.loader == request.param
    yield made
    made.close()


class Port:
    """Sockets that share a port of the loopback, one a core, all alive, and what reached each."""

    def __init__(self, steered: Steering, kind: socket.SocketKind, undo: ExitStack) -> None:
        self.steered, self.undo = steered, undo
        self.sockets = [undo.enter_context(socket.socket(socket.AF_INET, kind)) for _core in range(CORES)]
        port = 0
        for each in self.sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.setblocking(False)
            each.bind((LOOPBACK, port))
            port = each.getsockname()[1]
            if kind == socket.SOCK_STREAM:
                each.listen(256)
        self.address = (LOOPBACK, port)
        steered.attach(self.sockets)
        for core in range(CORES):
            steered.set_alive(core, alive=True)
        self.before = steered.counts()

    def connect(self, count: int = 1, source_port: int = 0) -> list[int]:
        """How many of these connections reached each core."""
        for _each in range(count):
            client = self.undo.enter_context(socket.socket())
            client.bind((LOOPBACK, source_port))
            client.connect(self.address)
        reached = [0] * CORES
        for _each in range(count):
            readable, _w, _x = select.select(self.sockets, [], [], 60)
            self.undo.enter_context(readable[0].accept()[0])
            reached[self.sockets.index(readable[0])] += 1
        return reached

    def send(self, datagram: bytes) -> int:
        """The core that it reached."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(datagram, self.address)
            (reached,), _w, _x = select.select(self.sockets, [], [], 60)
            assert reached.recv(2048) == datagram
        return self.sockets.index(reached)

    def counted(self, name: str) -> int:
        return getattr(self.steered.counts(), name) - getattr(self.before, name)


@pytest.fixture
def port(steered) -> Iterator[Port]:
    with ExitStack() as undo:
        yield Port(steered, socket.SOCK_STREAM, undo)
        steered.set_select(Select.LOAD)


@pytest.fixture
def datagrams(steered) -> Iterator[Port]:
    with ExitStack() as undo:
        steered.set_select(Select.OWNER)
        yield Port(steered, socket.SOCK_DGRAM, undo)
        steered.set_select(Select.LOAD)


def header(topic: int, partition: int, version: int = 1) -> bytes:
    return struct.pack("!BBHIII", version, 0, 0, topic, partition, 7)


def in_one_burst(port: Port, connect: Callable[[mmap.mmap], list[int]]) -> list[int]:
    """What `connect`, given the loads, tells of `CONNECTIONS` connections when they were one burst to the program. On a
    busy machine the test may stand still between two of them for longer than the program takes for the end of a burst,
    after which it counts anew: then it is done again.
    """
    with mmap.mmap(port.steered.loads_fd, mmap.PAGESIZE) as loads:
        for _attempt in range(100):
            loads[: CORES * LOAD.size] = bytes(CORES * LOAD.size)
            reached = connect(loads)
            placed = sum(LOAD.unpack_from(loads, core * LOAD.size)[2] for core in range(CORES))
            loads[: CORES * LOAD.size] = bytes(CORES * LOAD.size)
            if placed == CONNECTIONS:
                return reached
    raise AssertionError("no burst without a stop")


def test_a_burst_of_connections_is_spread_evenly(port):
    def connect(_loads: mmap.mmap) -> list[int]:
        before = port.steered.counts().selected
        reached = port.connect(CONNECTIONS)
        after = port.steered.counts().selected
        assert [now - then for now, then in zip(after, before, strict=True)] == reached
        return reached

    reached = in_one_burst(port, connect)
    assert max(reached) <= 1.3 * min(reached), reached
    assert port.counted("fallback_down") == port.counted("fallback_kernel") == 0


def test_who_accepts_at_once_is_not_taken_for_more_loaded(port):
    """Connections that were placed and accepted count once: half of a burst is accepted by one core only."""

    def connect(loads: mmap.mmap) -> list[int]:
        half = port.connect(CONNECTIONS // 2)
        loads[:4] = half[0].to_bytes(4, "little")
        return [a + b for a, b in zip(half, port.connect(CONNECTIONS // 2), strict=True)]

    reached = in_one_burst(port, connect)
    assert max(reached) <= 1.3 * min(reached), reached


def test_who_has_many_connections_gets_no_more(port):
    """Three cores have a hundred: of two that are compared, the fourth wins whenever it is one of them."""
    with mmap.mmap(port.steered.loads_fd, mmap.PAGESIZE) as loads:
        for core in (0, 1, 3):
            loads[core * LOAD.size : (core + 1) * LOAD.size] = LOAD.pack(100 * (core != 2), 0, 0, 0, 0, 0)
        reached = port.connect(CONNECTIONS)
        loads[: CORES * LOAD.size] = bytes(CORES * LOAD.size)
    assert reached[2] > CONNECTIONS / CORES
    assert sum(reached) == CONNECTIONS


def test_a_core_that_is_down_gets_nothing_until_it_is_up_again(port):
    port.steered.set_alive(1, alive=False)
    assert not port.steered.is_alive(1)
    reached = port.connect(CONNECTIONS)
    assert reached[1] == 0
    assert port.counted("fallback_kernel") == 0
    port.steered.set_alive(1, alive=True)
    assert port.connect(CONNECTIONS)[1] > 0


def test_without_a_core_that_is_alive_the_kernel_chooses(port):
    for core in range(CORES):
        port.steered.set_alive(core, alive=False)
    assert sum(port.connect(8)) == 8
    assert port.counted("fallback_kernel") == 8


def test_a_source_port_leads_to_the_core_that_is_congruent_to_it(port):
    port.steered.set_select(Select.SOURCE_PORT)
    for core in range(CORES):
        number = free_port(core)
        assert port.connect(source_port=number) == [int(each == core) for each in range(CORES)], number
    port.steered.set_alive(2, alive=False)
    assert port.connect(source_port=free_port(2)) == [0, 0, 0, 1], "the next one stands in"
    assert port.counted("fallback_down") == 1


def test_the_cpu_that_takes_the_packet_says_which_core(port):
    """On the loopback that is the sender's own."""
    port.steered.set_select(Select.CPU)
    cpus = os.sched_getaffinity(0)
    try:
        for cpu in sorted(cpus)[:2]:
            os.sched_setaffinity(0, {cpu})
            assert port.connect()[cpu % CORES] == 1
    finally:
        os.sched_setaffinity(0, cpus)


def test_a_datagram_reaches_the_owner_of_what_it_names(datagrams):
    owners = datagrams.steered.owners_fd
    named = {(topic, partition): (topic + partition) % CORES for topic in (1, 0xFFFFFFFF) for partition in range(5)}
    for (topic, partition), core in named.items():
        own(owners, topic, partition, core)
    for (topic, partition), core in named.items():
        assert datagrams.send(header(topic, partition) + b"value") == core
    assert datagrams.counted("miss_unowned") == datagrams.counted("miss_malformed") == 0


def test_an_owner_that_changed_is_followed_at_once_and_forgotten_by_itself_only(datagrams):
    owners = datagrams.steered.owners_fd
    own(owners, 9, 0, 1)
    assert datagrams.send(header(9, 0)) == 1
    own(owners, 9, 0, 3)
    disown(owners, 9, 0, 1)
    assert datagrams.send(header(9, 0)) == 3
    disown(owners, 9, 0, 3)
    datagrams.send(header(9, 0))
    assert datagrams.counted("miss_unowned") == 1


@pytest.mark.parametrize("datagram", [b"", b"short", header(1, 1)[:-5], header(1, 1, version=2)])
def test_a_datagram_without_a_header_is_counted_and_delivered(datagrams, datagram):
    assert datagrams.send(datagram) in range(CORES)
    assert datagrams.counted("miss_malformed") == 1


def test_runs_are_counted_while_somebody_asks(port):
    counting = steering.kernel.count_runs()
    try:
        before = port.steered.runs()
        port.connect(3)
        after = port.steered.runs()
    finally:
        os.close(counting)
    assert after.runs >= before.runs + 3
    assert after.time_ns > before.time_ns


def free_port(remainder: int) -> int:
    """One that leaves a remainder when it is divided by the number of cores. Below those that the kernel gives out."""
    for number in range(20_000 + remainder, 32_000, CORES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, number))
            return number
    raise AssertionError("no port is free")
