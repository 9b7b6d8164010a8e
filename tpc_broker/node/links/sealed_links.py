"""Links between nodes under TLS 1.3, by keys that are derived from the cluster's secret: no certificates to keep.

Who dials says the first word, and who was dialled sees by its first byte whether it is TLS: a release that knows no
TLS sends a frame of its own, whose first byte is 0. Such a link is plain, unless encryption is required; and so is one
to an end that closes without a word when it is greeted by TLS, which is what such a release does. So does a core that
ends just then, or has too many greetings at once, so it takes several in a row, and many of an end that has encrypted
before: it may have gone back to an earlier release.

The handshake is carried out here, with OpenSSL in C (`native/tls`), and the connection of the steady state is handed
to the ring together with its session (`Handed`).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker._ring import ffi, lib
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.cluster.link_codec import Reason
from tpc_broker.engine.tls import is_built
from tpc_broker.native_bytes import pinned
from tpc_broker.node.links.link_errors import LinkRefusedError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from tpc_broker.cluster.secret import ClusterSecret
    from tpc_broker.native_bytes import Buffer
    from tpc_broker.node.links.surroundings import Accepting, Datagrams, Network, Surroundings

    Dial = Callable[[], Awaitable[trio.SocketStream]]

log = logging.getLogger(__name__)

OFF, AUTO, REQUIRED = "off", "auto", "required"
"""`cluster.links.encryption`: `auto` is with everybody who can."""
HANDSHAKE_BYTE: Final = 0x16
"""The first of a TLS record that begins a handshake (RFC 8446, 5.1)."""
SILENT_MAX: Final = 3
SILENT_OF_KNOWN_MAX: Final = 60
"""About a minute: `links.BACK_OFF_S_MAX` is a second."""
RECEIVE_BYTES: Final = 1 << 17
SEAL_BYTES: Final = 1 << 18
_RECORD_BYTES: Final = 16_384
_OVERHEAD_BYTES: Final = 128
_ENDED, _FAILED = -1, -2
NOT_ENCRYPTED: Final = (
    "links are encrypted here (cluster.links.encryption=required), and the other end does not encrypt: upgrade it, or "
    "look at its cluster.links.encryption"
)


def link_keys(secret: ClusterSecret) -> bytes:
    """Name and key of each of a cluster's secrets, as `tpc_tls_links_new` takes them. Neither tells of the secret."""
    found = []
    for key in secret.keys:
        name = hmac.new(key, b"tpc link tls 1 name", hashlib.sha256).digest()[: lib.TPC_TLS_KEY_NAME_BYTES]
        found.append(name + hmac.new(key, b"tpc link tls 1 key", hashlib.sha256).digest())
    return b"".join(found)


# Rule: Nothing that one node tells another by a link is read, changed, or told again by who does not have the cluster's
# secret; where encryption is required no link is without it. See also native/tls/links.c. Held by
# tests/cluster/test_sealed_links.py, tests/cluster/test_encrypted_links.py.
class LinkContexts:
    """What sessions of this node's links are made of: one for dialling, one for being dialled."""

    def __init__(self, secret: ClusterSecret, *, is_required: bool) -> None:
        """OSError where there is no OpenSSL, or no memory."""
        self.is_required = is_required
        self._silent: Counter[tuple[str, int]] = Counter()
        """How often in a row an address has closed without a word."""
        self._encrypt: set[tuple[str, int]] = set()
        """Addresses that have shaken hands, since this core began."""
        self._log_limiter = LogLimiter(trio.current_time)
        keys = link_keys(secret)
        self._contexts = []
        for dials in (True, False):
            context = lib.tpc_tls_links_new(dials, keys, len(secret.keys))
            if context == ffi.NULL:
                raise OSError("links cannot be encrypted: this broker was built without OpenSSL")
            self._contexts.append(ffi.gc(context, lib.tpc_tls_context_free))

    def note_answer(self, address: tuple[str, int], *, is_silent: bool) -> bool:
        """Whether who closes without a word is to be spoken to plainly."""
        if not is_silent:
            self._silent.pop(address, None)
            self._encrypt.add(address)
            return False
        self._silent[address] += 1
        if self.is_required:
            self._log_limiter.say(log, "silent", str(address), f"link to {address[0]}:{address[1]}: it ended when it "
                                  f"was to be encrypted; {NOT_ENCRYPTED}")  # fmt: skip
        silent_max = SILENT_OF_KNOWN_MAX if address in self._encrypt else SILENT_MAX
        return not self.is_required and self._silent[address] >= silent_max

    def session(self, *, dials: bool) -> Any:
        session = lib.tpc_tls_session_new(self._contexts[0 if dials else 1])
        if session == ffi.NULL:
            raise OSError("no memory for a TLS session")
        return ffi.gc(session, lib.tpc_tls_session_free)


