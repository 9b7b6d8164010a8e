"""Thousands of groups without a leader: elections wait for their turn, so that each of them is over soon."""

from __future__ import annotations

from collections import deque

from tests.raft.cluster import GROUP, Cluster
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import START, Address, Voter, simple
from tpc_broker.raft.messages import Frame, Heartbeat, Message, Reason, RequestVote
from tpc_broker.raft.output import LeaderReady, Role
from tpc_broker.raft.settings import Settings
from tpc_broker.raft.standing import EARLY_MAX, EarlyRequests, StandingOrder

NODES = 3
PACE_MS = 150
PLACE_MS = 2_000


def always(_group: object) -> bool:
    return True


def never(_group: object) -> bool:
    return False


def order_of(places: int, most: int = 0) -> StandingOrder:
    return StandingOrder((places, most or places), PACE_MS, PLACE_MS)


def test_as_many_stand_as_have_places_and_the_others_in_the_order_in_which_they_asked() -> None:
    order = order_of(2)
    assert [order.ask(group, 0) for group in "abcd"] == [True, True, False, False]
    assert order.next(always, 0) == []
    assert order.next(lambda group: group != "a", 0) == ["c"]
    assert not order.ask("e", 0), "there is a place, and others wait for it"
    assert order.next(lambda group: group not in "bc", 0) == ["d", "e"]
    assert not order.waiting


def test_who_asks_again_comes_behind_those_that_wait_and_keeps_one_place() -> None:
    order = order_of(1)
    assert order.ask("a", 0)
    assert not order.ask("b", 0)
    assert not order.ask("a", 1), "its campaign came to nothing"
    assert not order.ask("b", 1)
    assert order.next(always, 1) == ["b"]
    assert order.next(never, 2) == ["a"]
    assert order.ask("a", 3), "nobody else wants to"


def test_a_place_is_lost_after_a_while_and_by_who_is_gone() -> None:
    order = order_of(1)
    assert [order.ask(group, 0) for group in "abc"] == [True, False, False]
    order.forget("b")
    assert order.next(always, PLACE_MS - 1) == []
    assert order.next(always, PLACE_MS) == ["c"]


def test_there_are_more_places_while_elections_are_over_soon_and_fewer_when_they_are_not() -> None:
    order = order_of(4, 16)
    for group in range(200):
        order.ask(group, 0)
    now_ms, places = 0, []
    for _ in range(4):
        now_ms += PACE_MS
        order.next(never, now_ms)
        places.append(order.places)
    assert places == [8, 16, 16, 16]
    for _ in range(6):
        now_ms += 2 * PACE_MS
        order.next(never, now_ms)
        places.append(order.places)
    assert places[4:] == [12, 9, 6, 4, 4, 4]


class Busy:
    """Three cores, each of which hears so many messages a millisecond and lets the others wait in their order.
    Heartbeats come at once, as C brings them.
    """

    def __init__(self, groups: int, messages_per_ms: int) -> None:
        self.now_ms = 0
        self.messages_per_ms = messages_per_ms
        addresses = [Address(NodeId(number), CoreId(0)) for number in range(NODES)]
        self.cores = [RaftCore(address, 1_000 + address.node, 0) for address in addresses]
        self.inboxes: list[deque[tuple[Address, Message]]] = [deque() for _ in addresses]
        self.ready: dict[object, int] = {}
        voters = [Voter(NodeId(number), 0) for number in range(NODES)]
        for core, me in zip(self.cores, voters, strict=True):
            for address in addresses:
                if address != core.address:
                    core.add_link(address, 0)
            for group in range(groups):
                core.create_group(group, me, simple(voters), 0)

    def run(self) -> None:
        """A millisecond."""
        self.now_ms += 1
        for core, inbox in zip(self.cores, self.inboxes, strict=True):
            core.tick(self.now_ms)
            for _ in range(min(self.messages_per_ms, len(inbox))):
                source, message = inbox.popleft()
                core.receive(Frame(source, core.address, 1_000 + source.node, 0, (message,)), self.now_ms)
            self.end_turn(core)

    def end_turn(self, core: RaftCore) -> None:
        ready = core.ready(self.now_ms)
        frames = ready.frames
        if ready.entries:
            core.persisted(ready.entries[-1][0], self.now_ms)
            more = core.ready(self.now_ms)
            assert not more.entries or not core.persisted(more.entries[-1][0], self.now_ms)
            frames = frames + more.frames
            ready.events.extend(more.events)
        for event in ready.events:
            if isinstance(event, LeaderReady):
                self.ready[event.group] = event.term
        for frame in frames:
            self.send(frame)

    def send(self, frame: Frame) -> None:
        target = frame.target.node
        for message in frame.messages:
            if isinstance(message, Heartbeat):
                self.cores[target].receive(frame._replace(messages=(message,)), self.now_ms)
            else:
                self.inboxes[target].append((frame.source, message))


