"""What the broker tells C of the cores that own partitions, so that it forwards (`native/requests/forward.h`)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from tpc_broker._ring import ffi, lib
from tpc_broker.engine.datagrams import NO_DATAGRAMS, CoreDatagrams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker._ring import tpc_plane
    from tpc_broker.model import CoreId, TopicId


class ForwardingPlane:
    """A part of `RingDataPlane`."""

    _plane: tpc_plane
    _forwards = False
    datagrams: CoreDatagrams | None = None
    """Who is told of owners, too."""

    def open_forwarding(self, core: CoreId, listeners: Sequence[int]) -> None:
        """Requests that came to these listeners are sent to the cores that own their partitions. Links are open."""
        result = lib.tpc_forward_open(self._plane, core, sum(1 << number for number in listeners))
        if result < 0:
            raise OSError(-result, f"forwarding: {os.strerror(-result)}")
        self._forwards = True

    def open_datagrams(self, descriptor: int, core: CoreId) -> CoreDatagrams:
        """From a UDP socket, on this plane."""
        return CoreDatagrams(self._plane, descriptor, core)

    def set_owners(self, topic: str, topic_id: TopicId, owners: Sequence[CoreId]) -> None:
        """The owner of each partition of a topic; none: the topic is gone."""
        if not self._forwards:
            return
        name = topic.encode()
        cores = ffi.new("uint16_t[]", owners)
        result = lib.tpc_forward_set_route(self._plane, name, len(name), topic_id.bytes, cores, len(owners))
        if result == -errno.ENOMEM:
            raise MemoryError

    def set_datagram_owners(self, topic: str, topic_id: TopicId, owners: Sequence[CoreId]) -> None:
        """`Forwarding.set_datagram_owners`."""
        if self.datagrams is not None:
            self.datagrams.set_owners(topic, topic_id, owners)

    def datagram_statistics(self) -> dict[str, int]:
        """The fields of `tpc_datagram_statistics`."""
        return self.datagrams.statistics() if self.datagrams is not None else dict(NO_DATAGRAMS)

    def forward_statistics(self) -> dict[str, int]:
        """The fields of `tpc_forward_statistics`."""
        out = ffi.new("tpc_forward_statistics *")
        lib.tpc_forward_get_statistics(self._plane, out)
        return {name: getattr(out, name) for name, _ in ffi.typeof("tpc_forward_statistics").fields}
