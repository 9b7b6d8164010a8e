"""Three cores with real disks drive a replicated partition: produces over connections, crashes, failing journals."""

import errno
import time
from dataclasses import replace
from unittest import mock

import pytest
import trio
import trio.testing

from tests.engine.faults import BrokenJournal
from tests.engine.in_place_core import KEY, Bench
from tests.log.log_batches import batch
from tests.support.replica_cores import GROUP, PATIENT
from tpc_broker.bench.kafka_requests import produce_request
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.model import NodeId
from tpc_broker.node.replicas import item_reads
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Position, Voter, simple
from tpc_broker.raft.journal import CutEntry
from tpc_broker.raft.output import LEADER, ReadItems
from tpc_broker.raft.settings import Settings
from tpc_broker.storage.segments.partition_storage import PartitionStorage
from tpc_broker.storage.segments.segment_log import OffsetOutOfRangeError


@pytest.fixture
def cores(make_cores):
    return make_cores()


@pytest.fixture(params=[False, True], ids=["by the machine", "carried by C"])
def either(make_cores, request):
    """What is steady is done by the machine, or by C."""
    return make_cores(is_carried=request.param)


ANOTHER = "topic-1"


def add_another(node, voters):
    """A second partition; its files and handle."""

    async def add():
        key = KEY._replace(partition=1)
        files = await node.storage.open(key, "topic", Bench.make_config())
        handle = node.storage.register(files, Bench.make_config(), is_internal=False, is_replicated=True)
        node.driver.add(ANOTHER, handle, files, Voter(node.address.node, 0), voters)
        return files, handle

    return node.ask(add)


def values(name, count, size=100):
    return [f"{name}-{number}".encode().ljust(size, b".") for number in range(count)]


def write_and_checkpoint(node):
    async def work():
        await node.storage.write_behind()
        assert await node.storage.checkpoint()

    node.ask(work)


def test_what_is_acknowledged_is_everywhere_and_shown(either):
    leader = either.leader()
    either.produce(leader, values("a", 50))
    either.check()
    either.produce(leader, values("large", 5, 300_000))
    either.check()


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_leader_that_crashes_comes_back_as_a_follower_and_nothing_is_lost(either, is_checkpointed):
    first = either.leader()
    either.produce(first, values("a", 20))
    if is_checkpointed:
        either.check()
        for node in either.up():
            write_and_checkpoint(node)
    either.crash(first.number)
    second = either.produce_at_leader(values("b", 20))
    assert second is not first
    either.start(first.number)
    either.check()
    assert either.nodes[first.number].role()[0] is not LEADER
    either.crash(second.number)
    either.produce_at_leader(values("c", 5))
    either.start(second.number)
    either.check()


def test_all_crash_at_once_and_everything_acknowledged_is_there(either):
    for round_ in range(2):
        either.produce_at_leader(values(f"round{round_}", 20))
        for number in range(3):
            either.crash(number)
        for number in range(3):
            either.start(number)
        either.check()


def test_a_leader_whose_journal_fails_gives_the_partition_up_and_follows_when_it_works(either):
    first = either.leader()
    either.produce(first, values("a", 10))
    broken = first.ask(BrokenJournal, first)
    first.ask(broken.__enter__)
    either.produce(first, values("lost", 3), expected=ErrorCode.KAFKA_STORAGE_ERROR)
    either.until(lambda: first.role()[0] is not LEADER)
    second = either.produce_at_leader(values("b", 10))
    first.ask(broken.__exit__)
    either.until(lambda: not first.ask(first.plane.journal_error))
    either.check()
    terms = [epoch for epoch, _start in second.epochs()]
    assert terms == sorted(set(terms))


