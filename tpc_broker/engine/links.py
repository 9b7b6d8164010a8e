"""The links of one core to the cores of its node, over which C forwards requests (`native/net/link.h`).

Each core dials every core that is up, itself included, and again when a link ends. The sockets come by the mailboxes'
door, which lets in only processes of the same user; from then on they are C's.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker._ring import ffi, lib
from tpc_broker.errors import MailboxError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.engine.connections import Connections
    from tpc_broker.engine.mailbox import Mailboxes
    from tpc_broker.model import CoreId

log = logging.getLogger(__name__)

RETRY_S: Final = 0.05
"""Before a core that is up, but did not let us in, is dialled again."""


def link_statistics(connections: Connections) -> dict[str, int]:
    """The fields of `tpc_link_statistics`."""
    out = ffi.new("tpc_link_statistics *")
    lib.tpc_links_statistics(connections.pointer, out)
    return {name: getattr(out, name) for name, _ in ffi.typeof("tpc_link_statistics").fields}


class Links:
    def __init__(self, connections: Connections, core: CoreId, mailboxes: Mailboxes) -> None:
        self._connections = connections
        self._mailboxes = mailboxes
        self._wanted: set[CoreId] = set()
        self._changed = trio.Event()
        lib.tpc_links_open(connections.pointer, core, secrets.randbits(63))
        connections.ring.on_event(lib.TPC_EVENT_LINK, self._link_changed)

    def let_in(self) -> None:
        """Other cores, from now on. Who has dialled before dials again, once this core is named up."""
        self._mailboxes.on_link = self._let_in

    def set_up(self, cores: Iterable[CoreId]) -> None:
        """Which cores are up now: these are dialled, and the others no more."""
        self._wanted = set(cores)
        self._changed.set()

    def is_linked(self, core: CoreId) -> bool:
        return bool(lib.tpc_link_is_up(self._connections.pointer, core))

    async def wait_linked(self, seconds: float) -> None:
        """Until all cores that are up can be asked; for so long at most, since they may be on their way down."""
        with trio.move_on_after(seconds):
            while not all(map(self.is_linked, self._wanted)):
                await self._changed.wait()
                await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Dial, for ever."""
        while True:
            self._changed = trio.Event()
            refused = [core for core in self._wanted if not self.is_linked(core) and not await self._dial(core)]
            with trio.move_on_after(RETRY_S if refused else float("inf")):
                await self._changed.wait()

    async def _dial(self, core: CoreId) -> bool:
        try:
            sock = await self._mailboxes.dial_link(core)
        except MailboxError as error:
            log.debug("no link to core %d: %s", core, error)
            return False
        return self._adopt(sock, core, dialled=True)

    def _let_in(self, core: CoreId, sock: trio.socket.SocketType) -> None:
        self._adopt(sock, core, dialled=False)

    def _adopt(self, sock: trio.socket.SocketType, core: CoreId, *, dialled: bool) -> bool:
        descriptor = sock.detach()
        os.set_blocking(descriptor, True)  # as the ring wants its sockets
        result = lib.tpc_link_adopt(self._connections.pointer, descriptor, core, dialled)
        if result < 0:
            os.close(descriptor)
            if result != -errno.EEXIST:
                log.warning("no link %s core %d: %s", "to" if dialled else "from", core, os.strerror(-result))
        return result in (0, -errno.EEXIST)

    def _link_changed(self, core: int, is_up: int, dialled: int, _pointer: int) -> None:
        if not is_up and dialled and core in self._wanted:
            log.info("the link to core %d has ended", core)
        self._changed.set()
