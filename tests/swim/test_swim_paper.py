"""One test per claim of the SWIM paper (Das, Gupta, Motivala, DSN 2002), sections named.

Where our rules differ from the paper's, the test says so and why.
"""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from tests.simulator.network import Faults
from tests.simulator.swim_cluster import SwimCluster, cluster_of
from tests.simulator.world import MS, SECOND
from tests.swim.pair import SETTINGS, One, address_of, alive, claim
from tpc_broker.model import NodeId
from tpc_broker.swim.members import Member, Members
from tpc_broker.swim.model import Change, Kind, Settings, State
from tpc_broker.swim.rumours import Rumours, retransmissions_max

PLAIN = Settings(local_health_max=0, suspicion_beta=1)
"""SWIM without Lifeguard: a fixed period and a fixed time-out of suspicions."""


def begun(*others: int, **options) -> tuple[One, object]:
    """A machine that has just begun a probe, and its ping."""
    one = One(*others, **options)
    while not one.pings():
        one.run(one.machine.next_deadline_ms())
    [(_address, ping)] = one.pings()
    return one, ping


# Section 3.1: the failure detector.


def test_3_1_each_period_one_member_gets_a_ping_and_its_ack_ends_the_matter():
    one, ping = begun(2, 3, 4)
    one.hear(ping.subject, Kind.ACK, ping.sequence, ping.subject)
    one.run(one.now_ms + SETTINGS.period_ms - 1)
    assert len(one.pings()) == 1
    assert one.pings(Kind.PING_REQ) == []
    one.run(one.now_ms + 1)
    assert len(one.pings()) == 2
    assert one.state(ping.subject) is State.ALIVE


def test_3_1_without_an_ack_in_time_k_other_members_are_asked():
    one, ping = begun(*range(2, 12))
    one.run(one.now_ms + SETTINGS.ack_timeout_ms - 1)
    assert one.pings(Kind.PING_REQ) == []
    one.run(one.now_ms + 1)
    asked = one.pings(Kind.PING_REQ)
    assert len({address for address, _message in asked}) == SETTINGS.helpers_count
    for address, message in asked:
        assert address != address_of(ping.subject)
        assert (message.subject, message.address) == (ping.subject, address_of(ping.subject))


def test_3_1_a_member_that_is_asked_pings_and_passes_the_ack_on():
    one = One(2, 3)
    [(target, ping)] = one.hear(2, Kind.PING_REQ, 77, 3, address=address_of(3), nack_after_ms=200)
    assert (target, ping.kind, ping.subject) == (address_of(3), Kind.PING, 3)
    [(origin, ack)] = one.hear(3, Kind.ACK, ping.sequence, 3)
    assert (origin, ack.kind, ack.sequence, ack.subject) == (address_of(2), Kind.ACK, 77, 3)


def test_3_1_an_indirect_ack_counts_as_a_direct_one():
    one, ping = begun(*range(2, 8))
    one.run(one.now_ms + SETTINGS.ack_timeout_ms)
    helper = next(n for n in range(2, 8) if address_of(n) == one.pings(Kind.PING_REQ)[0][0])
    one.hear(helper, Kind.ACK, ping.sequence, ping.subject)
    one.run(one.now_ms + SETTINGS.period_ms)
    assert one.state(ping.subject) is State.ALIVE


def test_3_1_an_ack_of_another_period_or_of_another_member_does_not_count():
    one, ping = begun(2, 3, 4)
    one.hear(ping.subject, Kind.ACK, ping.sequence - 1, ping.subject)
    other = next(n for n in (2, 3, 4) if n != ping.subject)
    one.hear(other, Kind.ACK, ping.sequence, other)
    one.run(one.now_ms + SETTINGS.period_ms)
    assert one.state(ping.subject) is State.SUSPECT


def test_3_1_the_period_is_at_least_three_times_the_time_for_an_answer():
    with pytest.raises(ValueError, match=r"SWIM, section 3\.1"):
        Settings(period_ms=1_000, ack_timeout_ms=334)


def test_3_1_a_bad_path_to_one_member_is_no_failure_of_it():
    """The indirect probe goes around a link that carries nothing between two members that both live."""
    cluster = cluster_of(6, settings=PLAIN)
    first, second = cluster.nodes[NodeId(0)], cluster.nodes[NodeId(1)]
    cluster.network.partition([first.address], [second.address])
    cluster.run_for(60_000)
    assert cluster.seen_of(0, Change.SUSPECTED) == cluster.seen_of(1, Change.SUSPECTED) == []


