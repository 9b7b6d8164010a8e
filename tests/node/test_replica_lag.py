"""Three cores with real disks drive a replicated partition of large batches, and not all of them are as fast."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.node.test_replica_driver import take_space
from tests.support.descriptors import open_descriptors
from tests.support.replica_cores import GROUP
from tests.support.waiting import eventually
from tpc_broker.engine.steady_plane import SteadyWant
from tpc_broker.raft.items import Position


def values(count, size):
    return [f"{number}".encode().ljust(size, b".") for number in range(count)]


def until_in_place(cores):
    """Large batches, until all write them once."""
    leader = cores.leader()

    def opens(node):
        async def look():
            await node.storage.write_behind(all_of_it=False)
            await node.storage.checkpoint()
            return node.plane.set_in_place_space(node.handle, node.files.active.reserved_end_position)

        return node.ask(look)

    for _ in range(20):
        cores.produce(leader, values(4, 300_000))
        opened = [opens(node) for node in cores.up()]
        if all(opened):
            return
    pytest.skip("the file system takes no direct writes here")


def test_followers_write_large_batches_from_where_they_arrived(carried):
    until_in_place(carried)
    leader = carried.leader()
    followers = [node for node in carried.up() if node is not leader]
    before = [node.ask(node.plane.journal_statistics) for node in followers]
    for _ in range(4):
        carried.produce(leader, values(3, 150_000))
    carried.check()
    for node, had in zip(followers, before, strict=True):
        has = node.ask(node.plane.journal_statistics)
        assert has["in_place_bytes_written"] - had["in_place_bytes_written"] > 1_200_000, "hardly anything"
        staged = has["in_place_bytes_staged"] - had["in_place_bytes_staged"]
        assert staged <= 12 * 4096 + 450_000, "more than shared blocks, and the first ones"


def keep_nothing(cores):
    """What is in segments leaves memory at once."""
    for node in cores.up():
        node.ask(node.plane.set_cache_bytes_max, 0, 0)


def write(cores, count, size=200_000):
    """By the leader, whose segments have it then."""
    leader = cores.leader()
    cores.produce(leader, values(count, size))

    async def to_segments():
        await leader.storage.write_behind()

    leader.ask(to_segments)


def in_touch(node):
    def look():
        machine = node.driver.core.look(GROUP)
        return len(machine.in_touch())

    return node.ask(look)


def counted(node, name):
    return node.ask(node.driver.carrier.statistics)[name]


@pytest.mark.machine  # who brings it first, C or Python, is chance: it was Python's once in some twenty runs
def test_a_follower_that_comes_back_is_brought_what_it_lacks_by_c(carried):
    """The group is C's again as soon as the follower follows at all."""
    leader = carried.leader()
    keep_nothing(carried)
    write(carried, 5)
    number = next(node.number for node in carried.up() if node is not leader)
    carried.crash(number, is_noticed=False)
    for _ in range(10):
        write(carried, 5)
    assert carried.leader() is leader
    carried.until(leader.is_carried)
    carried.start(number)
    carried.until(lambda: counted(leader, "given_bytes") > 1_000_000)
    carried.check()
    carried.until(lambda: in_touch(leader) == 3)
    carried.until(lambda: all(node.is_carried() for node in carried.up()))
    write(carried, 2)
    carried.check()


