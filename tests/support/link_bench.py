"""Cores of one node in one process, each with its ring and plane, and links between them."""

from __future__ import annotations

import os

from tests.support.fetch_bench import FetchBench
from tests.support.plane_bench import topic_id_of
from tests.support.waiting import PATIENCE_S
from tpc_broker._ring import ffi, lib

ALL_LISTENERS = 1


class LinkedCore(FetchBench):
    """A turn of one is a turn of all."""

    def __init__(self, path, core, node):
        super().__init__(path, in_c=True, region_blocks=1024)
        self.core_id, self.node, self.links = core, node, []
        self.ring.on_event(lib.TPC_EVENT_LINK, lambda *event: self.links.append(event[:3]))
        lib.tpc_links_open(self.connections.pointer, core, 7000 + core)
        lib.tpc_forward_open(self.plane.pointer, core, ALL_LISTENERS)

    def turn(self, timeout_ms=10):
        for core in self.node:
            count = core.ring.wait(timeout_ms * 100_000)
            if count > 0:
                core.ring.dispatch(count)

    def adopt_link(self, sock, core, *, dialled):
        result = lib.tpc_link_adopt(self.connections.pointer, sock.fileno(), core, dialled)
        if result == 0:
            sock.detach()
        return result

    def is_linked(self, core):
        return bool(lib.tpc_link_is_up(self.connections.pointer, core))

    def route(self, topic, cores):
        name = topic.encode()
        assert (
            lib.tpc_forward_set_route(
                self.plane.pointer, name, len(name), topic_id_of(topic), ffi.new("uint16_t[]", cores), len(cores)
            )
            == 0
        )

    def _counts(self, kind, function, pointer):
        out = ffi.new(f"{kind} *")
        function(pointer, out)
        return {name: getattr(out, name) for name, _ in ffi.typeof(kind).fields}

    def link_counts(self):
        return self._counts("tpc_link_statistics", lib.tpc_links_statistics, self.connections.pointer)

    def forward_counts(self):
        return self._counts("tpc_forward_statistics", lib.tpc_forward_get_statistics, self.plane.pointer)


class LinkedNode:
    """So many cores, each with a link to every core, itself included."""

    def __init__(self, folder, cores):
        self.cores = []
        for core in range(cores):
            self.cores.append(LinkedCore(folder / f"{core}.journal", core, self.cores))
        for one in self.cores:
            for other in self.cores:
                self.dial(one, other)

    def dial(self, one, other):
        ours, theirs = one.world.socketpair()
        assert one.adopt_link(ours, other.core_id, dialled=True) == 0
        assert other.adopt_link(theirs, one.core_id, dialled=False) == 0
        one.until(lambda: one.is_linked(other.core_id))

    def make(self, topic, owners, **values):
        """A topic whose partitions belong to these cores; their handles."""
        for core in self.cores:
            core.route(topic, owners)
        return [self.cores[owner].make(topic, index, **values) for index, owner in enumerate(owners)]

    def shut(self):
        first = self.cores[0]
        for core in self.cores:
            core.settle()
            core.plane.free()
            core.forget_clients()
            core.requests.clear()
            core.connections.stop_accepting()
            core.connections.close_all()
        first.until(lambda: all(core.connections.quiet for core in self.cores))
        for core in self.cores:
            statistics = core.connections.statistics()
            assert statistics.opened == statistics.closed
            core.connections.free()
            core.ring.close(PATIENCE_S)
            core.listener.close()
            os.close(core.descriptor)