def test_what_the_machine_had_not_heard_of_when_the_journal_failed_is_cut(cores):
    first = cores.leader()
    cores.produce(first, values("a", 10))
    first.ask(first.storage.make_room, first.files, first.handle, 1 << 20)
    driver = first.driver

    def append(value):
        result = first.plane.append(first.handle, batch(0, [value]))
        assert result.error_code == ErrorCode.NONE

    def append_without_a_turn():
        driver._turn = lambda: None  # all of what follows may happen in one turn of the ring
        append(b"durable")

    first.ask(append_without_a_turn)
    cores.until(lambda: first.ask(lambda: first.plane.state(first.handle).durable_offset) == 11)
    broken = first.ask(BrokenJournal, first)
    first.ask(broken.__enter__)
    first.ask(append, b"lost")
    cores.until(lambda: first.ask(first.plane.journal_error))
    first.ask(lambda: delattr(driver, "_turn"))
    cores.until(lambda: first.role()[0] is not LEADER)
    second = cores.leader()
    first.ask(broken.__exit__)
    cores.until(lambda: not first.ask(first.plane.journal_error))
    cores.produce(second, values("b", 10))
    cores.check()
    assert cores.leader().bounds().log_end_offset == 20


def never_notice_silence(node):
    """A leader goes on taking appends while nobody hears it, for as long as the test needs."""
    for link in node.driver.core.links.values():
        link.silent_after_ms = 1_000_000


def test_what_a_lone_leader_appended_is_cut_when_it_comes_back(either):
    first = either.leader()
    either.produce(first, values("a", 10))
    others = [node for node in either.up() if node is not first]
    first.ask(never_notice_silence, first)
    for node in others:
        either.crash(node.number, is_noticed=False)
    data = values("lost", 5)
    with first.connect() as client:
        for value in data:
            client.sendall(produce_request("topic", 0, batch(0, [value])))
        either.until(lambda: first.bounds().log_end_offset == 15)
        assert first.bounds().high_watermark == 10
    either.crash(first.number)
    for node in others:
        either.start(node.number)
    either.produce(either.leader(), values("b", 10))
    either.start(first.number)
    either.check()
    assert either.leader().bounds().log_end_offset == 20


def all_have_acknowledged(cores, leader, offset):
    """Whoever has acknowledged nothing gets segments, which nobody ships here."""
    cores.until(lambda: {one.match for one in leader.ask(lambda: leader.driver.core.look(GROUP).rows)} == {offset})


def test_a_follower_that_was_away_for_long_is_sent_what_is_in_files_only(either):
    leader = either.leader()
    either.produce(leader, values("a", 10))
    all_have_acknowledged(either, leader, 10)
    away = next(node for node in either.up() if node is not leader)
    either.crash(away.number)
    for number in range(5):
        either.produce(leader, values(f"b{number}", 20, 10_000))
    write_and_checkpoint(leader)
    leader.ask(lambda: leader.plane.set_cache_bytes_max(0, 0))
    leader.ask(lambda: leader.plane.evict(1 << 30))
    either.until(lambda: leader.ask(lambda: leader.driver.core.group(GROUP).log.start.offset) == 110)
    either.start(away.number)
    either.check()


def test_what_a_follower_lacks_is_read_a_few_batches_at_a_time(cores, monkeypatch):
    """Each is work for both ends in one step, however small it is."""
    monkeypatch.setattr(item_reads, "BATCHES_AT_ONCE", 7)
    leader = cores.leader()
    cores.produce(leader, values("a", 10))
    all_have_acknowledged(cores, leader, 10)
    away = next(node for node in cores.up() if node is not leader)
    cores.crash(away.number)
    cores.produce(leader, values("b", 30))
    write_and_checkpoint(leader)
    leader.ask(lambda: leader.plane.set_cache_bytes_max(0, 0))
    leader.ask(lambda: leader.plane.evict(1 << 30))
    cores.until(lambda: leader.ask(lambda: leader.driver.core.group(GROUP).log.start.offset) == 40)
    take, counts = RaftCore.items_read, []

    def count(core, group, target, prev, batches, now_ms):
        counts.append(len(batches))
        take(core, group, target, prev, batches, now_ms)

    monkeypatch.setattr(RaftCore, "items_read", count)
    cores.start(away.number)
    cores.check()
    assert sum(counts) >= 30
    assert max(counts) == 7


