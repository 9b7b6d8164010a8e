"""Short runs of many partitions in one call of C: what is taken, what is left, what is told."""

from tests.support.plane_bench import records_of
from tests.support.record_batches import read_batches

VERSION = 9
UNBOUNDED = 1 << 20


def written(bench, counts):
    """Partitions with so many batches each, a commit for each batch."""
    handles = [bench.lead(f"t{number}") for number in range(len(counts))]
    for number in range(max(counts)):
        for handle, count in zip(handles, counts, strict=True):
            if number < count:
                bench.plane.produce_records(handle, records_of(1), VERSION)
        bench.settle()
    return handles


def offsets(data):
    return [batch["base_offset"] for batch in read_batches(data)] if data else []


def test_each_gets_all_that_is_durable_and_is_clean_when_it_is_done(bench):
    handles = written(bench, [3, 1, 2])
    taken = bench.plane.short_runs_take(handles, UNBOUNDED, UNBOUNDED)
    assert [(end, offsets(data)) for end, data in taken] == [(3, [0, 1, 2]), (1, [0]), (2, [0, 1])]
    assert bench.plane.dirty() == handles
    bench.plane.produce_records(handles[0], records_of(1), VERSION)  # durable at any moment from now on
    admitted = [bench.plane.state(handle).bytes_admitted for handle in handles]
    done = bench.plane.short_runs_done(list(zip(handles, [3, 1, 2], strict=True)))
    assert done == [(len(data), left) for (_end, data), left in zip(taken, admitted, strict=True)]
    assert set(bench.plane.dirty()) <= set(handles[:1])
    bench.settle()
    [(end, data)] = bench.plane.short_runs_take(handles[:1], UNBOUNDED, UNBOUNDED)
    assert (end, offsets(data)) == (4, [3])


def test_what_is_not_durable_is_left(stalled):
    handle = stalled.lead("t")
    stalled.plane.produce_records(handle, records_of(1), VERSION)
    assert [offsets(data) for _end, data in stalled.plane.short_runs_take([handle], UNBOUNDED, UNBOUNDED)] == [[]]
    stalled.let_go()
    [(end, data)] = stalled.plane.short_runs_take([handle], UNBOUNDED, UNBOUNDED)
    assert (end, offsets(data)) == (1, [0])


def test_a_run_goes_on_where_the_segment_ends(bench):
    [handle] = written(bench, [4])
    bench.plane.write_behind_done(handle, 1)
    [(end, data)] = bench.plane.short_runs_take([handle], UNBOUNDED, UNBOUNDED)
    assert (end, offsets(data)) == (4, [1, 2, 3])


def test_what_is_long_gone_or_clean_is_left(bench):
    size = len(records_of(1))
    handles = written(bench, [3, 2, 1, 2])
    bench.plane.write_behind_done(handles[2], 1)
    bench.plane.withdraw(handles[3])
    taken = bench.plane.short_runs_take(handles, 3 * size - 1, UNBOUNDED)
    assert [offsets(data) for _end, data in taken] == [[], [0, 1], [], []]
    assert bench.plane.state(handles[0]).dirty_bytes == 3 * size
    assert bench.plane.short_runs_done([(handles[3], 2)])[0][0] < 0


def test_it_ends_where_there_is_no_more_room(bench):
    size = len(records_of(1))
    handles = written(bench, [2, 1, 2, 1])
    taken = bench.plane.short_runs_take(handles, UNBOUNDED, 4 * size)
    assert [offsets(data) for _end, data in taken] == [[0, 1], [0]], "the third one does not fit, and none behind it"


def test_more_batches_than_there_is_room_to_work_in_are_left(make_bench):
    bench = make_bench(region_blocks=2048)
    [handle] = written(bench, [520])
    assert bench.plane.short_runs_take([handle], UNBOUNDED, UNBOUNDED)[0][1] == b""
    assert len(bench.plane.write_behind_take(handle, UNBOUNDED)) == 512