def test_groups_that_all_lack_a_leader_get_one_as_fast_as_messages_are_heard() -> None:
    """Without turns all of these stand after one to two seconds, and again and again: no answer comes in time."""
    groups = 1_000
    cluster = Busy(groups, messages_per_ms=1)
    while len(cluster.ready) < groups:
        cluster.run()
        assert cluster.now_ms < 12_000, f"{len(cluster.ready)} of {groups} groups have a leader"
    in_vain = sum(term - 1 for term in cluster.ready.values())
    assert in_vain < groups / 20, "and hardly any stood in vain"


def test_a_group_that_waits_for_its_turn_does_not_stand_when_another_one_leads_it_by_then() -> None:
    settings = Settings(elections_min=1, elections_max=1)
    cluster = Cluster(groups=3, settings=settings)
    for group in range(3):
        cluster.hand_to(0, group)
    first = cluster.nodes[1]
    terms = [first.group(group).term for group in range(3)]
    cluster.nodes[0].crash()
    cluster.run_until(lambda: all(cluster.leader(group) for group in range(3)))
    assert [first.group(group).term for group in range(3)] == [term + 1 for term in terms]


def test_a_request_for_a_group_that_is_not_here_yet_is_heard_when_it_is() -> None:
    cluster = Cluster(groups=0)
    config = simple(Voter(NodeId(number), 0) for number in range(NODES))
    cluster.run(500)
    asks = cluster.nodes[0]
    asks.create(GROUP, Voter(NodeId(0), 0), config)
    asks.core.stand_at_once(GROUP, cluster.now_ms)
    cluster.run(100)
    assert asks.group().role is Role.PRE_CANDIDATE
    for number in (1, 2):
        cluster.nodes[number].create(GROUP, Voter(NodeId(number), 0), config)
    cluster.settle()
    assert asks.group().is_leader, "and it did not have to ask again"


def test_requests_for_groups_that_never_come_take_no_more_than_their_room() -> None:
    early, asking = EarlyRequests(), Voter(NodeId(1), 0)
    for number in range(EARLY_MAX + 2):
        early.put(RequestVote(number, asking, Voter(NodeId(0), 0), 1, START, Reason.TIMEOUT, pre_vote=True), 7)
    assert early.take(0, [asking]) == early.take(1, [asking]) == []
    ((message, boot_id),) = early.take(2, [asking])
    assert (message.group, boot_id) == (2, 7)
    assert early.take(2, [asking]) == [], "it is heard once"


def test_who_follows_another_core_sleeps_on_when_a_link_falls_silent_and_comes_back() -> None:
    cluster = Cluster(groups=2)
    for group, number in enumerate((1, 2)):
        cluster.hand_to(number, group)
    cluster.run(2_000)
    node = cluster.nodes[0]
    taken_back: list[object] = []
    node.core.carrier = taken_back.append  # type: ignore[assignment]
    for group in range(2):
        node.group(group).carry()
    cluster.isolate(1)
    cluster.run(1_500)
    assert taken_back == [0], "node 1 leads the first one, and node 2 the other"
    cluster.heal()
    cluster.run(1_500)
    assert 1 not in taken_back


def test_who_doubts_its_leader_and_waits_for_its_turn_is_not_carried_and_asks_when_that_comes() -> None:
    cluster = Cluster()
    cluster.hand_to(0)
    cluster.run(2_000)
    core, machine = cluster.nodes[1].core, cluster.nodes[1].group()
    core._standing = StandingOrder((1, 1), PACE_MS, 10 * PLACE_MS)
    assert core.may_stand("another group")
    core._is_electing = lambda _group: True  # type: ignore[method-assign]
    machine.doubt_leader(cluster.now_ms)
    cluster.run(1_000)
    assert core._standing.waiting == 1
    assert not machine.may_be_carried()
    del core._is_electing  # type: ignore[method-assign]
    cluster.run(1_000)
    assert machine.fresh_leader(cluster.now_ms) == cluster.nodes[0].group().me
