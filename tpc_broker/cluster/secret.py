"""The shared secret: proofs on links, seals on datagrams, and the memory of what was received already.

Links. Each side sends 32 random bytes; each answers with HMAC-SHA256 of both, in an order that says who dialled, under
the secret. So a proof is good for one connection and one side of it: replayed or reflected it proves nothing. The one
who dialled proves first; the other one says nothing of itself to who cannot.

Datagrams. A sealed one is a header (who, which life, which number), the content, and an HMAC of both. The number rises
with each datagram of a life, and lives (boot ids) rise, so that a receiver takes each one once: `ReplayWindow`. A
receiver that has just started knows nothing, and could be shown what it had received in an earlier life; membership
claims are ordered among themselves, so that old ones change nothing (`swim.model`).

Links are encrypted by keys that are derived from the secret (`node/links/sealed_links.py`); datagrams are not:
whoever sees the network sees who is a member. Without a secret nothing is proved, and the broker listens on loopback
only (`node/membership/options.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.limits import (
    CLUSTER_SEAL_BYTES,
    CLUSTER_SECRET_BYTES_MAX,
    CLUSTER_SECRET_BYTES_MIN,
    CLUSTER_SECRETS_MAX,
    SWIM_MEMBERS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
_SEAL = struct.Struct(">BIQQQ")
"""Version, node, incarnation, boot id, number."""
_SEAL_VERSION: Final = 1
_DATAGRAM: Final = b"tpc datagram 1\0"
WINDOW: Final = 1_024
"""So many datagrams may overtake one another."""

assert _SEAL.size + MAC_BYTES == CLUSTER_SEAL_BYTES, "limits.py says what a seal takes"


class SecretError(ValueError):
    """A secret that is none: what is wrong and what is allowed."""


class Stamp(NamedTuple):
    """Who sealed a datagram: the node, the incarnation of its data, its life, and the number in it."""

    node: int
    incarnation: int
    boot: int
    number: int


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """The keys of a cluster: the first one is what this node proves and seals by, and all are believed. None: there is
    no secret. Two for a while make another secret out of one, node by node (docs/cluster.md).
    """

    keys: tuple[bytes, ...]

    @classmethod
    def from_text(cls, text: bytes) -> ClusterSecret:
        """What a file holds: a secret a line, without white space around it."""
        keys = tuple(line.strip() for line in text.strip().split(b"\n"))
        if len(keys) > CLUSTER_SECRETS_MAX:
            raise SecretError(f"there are {len(keys)} secrets, one a line; at most {CLUSTER_SECRETS_MAX} are allowed")
        for key in keys:
            if not CLUSTER_SECRET_BYTES_MIN <= len(key) <= CLUSTER_SECRET_BYTES_MAX:
                allowed = f"{CLUSTER_SECRET_BYTES_MIN} to {CLUSTER_SECRET_BYTES_MAX}"
                raise SecretError(f"the secret has {len(key)} bytes; {allowed} are allowed (openssl rand -hex 32)")
        return cls(keys)

    def proof(self, dialler_nonce: bytes, acceptor_nonce: bytes, *, of_dialler: bool) -> bytes:
        """What one side of a connection has to show."""
        side = b"dialler" if of_dialler else b"acceptor"
        return self._mac(b"tpc link 1 " + side + b"\0" + dialler_nonce + acceptor_nonce)

    def proven_by(
        self, mac: bytes, dialler_nonce: bytes, acceptor_nonce: bytes, *, of_dialler: bool
    ) -> ClusterSecret | None:
        """The secret that the other side has shown; None: it is none of these."""
        for each in self._each():
            expected = each.proof(dialler_nonce, acceptor_nonce, of_dialler=of_dialler)
            if hmac.compare_digest(mac, expected):
                return each
        return None

    def seal(self, stamp: Stamp, content: bytes) -> bytes:
        """A datagram."""
        sealed = _SEAL.pack(_SEAL_VERSION, *stamp) + content
        return sealed + self._mac(_DATAGRAM + sealed)

    def unseal(self, data: bytes) -> tuple[Stamp, bytes] | None:
        """Who sealed it, and the content; None for what this secret did not seal."""
        if len(data) < CLUSTER_SEAL_BYTES:
            return None
        sealed, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
        if not any(hmac.compare_digest(mac, _mac(key, _DATAGRAM + sealed)) for key in self.keys or (b"",)):
            return None
        version, *stamp = _SEAL.unpack_from(sealed)
        return (Stamp(*stamp), sealed[_SEAL.size :]) if version == _SEAL_VERSION else None

    def _each(self) -> tuple[ClusterSecret, ...]:
        return tuple(ClusterSecret((key,)) for key in self.keys) or (self,)

    def _mac(self, text: bytes) -> bytes:
        return _mac(self.keys[0] if self.keys else b"", text)


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


@dataclass(slots=True)
class _Life:
    boot: int
    highest: int
    seen: int
    """Bit i: `highest - i` has come."""


class ReplayWindow:
    """Which datagrams have come. Each is taken once; one of an earlier life, or far behind, never."""

    def __init__(self, senders_max: int = 2 * SWIM_MEMBERS_MAX) -> None:
        self._lives: OrderedDict[tuple[int, int], _Life] = OrderedDict()
        self._senders_max = senders_max

    def take(self, stamp: Stamp) -> bool:
        """Whether it is new; from now on it is not."""
        key = (stamp.node, stamp.incarnation)
        life = self._lives.get(key)
        if life is None or stamp.boot > life.boot:
            self._lives[key] = _Life(stamp.boot, stamp.number, 1)
            self._lives.move_to_end(key)
            while len(self._lives) > self._senders_max:
                self._lives.popitem(last=False)
            return True
        if stamp.boot < life.boot:
            return False
        ahead = stamp.number - life.highest
        if ahead > 0:
            life.seen = ((life.seen << ahead) | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            life.highest = stamp.number
            return True
        if -ahead >= WINDOW or life.seen & (1 << -ahead):
            return False
        life.seen |= 1 << -ahead
        return True


class Sealer:
    """Seals the datagrams of one life."""

    def __init__(self, secret: ClusterSecret, node: int, incarnation: int, boot: int) -> None:
        self._secret = secret
        self._who = node, incarnation, boot
        self._number = 0

    def seal(self, content: bytes) -> bytes:
        self._number += 1
        return self._secret.seal(Stamp(*self._who, self._number), content)


class Opener:
    """Takes sealed datagrams of others, each once. `refuses`: whose are not taken at all."""

    def __init__(
        self, secret: ClusterSecret, on_foreign: Callable[[], None], refuses: Callable[[Stamp], bool] = lambda _: False
    ) -> None:
        self._secret = secret
        self._refuses = refuses
        self._on_foreign = on_foreign
        self._window = ReplayWindow()

    def open(self, data: bytes) -> bytes | None:
        """The content; None for what is not ours or came before."""
        found = self._secret.unseal(data)
        if found is None:
            self._on_foreign()
            return None
        stamp, content = found
        return content if not self._refuses(stamp) and self._window.take(stamp) else None
