"""A partition in the table of a core is not led by it yet: leading begins and ends by a step of its own."""

import errno

import pytest

from tests.support.plane_bench import NOW_MS, PlaneBench, records_of, settings_with
from tests.support.plane_values import Left, ProducerBatch, ProducerState, Verdict
from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode as E

LONG_NS = 3_600_000_000_000


def numbered(sequence, producer=7):
    return "t", 0, records_of(1, producer=(producer, 0, sequence))


@pytest.fixture
def bench(tmp_path):
    bench = PlaneBench(tmp_path / "journal")
    yield bench
    bench.shut()


def test_a_handle_is_of_one_partition_and_not_of_the_next_one_in_its_place(bench):
    """Whoever has it still may hear of the withdrawal later."""
    handle = bench.lead("gone")
    bench.plane.withdraw(handle)
    other = bench.lead("next")
    assert other & 0xFFFFFFFF == handle & 0xFFFFFFFF, "the same place"
    with pytest.raises(KeyError):
        bench.plane.append(handle, records_of(1))
    assert bench.plane.state(other).log_end_offset == 0


def test_registering_is_not_leading(bench):
    handle = bench.lead("t", log_end_offset=9, is_led=False)
    bench.send(bench.connect(), [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    assert bench.left.pop()[0] is Left.UNKNOWN
    records, result = records_of(1), ffi.new("tpc_append_result *")
    assert lib.tpc_plane_append(bench.plane.pointer, handle, records, len(records), result) == -errno.EPERM
    bench.plane.arm(handle, 5)
    assert bench.produce(bench.connect(), ("t", 0, records_of(1))) == [(0, 9)]
    state = bench.plane.state(handle)
    assert (state.leader_epoch, state.log_end_offset) == (5, 10)
    with pytest.raises(ValueError, match="arm"):
        bench.plane.arm(handle, 4)


def test_disarmed_it_keeps_what_it_has_and_can_be_led_again(bench):
    handle = bench.lead("t", settings=settings_with(leader_epoch=1))
    assert bench.produce(bench.connect(), ("t", 0, records_of(3))) == [(0, 0)]
    bench.plane.disarm(handle)
    assert [base for base, _values in bench.readable(handle)] == [0]
    bench.plane.arm(handle, 2)
    assert bench.produce(bench.connect(), ("t", 0, records_of(1))) == [(0, 3)]


def test_a_partition_disarmed_during_the_write(stalled):
    handle = stalled.lead("disarmed")
    stalled.lead("led")
    client = stalled.connect()
    stalled.send(client, [("disarmed", 0, records_of(1)), ("led", 0, records_of(1))])
    stalled.until(lambda: stalled.plane.journal_statistics()["commits_in_flight"])
    stalled.plane.disarm(handle)
    assert stalled.plane.statistics()["produces_pending"] == 1, "the other partition still waits"
    stalled.let_go()
    assert stalled.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1), (E.NONE, 0)]
    assert stalled.plane.state(handle).high_watermark == 1, "it was appended all the same"


def test_what_was_sent_behind_a_batch_that_was_refused_while_nobody_led(bench):
    """A partition that was let go and is led here again: out of order it is only without what will come again."""
    handle = bench.lead("t", settings=settings_with(leader_epoch=1))
    client, other = bench.connect(), bench.connect()
    assert bench.produce(client, numbered(0)) == [(E.NONE, 0)]
    bench.plane.disarm(handle)
    bench.send(client, [numbered(1)])
    bench.until(lambda: bench.left)
    assert bench.plane.produce_with(bench.left.pop()[1], [Verdict(E.NOT_LEADER_OR_FOLLOWER)])
    bench.plane.arm(handle, 2)
    bench.send(client, [numbered(2)])
    assert [bench.answer(client) for _ in range(2)] == [[(E.NOT_LEADER_OR_FOLLOWER, -1)]] * 2
    assert bench.produce(client, numbered(1, 8)) == [(E.NOT_LEADER_OR_FOLLOWER, -1)], "unknown producers begin anywhere"
    bench.lead("u")
    assert bench.produce(other, ("u", 0, records_of(1))) == [(E.NONE, 0)]
    assert bench.produce(client, ("u", *numbered(1, 8)[1:])) == [(E.NONE, 1)], "nothing was refused there"
    assert bench.produce(other, numbered(3)) == [(E.NOT_LEADER_OR_FOLLOWER, -1)], "what is missing went another way"
    for sequence in (1, 2, 3):
        assert bench.produce(client, numbered(sequence)) == [(E.NONE, sequence)]
    assert bench.produce(client, numbered(1)) == [(E.NONE, 1)], "the same again"


def test_what_came_while_a_partition_was_on_its_way_here_is_missing_in_front_of_what_comes_now(bench):
    """From another core, or from this one's files; a batch that is forgotten lacks nothing, and a gap is one later."""
    handle = bench.lead("t", log_end_offset=9, is_led=False)
    known = ProducerState(7, 0, NOW_MS, (ProducerBatch(8, 8, NOW_MS, 8, 8),))
    bench.plane.load_producers(handle, [known])
    bench.plane.arm(handle, 1)
    client = bench.connect()
    assert bench.produce(client, numbered(10)) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    assert bench.produce(client, numbered(3)) == [(E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    later(bench)
    assert bench.produce(client, numbered(10)) == [(E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert bench.produce(client, numbered(9)) == [(E.NONE, 9)]


def test_what_was_sent_behind_a_batch_that_the_journal_lost(bench):
    handle = bench.lead("t", settings=settings_with(leader_epoch=1))
    client = bench.connect()
    assert bench.produce(client, numbered(0)) == [(E.NONE, 0)]
    bench.break_disk()
    assert bench.produce(client, numbered(1)) == [(E.KAFKA_STORAGE_ERROR, -1)]
    bench.mend_disk()
    bench.plane.reopen_journal(bench.descriptor, bench.mode, 2)
    bench.plane.arm(handle, 2)
    assert bench.produce(client, numbered(2)) == [(E.KAFKA_STORAGE_ERROR, -1)]
    assert [bench.produce(client, numbered(sequence)) for sequence in (1, 2)] == [[(E.NONE, 1)], [(E.NONE, 2)]]


def test_a_gap_in_front_of_which_nothing_was_refused_is_one_at_once(bench):
    """A partition that was new when it began to be led lacked nothing then."""
    bench.lead("t")
    client = bench.connect()
    assert bench.produce(client, numbered(0)) == [(E.NONE, 0)]
    assert bench.produce(client, numbered(2)) == [(E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert not bench.left, "nor is Python asked: there is no quorum"


def later(bench):
    """As if requests came when the partition has been led for long."""

    def delayed(request):
        request.pointer.received_ns += LONG_NS
        bench.offer(request)

    bench.on_request = delayed
