"""What members know of each other and say to each other: plain values, without a codec and without a clock.

The order of claims
-------------------
Everything that is ever said of a member is an `Update`: (incarnation, state), with the member's `NodeInfo` where it is
known. Claims of one member are totally ordered by `rank`: first by incarnation, then ALIVE < SUSPECT < DEAD < LEFT. A
member's entry only ever rises in this order, so it does not matter in which order, how often or by which way updates
come: members who have seen the same set of updates hold the same.

Only the member itself raises its incarnation, when it refutes a claim, changes its information, or comes back. The
paper (section 4.2) lets Confirm override everything, for ever, because its members come back under a new name. Ours
come back under their own, so DEAD overrides only incarnations up to its own; and LEFT is above DEAD, so that a member
that said good-bye is not counted among the failed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.limits import (
    SWIM_DATAGRAM_BYTES_MAX,
    SWIM_ENDPOINTS_MAX,
    SWIM_HOST_BYTES_MAX,
    SWIM_INFO_TEXT_BYTES_MAX,
    SWIM_MEMBERS_MAX,
    SWIM_NAME_BYTES_MAX,
)
from tpc_broker.model import CORES_PER_NODE_MAX, NODE_ID_MAX, NodeId

if TYPE_CHECKING:
    import uuid

INCARNATION_MAX: Final = 2**62
"""No member comes near it by its own doing."""

PORT_MAX: Final = 65_535
LOAD_PERMILLE_MAX: Final = 1_000_000
"""A thousand times as much runnable work as there are cores."""


class Address(NamedTuple):
    """Where a member is reached, with datagrams and with streams."""

    host: str
    port: int


def checked_address(address: Address) -> Address:
    """The same; ValueError when it is none."""
    host, port = address
    if not 1 <= len(host.encode()) <= SWIM_HOST_BYTES_MAX:
        raise ValueError(f"a host of {len(host.encode())} bytes; 1 to {SWIM_HOST_BYTES_MAX} are allowed")
    if not 1 <= port <= PORT_MAX:
        raise ValueError(f"port {port} of {host!r}; allowed are 1 to {PORT_MAX}")
    return address


class State(enum.IntEnum):
    """What is held of a member. The numbers are the order within one incarnation."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


