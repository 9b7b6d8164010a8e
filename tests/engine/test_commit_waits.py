"""Who waits for an offset of a partition is told once, whatever becomes of it. With all features and with 5.8's."""

import errno

import pytest

from tests.support.plane_bench import records_of, settings_with
from tpc_broker._ring import lib
from tpc_broker.error_codes import ErrorCode as E

LEVELS = (lib.TPC_LEVEL_DURABLE, lib.TPC_LEVEL_COMMITTED)
NOBODY = 1


def wait_for(bench, handle, end_offset, *tokens, epoch=0):
    """A wait at each level for each token; those that are over stand in the list that is returned."""
    over = []
    bench.plane.on_wait_over = lambda *end: over.append(end)
    for token in tokens:
        for level in LEVELS:
            assert not bench.plane.wait(handle, level, end_offset, epoch, token)
    return over


@pytest.fixture
def undurable(stalled):
    """A partition with three records on their way to the journal."""
    handle = stalled.lead("t")
    stalled.plane.append(handle, records_of(3))
    stalled.until(lambda: stalled.plane.journal_statistics()["commits_in_flight"])
    return handle


def test_a_wait_ends_when_its_offset_is_reached_and_not_before(stalled, undurable):
    later = stalled.plane.append(undurable, records_of(2))
    over = wait_for(stalled, undurable, later.next_offset, 2)
    wait_for(stalled, undurable, 3, 1)
    stalled.plane.on_wait_over = lambda *end: over.append(end)
    stalled.turn()
    assert over == []
    stalled.let_go()
    stalled.until(lambda: len(over) == 4)
    assert over == [(1, 0), (1, 0), (2, 0), (2, 0)]
    assert all(stalled.plane.wait(undurable, level, 5, 0, 3) for level in LEVELS)


def test_a_wait_ends_with_the_role(stalled, undurable):
    over = wait_for(stalled, undurable, 3, 1)
    stalled.plane.disarm(undurable)
    stalled.until(lambda: len(over) == 2)
    assert over == [(1, E.NOT_LEADER_OR_FOLLOWER)] * 2
    stalled.let_go()
    stalled.settle()
    assert len(over) == 2, "told once"


def test_a_wait_ends_with_the_partition(stalled, undurable):
    over = wait_for(stalled, undurable, 3, 1)
    stalled.plane.withdraw(undurable)
    stalled.until(lambda: len(over) == 2)
    assert over == [(1, E.NOT_LEADER_OR_FOLLOWER)] * 2
    with pytest.raises(KeyError):
        stalled.plane.wait(undurable, LEVELS[0], 3, 0, 2)


def test_what_a_failed_journal_has_not_taken_is_over_and_what_it_has_is_not_touched(bench):
    handle = bench.lead("t")
    bench.produce(bench.connect(), ("t", 0, records_of(1)))
    bench.break_disk()
    end_offset = bench.plane.append(handle, records_of(3)).next_offset
    over = wait_for(bench, handle, end_offset, 1)
    assert bench.plane.wait(handle, LEVELS[1], 1, 0, 2)
    bench.until(lambda: bench.failures)
    assert over == [(1, E.KAFKA_STORAGE_ERROR)] * 2


def test_nobody_waits_for_what_another_epoch_may_have_there(bench):
    handle = bench.lead("t", log_end_offset=5, settings=settings_with(leader_epoch=3))
    for end_offset, epoch in ((5, 2), (6, 3)):
        with pytest.raises(OSError, match="wait") as refused:
            bench.plane.wait(handle, LEVELS[1], end_offset, epoch, NOBODY)
        assert refused.value.errno == errno.ESTALE


def test_a_plane_ends_with_waits_under_way(stalled, undurable):
    wait_for(stalled, undurable, 3, 1)
    stalled.let_go()
    stalled.plane.append(undurable, records_of(1))
    assert not stalled.plane.wait(undurable, LEVELS[1], 4, 0, NOBODY), "the fixture's end frees it"


def test_a_duplicate_waits_for_the_first_one_and_for_nothing_behind_it(stalled):
    handle = stalled.lead("t")
    clients = [stalled.connect() for _ in range(3)]
    stalled.send(clients[0], [("t", 0, records_of(1, producer=(7, 0, 0)))])
    stalled.until(lambda: stalled.plane.journal_statistics()["commits_in_flight"])
    stalled.send(clients[1], [("t", 0, records_of(2, producer=(7, 0, 1)))])
    stalled.send(clients[2], [("t", 0, records_of(1, producer=(7, 0, 0)))])
    stalled.until(lambda: stalled.plane.statistics()["produces_pending"] == 3)
    assert stalled.plane.statistics()["duplicates"] == 1
    stalled.let_go()
    assert [stalled.answer(client) for client in clients] == [[(0, 0)], [(0, 1)], [(0, 0)]]
    assert stalled.plane.state(handle).log_end_offset == 3