@pytest.mark.parametrize(
    "trouble", [OSError(errno.EIO, "no"), PartitionOfflineError("no"), OffsetOutOfRangeError("no"), ValueError("gone")]
)
def test_what_cannot_be_read_for_a_follower_is_read_when_it_can_be(either, monkeypatch, caplog, trouble):
    monkeypatch.setattr(item_reads, "RETRY_S", 0.05)
    leader = either.leader()
    either.produce(leader, values("a", 10))
    all_have_acknowledged(either, leader, 10)
    away = next(node for node in either.up() if node is not leader)
    either.crash(away.number)
    either.produce(leader, values("b", 20, 300_000))  # more than is read at once, for C or for the machine
    write_and_checkpoint(leader)
    leader.ask(lambda: leader.plane.set_cache_bytes_max(0, 0))
    leader.ask(lambda: leader.plane.evict(1 << 30))
    either.until(lambda: leader.ask(lambda: leader.driver.core.group(GROUP).log.start.offset) == 30)
    read, refused, refuses = PartitionStorage.read, [], True

    async def refuse(files, *arguments):
        if files is leader.files and refuses and arguments[0] > 10:  # who has got the first of it follows its leader
            refused.append(arguments)
            raise trouble
        return await read(files, *arguments)

    monkeypatch.setattr(PartitionStorage, "read", refuse)
    either.start(away.number)
    either.until(lambda: len(refused) >= 5)
    assert either.leader() is leader, "nobody else could read it"
    refuses = False
    either.check()
    told = [record.getMessage() for record in caplog.records if record.name == item_reads.__name__]
    assert len(told) == 2, "once that it cannot be, once that it can be again"


def test_of_what_a_peer_lacks_nothing_is_read_that_the_machine_does_not_know_or_that_another_term_has_cut(make_cores):
    cores = make_cores(count=1)
    node = cores.leader()
    cores.produce(node, values("a", 10))
    machine = node.driver.core.group(GROUP)
    cores.until(lambda: node.ask(lambda: machine.log.end_offset) == 10)
    wanted = ReadItems(GROUP, Voter(NodeId(1), 0), Position(machine.term, 5), 1 << 20)
    read_log = node.plane.read_log

    def read_in_the_next_term(*arguments):
        machine.term += 1
        return read_log(*arguments)

    async def read():
        node.driver._turn = lambda: None
        assert node.plane.append(node.handle, batch(0, [b"not proposed"])).error_code == ErrorCode.NONE
        with mock.patch.object(node.driver.core, "items_read") as told:
            await node.driver.item_reads.read(node.driver._replicas[GROUP], wanted)
            with mock.patch.object(node.plane, "read_log", read_in_the_next_term):
                await node.driver.item_reads.read(node.driver._replicas[GROUP], wanted)
        return [[batch.end_offset for batch in call.args[3]] for call in told.call_args_list]

    node.ask(node.storage.make_room, node.files, node.handle, 1 << 20)
    assert node.ask(read) == [[6, 7, 8, 9, 10]]