@pytest.mark.parametrize(("loss", "periods"), [(0.1, 200), (0.2, 60)])
def test_3_1_the_probability_of_a_false_detection_is_that_of_the_formula(loss, periods):
    """(1 - q²)(1 - q⁴)^k of the probes of members that live, q being the probability that a message arrives.

    The paper's PM(F) multiplies it with how often a member is probed in a period: e^qf / (e^qf - 1) for probes at
    random, and here once by each in a round (4.3). Suspicions are long, so that nobody is buried.
    """
    nodes_count, arrives = 20, 1 - loss
    settings = Settings(local_health_max=0, suspicion_alpha=1_000, exchange_interval_ms=10**9)
    cluster = cluster_of(nodes_count, settings=settings, faults=Faults(loss=loss))
    cluster.run_for(periods * 1_000)
    counts = [node.machine.statistics() for node in cluster.nodes.values()]
    probes, failed = sum(one.probes for one in counts), sum(one.probes_failed for one in counts)
    expected = (1 - arrives**2) * (1 - arrives**4) ** SETTINGS.helpers_count * probes
    assert expected >= 20
    assert abs(failed - expected) <= 4 * math.sqrt(expected), (failed, expected)


@pytest.mark.parametrize("nodes_count", [8, 64])
def test_3_1_the_time_to_the_first_detection_does_not_depend_on_the_size(nodes_count):
    """Expected e / (e - 1) = 1.58 periods until somebody chooses the failed member, and a period to find out."""
    waits = []
    for seed in range(6):
        cluster = cluster_of(nodes_count, seed, settings=PLAIN)
        cluster.run_for(3_000)
        began_us = cluster.world.now_us
        cluster.nodes[NodeId(3)].stop()
        cluster.run_for(12_000)
        waits.append((cluster.seen_of(3, Change.SUSPECTED, began_us)[0].at_us - began_us) / SECOND)
    assert 1.0 <= statistics.mean(waits) <= 3.6, waits
    assert max(waits) < 7


@pytest.mark.parametrize("nodes_count", [10, 100])
def test_3_1_the_load_of_a_member_does_not_depend_on_the_size(nodes_count):
    """A ping and an ack of its own each period, and one of each for others, on average."""
    cluster = cluster_of(nodes_count, settings=Settings(exchange_interval_ms=10**9))
    before = cluster.network.traffic.sent
    cluster.run_for(20_000)
    per_period = (cluster.network.traffic.sent - before) / nodes_count / 20
    assert 1.9 <= per_period <= 2.1, per_period


# Section 4.1: dissemination by piggyback.


def test_4_1_news_ride_on_pings_acks_and_requests_and_cost_no_message():
    cluster = cluster_of(20, settings=PLAIN)
    before = cluster.network.traffic.sent
    cluster.run_for(10_000)
    quiet = cluster.network.traffic.sent - before
    before = cluster.network.traffic.sent
    node = cluster.nodes[NodeId(3)]
    cluster.nodes[NodeId(5)].machine._apply(claim(State.SUSPECT, 3, 0, 5), cluster.nodes[NodeId(5)].clock.now_ms())
    cluster.run_for(10_000)
    assert node.machine.incarnation == 1
    assert len(cluster.seen_of(3, Change.CLEARED)) > 0
    assert cluster.network.traffic.sent - before <= quiet + 2


def test_4_1_a_rumour_is_told_at_most_lambda_log_n_times_by_each_member():
    rumours = Rumours(lambda _update: 30)
    rumours.add(claim(State.DEAD, 5))
    for members_count in (3, 100, 1_000):
        assert retransmissions_max(4, members_count) == math.ceil(4 * math.log(members_count + 1))
    told = [update for _message in range(50) for update in rumours.take(1_000, retransmissions_max(4, 100))]
    assert len(told) == 19
    assert len(rumours) == 0
    assert NodeId(5) not in rumours


def test_4_1_those_told_least_often_go_first():
    rumours = Rumours(lambda _update: 30)
    for node in range(10, 20):
        rumours.add(claim(State.DEAD, node))
    counts = dict.fromkeys(range(10, 20), 0)
    for _message in range(15):
        for update in rumours.take(60, 100):
            counts[update.node] += 1
    assert set(counts.values()) == {3}


def test_4_1_what_does_not_fit_waits_for_the_next_message():
    rumours = Rumours(lambda update: 900 if update.state is State.ALIVE else 30)
    rumours.add(claim(State.DEAD, 5))
    rumours.add(alive(6))
    rumours.add(alive(7))
    assert [update.node for update in rumours.take(1_000, 10)] == [7, 5]
    assert 6 in [update.node for update in rumours.take(1_000, 10)]


