"""What becomes of appends, and of whoever waits for them, when a leader stands again or hands over."""

from dataclasses import replace
from unittest import mock

import pytest

from tests.engine.faults import BrokenJournal, HungJournal
from tests.log.log_batches import batch
from tests.support.replica_cores import GROUP
from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import NodeId
from tpc_broker.raft.group import Group
from tpc_broker.raft.items import Voter
from tpc_broker.raft.journal import CutEntry
from tpc_broker.raft.output import LEADER


@pytest.fixture
def cores(make_cores):
    return make_cores()


@pytest.fixture(params=[False, True], ids=["by the machine", "carried by C"])
def either(make_cores, request):
    """What is steady is done by the machine, or by C."""
    return make_cores(is_carried=request.param)


def values(name, count):
    return [f"{name}-{number}".encode().ljust(100, b".") for number in range(count)]


def test_what_was_appended_when_a_leader_stands_again_is_in_its_next_term(either):
    """The machine has not heard of it when it is told to stand."""
    leader = either.leader()
    either.produce(leader, values("a", 10))
    leader.ask(leader.storage.make_room, leader.files, leader.handle, 1 << 20)
    driver, (_role, term) = leader.driver, leader.role()

    def begin(now_ms):
        driver.core.take_back(GROUP, now_ms)
        driver.core.groups[GROUP].begin_next_term(now_ms)

    def append_and_stand():
        driver.core.take_back(GROUP, driver._now_ms())
        assert leader.plane.append(leader.handle, batch(0, [b"kept"])).error_code == ErrorCode.NONE
        driver.act(begin)
        return leader.plane.leads(leader.handle)

    assert not leader.ask(append_and_stand), "nothing is appended between two leaderships"
    either.until(lambda: leader.role() == (LEADER, term + 1) and leader.bounds().high_watermark == 11)
    either.produce(leader, values("b", 10))
    either.check()
    assert leader.bounds().log_end_offset == 21


@pytest.mark.parametrize("when", ["with the commit", "before it"])
def test_whoever_waits_is_answered_by_a_leader_that_stands_again(cores, when):
    """In the turn in which what it waits for is committed, or in the next term."""
    leader = cores.leader()
    cores.produce(leader, values("a", 1))
    machine, term = leader.driver.core.groups[GROUP], leader.role()[1]
    stands, begun = Group._committed if when == "with the commit" else Group.propose, []

    def stand(*arguments):
        found = stands(*arguments)
        if arguments[0] is machine and not begun and machine.is_ready:
            begun.append(machine.term)
            machine.begin_next_term(leader.driver._now_ms())
        return found

    with mock.patch.object(Group, stands.__name__, stand):
        cores.produce(leader, values("b", 1))
    assert begun == [term]
    cores.until(lambda: leader.role() == (LEADER, term + 1))
    cores.produce(leader, values("c", 10))
    cores.check()


def test_what_was_appended_when_a_leadership_is_handed_over_is_the_next_leaders(either):
    """And nothing is taken any more, which its client would have to send again."""
    leader = either.leader()
    either.produce(leader, values("a", 10))
    leader.ask(leader.storage.make_room, leader.files, leader.handle, 1 << 20)
    driver, target = leader.driver, next(node for node in either.up() if node is not leader)

    def append_and_hand_over():
        driver.core.take_back(GROUP, driver._now_ms())
        assert leader.plane.append(leader.handle, batch(0, [b"kept"])).error_code == ErrorCode.NONE
        voter = Voter(NodeId(target.number), 0)
        assert driver.act(lambda now_ms: driver.core.transfer_leadership(GROUP, voter, now_ms)) is None
        return driver._replicas[GROUP].is_refusing

    assert leader.ask(append_and_hand_over)
    either.until(lambda: either.leader() is target)
    either.produce(target, values("b", 10))
    either.check()
    assert target.bounds().log_end_offset == 21


def test_whoever_waits_for_a_hand_over_that_is_given_up_is_told(cores):
    leader = cores.leader()
    cores.produce(leader, values("a", 10))
    driver, target = leader.driver, next(node for node in cores.up() if node is not leader)
    target.is_heard = False
    told = []

    def hand_over():
        driver.on_role = lambda *what: told.append(what)
        voter = Voter(NodeId(target.number), 0)
        assert driver.act(lambda now_ms: driver.core.transfer_leadership(GROUP, voter, now_ms)) is None
        return told[:]

    assert leader.ask(hand_over) == []
    cores.until(lambda: told)
    assert told == [(GROUP, *leader.role())]
    assert not leader.ask(lambda: driver._replicas[GROUP].is_refusing)


def test_a_cut_of_what_was_never_proposed_that_is_lost_with_the_journal_is_made_when_it_works_again(cores):
    """The machine does not know of those records: kept, they would stand where the next leader has others."""
    first = cores.leader()
    cores.produce(first, values("a", 10))
    cores.check()
    others = [node for node in cores.up() if node is not first]
    driver, machine = first.driver, first.driver.core.group(GROUP)
    first.ask(first.storage.make_room, first.files, first.handle, 1 << 20)
    for node in others:
        node.is_heard = False

    def append():
        assert first.plane.append(first.handle, batch(0, [b"lost"])).error_code == ErrorCode.NONE

    def append_in_a_hand_over():
        voter = Voter(NodeId(others[0].number), 0)
        assert driver.core.transfer_leadership(GROUP, voter, driver._now_ms()) is None
        driver._turn = lambda: None
        append()

    first.ask(append_in_a_hand_over)
    cores.until(lambda: first.ask(lambda: first.plane.state(first.handle).durable_offset) == 11)
    broken = first.ask(BrokenJournal, first)

    def fail_before_the_cut():
        broken.__enter__()
        append()  # a cut waits for what is on its way
        delattr(driver, "_turn")
        driver.act(machine.resign)
        return [type(entry) for _number, entry in driver._replicas[GROUP].entries]

    assert first.ask(fail_before_the_cut) == [CutEntry]
    cores.until(lambda: first.ask(first.plane.journal_error))
    first.ask(broken.__exit__)
    cores.until(lambda: not first.ask(first.plane.journal_error))
    for node in others:
        node.is_heard = True
    cores.produce_at_leader(values("b", 4))
    cores.check()
    assert b"lost" not in b"".join(first.log().values())


@pytest.mark.parametrize("is_carried", [False, True], ids=["by the machine", "carried by C"])
def test_a_leader_whose_disk_hangs_leads_no_more_however_much_is_appended(make_cores, is_carried):
    """Its followers acknowledge all that they are sent, so nothing but the disk stands still."""
    cores = make_cores(is_carried=is_carried, has_beats=is_carried)
    first = cores.leader()
    stalls = replace(first.driver.core.settings, disk_hangs_ms=2_000)  # the others' disks may be slow
    first.ask(setattr, first.driver.core, "settings", stalls)
    cores.produce(first, values("a", 5))
    if is_carried:
        cores.until(lambda: all(node.is_carried() for node in cores.up()))
    first.ask(first.storage.make_room, first.files, first.handle, 8 << 20)

    def append():
        """Nobody waits for it, as with acks=0."""
        return not first.plane.leads(first.handle) or first.plane.append(first.handle, batch(0, [b"more"]))

    with HungJournal(first):
        cores.until(lambda: first.ask(append) and first.role()[0] is not LEADER)
        assert cores.produce_at_leader(values("b", 5)) is not first
    cores.until(
        lambda: not first.ask(first.plane.journal_error) and not first.ask(lambda: first.driver.core.disk_hangs)
    )
    cores.produce_at_leader(values("c", 5))
    cores.check()