@pytest.mark.parametrize("is_evicted", [False, True])
def test_above_what_may_wait_for_a_quorum_appends_are_refused_until_there_is_one(make_cores, is_evicted):
    cores = make_cores(settings=replace(PATIENT, uncommitted_bytes_max=1000))
    leader = cores.leader()
    others = [node for node in cores.up() if node is not leader]
    leader.ask(leader.storage.make_room, leader.files, leader.handle, 1 << 20)

    def append():
        return leader.plane.append(leader.handle, batch(0, [bytes(900)])).error_code

    def is_refused():
        return leader.driver._replicas[GROUP].is_refusing and append() == ErrorCode.NOT_ENOUGH_REPLICAS

    for node in others:
        node.is_heard = False
    for number in range(1, 3):
        assert leader.ask(append) == ErrorCode.NONE
        cores.until(lambda number=number: leader.ask(lambda: leader.driver.core.group(GROUP).log.end_offset) == number)
    assert leader.ask(append) == ErrorCode.NONE, "not proposed yet"
    cores.until(lambda: leader.ask(is_refused))
    if is_evicted:  # what was refused, too
        write_and_checkpoint(leader)
        leader.ask(lambda: leader.plane.set_cache_bytes_max(0, 0))
        leader.ask(lambda: leader.plane.evict(1 << 30))
    for node in others:
        node.is_heard = True
    cores.until(lambda: not leader.ask(lambda: leader.driver._replicas[GROUP].is_refusing))
    cores.produce_at_leader(values("b", 3))
    cores.check()


def test_a_core_that_stood_still_is_waited_for_longer_by_all(make_cores):
    """Where C says heartbeats it knows how late they were, by what its thread ran: one that slept was not late."""
    cores = make_cores(settings=Settings(), is_carried=True, has_beats=True)
    cores.leader()
    first = cores.nodes[0]
    cores.until(lambda: first.ask(lambda: all(link.is_vouched for link in first.driver.core.links.values())))

    def stand_still():
        until_s = time.thread_time() + 0.9
        while time.thread_time() < until_s:
            pass

    first.ask(stand_still)
    cores.until(lambda: all(node.ask(lambda node=node: node.driver.core.patience.slowness > 1) for node in cores.up()))
    cores.produce_at_leader(values("a", 3))
    cores.check()


def test_a_leader_whose_hand_over_comes_to_nothing_takes_appends_again(either):
    """Also what it was given meanwhile, of which it has told nobody."""
    first = either.leader()
    either.produce(first, values("a", 3))
    driver, target = first.driver, next(node for node in either.up() if node is not first)
    first.ask(first.storage.make_room, first.files, first.handle, 1 << 20)
    target.is_heard = False

    def hand_over():
        target_voter = Voter(NodeId(target.number), 0)
        assert driver.core.transfer_leadership(GROUP, target_voter, driver._now_ms()) is None
        assert first.plane.append(first.handle, batch(0, [b"held"])).error_code == ErrorCode.NONE
        driver.wake()

    first.ask(hand_over)
    either.until(lambda: first.ask(lambda: driver._replicas[GROUP].is_refusing))
    either.until(lambda: first.bounds().high_watermark == 4)
    either.until(lambda: not first.ask(lambda: driver._replicas[GROUP].is_refusing))
    target.is_heard = True
    either.produce(either.leader(), values("b", 3))
    either.check()


@pytest.mark.parametrize("reason", ["too much waits for a quorum", "a transfer is under way"])
def test_what_was_refused_goes_before_anything_of_the_next_leader_comes(make_cores, reason):
    """One turn in which a leader is refused a proposal, steps down, and hears what its successor has appended."""
    cores = make_cores(settings=Settings(uncommitted_bytes_max=1))
    first = cores.leader()
    for value in values("a", 10):
        cores.produce(first, [value])
    others = [node for node in cores.up() if node is not first]
    machine, driver = first.driver.core.group(GROUP), first.driver
    first.ask(first.storage.make_room, first.files, first.handle, 1 << 20)

    def append():
        assert first.plane.append(first.handle, batch(0, [b"lost"])).error_code == ErrorCode.NONE

    def stop_turns():
        if reason == "a transfer is under way":
            now_ms = driver._now_ms()
            assert driver.core.transfer_leadership(GROUP, Voter(NodeId(others[0].number), 0), now_ms) is None
        driver._turn = lambda: None
        append()
        append()

    if reason == "too much waits for a quorum":
        for node in others:
            node.is_heard = False
        first.ask(append)
        cores.until(lambda: first.ask(lambda: machine.log.end_offset) == 11)
    first.ask(stop_turns)
    for node in others:
        node.is_heard = True
    second = cores.until(lambda: next((node for node in others if cores.leader() is node), None))
    for value in values("b", 4):
        cores.produce(second, [value])
    first.ask(lambda: delattr(driver, "_turn"))
    cores.check()
    assert cores.leader().bounds().log_end_offset == 14