def infection_periods(nodes_count: int, seed: int, faults: Faults | None = None) -> tuple[float, int]:
    """Periods until everybody has heard of a farewell that one member has heard, and how many never did."""
    cluster = cluster_of(nodes_count, seed, faults=faults, settings=Settings(exchange_interval_ms=10**9))
    cluster.run_for(SETTINGS.period_ms)
    began_us = cluster.world.now_us
    first = cluster.nodes[NodeId(1)]
    first.machine._apply(claim(State.LEFT, 0, 0, 0), first.clock.now_ms())
    first._serve()
    cluster.nodes[NodeId(0)].stop()
    heard = cluster.seen_of(0, Change.LEFT, began_us)
    while len(heard) < nodes_count - 1 and cluster.world.now_us < began_us + 30 * SECOND:
        cluster.run_for(SETTINGS.period_ms)
        heard = cluster.seen_of(0, Change.LEFT, began_us)
    return (heard[-1].at_us - began_us) / SECOND, nodes_count - 1 - len(heard)


@pytest.mark.parametrize("nodes_count", [10, 100])
def test_4_1_news_reach_everybody_within_o_log_n_periods(nodes_count):
    """The paper's bound is λ log n periods; each period a member sends and gets about two messages."""
    for seed in range(3):
        periods, missed = infection_periods(nodes_count, seed)
        assert missed == 0
        assert periods <= 2 * math.log2(nodes_count) + 2, (nodes_count, seed, periods)


def test_4_1_news_reach_a_thousand_members_within_o_log_n_periods():
    periods, missed = infection_periods(1_000, 1)
    assert missed == 0
    assert periods <= 2 * math.log2(1_000) + 2, periods


def test_4_1_loss_slows_news_and_does_not_stop_them():
    periods, missed = infection_periods(100, 5, Faults(loss=0.2))
    assert missed == 0
    assert periods <= 4 * math.log2(100)


# Section 4.2: suspicion, and the order of claims.


def test_4_2_a_member_that_does_not_answer_is_suspected_first_and_stays_a_member():
    one, ping = begun(2, 3, 4)
    one.run(one.now_ms + SETTINGS.period_ms)
    assert one.state(ping.subject) is State.SUSPECT
    probed = set()
    for _period in range(4):
        one.run(one.now_ms + SETTINGS.period_ms)
        probed |= {message.subject for _address, message in one.pings()}
    assert ping.subject in probed


def test_4_2_a_suspicion_that_is_not_refuted_in_time_is_a_failure():
    one = One(2, 3, settings=PLAIN)
    one.tell(claim(State.SUSPECT, 2, 0, 3))
    one.run(4_999, 3)
    assert one.state(2) is State.SUSPECT
    one.run(5_001, 3)
    assert one.state(2) is State.DEAD
    assert one.happened(Change.DIED, 2)


def test_4_2_a_refutation_clears_it():
    one = One(2, 3, settings=PLAIN)
    one.tell(claim(State.SUSPECT, 2, 0, 3))
    one.tell(alive(2, 1))
    assert one.happened(Change.CLEARED, 2)
    one.run(20_000, 2, 3)
    assert one.state(2) is State.ALIVE


OVERRIDES = [
    # (held, claim, whether it overrides); incarnations i = 3, and one less or more
    ((State.ALIVE, 3), (State.SUSPECT, 2), False),
    ((State.ALIVE, 3), (State.SUSPECT, 3), True),
    ((State.SUSPECT, 3), (State.SUSPECT, 4), True),
    ((State.SUSPECT, 3), (State.SUSPECT, 2), False),
    ((State.SUSPECT, 3), (State.ALIVE, 3), False),
    ((State.SUSPECT, 3), (State.ALIVE, 4), True),
    ((State.ALIVE, 3), (State.ALIVE, 4), True),
    ((State.ALIVE, 3), (State.ALIVE, 2), False),
    ((State.ALIVE, 3), (State.DEAD, 3), True),
    ((State.SUSPECT, 3), (State.DEAD, 3), True),
    ((State.DEAD, 3), (State.ALIVE, 3), False),
    ((State.DEAD, 3), (State.SUSPECT, 3), False),
]


@pytest.mark.parametrize(("held", "said", "overrides"), OVERRIDES)
def test_4_2_the_order_of_claims(held, said, overrides):
    one = One(2, 3)
    for state, incarnation in (held, said):
        one.tell(alive(2, incarnation) if state is State.ALIVE else claim(state, 2, incarnation, 3))
    member = one.machine.members.get(NodeId(2))
    assert (member.state, member.incarnation) == (said if overrides else held)


@pytest.mark.parametrize("said", [(State.DEAD, 2), (State.ALIVE, 4)])
def test_4_2_difference_a_death_overrides_only_incarnations_up_to_its_own(said):
    """The paper lets Confirm override every incarnation, for ever: its members come back under a new name. Ours come
    back under their own, with a higher incarnation, which no late rumour of an older death may undo."""
    one = One(2, 3)
    one.tell(alive(2, 3))
    if said[0] is State.DEAD:
        one.tell(claim(State.DEAD, 2, 2, 3))
        assert one.state(2) is State.ALIVE
    else:
        one.tell(claim(State.DEAD, 2, 3, 3), alive(2, 4))
        assert one.happened(Change.JOINED, 2)


