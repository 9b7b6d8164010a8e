"""Gives groups that are quiet to C, and takes them back (`raft.carrying`, `native/replication/steady.h`).

A part of the driver of a core's replicas, in its turns: at the beginning what C found not steady becomes messages for
the machines, at the end whoever may be carried is. In between C does nothing, so a group that is given away is as the
turn has left it. Links are connections of their own, between the same cores as those of `replica_links`.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.engine.steady_plane import SteadyPeerState
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.batch import BatchDamageError, walk_headers
from tpc_broker.node.replicas.beats import CarriedBeats
from tpc_broker.node.replicas.lagging import Lagging
from tpc_broker.raft.carrying import Carried, CarriedPeer
from tpc_broker.raft.items import START, Batch, Position, Voter
from tpc_broker.raft.messages import Ack, AppendEntries, Frame
from tpc_broker.raft.steady import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.engine.steady_plane import Machine, SteadyState
    from tpc_broker.node.links.sealed_links import Handed
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.items import Address

log = logging.getLogger(__name__)

STALLED_MS: Final = 1_500
"""A leader in C without an answer for so long is the machine's again, which asks after what was lost. Where only some
of its followers give none, C asks these.
"""
LOOK_MS: Final = 200
AGAIN_MS: Final = 20
LOOKS_A_TURN: Final = 256
"""Of thousands that became quiet together: the others' turn is the next one, and C serves in between."""
RETRY_MS: Final = 100
"""Between taking a group back and giving it away again."""
UNLED_MS: Final = 1_500
"""The same of thousands whose leader is not heard. Another term begins with a look at once."""


@dataclass(frozen=True, slots=True)
class SteadyLink:
    """Who is at the other end. `dialled`: appends leave over it, and acknowledgements come; else the other way."""

    address: Address
    boot_id: int
    """Of the machine of its core's partitions."""
    dialled: bool
    node_boot: int = 0
    """Of the metadata's machine, where it is core 0."""
    takes_beats: bool = False
    """Whether the other end knows heartbeats of machines in frames of the steady state."""


class AwakeGroups:
    """Groups that were their machines', and not C's, at any time since the last look: of all others a look at what
    machines decide finds what the last one has found.
    """

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._since = dict.fromkeys(core.groups)

    def add(self, group: object) -> None:
        self._since[group] = None

    def take(self) -> list[str]:
        """Those that are there now. Who is awake still is told by the next call too."""
        groups = self._core.groups
        found = [str(group) for group in self._since if group in groups]
        self._since = dict.fromkeys(group for group in found if not groups[group].carried)
        return found