GONE: Final = frozenset({State.DEAD, State.LEFT})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a member tells of itself. Everything is bounded, so that it fits into a datagram beside other news.

    `boot_id` is new at each start of the process. `endpoints` are further addresses by name ("link", "client").
    `load_permille` is its load in thousandths of all its cores. `lacks_space`: its disk is full. A member of an earlier
    release does not know that, and does not pass it on.
    """

    address: Address
    boot_id: uuid.UUID
    endpoints: tuple[tuple[str, Address], ...] = ()
    cores: int = 1
    load_permille: int = 0
    rack: str = ""
    version: str = ""
    lacks_space: bool = False

    def __post_init__(self) -> None:
        """ValueError names what is out of bounds and what is allowed: it may come from the settings."""
        if len(self.endpoints) > SWIM_ENDPOINTS_MAX:
            raise ValueError(f"{len(self.endpoints)} endpoints; at most {SWIM_ENDPOINTS_MAX} are allowed")
        if len({name for name, _address in self.endpoints}) != len(self.endpoints):
            raise ValueError("two endpoints have the same name")
        if not 1 <= self.cores <= CORES_PER_NODE_MAX:
            raise ValueError(f"cores = {self.cores}; allowed are 1 to {CORES_PER_NODE_MAX}")
        if not 0 <= self.load_permille <= LOAD_PERMILLE_MAX:
            raise ValueError(f"load_permille = {self.load_permille}; allowed are 0 to {LOAD_PERMILLE_MAX}")
        names = [self.rack, self.version, *(name for name, _address in self.endpoints)]
        for name in names:
            if len(name.encode()) > SWIM_NAME_BYTES_MAX:
                what = f"{name[:20]!r}... has {len(name.encode())} bytes"
                raise ValueError(f"{what}; a rack, a version or a name has at most {SWIM_NAME_BYTES_MAX}")
        addresses = [self.address, *(address for _name, address in self.endpoints)]
        for address in addresses:
            checked_address(address)
        text_bytes = sum(len(text.encode()) for text in (*names, *(address.host for address in addresses)))
        if text_bytes > SWIM_INFO_TEXT_BYTES_MAX:
            raise ValueError(f"all texts have {text_bytes} bytes together; allowed are {SWIM_INFO_TEXT_BYTES_MAX}")


@dataclass(frozen=True, slots=True)
class Update:
    """A claim about a member. ALIVE always carries `info`; the others where it is known and there is room.

    `source` is who claims it: the member itself for ALIVE and LEFT, else who suspected or buried it first.
    `gone_for_ms` is how long ago a DEAD or LEFT member died or left, as far as the teller knows; exchanges say it.
    """

    node: NodeId
    incarnation: int
    state: State
    source: NodeId
    info: NodeInfo | None = None
    gone_for_ms: int = 0

    def __post_init__(self) -> None:
        """ValueError for what no member may claim."""
        if not (0 <= self.node <= NODE_ID_MAX and 0 <= self.source <= NODE_ID_MAX):
            raise ValueError(f"node {self.node} or source {self.source} is outside 0 to {NODE_ID_MAX}")
        if not 0 <= self.incarnation <= INCARNATION_MAX:
            raise ValueError(f"incarnation {self.incarnation} is outside 0 to {INCARNATION_MAX}")
        if self.state is State.ALIVE and self.info is None:
            raise ValueError(f"node {self.node} is said to be alive without its information")
        if self.gone_for_ms and self.state not in GONE:
            raise ValueError(f"node {self.node} is said to be {self.state.name}, and gone for {self.gone_for_ms} ms")

    @property
    def rank(self) -> tuple[int, int]:
        """Place in the order of claims about this member."""
        return self.incarnation, self.state


class Kind(enum.IntEnum):
    """What a datagram asks or answers (SWIM, section 3.1; NACK is Lifeguard's, section IV-A)."""

    PING = 1
    ACK = 2
    PING_REQ = 3
    NACK = 4


@dataclass(frozen=True, slots=True)
class Sender:
    """Who a datagram is from: enough to see whether what is held of it is what it holds of itself."""

    node: NodeId
    incarnation: int
    boot_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Message:
    """One datagram. `sequence` ties answers to questions, and is the asker's.

    `subject` is whom it is about: who is to answer a PING (None: whoever is there), who answered an ACK, who is to be
    pinged by a PING_REQ or did not answer it (NACK). `address` and `nack_after_ms` belong to a PING_REQ.
    """

    kind: Kind
    sender: Sender
    sequence: int
    subject: NodeId | None
    address: Address | None = None
    nack_after_ms: int = 0
    updates: tuple[Update, ...] = ()


class Change(enum.Enum):
    """What happened to a member, as far as this node knows."""

    JOINED = "joined"
    """Alive, and was unknown, dead or gone before."""
    RESTARTED = "restarted"
    """Alive under another boot id, without having been buried in between."""
    CHANGED = "changed"
    """Alive, and told something new about itself."""
    SUSPECTED = "suspected"
    CLEARED = "cleared"
    """Was suspected and has refuted it."""
    DIED = "died"
    LEFT = "left"
    FORGOTTEN = "forgotten"
    """Was dead or gone for so long that its entry is removed."""
    CONFLICT = "conflict"
    """Another process claims this node's own id again and again: two nodes were given one id."""
    LEAVE_DONE = "leave-done"
    """This node's own good-bye has been said."""


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """A change, with the member's incarnation and information after it."""

    change: Change
    node: NodeId
    incarnation: int
    info: NodeInfo | None


@dataclass(slots=True)
class Ready:
    """What is to be done now: datagrams to send, members to exchange the whole state with, news to tell."""

    datagrams: list[tuple[Address, Message]] = field(default_factory=list)
    exchanges: list[Address] = field(default_factory=list)
    events: list[MemberEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times and counts of the protocol. The defaults are the papers', but for `ack_timeout_ms`.

    A period of a second finds a death within about two, and confirms it 5 log10(n) periods later at the earliest.
    """

    period_ms: int = 1_000
    ack_timeout_ms: int = 300
    helpers_count: int = 3
    """k of SWIM: members asked to ping where an answer is missing."""
    local_health_max: int = 8
    """S of Lifeguard: how slow this node may make itself; 0 switches local health off."""
    suspicion_alpha: float = 5.0
    suspicion_beta: float = 6.0
    """Times the least time-out until the longest one; 1 gives SWIM's fixed time-out."""
    suspicion_confirmations: int = 3
    """K of Lifeguard: independent suspicions that bring the time-out down to the least."""
    retransmit_lambda: int = 4
    exchange_interval_ms: int = 30_000
    exchange_timeout_ms: int = 10_000
    join_retry_ms: int = 1_000
    reconnect_interval_ms: int = 10_000
    dead_retention_ms: int = 24 * 3_600_000
    """So long after its death or farewell a member is remembered, so that no old claim brings it back."""
    info_interval_ms_per_member: int = 3_000
    """News about oneself (load, above all) are told at most so often, times the number of members: all members together
    then use about half of what rumours can carry, see `docs/decisions/2026-11-22-swim.md`."""
    members_max: int = SWIM_MEMBERS_MAX
    datagram_bytes_max: int = SWIM_DATAGRAM_BYTES_MAX

    def __post_init__(self) -> None:
        """ValueError for times that do not fit together."""
        if self.period_ms < 3 * self.ack_timeout_ms:
            raise ValueError(
                f"period_ms = {self.period_ms} must be at least 3 times ack_timeout_ms = {self.ack_timeout_ms}: "
                "a ping, a request to others and their answer have to fit in (SWIM, section 3.1)"
            )
        if min(self.ack_timeout_ms, self.members_max, self.retransmit_lambda) < 1 or self.helpers_count < 0:
            raise ValueError("ack_timeout_ms, members_max and retransmit_lambda must be 1 or more")
        if self.suspicion_alpha <= 0 or self.suspicion_beta < 1 or self.local_health_max < 0:
            raise ValueError("suspicion_alpha must be above 0, suspicion_beta 1 or more, local_health_max 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwimStatistics:
    """Counts since the start; `alive` to `left` are what is held now, this node included."""

    alive: int
    suspect: int
    dead: int
    left: int
    local_health: int
    """0 is healthy; n makes this node's periods and time-outs n + 1 times as long."""
    rumours: int
    is_joined: bool
    incarnation: int
    probes: int = 0
    probes_failed: int = 0
    suspicions: int = 0
    """Members that this node came to suspect, by itself or because others do."""
    burials: int = 0
    """Members that this node declared dead itself, when their suspicion ended here; not those it was told of."""
    refutations: int = 0
    """Claims of this node's own suspicion or death that it contradicted."""
    datagrams_sent: int = 0
    datagrams_received: int = 0
    datagrams_ignored: int = 0
    """For another node, late, or without a place to remember them."""
    exchanges: int = 0
    exchanges_failed: int = 0
    members_refused: int = 0
    """The table was full."""