def test_4_2_only_the_member_itself_raises_its_incarnation():
    cluster = cluster_of(6, faults=Faults(loss=0.4), is_strict=True)
    cluster.run_for(60_000)
    assert any(node.machine.incarnation for node in cluster.nodes.values())


def test_4_2_suspicion_makes_false_failures_rare():
    """With a time-out of half a period loss buries members that live; with the usual one it does not."""
    buried = {}
    for alpha in (0.5, 5.0):
        settings = Settings(local_health_max=0, suspicion_beta=1, suspicion_alpha=alpha)
        cluster = cluster_of(12, 3, settings=settings, faults=Faults(loss=0.35))
        cluster.run_for(60_000)
        buried[alpha] = sum(seen.event.change is Change.DIED for seen in cluster.seen)
    assert buried[0.5] > 20
    assert buried[5.0] <= buried[0.5] / 10, buried


# Section 4.3: round-robin probing.


def chosen(members: Members, count: int) -> list[int]:
    return [members.next_to_probe().node for _period in range(count)]


def table(nodes_count: int, seed: int = 1) -> Members:
    members = Members(SwimCluster(seed).random.randrange, SETTINGS.dead_retention_ms)
    for node in range(nodes_count):
        members.add(Member(NodeId(node), None, 0, State.ALIVE, NodeId(node)))
    return members


@pytest.mark.parametrize("seed", range(5))
def test_4_3_every_member_is_probed_within_2n_minus_1_periods(seed):
    members, nodes_count = table(20, seed), 20
    order = chosen(members, 20 * nodes_count)
    for node in range(nodes_count):
        places = [place for place, other in enumerate(order) if other == node]
        assert max(later - earlier for earlier, later in itertools.pairwise(places)) <= 2 * nodes_count - 1


def test_4_3_each_round_takes_everybody_once_in_another_order():
    members = table(20)
    rounds = [tuple(chosen(members, 20)) for _round in range(5)]
    assert all(sorted(one) == list(range(20)) for one in rounds)
    assert len(set(rounds)) == 5


def test_4_3_a_new_member_gets_a_random_place_and_nobody_is_passed_over():
    places = []
    for seed in range(40):
        members = table(10, seed)
        before = chosen(members, 5)
        members.add(Member(NodeId(99), None, 0, State.ALIVE, NodeId(99)))
        rest = chosen(members, 6)
        assert set(before) & set(rest) == set() or 99 not in rest
        assert set(range(10)) <= set(before) | set(rest)
        places.append(rest.index(99) if 99 in rest else -1)
    assert len(set(places)) > 4


def test_4_3_completeness_is_bounded_in_time_for_every_single_member():
    """All n - 1 others find a failure by themselves, without a rumour, within 2n - 1 periods."""
    nodes_count = 8
    cluster = cluster_of(nodes_count, settings=Settings(local_health_max=0, exchange_interval_ms=10**9))
    for node in cluster.nodes.values():
        node.machine._rumours.take = lambda _room, _times: []
    cluster.nodes[NodeId(2)].stop()
    began_us = cluster.world.now_us
    cluster.run_for((2 * nodes_count + 1) * 1_000)
    seen = cluster.seen_of(2, Change.SUSPECTED, began_us)
    assert len({one.observer for one in seen}) == nodes_count - 1
    assert (max(one.at_us for one in seen) - began_us) / SECOND <= 2 * nodes_count + 1


# Section 5: what the whole gives.


def test_5_a_failure_is_known_to_all_soon_after_the_suspicion_ends():
    cluster = cluster_of(50, settings=PLAIN)
    cluster.run_for(2_000)
    began_us = cluster.world.now_us
    cluster.nodes[NodeId(7)].stop()
    cluster.run_for(40_000)
    died = cluster.seen_of(7, Change.DIED, began_us)
    assert len(died) == 49
    assert died[-1].at_us - died[0].at_us <= 2 * math.log2(50) * SECOND
    timeout_us = 5 * math.log10(50) * SECOND
    suspected_us = cluster.seen_of(7, Change.SUSPECTED, began_us)[0].at_us
    assert died[0].at_us - suspected_us >= timeout_us - 2 * MS


def test_5_members_that_fail_together_are_all_found():
    cluster = cluster_of(40, 2)
    for node in range(10):
        cluster.nodes[NodeId(node)].stop()
    cluster.run_for(10_000)
    assert cluster.wait_agreement(200_000) < 120_000


def test_5_1_under_loss_nobody_who_lives_is_buried():
    cluster = cluster_of(30, 4, faults=Faults(loss=0.1))
    cluster.run_for(120_000)
    assert [seen for seen in cluster.seen if seen.event.change is Change.DIED] == []