class SteadyCarrier:
    """Of one core, touched by its thread only."""

    def __init__(self, core: RaftCore, plane: RingDataPlane) -> None:
        self._core = core
        self._plane = plane
        self._links: dict[int, SteadyLink] = {}
        self._out: dict[Address, int] = {}
        self._in: dict[Address, int] = {}
        self._handles: dict[str, int] = {}
        self._groups: dict[tuple[bytes, int], str] = {}
        self._names: dict[int, str] = {}
        self._candidates: dict[str, int] = {}
        """Groups that may be carried soon, and not before what time."""
        self._looked_ms = self._now_ms = 0
        self._beats: list[CarriedBeats] = []
        self._watches: list[AwakeGroups] = []
        self.label_of: Callable[[str], str] = str
        """What people call a group's partition."""
        self.lagging = Lagging(core, plane, self._names, self._note_awake)
        core.carrier, core.observer, core.takes_ack = self._take_back, self._look, self._takes_ack

    # -- groups ------------------------------------------------------------------------------------------------------

    def add(self, group: str, handle: int, topic_id: bytes, partition: int) -> None:
        self._handles[group] = handle
        self._names[handle] = group
        self._groups[topic_id, partition] = group
        self._note_awake(group)

    def remove(self, group: str, topic_id: bytes, partition: int) -> None:
        handle = self._handles.pop(group)
        self._names.pop(handle, None)
        self._groups.pop((topic_id, partition), None)
        self._candidates.pop(group, None)

    def look_at(self, group: str, not_before_ms: int = 0) -> None:
        """Something has become of it: perhaps it may be carried."""
        self._candidates.setdefault(group, not_before_ms)

    def watch_awake(self) -> AwakeGroups:
        """For one who looks now and then."""
        watch = AwakeGroups(self._core)
        self._watches.append(watch)
        return watch

    def _note_awake(self, group: object) -> None:
        for watch in self._watches:
            watch.add(group)

    def statistics(self) -> dict[str, int]:
        """What C counts: the fields of `tpc_steady_statistics`."""
        return self._plane.steady_statistics()

    # -- links -------------------------------------------------------------------------------------------------------

    def carry_beats(self, machine: Machine, core: RaftCore, is_up: Callable[[Address], bool]) -> None:
        """From now on the heartbeats of a machine are C's, wherever they can be. `is_up`: see `CarriedBeats`."""
        ways = self._out, self._in, self._links
        beats = core.vouching = CarriedBeats(machine, core, self._plane, ways, is_up)
        self._beats.append(beats)

    def adopt(self, handed: Handed, link: SteadyLink, now_ms: int) -> int:
        """A connected socket to another core becomes a link, in place of the one that was there. OSError: none."""
        number = self._plane.steady_adopt(handed.descriptor, link.address.node, handed.session, handed.unread)
        self._links[number] = link
        way = self._out if link.dialled else self._in
        before = way.get(link.address)
        if before is not None:
            self._ends(self._links[before], now_ms)
        way[link.address] = number
        if before is not None:
            self._plane.steady_close(before)
        for group in self._handles:
            self.look_at(group)
        return number

    def has_link(self, address: Address) -> bool:
        """Whether appends can leave for a core."""
        return address in self._out

    def close(self, address: Address) -> None:
        """The links with a core, both ways."""
        for way in (self._out, self._in):
            if address in way:
                self._plane.steady_close(way[address])

    def _ends(self, link: SteadyLink, now_ms: int) -> None:
        for beats in self._beats:
            beats.ends(link, now_ms)

    def lost(self, number: int, now_ms: int) -> None:
        """A link has ended: what was under way on it may be lost."""
        link = self._links.get(number)
        if link is None:
            return
        way = self._out if link.dialled else self._in
        if way.get(link.address) == number:
            self._ends(link, now_ms)
            del way[link.address]
        del self._links[number]
        if link.dialled:
            self._core.carrying_lost(link.address, now_ms)

    # -- messages ----------------------------------------------------------------------------------------------------

    def frames(self, now_ms: int) -> Iterator[Frame]:
        """At the beginning of a turn: what was not steady, as other cores' drivers would have sent it."""
        self._now_ms = now_ms
        for message in self._plane.steady_messages():
            link = self._links.get(message.link)
            group = self._groups.get((message.topic_id, message.partition))
            if link is None or group is None or group not in self._core.groups:
                continue  # lost, as far as the machines are concerned
            source = Voter(link.address.node, message.source)
            target = Voter(self._core.address.node, message.target)
            commit = START if message.commit_offset == NONE else Position(message.term, message.commit_offset)
            place = Position(message.term, message.offset)
            if message.is_append:
                try:
                    items = tuple(batches_of(message.batches, message.offset))
                except BatchDamageError as error:
                    label = self.label_of(group)
                    log.error("%s: node %d has sent damaged records: %s", label, link.address.node, error)
                    continue
                made: AppendEntries | Ack = AppendEntries(group, source, target, message.term, place, items, commit)
            else:
                made = Ack(group, source, target, message.term, place, commit)
            yield Frame(link.address, self._core.address, link.boot_id, 0, (made,))

    # -- carried and taken back --------------------------------------------------------------------------------------

    def _look(self, group: object) -> Carried | None:
        state = self._plane.steady_state(self._handles[str(group)])
        return None if state is None else _carried(state)

    def _take_back(self, group: object) -> Carried | None:
        handle = self._handles.get(str(group))
        state = None if handle is None else self._plane.steady_disarm(handle)
        self._candidates[str(group)] = self._now_ms + AGAIN_MS
        self._note_awake(group)
        return None if state is None else _carried(state)

    def look_at_stalled(self, now_ms: int) -> None:
        if now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        for handle in self._plane.steady_stalled((now_ms - STALLED_MS) * 1_000_000):
            group = self._names.get(handle)
            if group is not None and group in self._core.groups:
                self._core.take_back(group, now_ms)
                self._candidates[group] = now_ms + STALLED_MS
        for lacking in self._plane.steady_ask_again(now_ms * 1_000_000, STALLED_MS * 1_000_000):
            self.lagging.lacks(lacking)

    def _takes_ack(self, machine: Group, message: Ack) -> bool:
        """A follower whose machine is awake acknowledges to a leader that is carried."""
        term, (epoch, offset) = message.term, message.position
        if term != machine.term or epoch != term or not machine.host.journal_open:
            return False
        link = self._out.get(machine.address_of(message.source), 0)
        known = message.commit.offset if message.commit.epoch == term else NONE
        handle, source = self._handles[str(machine.group)], message.source.incarnation
        return self._plane.steady_ack(handle, link, source, term, offset, known)

    def carry(self, settled: Callable[[str], bool], now_ms: int) -> int | None:
        """At the end of a turn: whoever is quiet. `settled` says of a group whether all its entries are in the
        journal. When to come again; None: when something happens.
        """
        again_ms, looks_left = [], LOOKS_A_TURN
        for group, not_before_ms in list(self._candidates.items()):
            machine = self._core.groups.get(group)
            if machine is None or machine.carried or machine.steady is None:
                del self._candidates[group]
                continue
            if now_ms < not_before_ms or not looks_left:
                again_ms.append(not_before_ms)
                continue
            looks_left -= 1
            if settled(group) and machine.may_be_carried() and self._give(group, machine):
                del self._candidates[group]
            elif machine.is_leader and self._has_links(machine) and machine.would_be_quiet(now_ms):
                machine.hold(now_ms)
            else:
                retry_ms = RETRY_MS if machine.fresh_leader(now_ms) else UNLED_MS
                self._candidates[group] = now_ms + retry_ms
                again_ms.append(now_ms + retry_ms)
        return min(again_ms, default=None)

    def _has_links(self, machine: Group) -> bool:
        reached = [peer.voter for peer in machine.rows if machine.is_sent_to(peer)]
        return all(machine.address_of(voter) in self._out for voter in reached)

    def _give(self, group: str, machine: Group) -> bool:
        """Whether it needs no further look."""
        handle = self._handles[group]
        try:
            if self._plane.bounds(handle).log_end_offset != machine.log.end_offset:
                return False
        except PartitionOfflineError:
            return True
        given = self._lead(handle, machine) if machine.is_leader else self._follow(handle, machine)
        if given:
            machine.carry()
            self.lagging.given(group, machine)
        return given is not False

    def _lead(self, handle: int, machine: Group) -> bool | None:
        """None: a core that is heard has no link for it."""
        steady, config, rows = machine.steady, machine.config, []
        assert steady is not None
        assert config is not None
        for peer in machine.rows:
            number = 0
            if machine.is_sent_to(peer):
                found = self._out.get(machine.address_of(peer.voter))
                if found is None:
                    return None
                number = found
            votes = peer.voter in config.voters
            rows.append(SteadyPeerState(number, peer.voter.incarnation, peer.match, peer.next, peer.known, votes))
        bytes_max = machine.settings.uncommitted_bytes_max
        who = machine.me.incarnation
        return self._plane.steady_lead(handle, who, machine.term, steady.start_offset, bytes_max, rows, votes=True)

    def _follow(self, handle: int, machine: Group) -> bool | None:
        """None: its leader's core sends nothing over a link, or another leader is there by now."""
        steady, leader = machine.steady, machine.leader
        assert steady is not None
        number = None if leader is None else self._in.get(machine.address_of(leader))
        if leader is None or number is None:
            return None
        return self._plane.steady_follow(
            handle, machine.me.incarnation, machine.term, steady.start_offset, (leader.node, leader.incarnation),
            number, steady.leader_commit_offset,
        )  # fmt: skip


def batches_of(data: Any, offset: int, most: int = sys.maxsize) -> list[Batch]:
    """The first stored batches that end behind an offset, as the machine's items."""
    view, found = memoryview(data), list[Batch]()
    for header, place in walk_headers(data):
        if len(found) == most:
            break
        size = header.size_bytes
        if header.next_offset > offset:
            payload = bytes(view[place : place + size])
            found.append(Batch(header.partition_leader_epoch, header.next_offset, header.base_offset, size, payload))
    return found


def _carried(state: SteadyState) -> Carried:
    peers = tuple(CarriedPeer(row.match, row.next, row.known, bool(row.link)) for row in state.peers)
    return Carried(
        state.end_offset, state.durable_offset, state.commit_offset, state.leader_commit_offset,
        state.uncommitted_bytes, state.sequence, peers,
    )  # fmt: skip