def test_who_waits_for_a_quorum_of_a_replica_that_is_removed_is_told_that_there_is_none(cores):
    leader = cores.leader()
    cores.produce(leader, values("a", 3))
    for node in cores.up():
        node.is_heard = node is leader

    async def confirm():
        found = []

        async def wait():
            found.append(await leader.driver.confirm(GROUP))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not found
            leader.driver.remove(GROUP)
            leader.driver.remove(GROUP)
        return found

    assert leader.ask(confirm) == [False]


def test_a_replica_that_is_sent_damaged_records_is_silent_and_holds_up_nobody(cores, caplog):
    leader = cores.leader()
    cores.produce(leader, values("a", 3))
    follower = next(node for node in cores.up() if node is not leader)
    cores.until(lambda: follower.bounds().log_end_offset == 3)
    append = follower.plane.append_replica

    def damage(handle, term, data):
        return append(handle, term, bytes(data[:-1]) + b"!")

    with mock.patch.object(follower.plane, "append_replica", damage):
        cores.produce(leader, values("b", 3))
        cores.until(lambda: follower.ask(lambda: GROUP not in follower.driver.core.groups))
    assert follower.ask(lambda: follower.driver._open) == {}
    assert follower.bounds().log_end_offset == 3
    assert "damaged records (CORRUPT_MESSAGE)" in caplog.text
    cores.produce(leader, values("c", 3))


def test_a_replica_that_goes_with_a_cut_of_its_own_sets_no_other_back(cores):
    """A cut that the machine did not ask for has no number of its."""
    leader = cores.leader()
    add_another(leader, simple([Voter(leader.address.node, 0), Voter(NodeId(7), 0)]))
    leader.ask(leader.storage.make_room, leader.files, leader.handle, 1 << 20)
    durable = leader.ask(leader.plane.durable_sequence)
    with (
        leader.connect() as client,
        mock.patch.object(leader.plane, "durable_sequence", return_value=durable) as journal,
    ):
        client.sendall(produce_request("topic", 0, batch(0, [b"one"])))
        cores.until(lambda: leader.ask(lambda: leader.driver.core.group(GROUP).log.end_offset) == 1)
        cores.until(lambda: leader.ask(lambda: not leader.driver._replicas[GROUP].entries))

        def end():
            machine, replica = leader.driver.core, leader.driver._replicas[ANOTHER]
            replica.is_busy = True
            replica.entries.append((0, CutEntry(ANOTHER, 0, 0)))
            leader.driver.remove(ANOTHER)
            said, journal.return_value = machine.sequence, 1 << 60
            leader.driver._turn()
            return machine.durable_sequence == said

        assert leader.ask(end)


NO_SPACE = OSError(28, "no space, for a test")


def take_space(node, handle):
    """One partition has no segment space from now on; how often it was asked for, and what gives it back."""
    space, asked = node.storage._space, []
    make = space.make

    async def refusing(files, of, size):
        if of == handle:
            asked.append(size)
            raise NO_SPACE
        await make(files, of, size)

    space.make = refusing
    node.plane.admit(handle, -node.plane.state(handle).bytes_admitted)
    return asked, lambda: setattr(space, "make", make)


