"""Planes of several nodes that replicate a partition in the steady state, from C to C, without machines: whatever these
would do when a link is lost is done here, once the two ends know of each other what they have.
"""

from __future__ import annotations

from tests.support.plane_bench import records_of
from tests.support.steady_peers import TERM
from tests.support.waiting import patiently
from tpc_broker.engine.steady_plane import SteadyPeerState, SteadyPlane
from tpc_broker.error_codes import ErrorCode
from tpc_broker.raft.steady import NONE

UNBOUNDED = 1 << 40


class SteadyFace(SteadyPlane):
    """The steady state of a bench's plane."""

    def __init__(self, bench):
        self._plane = bench.plane.pointer
        self._begin_steady(bench.ring)


class Member:
    """Node `number`. `link`: of a follower, to the leader."""

    def __init__(self, bench, number):
        self.bench, self.number = bench, number
        self.steady = SteadyFace(bench)
        self.handle = bench.lead("t", is_led=False)
        bench.plane.set_replicated(self.handle)
        self.links: set[int] = set()
        self.link = 0
        self.steady.on_steady(lambda: None, self.links.discard)

    @property
    def incarnation(self):
        return 100 + self.number

    def adopt(self, descriptor, node):
        link = self.steady.steady_adopt(descriptor, node)
        self.links.add(link)
        return link

    def state(self):
        return self.bench.plane.state(self.handle)

    def log(self):
        """All that is in memory, committed or not."""
        end_offset = self.state().log_end_offset
        return b"" if not end_offset else self.bench.plane.read_log(self.handle, 0)


class SteadyGroup:
    """The first member leads. `connect(one, other)`: descriptors of the ends of a new connection of two nodes."""

    def __init__(self, benches, connect):
        self.members = [Member(bench, number) for number, bench in enumerate(benches)]
        self.leader, self.followers = self.members[0], self.members[1:]
        self._connect = connect
        self._peer_links = [0] * len(self.followers)
        self.leader.bench.plane.arm(self.leader.handle, TERM)
        for follower in self.followers:
            follower.bench.plane.follow(follower.handle, TERM)
            self.link(follower)

    def is_linked(self, follower):
        """At both ends."""
        return self._peer_links[follower.number - 1] in self.leader.links and follower.link in follower.links

    def may_be_linked(self, follower):
        """As drivers give a group to C: what the follower has is durable, and nothing is on its way to the others."""
        state, leading = follower.state(), self.leader.steady.steady_state(self.leader.handle)
        is_quiet = leading is None or all(
            peer.match == peer.next or not self.is_linked(other)
            for peer, other in zip(leading.peers, self.followers, strict=True)
            if other is not follower
        )
        return is_quiet and state.durable_offset == state.log_end_offset

    def match_of(self, follower):
        """What a machine finds out that it has."""
        return follower.state().log_end_offset

    def link(self, follower):
        """With another connection than before."""
        assert self.may_be_linked(follower)
        leader = self.leader
        for member, link in ((leader, self._peer_links[follower.number - 1]), (follower, follower.link)):
            member.steady.steady_close(link)
        at_leader, at_follower = self._connect(leader.number, follower.number)
        self._peer_links[follower.number - 1] = leader.adopt(at_leader, follower.number)
        follower.link = follower.adopt(at_follower, leader.number)
        before = leader.steady.steady_disarm(leader.handle)
        matches = [peer.match for peer in before.peers] if before else [0] * len(self.followers)
        matches[follower.number - 1] = self.match_of(follower)
        rows = [
            SteadyPeerState(link if link in leader.links else 0, one.incarnation, match, match, 0, votes=True)
            for link, one, match in zip(self._peer_links, self.followers, matches, strict=True)
        ]
        assert leader.steady.steady_lead(leader.handle, leader.incarnation, TERM, 0, UNBOUNDED, rows, votes=True)
        follower.steady.steady_disarm(follower.handle)
        list(follower.steady.steady_messages())
        assert follower.steady.steady_follow(
            follower.handle, follower.incarnation, TERM, 0, (leader.number, leader.incarnation), follower.link, NONE
        )

    records = staticmethod(records_of)

    def append(self, count, value):
        made = self.leader.bench.plane.append(self.leader.handle, records_of(count, value=value))
        assert made.error_code == ErrorCode.NONE
        return made.next_offset

    def until(self, condition):
        for _ in patiently(lambda: str([member.state() for member in self.members])):
            if condition():
                return
            for member in self.members:
                member.bench.turn(1)

    def check(self):
        """Nothing is committed that a majority does not have durably, and all logs begin alike."""
        states = [member.state() for member in self.members]
        durable = sorted((state.durable_offset for state in states), reverse=True)
        committed = max(state.high_watermark for state in states)
        assert committed <= durable[len(states) // 2], states
        assert all(state.high_watermark <= states[0].high_watermark for state in states), states

    def is_whole(self):
        end_offset = self.leader.state().log_end_offset
        states = [member.state() for member in self.members]
        return all(state.log_end_offset == state.high_watermark == end_offset for state in states)

    def shut(self):
        for member in self.members:
            for link in member.links:
                member.steady.steady_close(link)
        self.until(lambda: not any(member.links for member in self.members))