def test_who_is_in_sync_is_told_of_a_group_that_stays_with_c(carried):
    """It is asked for when a machine has been awake, or as if it had. A machine that pauses has groups awake too."""
    leader = carried.leader()
    watch = leader.ask(leader.driver.carrier.watch_awake)
    machine = leader.driver.core.groups[GROUP]
    write(carried, 1)
    lost = []

    def lose():
        watch.take()
        carries = machine.carries
        if machine.carried and len(machine.in_touch()) == 3:
            assert leader.driver.core.look(GROUP).lags(0)
            leader.driver.carrier.lagging.given(GROUP, machine)
            lost.append((len(machine.in_touch()), watch.take(), machine.carries - carries))

    def has_lost():
        leader.ask(lose)
        return lost

    carried.until(has_lost)
    assert lost == [(2, [], 1)]
    carries = machine.carries
    write(carried, 1)
    carried.until(lambda: leader.ask(watch.take) == [GROUP])
    carried.until(lambda: in_touch(leader) == 3)
    assert machine.carries > carries
    carried.until(leader.is_carried)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_was_deleted_is_the_machines_to_see_to(carried, is_deleted):
    leader = carried.leader()
    write(carried, 5)
    carried.check()
    machine = leader.driver.core.groups[GROUP]

    async def read():
        state = leader.plane.steady_state(leader.handle)
        want = SteadyWant(leader.handle, state.peers[0].link, state.peers[0].incarnation, 2, state.term, 0)
        if is_deleted:
            leader.plane.set_log_start(leader.handle, 4)
        assert leader.plane.steady_give(want, b"") is None, "nobody has asked"
        await leader.driver.carrier.lagging.read(GROUP, leader.files, want, leader.driver._now_ms)
        assert machine.carried != is_deleted
        assert machine.needs_segments(Position(state.term, 2)) == is_deleted

    leader.ask(read)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_leaves_memory_everybody_comes_to_the_same(carried, seed):
    chance = random.Random(seed)
    for _ in range(8):
        keep_nothing(carried)
        for _ in range(chance.randint(1, 4)):
            write(carried, chance.randint(1, 8), chance.choice([100, 20_000, 400_000]))
        down = [number for number, node in enumerate(carried.nodes) if node is None]
        if down:
            carried.start(down[0])
        elif chance.random() < 0.7:
            carried.crash(chance.choice([node.number for node in carried.up() if node is not carried.leader()]))
        else:
            carried.crash(carried.leader().number)
    for number, node in enumerate(carried.nodes):
        if node is None:
            carried.start(number)
    carried.check()
    carried.until(lambda: all(node.is_carried() for node in carried.up()))


def test_what_a_follower_dropped_is_sent_again_while_its_leader_is_under_load(make_cores):
    """It had no space for as much as may be under way; the other one answers all the time. On a machine that pauses
    nobody else comes to lead.
    """
    cores = make_cores(is_carried=True, has_beats=True)
    leader = cores.leader()
    cores.produce(leader, values(5, 100))
    cores.until(lambda: all(node.is_carried() for node in cores.up()))
    follower = next(node for node in cores.up() if node is not leader)
    cores.until(lambda: follower.bounds().log_end_offset == 5)

    def is_in_sync():
        peers = leader.driver.core.look(GROUP).peers
        return next(peer.is_in_sync for peer in peers.values() if peer.voter.node == follower.number)

    def is_named():
        machine = leader.driver.core.look(GROUP)
        return follower.number in [voter.node for voter in machine.in_touch()]

    def load_until(condition, size):
        def go_on():
            cores.produce(leader, values(1, size))
            return condition()

        cores.until(go_on)

    asked, give_back = follower.ask(take_space, follower, follower.handle)
    load_until(lambda: asked and not leader.ask(is_in_sync), 100_000)  # not `is_named`: a link may be late, too
    assert follower.bounds().log_end_offset == 5
    follower.ask(give_back)
    missing = leader.bounds().log_end_offset
    load_until(lambda: follower.bounds().log_end_offset > missing, 100)
    load_until(lambda: leader.ask(is_named), 100)
    cores.check()


def kept_of_ended_threads():
    """What is open of their times, as the kernel tells them."""
    links = []
    for number in open_descriptors():
        with suppress(FileNotFoundError):
            links.append(Path(f"/proc/self/fd/{number}").readlink())
    return [link for link in links if link.name == "schedstat" and not link.exists()]


def test_a_core_whose_beats_were_measured_leaves_nothing_open(carried):
    carried.shut()
    eventually(lambda: not kept_of_ended_threads(), "nothing is open of threads that have ended")
