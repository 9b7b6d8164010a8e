"""The steady state of replication in C (`native/replication/steady.h`), as the driver of replicas uses it.

A group is driven by exactly one of two: the machine, or C between `steady_lead` or `steady_follow` and `steady_disarm`.
What C does not take comes as messages (`steady_messages`).
"""

from __future__ import annotations

import enum
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker._ring import ffi, lib
from tpc_broker.native_bytes import pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.log.batch import Buffer

STALLED_AT_ONCE: Final = 256
GAP_MS: Final = int(lib.TPC_STEADY_GAP_MS)
"""Who was not heard for so long was silent, as C sees it."""
NOT_NOW: Final = (-errno.EBUSY, -errno.EPERM, -errno.ESTALE, -errno.EINVAL, -errno.ENOENT, -errno.ENOMEM)


def thread_busy_ms() -> int | None:
    """What this thread has run and waited for a CPU (proc(5): schedstat, since 2.6.9), as C has it for its beats: one
    that is stopped does neither. None: the kernel does not tell.
    """
    try:
        ran_ns, waited_ns, _slices = Path("/proc/thread-self/schedstat").read_bytes().split()
    except OSError:
        return None
    return (int(ran_ns) + int(waited_ns)) // 1_000_000


class Machine(enum.IntEnum):
    """Whose heartbeats a core sends."""

    OF_PARTITIONS = lib.TPC_STEADY_OF_PARTITIONS
    OF_METADATA = lib.TPC_STEADY_OF_METADATA


class SteadyPeerState(NamedTuple):
    """A replica beside the leader. `link` 0: C sends it nothing. Offsets as in `raft.steady.SteadyPeer`."""

    link: int
    incarnation: int
    match: int
    next: int
    known: int
    votes: bool


@dataclass(frozen=True, slots=True)
class SteadyState:
    """What C has made of a group. `sequence`: of the journal, when the last append is durable; 0: it is. `is_stopped`:
    C gave it up, since something was not steady or its role was taken away.
    """

    term: int
    is_leader: bool
    end_offset: int
    durable_offset: int
    commit_offset: int
    leader_commit_offset: int
    uncommitted_bytes: int
    sequence: int
    is_stopped: bool
    peers: tuple[SteadyPeerState, ...]


@dataclass(frozen=True, slots=True)
class SteadyMessage:
    """What was not steady. An append if `is_append`, with `batches` or without; else an acknowledgement."""

    link: int
    topic_id: bytes
    partition: int
    is_append: bool
    term: int
    source: int
    """Incarnation of the replica that says it."""
    target: int
    """And of the one that it is for."""
    offset: int
    commit_offset: int
    batches: bytes


class SteadyWant(NamedTuple):
    """A follower needs what begins at `offset`, and that is in segments only. `peer`: its place in `SteadyState`."""

    handle: int
    link: int
    incarnation: int
    offset: int
    term: int
    peer: int


