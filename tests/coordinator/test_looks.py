"""All offsets are looked through in short steps, and what comes between two of them is seen as it is."""

import uuid

import pytest

from tests.coordinator.scenario import Scenario
from tpc_broker.coordinator import Fate
from tpc_broker.coordinator.looks import LOOKED_AT_ONCE
from tpc_broker.coordinator.messages import OffsetCommitRequest, OffsetToCommit
from tpc_broker.model import TopicId

DAY, COUNT = 86_400_000, 1_000
GONE = TopicId(uuid.UUID(int=1))
LAST = COUNT - 1


def commit_many(s, group="g", topic="t", **details):
    offsets = tuple(OffsetToCommit(topic=topic, partition=each, offset=5, **details) for each in range(COUNT))
    request = OffsetCommitRequest(group_id=group, offsets=offsets)
    s.run(s.machine.offset_commit(request, s.token("commit"), s.now))


def count(s):
    return s.machine.statistics().offsets_count


def step(s):
    """One that is due at once; whether there was one."""
    deadline_ms = s.machine.next_deadline_ms()
    if deadline_ms is None or deadline_ms > s.now:
        return False
    s.run(s.machine.on_deadline(s.now))
    return True


def steps(s):
    """How many offsets each step has removed."""
    removed = []
    before = count(s)
    while step(s):
        removed.append(before - count(s))
        before = count(s)
    return removed


def test_offsets_of_a_topic_that_is_gone_go_in_short_steps():
    s = Scenario()
    commit_many(s, topic_id=GONE)
    s.commit(topic="u", group="other")
    s.fates[GONE] = Fate.GONE
    s.run(s.machine.topics_changed(s.now))
    removed = [COUNT + 1 - count(s), *steps(s)]
    assert max(removed) <= LOOKED_AT_ONCE
    assert (sum(removed), count(s)) == (COUNT, 1)


def test_what_is_committed_while_others_are_looked_at_is_of_the_next_topic():
    """Without an id a topic is known by its name, and by when it went."""
    s = Scenario()
    commit_many(s)
    s.run(s.machine.topics_changed(s.now, {"t"}))
    s.commit(7, partition=LAST)
    steps(s)
    assert (s.offset(partition=LAST), count(s)) == (7, 1)
    s.run(s.machine.topics_changed(s.now, {"u"}))
    steps(s)
    assert s.offset(partition=LAST) == 7
    s.run(s.machine.topics_changed(s.now, {"t"}))
    steps(s)
    assert count(s) == 0


def test_a_topic_that_goes_while_others_are_looked_for_is_not_forgotten():
    """Nor one that goes again: what was committed for the one in between goes with it."""
    s = Scenario()
    commit_many(s)
    s.commit(topic="u", group="first")
    s.run(s.machine.topics_changed(s.now, {"t"}))
    s.commit(7, partition=LAST)
    s.run(s.machine.topics_changed(s.now, {"u"}))
    s.run(s.machine.topics_changed(s.now, {"t"}))
    s.commit(8, partition=0)
    steps(s)
    assert (s.offset(partition=0), count(s)) == (8, 1)


def test_many_offsets_expire_in_short_steps_and_then_their_group():
    s = Scenario()
    commit_many(s)
    s.now += 8 * DAY
    removed = steps(s)
    assert max(removed) <= LOOKED_AT_ONCE
    assert (sum(removed), count(s)) == (COUNT, 0)
    s.wait(600_000)
    assert s.machine.list_groups() == []


def test_an_offset_that_is_committed_while_others_expire_stays_and_keeps_its_group():
    s = Scenario()
    commit_many(s)
    s.now += 8 * DAY
    assert step(s)
    s.commit(7, partition=LAST)
    steps(s)
    assert (s.offset(partition=LAST), count(s)) == (7, 1)
    s.wait(600_000)
    assert s.state() == "Empty"
    s.start()
    assert (s.offset(partition=LAST), count(s)) == (7, 1)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_group_for_which_something_is_being_committed_is_not_buried(is_written):
    s = Scenario()
    s.commit(5)
    s.now += 8 * DAY
    s.hold = True
    s.commit(6, partition=1)
    if is_written:
        s.settle()
    steps(s)
    s.hold = False
    s.settle()
    assert (s.offset(partition=1), s.state()) == (6, "Empty")


def test_many_groups_expire_in_short_steps():
    s = Scenario()
    for number in range(500):
        s.commit(group=f"g{number}")
    s.now += 8 * DAY
    removed = steps(s)
    assert max(removed) <= LOOKED_AT_ONCE
    assert (sum(removed), s.machine.list_groups()) == (500, [])


def test_unknown_topics_are_looked_for_in_short_steps():
    s, asked = Scenario(), []
    commit_many(s)
    s.machine._offsets._fate_of = lambda topic, _id: asked.append(topic) or Fate.THERE
    for _is_unknown in s.machine.look_for_unknown_topics():
        assert not _is_unknown
        assert len(asked) <= LOOKED_AT_ONCE
        asked.clear()


def test_an_offset_of_an_open_transaction_may_be_of_an_unknown_topic():
    """It is looked at by nobody when it is committed later."""
    s = Scenario()
    s.fates[GONE] = Fate.UNKNOWN
    s.txn_commit(7, topic_id=GONE)
    assert any(s.machine.look_for_unknown_topics())
    s.end(7, commit=False)
    assert not any(s.machine.look_for_unknown_topics())