def test_a_partition_without_space_holds_back_no_other_of_its_core(either):
    """A follower's: neither acknowledgements nor leaderships. What it is sent meanwhile it has when there is space."""
    leader = either.leader()
    follower, third = (node for node in either.up() if node is not leader)
    either.produce(leader, values("a", 3))
    either.until(lambda: follower.bounds().high_watermark == 3)
    others = {
        node: add_another(node, simple([Voter(NodeId(number), 0) for number in range(3)]))[1] for node in either.up()
    }
    either.crash(third.number)
    others.pop(third)

    def leads_another():
        """A new leader takes what it may tell clients of."""
        return next(
            (node for node in others if node.ask(lambda node=node: node.driver._replicas[ANOTHER].armed_term
             and node.driver._replicas[ANOTHER].role is LEADER)), None
        )  # fmt: skip

    either.until(lambda: leads_another() and either.leader() is leader)
    asked, gives_back = follower.ask(take_space, follower, follower.handle)
    one = batch(0, [b"held"])
    leader.ask(leader.storage.make_room, leader.files, leader.handle, len(one))
    with leader.connect() as client:
        client.sendall(produce_request("topic", 0, one))
        either.until(lambda: len(asked) > 1)
        for number in range(3):
            node = either.until(leads_another)
            node.ask(node.storage.make_room, node.driver.files_of(ANOTHER), others[node], 1 << 16)
            assert node.ask(node.plane.append, others[node], batch(0, [b"another"])).error_code == ErrorCode.NONE
            either.until(lambda node=node, end=number + 1: node.ask(node.plane.bounds, others[node])[2] == end)
        asked_before = len(asked)
        either.until(lambda: len(asked) > asked_before + 1)
        either.until(lambda: follower.ask(lambda: not follower.driver.core._pending))
        assert leader.bounds().high_watermark == 3, "it lacks one of the two"
        assert either.leader() is leader
        follower.ask(gives_back)
        either.until(lambda: follower.bounds().high_watermark == 4)


# -- carried by C


def steady(node):
    return node.ask(node.plane.steady_statistics)


def test_what_is_steady_is_carried_by_c_and_the_machines_know_of_it(carried):
    leader = carried.leader()
    carried.produce(leader, values("first", 5))  # a follower makes room for its first records by Python
    carried.until(lambda: all(node.is_carried() for node in carried.up()))
    before = {node.number: steady(node) for node in carried.up()}
    proposed = leader.ask(lambda: leader.driver.core.sequence)
    for number in range(5):
        carried.produce(leader, values(f"a{number}", 20))
    carried.produce(leader, values("large", 3, 100_000))
    carried.check()
    assert leader.ask(lambda: leader.driver.core.sequence) == proposed, "the machine has proposed nothing"
    for node in carried.up():
        now = steady(node)
        assert now["unsteady"] == before[node.number]["unsteady"]
        assert node is leader or now["append_bytes_taken"] - before[node.number]["append_bytes_taken"] > 300_000
        machine = node.ask(node.driver.core.look, GROUP)
        assert (machine.carried, machine.log.end_offset) == (True, 108)
    carried.until(lambda: leader.ask(leader.driver.core.look, GROUP).high_watermark == 108)


def test_a_link_that_breaks_gives_its_groups_back_and_a_new_one_takes_them(carried):
    leader = carried.leader()
    carried.produce(leader, values("a", 10))
    other = next(node for node in carried.up() if node is not leader)
    for number in range(3):
        leader.ask(leader.driver.carrier.close, other.address)
        carried.produce(leader, values(f"b{number}", 10))
        carried.check()
        carried.until(lambda: not leader.ask(leader.driver.carrier.has_link, other.address))
        assert not leader.is_carried(), "somebody who is heard has no link"
        carried.produce(leader, values(f"c{number}", 10))
        carried.link(leader, other)
        carried.link(other, leader)
        carried.until(lambda: all(node.is_carried() for node in carried.up()))
        carried.produce(leader, values(f"d{number}", 10))
        carried.check()


