"""One test per claim of the Lifeguard paper (Dadgar, Phillips, Currey, DSN 2018), sections named."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.simulator.network import Faults
from tests.simulator.swim_cluster import cluster_of
from tests.swim.pair import SETTINGS, One, address_of, alive, claim
from tpc_broker.model import NodeId
from tpc_broker.swim.lifeguard import LocalHealth, suspicion_timeout_ms
from tpc_broker.swim.model import Change, Kind, Settings, State


def begun(*others: int) -> tuple[One, object]:
    one = One(*others)
    while not one.pings():
        one.run(one.machine.next_deadline_ms())
    return one, one.pings()[0][1]


# Section IV-A: local health aware probe.


def test_4_a_the_counter_is_saturating():
    health = LocalHealth(8)
    for _time in range(20):
        health.worse()
    assert health.score == 8
    for _time in range(20):
        health.better()
    assert health.score == 0


def test_4_a_period_and_ack_timeout_grow_with_the_counter():
    one, ping = begun(*range(2, 10))
    one.hear(ping.subject, Kind.ACK, ping.sequence, ping.subject)
    one.machine.health.score = 3
    began_ms = one.machine.next_deadline_ms()
    one.run(began_ms)
    assert len(one.pings()) == 2
    assert one.machine.next_deadline_ms() == began_ms + 4 * SETTINGS.ack_timeout_ms
    one.run(began_ms + 4 * SETTINGS.ack_timeout_ms)
    assert one.pings(Kind.PING_REQ)
    assert one.machine._period_ends_ms == began_ms + 4 * SETTINGS.period_ms


def test_4_a_an_answered_probe_improves_it():
    one, ping = begun(2, 3, 4)
    one.machine.health.score = 2
    one.hear(ping.subject, Kind.ACK, ping.sequence, ping.subject)
    one.hear(ping.subject, Kind.ACK, ping.sequence, ping.subject)
    assert one.machine.health.score == 1, "and a doubled answer only once"


def test_4_a_a_failed_probe_worsens_it_by_one_if_all_helpers_were_heard():
    one, ping = begun(*range(2, 8))
    one.run(one.now_ms + SETTINGS.ack_timeout_ms)
    for address, message in one.pings(Kind.PING_REQ):
        helper = next(node for node in range(2, 8) if address_of(node) == address)
        one.hear(helper, Kind.NACK, message.sequence, ping.subject)
    one.run(one.now_ms + SETTINGS.period_ms)
    assert one.state(ping.subject) is State.SUSPECT
    assert one.machine.health.score == 1


def test_4_a_a_silent_helper_worsens_it_once_more():
    one, ping = begun(*range(2, 8))
    one.run(one.now_ms + SETTINGS.ack_timeout_ms)
    first = one.pings(Kind.PING_REQ)[0]
    helper = next(node for node in range(2, 8) if address_of(node) == first[0])
    one.hear(helper, Kind.NACK, first[1].sequence, ping.subject)
    one.run(one.now_ms + SETTINGS.period_ms)
    assert one.machine.health.score == 2


def test_4_a_a_nack_of_somebody_who_was_not_asked_does_not_count():
    one, ping = begun(*range(2, 20))
    one.run(one.now_ms + SETTINGS.ack_timeout_ms)
    asked = {address for address, _message in one.pings(Kind.PING_REQ)}
    for node in range(2, 20):
        if address_of(node) not in asked and node != ping.subject:
            one.hear(node, Kind.NACK, ping.sequence, ping.subject)
    one.run(one.now_ms + SETTINGS.period_ms)
    assert one.machine.health.score == 2


def test_4_a_having_to_refute_worsens_it():
    one = One(2, 3)
    one.tell(claim(State.SUSPECT, 1, 0, 2))
    assert one.machine.health.score == 1


def test_4_a_a_helper_says_nack_in_time_and_still_passes_a_late_ack_on():
    one = One(2, 3)
    [(_target, ping)] = one.hear(2, Kind.PING_REQ, 77, 3, address=address_of(3), nack_after_ms=240)
    one.run(239)
    assert one.pings(Kind.NACK) == []
    one.run(241)
    [(origin, nack)] = one.pings(Kind.NACK)
    assert (origin, nack.sequence, nack.subject) == (address_of(2), 77, 3)
    [(origin, ack)] = one.hear(3, Kind.ACK, ping.sequence, 3)
    assert (origin, ack.kind, ack.sequence) == (address_of(2), Kind.ACK, 77)


def test_4_a_the_nack_is_asked_for_before_the_period_ends():
    one, _ping = begun(2, 3, 4)
    one.run(one.now_ms + SETTINGS.ack_timeout_ms)
    for _address, message in one.pings(Kind.PING_REQ):
        assert 0 < message.nack_after_ms == SETTINGS.ack_timeout_ms * 4 // 5
        assert SETTINGS.ack_timeout_ms + message.nack_after_ms < SETTINGS.period_ms


def test_4_a_a_node_that_is_cut_off_slows_itself_down():
    cluster = cluster_of(8)
    node = cluster.nodes[NodeId(1)]
    others = [other.address for other in cluster.nodes.values() if other is not node]
    cluster.network.partition([node.address], others)
    before = node.machine.statistics().probes
    cluster.run_for(20_000)
    assert node.machine.health.score >= 6
    assert node.machine.statistics().probes - before <= 7


# Section IV-B: local health aware suspicion.


@pytest.mark.parametrize("members_count", [5, 50, 1_000])
def test_4_b_the_timeout_falls_from_beta_times_the_least_with_the_log_of_confirmations(members_count):
    least = 5 * max(1, math.log10(members_count)) * 1_000
    timeouts = [suspicion_timeout_ms(SETTINGS, members_count, count) for count in range(5)]
    assert timeouts[0] == round(6 * least)
    assert timeouts[3] == timeouts[4] == round(least)
    assert timeouts[1] == round(6 * least - 5 * least * math.log(2) / math.log(4))
    steps = [earlier - later for earlier, later in itertools.pairwise(timeouts[:4])]
    assert steps == sorted(steps, reverse=True), "the first confirmation says most"


@pytest.mark.parametrize(("members_count", "wanted"), [(2, 0), (3, 1), (4, 2), (5, 3), (9, 3)])
def test_4_b_no_more_confirmations_are_wanted_than_there_are_others(members_count, wanted):
    least = 5_000
    assert suspicion_timeout_ms(SETTINGS, members_count, wanted) == least
    if wanted:
        assert suspicion_timeout_ms(SETTINGS, members_count, wanted - 1) > least


@pytest.mark.parametrize(("health", "periods"), [(0, 5), (1, 10), (3, 20), (5, 30), (8, 30)])
def test_4_b_of_two_members_the_accusers_health_stretches_it(health, periods):
    assert suspicion_timeout_ms(SETTINGS, 2, 0, health) == periods * SETTINGS.period_ms
    assert suspicion_timeout_ms(SETTINGS, 3, 1, health) == 5 * SETTINGS.period_ms, "there another one can confirm it"


def test_4_b_independent_suspicions_shorten_it_and_repeated_ones_do_not():
    one = One(*range(2, 12))
    one.tell(claim(State.SUSPECT, 2, 0, 3))
    suspicion = one.machine.members.get(NodeId(2)).suspicion
    deadlines = [suspicion.deadline_ms]
    for source in (3, 4, 4, 5, 6, 7):
        one.tell(claim(State.SUSPECT, 2, 0, source))
        deadlines.append(suspicion.deadline_ms)
    longest, two, three, four = sorted(set(deadlines), reverse=True)
    assert deadlines == [longest, longest, two, two, three, four, four]
    assert four == suspicion.started_ms + round(5_000 * math.log10(11))


def test_4_b_the_first_k_independent_suspicions_are_told_on():
    one = One(*range(2, 12))
    for source in range(3, 10):
        one.tell(claim(State.SUSPECT, 2, 0, source))
    told = {update.source for update in one.machine._rumours.take(10_000, 99) if update.node == 2}
    assert told == {3, 4, 5, 6}, "the first and K = 3 more"


def test_4_b_a_later_incarnation_begins_anew():
    one = One(*range(2, 12))
    for source in (3, 4, 5):
        one.tell(claim(State.SUSPECT, 2, 0, source))
    one.tell(alive(2, 1), claim(State.SUSPECT, 2, 1, 4))
    assert one.machine.members.get(NodeId(2)).suspicion.accusers == {4}


def test_4_b_a_node_that_cannot_hear_buries_late_and_one_that_dies_is_buried_early():
    """The suspicions of a node that is cut off are confirmed by nobody; a death is confirmed by all."""
    cluster = cluster_of(9)
    deaf, dead = cluster.nodes[NodeId(1)], cluster.nodes[NodeId(2)]
    others = [other.address for other in cluster.nodes.values() if other is not deaf]
    cluster.network.partition(others, [deaf.address], one_way=True)
    dead.stop()
    cluster.run_for(20_000)
    early = [one.at_us for one in cluster.seen_of(2, Change.DIED) if one.observer != 1]
    assert len(early) == 7
    late = [seen for seen in cluster.seen if seen.event.change is Change.DIED and seen.observer == 1]
    assert late == [], "after 20 s it has buried nobody"


# Section IV-C: the buddy system.


def test_4_c_who_pings_a_suspect_tells_it_first_of_all():
    one = One(2)
    one.tell(*[alive(node) for node in range(20, 25)])
    one.run(10, 2, *range(20, 25))
    one.tell(claim(State.SUSPECT, 2, 0, 3))
    one.machine._rumours.forget(NodeId(2))
    one.sent.clear()
    one.run(12_000, *range(20, 25))
    ping = next(message for address, message in one.pings() if address == address_of(2))
    assert ping.updates[0] == claim(State.SUSPECT, 2, 0, 3)


def test_4_c_who_pings_a_suspect_for_somebody_else_tells_it_first_of_all_too():
    one = One(2, 3)
    one.tell(claim(State.SUSPECT, 3, 0, 2))
    one.machine._rumours.forget(NodeId(3))
    [(target, ping)] = one.hear(2, Kind.PING_REQ, 77, 3, address=address_of(3), nack_after_ms=200)
    assert (target, ping.kind) == (address_of(3), Kind.PING)
    assert ping.updates[0] == claim(State.SUSPECT, 3, 0, 2)


def test_4_c_a_suspect_that_pings_is_told_with_the_answer():
    one = One(2, 3)
    one.tell(claim(State.SUSPECT, 2, 0, 3))
    one.machine._rumours.forget(NodeId(2))
    [(_target, ack)] = one.hear(2, Kind.PING, 5)
    assert ack.updates[0] == claim(State.SUSPECT, 2, 0, 3)


# Section V: what it is for.


def accusations(settings: Settings, seed: int) -> tuple[int, int]:
    """How many healthy members were suspected, and buried, by a few members that are slow again and again."""
    cluster = cluster_of(24, seed, settings=settings, faults=Faults(loss=0.02))
    slow = [cluster.nodes[NodeId(node)] for node in range(6)]
    for node in slow:
        node.datagrams_kept = 2
    for _round in range(10):
        for node in slow:
            node.process.pause()
        cluster.run_for(4_500)
        for node in slow:
            node.process.resume()
        cluster.run_for(1_500)
    accusing = (Change.SUSPECTED, Change.DIED)
    healthy = [seen for seen in cluster.seen if seen.event.node >= 6 and seen.event.change in accusing]
    buried = sum(seen.event.change is Change.DIED for seen in healthy)
    return len(healthy) - buried, buried


def test_5_slow_members_accuse_healthy_ones_far_less_with_lifeguard():
    plain = Settings(local_health_max=0, suspicion_beta=1, suspicion_alpha=2)
    guarded = Settings(suspicion_alpha=2)
    without, with_it = accusations(plain, 1), accusations(guarded, 1)
    assert with_it[1] <= without[1]
    assert with_it[0] < without[0] / 2, (without, with_it)


def test_5_a_real_death_is_found_as_fast_as_without():
    times = []
    for settings in (Settings(local_health_max=0, suspicion_beta=1), Settings()):
        cluster = cluster_of(20, 3, settings=settings)
        cluster.run_for(2_000)
        began_us = cluster.world.now_us
        cluster.nodes[NodeId(9)].stop()
        cluster.run_for(40_000)
        times.append((cluster.seen_of(9, Change.DIED, began_us)[0].at_us - began_us) / 1_000_000)
    plain, guarded = times
    assert guarded <= plain * 1.6, times
