"""The machine's own rules, where they go beyond the papers: identity, returns, exchanges, farewells, bounds."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.swim.pair import CODEC, SETTINGS, One, address_of, alive, claim, info_of
from tpc_broker.limits import SWIM_RELAYS_MAX
from tpc_broker.model import NodeId
from tpc_broker.swim.model import Change, Kind, NodeInfo, Settings, State, Update

CLAIMS = [alive(2, i) for i in range(3)] + [
    claim(state, 2, i, source) for i in range(3) for state in list(State)[1:] for source in (3, 4)
]


@given(st.permutations(CLAIMS), st.lists(st.sampled_from(CLAIMS), max_size=10))
def test_the_order_and_number_of_claims_do_not_matter(claims, again):
    """What is held rises in the order of claims and ends at the highest, whatever came in between."""
    one = One(2, 3, 4)
    before = (0, 0)
    for update in [*claims, *again]:
        one.tell(update)
        member = one.machine.members.get(NodeId(2))
        assert before <= member.rank
        before = member.rank
    assert before == (2, State.LEFT)


@pytest.mark.parametrize("state", [State.SUSPECT, State.DEAD])
def test_a_claim_about_oneself_is_refuted_once(state):
    one = One(2, 3)
    one.tell(claim(state, 1, 0))
    assert one.machine.incarnation == 1
    one.tell(claim(state, 1, 0))
    assert one.machine.incarnation == 1
    assert one.machine.statistics().refutations == 1
    [(_target, ack)] = one.hear(2, Kind.ACK, 0, 2) or one.hear(2, Kind.PING, 5)
    assert alive(1, 1) in ack.updates


def test_a_process_that_starts_again_outranks_its_former_life():
    """It begins with incarnation 0 and hears what was held of the former one; that costs no local health."""
    for former in (alive(1, 7, boot=0), claim(State.DEAD, 1, 7), claim(State.LEFT, 1, 7, 1)):
        one = One(2, 3)
        one.machine.merge([former], 0)
        assert one.machine.incarnation == 8
        assert one.machine.statistics().local_health == 0
        assert one.machine.statistics().refutations == 0


def test_others_tell_a_restarted_node_what_they_hold_of_it():
    """With the answer to its first ping already, before any exchange."""
    one = One(2, 3)
    one.tell(alive(2, 4))
    [(_target, ack)] = one.hear(2, Kind.PING, 1, 1, boot=2)
    assert ack.updates[0] == alive(2, 4)
    one.tell(alive(2, 5, boot=2))
    assert one.happened(Change.RESTARTED, 2)
    [(_target, ack)] = one.hear(2, Kind.PING, 2, 1, boot=2, incarnation=5)
    assert alive(2, 4) not in ack.updates


@pytest.mark.parametrize("held", [State.ALIVE, State.SUSPECT, State.DEAD, State.LEFT])
def test_a_restart_or_a_return_that_is_first_heard_of_as_a_suspicion_is_told_too(held):
    """An exchange brings a suspicion with the new boot id; the refutation that follows has the same one."""
    one = One(2, 3)
    if held is not State.ALIVE:
        one.tell(claim(held, 2, 0, 3))
    one.events.clear()
    suspected = Update(NodeId(2), 1, State.SUSPECT, NodeId(3), info_of(2, boot=2))
    one.machine.merge([suspected], one.now_ms)
    one.take()
    came = Change.RESTARTED if held in (State.ALIVE, State.SUSPECT) else Change.JOINED
    assert one.events == [(came, 2), (Change.SUSPECTED, 2)]
    one.tell(alive(2, 2, boot=2))
    assert one.events[2:] == [(Change.CLEARED, 2)]


def test_two_processes_under_one_id_are_a_conflict_in_the_end():
    one = One(2, 3)
    for _round in range(9):
        one.tell(alive(1, one.machine.incarnation, boot=5))
        assert not one.happened(Change.CONFLICT, 1)
    one.tell(alive(1, one.machine.incarnation, boot=5))
    assert one.events.count((Change.CONFLICT, 1)) == 1


def test_of_two_boots_with_one_incarnation_all_choose_the_same():
    for order in itertools.permutations([alive(2, 3, boot=1), alive(2, 3, boot=2)]):
        one = One(3)
        for update in order:
            one.tell(update)
        assert one.machine.members.get(NodeId(2)).info == info_of(2, boot=2)


def test_dead_from_an_exchange_is_only_a_suspicion_of_one_who_is_held_alive():
    one = One(2, 3, 4)
    one.machine.merge([claim(State.DEAD, 2, 0, source=4)], 0)
    assert one.state(2) is State.SUSPECT
    one.machine.merge([claim(State.LEFT, 3, 0, source=3)], 0)
    assert one.state(3) is State.LEFT


def gone(state: State, node: int, for_ms: int, incarnation: int = 0) -> Update:
    return Update(NodeId(node), incarnation, state, NodeId(node), info_of(node), for_ms)


def test_what_was_gone_before_it_was_known_is_kept_quietly_for_the_rest_of_its_time():
    """By everybody, not only by who joins: who hears of a farewell before the arrival needs it as much. It brings
    nobody back, because its time began when the member went and not when it was learned."""
    one = One(2, settings=Settings(dead_retention_ms=100_000))
    one.machine.merge([gone(State.DEAD, 5, 70_000, 3)], 0)
    one.take()
    assert one.state(5) is State.DEAD
    assert one.events == []
    one.tell(alive(5, 3))
    assert one.state(5) is State.DEAD, "an old claim does not bring it back"
    one.run(29_000, 2)
    assert one.state(5) is State.DEAD
    one.run(30_000, 2)
    assert one.state(5) is None
    one.tell(alive(5, 4))
    assert one.happened(Change.JOINED, 5)


def test_who_is_gone_for_nine_tenths_of_its_time_is_not_learned():
    """Who does not know it may be who has forgotten it a moment ago: its clock is another one."""
    one = One(2, settings=Settings(dead_retention_ms=100_000))
    one.machine.merge([gone(State.DEAD, 5, 90_000), gone(State.LEFT, 6, 90_001), gone(State.DEAD, 7, 2**64 - 1)], 0)
    assert [one.state(node) for node in (5, 6, 7)] == [State.DEAD, None, None]


@pytest.mark.parametrize("state", [State.DEAD, State.LEFT])
def test_of_the_dates_of_an_end_the_earliest_counts(state):
    one = One(2, 3, settings=Settings(dead_retention_ms=100_000))
    one.tell(claim(state, 2))
    for gone_for_ms, told_ms in ((0, 0), (20_000, 20_000), (20_000, 5_000)):
        one.machine.merge([gone(state, 2, gone_for_ms)], one.now_ms)
        [update] = [update for update in one.machine.snapshot(one.now_ms) if update.node == 2]
        assert update.gone_for_ms == max(gone_for_ms, told_ms)
    one.run(79_000, 3)
    assert one.state(2) is state
    one.run(80_000, 3)
    assert one.state(2) is None
    assert one.machine.members.forget_ms is None


def test_a_member_that_returns_and_dies_again_has_its_whole_time_again():
    one = One(2, 3, settings=Settings(dead_retention_ms=100_000))
    one.machine.merge([gone(State.LEFT, 2, 80_000)], 0)
    one.tell(alive(2, 1))
    one.run(50_000, 2, 3)
    one.tell(claim(State.DEAD, 2, 1))
    one.run(149_000, 3)
    assert one.state(2) is State.DEAD
    one.run(150_000, 3)
    assert one.state(2) is None


def test_claims_about_nobody_known_are_not_kept():
    one = One(2)
    for state in (State.SUSPECT, State.DEAD, State.LEFT):
        one.tell(claim(state, 6, 1))
    assert one.state(6) is None


def test_joining_asks_one_seed_after_another_until_one_answers():
    one = One(seeds=(1, 2, 3))
    one.run(5_000)
    assert not one.machine.statistics().is_joined
    assert one.exchanges, "and not itself"
    assert address_of(1) not in one.exchanges
    for _round in range(20):
        one.machine.exchange_ended(one.now_ms, succeeded=False)
        one.run(one.now_ms + 2_000)
    assert set(one.exchanges) == {address_of(2), address_of(3)}
    one.machine.merge([alive(2), alive(3)], one.now_ms)
    one.machine.exchange_ended(one.now_ms, succeeded=True)
    assert one.machine.statistics().is_joined
    assert one.machine.statistics().alive == 3


def test_an_exchange_that_never_ends_is_given_up():
    one = One(seeds=(2,))
    one.run(SETTINGS.exchange_timeout_ms + 5_000)
    assert one.machine.statistics().exchanges_failed == 1
    assert len(one.exchanges) == 2


def test_what_a_joining_node_learns_of_the_cluster_is_not_told_on():
    joining, member = One(seeds=(2,)), One(2)
    member.machine.exchange_ended(0, succeeded=True)
    for one in (joining, member):
        one.machine.merge([alive(node) for node in range(10, 20)], 0, is_answer=True)
    assert joining.machine.statistics().rumours == 1, "only itself"
    assert member.machine.statistics().rumours >= 11
    joining.machine.merge([alive(30)], 0)
    assert joining.machine.statistics().rumours == 2, "who comes by himself is news"


def test_the_other_side_of_a_partition_is_looked_for_and_only_by_who_finds_it():
    one = One(2, 3, settings=Settings(exchange_interval_ms=10**9))
    one.tell(claim(State.DEAD, 2, 0, source=3))
    one.sent.clear()
    one.run(SETTINGS.reconnect_interval_ms, 3)
    [ping] = [message for address, message in one.pings() if address == address_of(2)]
    assert ping.updates[0] == claim(State.DEAD, 2, 0, source=3), "it is told so, and refutes"
    before = len(one.exchanges)
    one.hear(2, Kind.ACK, ping.sequence, 2, alive(2, 1))
    assert one.happened(Change.JOINED, 2)
    assert one.exchanges[before:] == [address_of(2)]
    one.tell(claim(State.DEAD, 2, 1), alive(2, 2))
    assert len(one.exchanges) == before + 1, "a rumour of a return begins no exchange"


def test_a_lost_seed_is_asked_too():
    one = One(3, seeds=(2,))
    one.machine.exchange_ended(0, succeeded=True)
    one.run(3 * SETTINGS.reconnect_interval_ms, 3)
    asked = [message for address, message in one.pings() if address == address_of(2)]
    assert asked
    assert all(message.subject is None for message in asked)


def test_a_farewell_is_said_until_somebody_has_heard_it():
    one = One(2, 3)
    one.machine.leave(one.now_ms)
    first = one.take()
    assert {address for address, _message in first} <= {address_of(2), address_of(3)}
    assert all(message.updates[0].state is State.LEFT for _address, message in first)
    one.machine.leave(one.now_ms)
    assert one.take() == [], "once is enough"
    one.run(1_500)
    again = [message for _address, message in one.sent if message.sequence not in {m.sequence for _a, m in first}]
    assert any(update.state is State.LEFT for message in again for update in message.updates)
    assert not one.machine.has_left
    one.hear(2, Kind.ACK, again[-1].sequence if again[-1].kind is Kind.PING else first[0][1].sequence, 2)
    one.hear(2, Kind.ACK, first[0][1].sequence, 2)
    assert one.machine.has_left
    assert one.happened(Change.LEAVE_DONE, 1)
    assert one.machine.next_deadline_ms() is None
    assert one.hear(2, Kind.PING, 3) == [], "who has left answers nothing"


def test_a_farewell_that_nobody_hears_ends_all_the_same():
    one, alone = One(2, 3), One()
    one.machine.leave(0)
    one.run(3 * SETTINGS.period_ms)
    assert one.machine.has_left
    alone.machine.leave(0)
    assert alone.machine.has_left


def test_who_leaves_does_not_contradict_its_own_farewell():
    one = One(2, 3)
    one.machine.leave(0)
    one.tell(claim(State.LEFT, 1, 0, 1), claim(State.SUSPECT, 1, 0, 2))
    assert one.machine.incarnation == 0


def test_who_leaves_with_news_untold_is_done_in_time():
    """Found by the simulator: the news were due for ever, and never told."""
    one = One(2, 3)
    for load in (1, 2):
        one.machine.update_info(replace(one.machine.info, load_permille=load), 0)
    one.machine.leave(0)
    one.machine.update_info(replace(one.machine.info, load_permille=3), 0)
    for _deadline in range(20):
        if one.machine.has_left:
            break
        deadline_ms = one.machine.next_deadline_ms()
        assert deadline_ms > one.now_ms
        one.now_ms = deadline_ms
        one.machine.on_deadline(deadline_ms)
    assert one.machine.has_left


def test_news_about_oneself_are_told_at_a_pace_that_rumours_can_carry():
    one = One(2, 3)
    for load in range(1, 6):
        one.machine.update_info(replace(one.machine.info, load_permille=load), one.now_ms)
    assert one.machine.info.load_permille == 1
    assert one.machine.incarnation == 1
    one.run(3 * SETTINGS.info_interval_ms_per_member, 2, 3)
    assert one.machine.info.load_permille == 5
    assert one.machine.incarnation == 2


def test_the_table_is_bounded_and_the_longest_gone_makes_room():
    one = One(2, 3, settings=Settings(members_max=4))
    one.tell(alive(4), alive(5))
    assert one.state(4) is State.ALIVE
    assert one.state(5) is None
    assert one.machine.statistics().members_refused == 1
    one.tell(claim(State.DEAD, 3))
    one.tell(alive(5))
    assert one.state(3) is None
    assert one.happened(Change.FORGOTTEN, 3)
    assert one.state(5) is State.ALIVE
    one.tell(claim(State.DEAD, 5))
    one.machine.merge([gone(State.DEAD, 6, 10)], one.now_ms)
    assert one.state(6) is None, "but not for another one that is gone"
    assert one.state(5) is State.DEAD


def test_the_dead_are_forgotten_after_their_time():
    one = One(2, 3, settings=Settings(dead_retention_ms=50_000))
    one.tell(claim(State.DEAD, 2))
    one.run(49_000, 3)
    assert one.state(2) is State.DEAD
    one.run(51_000, 3)
    assert one.state(2) is None
    assert one.happened(Change.FORGOTTEN, 2)


def test_helpers_are_found_among_the_few_who_are_left_of_many():
    """Those who failed together stand in the order of probing until their turn comes, and are drawn until then."""
    one = One(*range(2, 200))
    one.tell(*[claim(State.DEAD, node) for node in range(5, 150)])
    one.tell(*[claim(State.SUSPECT, node) for node in range(150, 200)])
    for _time in range(20):
        helpers = one.machine.members.some_present(3, NodeId(60))
        assert {member.node for member in helpers} == {2, 3, 4}
        assert len(one.machine.members.some_present(3, NodeId(3))) == 2
        assert len({member.node for member in one.machine.members.some_present(30, suspects=True)}) == 30


def test_only_own_verdicts_count_as_burials():
    one = One(2, 3, 4)
    one.tell(claim(State.DEAD, 2, source=3), claim(State.SUSPECT, 3, source=4))
    assert one.machine.statistics().burials == 0
    one.run(40_000, 4)
    assert one.state(3) is State.DEAD
    assert one.machine.statistics().burials == 1
    assert one.machine.statistics().dead == 2


@pytest.mark.parametrize(("others", "intervals"), [(31, 1), (32, 2), (63, 2), (64, 3), (255, 4)])
def test_exchanges_are_rarer_by_one_interval_for_each_doubling_above_32_members(others, intervals):
    one = One(*range(2, 2 + others))
    began_ms = []
    while len(began_ms) < 3:
        one.run(one.machine.next_deadline_ms(), *range(2, 2 + others))
        if len(one.exchanges) > len(began_ms):
            began_ms.append(one.now_ms)
            one.machine.exchange_ended(one.now_ms, succeeded=True)
    apart_ms = [later - earlier for earlier, later in itertools.pairwise(began_ms)]
    assert apart_ms == [intervals * SETTINGS.exchange_interval_ms] * 2


def test_pings_for_others_are_bounded_and_only_for_members():
    one = One(2, 3)
    asked = {"address": address_of(3), "nack_after_ms": 10}
    assert one.hear(7, Kind.PING_REQ, 1, 3, **asked) == [], "a stranger"
    for sequence in range(SWIM_RELAYS_MAX + 5):
        one.hear(2, Kind.PING_REQ, sequence, 3, **asked)
    assert len(one.pings()) == SWIM_RELAYS_MAX
    assert one.machine.statistics().datagrams_ignored == 6
    one.run(SETTINGS.period_ms + 100, 2)
    one.hear(2, Kind.PING_REQ, 9_999, 3, **asked)
    assert address_of(3) == one.sent[-1][0], "those who are too late make room"


def test_strangers_get_an_answer_without_news():
    one = One(2, 3)
    [(target, ack)] = one.hear(7, Kind.PING, 4, None)
    assert (target, ack.kind, ack.sequence, ack.updates) == (address_of(7), Kind.ACK, 4, ())


def test_a_ping_for_somebody_else_is_not_answered():
    """Another node has got the address of one that is gone: its silence is right."""
    one = One(2, 3)
    assert one.hear(2, Kind.PING, 4, 3) == []


def test_an_exchange_that_was_long_due_is_no_pause_of_this_node():
    """Found by the simulator: a node that joined late took its first exchange for a pause, and stood still."""
    one = One(seeds=(2,))
    for _round in range(30):
        one.run(one.now_ms + 2_000)
        one.machine.exchange_ended(one.now_ms, succeeded=False)
    one.machine.merge([alive(2), alive(3)], one.now_ms)
    one.machine.exchange_ended(one.now_ms, succeeded=True)
    probes, health = one.machine.statistics().probes, one.machine.health.score
    one.run(one.now_ms + 5_000, 2, 3)
    assert one.machine.statistics().probes >= probes + 4
    assert one.machine.health.score <= health


def test_a_pause_of_this_node_accuses_nobody():
    one = One(2, 3, 4, 5)
    one.run(10_000, 2, 3, 4, 5)
    one.tell(claim(State.SUSPECT, 2))
    one.sent.clear()
    one.now_ms += 60_000
    one.machine.on_deadline(one.now_ms)
    assert one.state(2) is State.SUSPECT, "its time did not run while nothing could be heard"
    assert one.machine.statistics().local_health == 1
    one._answer((2, 3, 4, 5))
    one.run(one.now_ms + 50_000, 3, 4, 5)
    assert one.state(2) is State.DEAD


def test_late_helpers_have_the_rest_of_a_period():
    """The ack time-out is served when the period is over: nobody is accused before the helpers could answer."""
    one = One(2, 3, 4)
    one.run(one.machine.next_deadline_ms())
    while not one.pings():
        one.run(one.machine.next_deadline_ms())
    [(_address, ping)] = one.pings()
    one.now_ms += 900 + SETTINGS.ack_timeout_ms
    one.machine.on_deadline(one.now_ms)
    one.take()
    assert one.pings(Kind.PING_REQ)
    assert one.state(ping.subject) is State.ALIVE
    one.run(one.now_ms + 500)
    one.hear(ping.subject, Kind.ACK, ping.sequence, ping.subject)
    one.run(one.now_ms + 300)
    assert one.state(ping.subject) is State.ALIVE


def test_a_datagram_is_filled_and_never_too_large():
    one = One(2)
    chooser = random.Random(3)
    many = [
        Update(NodeId(n), 0, State.ALIVE, NodeId(n), replace(info_of(n % 200), rack="r" * chooser.randrange(64)))
        for n in range(10, 300)
    ]
    one.machine.merge(many, 0)
    one.run(20_000, 2)
    sizes = [len(CODEC.encode(message)) for _address, message in one.sent]
    assert max(sizes) <= SETTINGS.datagram_bytes_max
    assert max(sizes) > SETTINGS.datagram_bytes_max - 250


def test_settings_that_do_not_fit_are_refused():
    for wrong, said in (
        ({"period_ms": 800}, "at least 3 times"),
        ({"ack_timeout_ms": 0}, "1 or more"),
        ({"suspicion_beta": 0.5}, "suspicion_beta 1 or more"),
    ):
        with pytest.raises(ValueError, match=said):
            Settings(**wrong)
    with pytest.raises(ValueError, match="without its information"):
        Update(NodeId(1), 0, State.ALIVE, NodeId(1))
    assert NodeInfo(address=address_of(1), boot_id=info_of(1).boot_id)