def test_whoever_looks_is_told_which_machines_were_awake_since(carried):
    leader = carried.leader()
    watches = leader.ask(lambda: [leader.driver.carrier.watch_awake() for _ in range(2)])

    def is_asleep(watch):
        return leader.ask(lambda: watch.take() == [] and leader.driver.core.groups[GROUP].carried)

    for watch in watches:
        carried.until(lambda watch=watch: is_asleep(watch))
    leader.ask(lambda: leader.driver.core.take_back(GROUP, leader.driver._now_ms()))
    carried.until(leader.is_carried)
    for watch in watches:
        assert leader.ask(watch.take) == [GROUP]


def test_a_silent_follower_holds_up_nobody_and_comes_back(carried):
    leader = carried.leader()
    carried.produce(leader, values("a", 10))
    away = next(node for node in carried.up() if node is not leader)
    carried.crash(away.number)
    carried.produce(leader, values("b", 10))
    carried.until(lambda: not leader.ask(lambda: leader.driver.core.links[away.address].was_fresh))
    carried.until(leader.is_carried)  # again: who has fallen silent sets the group back
    sent = steady(leader)["appends_sent"]
    carried.produce(leader, values("c", 10))
    assert steady(leader)["appends_sent"] > sent, "to the one that is heard"
    carried.start(away.number)
    carried.check()
    carried.until(lambda: all(node.is_carried() for node in carried.up()))
    carried.produce(leader, values("d", 10))
    carried.check()


def test_a_leadership_is_handed_over_while_it_is_carried(carried):
    for _ in range(4):
        leader = carried.leader()
        carried.produce(leader, values("a", 10))
        target = next(node for node in carried.up() if node is not leader)

        def transfer(leader=leader, target=target):
            core = leader.driver.core
            refused = core.transfer_leadership(GROUP, Voter(NodeId(target.number), 0), leader.driver._now_ms())
            leader.driver.wake()
            return refused

        assert leader.ask(transfer) is None
        carried.until(lambda target=target: carried.leader() is target)
        carried.produce(target, values("b", 10))
        carried.check()
        carried.until(lambda: all(node.is_carried() for node in carried.up()))


def test_a_leader_that_is_carried_answers_who_asks_whether_it_leads(carried):
    leader = carried.leader()
    carried.produce(leader, values("a", 10))

    async def confirm_asleep():
        """Whether C has gone on with the group; a link may have been late meanwhile."""
        machine = leader.driver.core.groups[GROUP]
        carries = machine.carries if machine.carried else 0
        return await leader.driver.confirm(GROUP) and machine.carried and machine.carries == carries

    carried.until(lambda: leader.ask(confirm_asleep))
    for node in carried.up():
        node.is_heard = node is leader

    async def confirm():
        with trio.move_on_after(0.2):
            return await leader.driver.confirm(GROUP)
        return None

    assert leader.ask(confirm) is not True, "nobody answers by the other link"


def test_heartbeats_are_cs_where_there_are_links_for_them_and_the_machines_again_where_not(make_cores):
    cores = make_cores(is_carried=True, has_beats=True)
    cores.leader()
    links = [(node, link) for node in cores.up() for link in node.driver.core.links.values()]
    cores.until(lambda: all(link.is_vouched for _node, link in links))
    for node in cores.up():
        node.is_heard = False  # of the machines nothing arrives any more

    def is_heard(node, link, after_ms):
        node.ask(link.look)
        return link.heard_ms is not None and link.heard_ms > after_ms

    cut_ms = max(link.heard_ms for _node, link in links)
    cores.until(lambda: all(is_heard(node, link, cut_ms + 500) for node, link in links))
    for node in cores.up():
        node.is_heard = True
    cores.produce_at_leader(values("first", 3))

    source, other = cores.nodes[:2]
    link = source.driver.core.links[other.address]
    cores.until(lambda: link.is_vouched)
    before = link.number
    source.ask(source.driver.carrier.close, other.address)
    cores.until(lambda: not link.is_vouched and link.number >= before + 5)
    cores.link(source, other)
    cores.link(other, source)
    cores.until(lambda: link.is_vouched)
    cores.produce_at_leader(values("second", 3))
    cores.check()
