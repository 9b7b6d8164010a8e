"""Peers that are heard and take nothing: their disk hangs, or is full.

Theory of operation
-------------------
What ails one replica of a core mostly ails them all, and what a core is sent that takes nothing stays in its memory. So
a leader whose questions to a peer were in vain twice says so here and leaves it *alone*: it counts as at rest, whoever
carries the group sends it nothing, and the others of the group do not wait for it.

Then it is asked now and then, without items, in the name of a share of its groups, by turns; of a group that is
carried, too, for that needs nothing but what the machine knows. Of all groups with such a peer at one core only the
first in each of these rounds that gets an answer, though an old one, *tries*: it sends one message with items. When any
of them gets somewhere, all go on at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.items import Address, GroupId, Voter
    from tpc_broker.raft.links import Link

ROUNDS: Final = 4
"""After so many each group has asked: who waits for one that lacks its group for long is not in the others' way."""


# Rule: A peer that is heard and takes nothing (its disk hangs, or is full) holds up nobody: C carries its groups with
# the majority, and of all groups of a link one at a time sends it something. When one gets somewhere, all go on. Why:
# docs/decisions/2026-11-23-steady-state-in-c.md. See also tpc_broker/raft/leaders.py, tpc_broker/raft/carrying.py,
# tpc_broker/node/replicas/append_room.py. Held by tests/raft/test_mute_peers.py, tests/node/test_append_room.py,
# tests/simulator/test_hung_disks.py, tests/cluster/test_disks.py.
class MutePeers:
    """Of one core."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core

    def takes_nothing(self, address: Address, group: GroupId, now_ms: int) -> None:
        """It was asked in vain, or what was tried was."""
        link = self._core.links.get(address)
        if link is None:
            return
        if link.trying == group:
            link.trying = None
        if not link.mute:
            link.try_ms = now_ms + self._core.settings.resend_ms_max // 2  # as if it were asked on and on
            link.has_tried = False
        link.mute.setdefault(group)

    def may_try(self, address: Address, group: GroupId) -> bool:
        """It has answered, and lacks still what it lacked: whether it is sent some of it now."""
        link = self._core.links.get(address)
        if link is None or group not in link.mute or link.has_tried:
            return False
        link.trying, link.has_tried = group, True
        return True

    def takes_again(self, address: Address) -> None:
        core, link = self._core, self._core.links.get(address)
        if link is None:
            return
        mute, link.mute, link.trying = link.mute, {}, None
        for group in mute:
            found = self._at(address, group)
            if found is not None:
                core.awake(found[0]).reset_peer(found[1])

    def tick(self, link: Link, now_ms: int) -> None:
        """The next of them ask."""
        if not link.mute or now_ms < link.try_ms:
            return
        link.try_ms = now_ms + self._core.settings.resend_ms_max
        link.trying, link.has_tried = None, False
        for group in list(islice(link.mute, -(-len(link.mute) // ROUNDS))):
            del link.mute[group]
            found = self._at(link.address, group)
            if found is not None:
                link.mute[group] = None
                found[0].ask_mute(found[1], now_ms)

    def _at(self, address: Address, group: GroupId) -> tuple[Group, Voter] | None:
        """The group, if it is led here still, and its replica at a core, if that is mute still."""
        machine = self._core.groups.get(group)
        for peer in machine.rows if machine is not None and machine.is_leader else ():
            if peer.is_mute and machine is not None and machine.address_of(peer.voter) == address:
                return machine, peer.voter
        return None