@dataclass(slots=True)
class Handed:
    """A connected socket for the ring, whose the descriptor and the session then are. `unread`: ciphertext that has
    come.
    """

    descriptor: int
    session: Any = None
    """A `tpc_tls_session *`; None: the link is plain."""
    unread: bytes = b""

    def close(self) -> None:
        os.close(self.descriptor)
        self.session = None


class SealedStream(trio.abc.Stream):
    """A connection to or from another node, under TLS from its first byte on, or plain when that byte says so.

    The first call shakes hands. LinkRefusedError: the two ends have no key in common, or the other one does not encrypt
    and must. trio.BrokenResourceError: what came was tampered with, or is no TLS, or it ended at once.
    """

    def __init__(
        self,
        inner: trio.SocketStream,
        contexts: LinkContexts,
        redial: Dial | None = None,
        address: tuple[str, int] = ("", 0),
    ) -> None:
        """`redial`: of who has dialled that address, to begin again without TLS."""
        self._inner = inner
        self._contexts = contexts
        self._redial, self._address = redial, address
        self._session: Any = None
        self._input: Any = memoryview(b"")
        """What the session reads from: C borrows it."""
        self._plain = b""
        self._is_begun = self._has_heard = False

    @property
    def socket(self) -> trio.socket.SocketType:
        return self._inner.socket

    @property
    def is_sealed(self) -> bool:
        return self._session is not None

    # -- handshake ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._is_begun = True
        if self._redial is None:
            await self._be_dialled()
        else:
            await self._dial(self._redial)

    async def _be_dialled(self) -> None:
        first = await self._inner.receive_some(RECEIVE_BYTES)
        if first and first[0] != HANDSHAKE_BYTE:
            if self._contexts.is_required:
                raise LinkRefusedError(Reason.SECRET, NOT_ENCRYPTED, by_peer=False)
            self._plain = bytes(first)
            return
        if first:
            self._session = self._contexts.session(dials=False)
            self._feed(bytes(first))
            await self._shake_hands()

    async def _dial(self, redial: Dial) -> None:
        self._session = self._contexts.session(dials=True)
        try:
            is_answered = await self._shake_hands()
        except trio.BrokenResourceError:
            if self._has_heard:
                raise
            is_answered = False  # it was reset
        if not self._contexts.note_answer(self._address, is_silent=not is_answered):
            if is_answered:
                return
            raise trio.BrokenResourceError("the other end has closed without a word")
        self._session = None
        await trio.aclose_forcefully(self._inner)
        try:
            self._inner = await redial()
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def _shake_hands(self) -> bool:
        """False: the other end has closed without a word."""
        self._has_heard = bool(self._input)
        while True:
            result = lib.tpc_tls_handshake(self._session)
            await self._send_spilled()
            if result == 1:
                return True
            if result < 0:
                raise LinkRefusedError(Reason.SECRET, "the other end has another cluster secret", by_peer=False)
            data = await self._inner.receive_some(RECEIVE_BYTES)
            if not data:
                if self._has_heard:
                    raise trio.BrokenResourceError("the other end has closed in the middle of a handshake")
                return False
            self._has_heard = True
            self._feed(bytes(data))

    async def _send_spilled(self) -> None:
        size = lib.tpc_tls_spilled(self._session)
        if size:
            words = ffi.new("uint8_t[]", size)
            lib.tpc_tls_take_spilled(self._session, words)
            await self._inner.send_all(bytes(ffi.buffer(words, size)))

    def _feed(self, data: bytes) -> None:
        unread = self._unread()
        pointer, size, self._input = pinned(unread + data)
        lib.tpc_tls_feed(self._session, pointer, size)

    def _unread(self) -> bytes:
        count = lib.tpc_tls_unread(self._session)
        return bytes(self._input[len(self._input) - count :]) if count else b""

    # -- bytes -------------------------------------------------------------------------------------------------------

    async def send_all(self, data: Buffer) -> None:
        if not self._is_begun:
            await self._begin()
        if self._session is None:
            await self._inner.send_all(data)
            return
        view = memoryview(data)
        for begin in range(0, len(view), SEAL_BYTES):
            await self._inner.send_all(self._sealed(view[begin : begin + SEAL_BYTES]))

    def _sealed(self, data: memoryview) -> memoryview:
        room = len(data) + (len(data) // _RECORD_BYTES + 2) * _OVERHEAD_BYTES
        into = bytearray(room)
        output, _room, _held = pinned(into, writable=True)
        lib.tpc_tls_set_output(self._session, output, room)
        source, size, _given = pinned(data)
        result = lib.tpc_tls_write(self._session, source, size)
        count = lib.tpc_tls_output_bytes(self._session)
        lib.tpc_tls_set_output(self._session, ffi.NULL, 0)
        if result < 0 or lib.tpc_tls_spilled(self._session):
            raise trio.BrokenResourceError("nothing can be encrypted on this link any more")
        return memoryview(into)[:count]

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if not self._is_begun:
            await self._begin()
        if self._session is None:
            if not self._plain:
                return await self._inner.receive_some(max_bytes)
            data = self._plain[:max_bytes]
            self._plain = self._plain[len(data) :]
            return data
        return await self._opened(max_bytes if max_bytes is not None else RECEIVE_BYTES)

    async def _opened(self, bytes_max: int) -> bytes | bytearray:
        into = bytearray(bytes_max)
        room, _size, held = pinned(into, writable=True)
        done = 0
        while True:
            while done < bytes_max:
                result = lib.tpc_tls_read(self._session, room + done, min(bytes_max - done, _RECORD_BYTES))
                if result <= 0:
                    break
                done += result
            if done:  # an end or an error behind it comes again
                del held
                return into[:done] if done < bytes_max else into
            if result == _ENDED:
                return b""
            if result == _FAILED:
                raise trio.BrokenResourceError("what came by this link was not what was sent")
            data = await self._inner.receive_some(RECEIVE_BYTES)
            if not data:
                return b""
            self._feed(bytes(data))

    def hand_over(self) -> Handed:
        """The socket as the ring wants it. Nothing more is read or written here."""
        unread = self._unread() if self._session is not None else self._plain
        handed = Handed(socket_of(self._inner), self._session, unread)
        self._session = None
        return handed

    async def aclose(self) -> None:
        if self._session is not None and self._is_begun:
            self._session = None
        await self._inner.aclose()


def socket_of(stream: trio.SocketStream) -> int:
    descriptor = stream.socket.detach()
    os.set_blocking(descriptor, True)
    return descriptor


class _SealingAccepting:
    def __init__(self, inner: Accepting, contexts: LinkContexts) -> None:
        self._inner, self._contexts = inner, contexts

    async def accept(self) -> Any:
        return SealedStream(await self._inner.accept(), self._contexts)


class SealingNetwork:
    """A network (`surroundings.Network`) whose connections are sealed. Datagrams are as they were."""

    def __init__(self, inner: Network, contexts: LinkContexts) -> None:
        self._inner, self._contexts = inner, contexts

    async def dial(self, host: str, port: int) -> Any:
        async def again() -> trio.SocketStream:
            return await self._inner.dial(host, port)

        return SealedStream(await again(), self._contexts, again, (host, port))

    def accepting(self, listener: socket.socket) -> Any:
        return _SealingAccepting(self._inner.accepting(listener), self._contexts)

    def datagrams(self, bound: socket.socket) -> Datagrams:
        return self._inner.datagrams(bound)


def sealed(surroundings: Surroundings, secret: ClusterSecret, policy: str) -> Surroundings:
    """With links under TLS, as `cluster.links.encryption` says; a cluster without a secret has none. OSError: it is
    required, and cannot be had.
    """
    if not secret.keys or policy == OFF:
        return surroundings
    if not is_built() and policy == AUTO:
        log.warning("links to other nodes are not encrypted: this broker was built without OpenSSL")
        return surroundings
    contexts = LinkContexts(secret, is_required=policy == REQUIRED)
    return replace(surroundings, network=SealingNetwork(surroundings.network, contexts))