class SteadyPlane:
    """A part of `RingDataPlane`."""

    _plane: Any

    def _begin_steady(self, ring: Any) -> None:
        self._steady_state = ffi.new("tpc_steady_state *")
        self._stalled = ffi.new("uint64_t[]", STALLED_AT_ONCE)
        self._want = ffi.new("tpc_steady_want *")
        self._asked = ffi.new("tpc_steady_want[]", STALLED_AT_ONCE)
        self._heard = ffi.new("int64_t[2]")
        self._on_steady: Callable[[], None] = lambda: None
        self._on_steady_link: Callable[[int], None] = lambda _link: None
        ring.on_event(lib.TPC_EVENT_STEADY, lambda _token, _a, _b, _pointer: self._on_steady())
        ring.on_event(lib.TPC_EVENT_STEADY_LINK, lambda link, _a, _b, _pointer: self._on_steady_link(link))

    def on_steady(self, messages: Callable[[], None], link_lost: Callable[[int], None]) -> None:
        """`messages` is called when `steady_messages` or `steady_wants` has something, once until it was called."""
        self._on_steady, self._on_steady_link = messages, link_lost

    def steady_adopt(self, descriptor: int, node: int, session: Any = None, unread: bytes = b"") -> int:
        """A connected socket to another node's core becomes a link; its number. `session`: of TLS, that has shaken
        hands (`tpc_tls_session *`), with ciphertext that it has not read. OSError: all of it is the caller's.
        """
        link, tls = ffi.new("uint64_t *"), ffi.NULL if session is None else session
        result = lib.tpc_steady_adopt(self._plane, descriptor, node, tls, unread, len(unread), link)
        if result < 0:
            raise OSError(-result, f"a link to node {node}: {os.strerror(-result)}")
        if session is not None:
            ffi.gc(session, None)
        return int(link[0])

    def steady_close(self, link: int) -> None:
        lib.tpc_steady_close(self._plane, link)

    def steady_beat(self, link: int, machine: Machine, *, is_said: bool) -> bool:
        """C says all the time that a machine of this core is there, or not any more. False: the link is gone."""
        return bool(lib.tpc_steady_beat(self._plane, link, machine, is_said) == 0)

    def steady_late_ms(self, machine: Machine) -> int:
        """How late what C says of a machine was at worst since the last call."""
        return int(lib.tpc_steady_take_late(self._plane, machine)) // 1_000_000

    def steady_busy_ms(self) -> int | None:
        """What this core has run and waited for a CPU so far; None: nobody knows."""
        return thread_busy_ms()

    def steady_heard(self, link: int, machine: Machine) -> tuple[int, int] | None:
        """Since when a machine at the other end was heard without a gap, and when last, in ms of CLOCK_MONOTONIC. None:
        never, or the link is long gone.
        """
        since_ns, last_ns = self._heard, self._heard + 1
        result = lib.tpc_steady_heard(self._plane, link, machine, since_ns, last_ns)
        return (since_ns[0] // 1_000_000, last_ns[0] // 1_000_000) if result == 0 and last_ns[0] else None

    def steady_lead(  # noqa: PLR0913 (all that a leader is armed with)
        self,
        handle: int,
        incarnation: int,
        term: int,
        start_offset: int,
        uncommitted_bytes_max: int,
        peers: Sequence[SteadyPeerState],
        *,
        votes: bool,
    ) -> bool:
        """False: not now."""
        rows = ffi.new("tpc_steady_peer_state[]", max(1, len(peers)))
        for row, peer in zip(rows, peers, strict=False):
            row.link, row.incarnation, row.votes = peer.link, peer.incarnation, peer.votes
            row.match_offset, row.known_offset = peer.match, peer.known
        result = lib.tpc_steady_lead(
            self._plane, handle, incarnation, term, start_offset, votes, uncommitted_bytes_max, rows, len(peers)
        )
        return _is_armed(result)

    def steady_follow(  # noqa: PLR0913 (all that a follower is armed with)
        self,
        handle: int,
        incarnation: int,
        term: int,
        start_offset: int,
        leader: tuple[int, int],
        link: int,
        leader_commit_offset: int,
    ) -> bool:
        """Of a leader by node and incarnation, that is acknowledged to over a link. False: not now."""
        result = lib.tpc_steady_follow(
            self._plane, handle, incarnation, term, start_offset, *leader, link, leader_commit_offset
        )
        return _is_armed(result)

    def steady_ack(  # noqa: PLR0913 (all that it says)
        self, handle: int, link: int, source: int, term: int, durable_offset: int, commit_offset: int
    ) -> bool:
        """Whether C has taken a peer's acknowledgement that came by another way."""
        taken = lib.tpc_steady_ack(self._plane, handle, link, source, term, durable_offset, commit_offset)
        return bool(taken == 0)

    def steady_disarm(self, handle: int) -> SteadyState | None:
        """The group is the machine's again, as C has left it; None: it was not C's, or the partition was withdrawn."""
        if lib.tpc_steady_disarm(self._plane, handle, self._steady_state) < 0:
            return None
        return _state(self._steady_state)

    def steady_state(self, handle: int) -> SteadyState | None:
        """How C has it now; None: it has not."""
        if lib.tpc_steady_get_state(self._plane, handle, self._steady_state) < 0:
            return None
        return _state(self._steady_state)

    def steady_messages(self) -> list[SteadyMessage]:
        """What was not steady since the last call, in order."""
        found, message = [], ffi.new("tpc_steady_message *")
        while lib.tpc_steady_take(self._plane, message):
            batches = b""
            if message.frame != ffi.NULL:
                batches = bytes(ffi.buffer(message.batches, message.batches_bytes))
                lib.tpc_frame_release(message.frame)
            found.append(SteadyMessage(
                message.link, bytes(ffi.buffer(message.topic_id)), message.partition,
                message.kind == lib.TPC_STEADY_APPEND_KIND, message.term, message.source, message.target,
                message.offset, message.commit_offset, batches,
            ))  # fmt: skip
        return found

    def steady_wants(self) -> list[SteadyWant]:
        """What is to be read for followers since the last call."""
        found, want = [], self._want
        while lib.tpc_steady_take_want(self._plane, want):
            found.append(_want(want))
        return found

    def steady_give(self, want: SteadyWant, batches: Buffer) -> bool | None:
        """The stored batches that follow there. False: they are not what comes next; None: nobody waits any more."""
        given = ffi.new("tpc_steady_want *", want._asdict())
        data, size, _held = pinned(batches)
        result = lib.tpc_steady_give(self._plane, given, data, size)
        return None if result == -errno.ENOENT else bool(result == 0)

    def steady_stalled(self, since_ns: int) -> list[int]:
        """Handles of leaders of which nothing has become since then, with something under way; some of them."""
        count = lib.tpc_steady_stalled(self._plane, since_ns, self._stalled, STALLED_AT_ONCE)
        return list(self._stalled[0:count])

    def steady_ask_again(self, now_ns: int, after_ns: int) -> list[SteadyWant]:
        """Followers of leaders in C that have answered nothing for so long are asked again; those that lack records."""
        count = lib.tpc_steady_ask_again(self._plane, now_ns, after_ns, self._asked, STALLED_AT_ONCE)
        return [_want(self._asked[index]) for index in range(count)]

    def steady_statistics(self) -> dict[str, int]:
        """The fields of `tpc_steady_statistics`."""
        values = ffi.new("tpc_steady_statistics *")
        lib.tpc_steady_get_statistics(self._plane, values)
        return {name: int(getattr(values, name)) for name, _field in ffi.typeof("tpc_steady_statistics").fields}


def _want(made: Any) -> SteadyWant:
    return SteadyWant(made.handle, made.link, made.incarnation, made.offset, made.term, made.peer)


def _is_armed(result: int) -> bool:
    if result < 0 and result not in NOT_NOW:
        raise OSError(-result, f"arm: {os.strerror(-result)}")
    return bool(result == 0)


def _state(made: Any) -> SteadyState:
    peers = [
        SteadyPeerState(row.link, row.incarnation, row.match_offset, row.next_offset, row.known_offset, bool(row.votes))
        for row in made.peers[0 : made.peers_count]
    ]
    return SteadyState(
        made.term, made.role == lib.TPC_ROLE_LEADER, made.log_end_offset, made.durable_offset, made.commit_offset,
        made.leader_commit_offset, made.uncommitted_bytes, made.sequence, bool(made.is_stopped), tuple(peers),
    )  # fmt: skip
