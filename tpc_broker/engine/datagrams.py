"""The datagrams of one core (`native/requests/datagram.h`): the socket, who owns what, and what is counted."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker._ring import ffi, lib
from tpc_broker.model import NOT_HERE
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tpc_broker._ring import tpc_plane
    from tpc_broker.model import CoreId, TopicId

NO_CORE: Final = 0xFFFF
QUIET_WAIT_S: Final = 1.0
QUIET_POLL_S: Final = 0.002
NO_DATAGRAMS = {name: 0 for name, _ in ffi.typeof("tpc_datagram_statistics").fields}


def topic_hash(topic: str) -> int:
    """How datagrams name a topic."""
    return crc32c(topic.encode())


class CoreDatagrams:
    """Lives between the opening of the links and the end of the plane."""

    def __init__(self, plane: tpc_plane, descriptor: int, core: CoreId) -> None:
        """`plane`: `tpc_plane *`. `descriptor`: a bound UDP socket, which stays the caller's."""
        self._core = core
        self._untold: dict[int, list[int]] = {}
        self._is_untold = trio.Event()
        out = ffi.new("tpc_datagrams **")
        result = lib.tpc_datagrams_new(plane, descriptor, core, out)
        if result < 0:
            raise OSError(-result, f"datagrams: {os.strerror(-result)}")
        self._pointer = out[0]

    def start(self) -> None:
        """From now on datagrams are taken."""
        lib.tpc_datagrams_start(self._pointer)

    def set_answers(self, *, on: bool) -> None:
        """`datagram.acknowledge`."""
        lib.tpc_datagrams_set_answers(self._pointer, on)

    def set_owners(self, topic: str, topic_id: TopicId, owners: Sequence[CoreId]) -> None:
        """The owner of each partition of a topic, NOT_HERE: none on this node; nothing: the topic is gone."""
        cores = ffi.new("uint16_t[]", [NO_CORE if owner == NOT_HERE else owner for owner in owners])
        result = lib.tpc_datagrams_set_route(self._pointer, topic_hash(topic), topic_id.bytes, cores, len(owners))
        if result == -errno.ENOMEM:
            raise MemoryError
        self._untold[topic_hash(topic)] = [index for index, owner in enumerate(owners) if owner == self._core]
        self._is_untold.set()

    async def tell_owned(self, tell: Callable[..., Awaitable[object]]) -> None:
        """Keep the supervisor, who writes the kernel's map, up to date; until cancelled.

        Two topics of one hash are one there: whoever gets their datagrams refuses them.
        """
        while True:
            await self._is_untold.wait()
            self._is_untold = trio.Event()
            untold, self._untold = self._untold, {}
            for topic, partitions in untold.items():
                told = partitions[: limits.DATAGRAM_PARTITIONS_TOLD_MAX]
                await tell("owned", topic=topic, partitions=told)

    def statistics(self) -> dict[str, int]:
        """The fields of `tpc_datagram_statistics`."""
        out = ffi.new("tpc_datagram_statistics *")
        lib.tpc_datagrams_get_statistics(self._pointer, out)
        return {name: getattr(out, name) for name in NO_DATAGRAMS}

    def stop(self) -> None:
        """Nothing more is taken; what was taken goes its way."""
        lib.tpc_datagrams_stop(self._pointer)

    @property
    def quiet(self) -> bool:
        """Stopped, and the kernel has let go of its memory."""
        return bool(lib.tpc_datagrams_quiet(self._pointer))

    def free(self) -> None:
        """After :meth:`stop`, and before the plane."""
        lib.tpc_datagrams_free(self._pointer)

    async def end(self) -> None:
        """Both, with the time that the kernel takes in between."""
        self.stop()
        with trio.CancelScope(shield=True), trio.move_on_after(QUIET_WAIT_S):
            while not self.quiet:
                await trio.sleep(QUIET_POLL_S)
        self.free()
