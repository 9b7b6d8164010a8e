"""What is known of producers is bounded for all partitions of a core together."""

import pytest

from tests.engine.in_place_core import on_core
from tests.log.log_batches import batch
from tests.support.plane_bench import NOW_MS, records_of
from tests.support.record_batches import TRANSACTIONAL
from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode as E

VERSION, STATE_BYTES = 9, ffi.sizeof("tpc_producer_state")


def produce(bench, handle, producer_id, sequence=0, **more):
    records = records_of(1, producer=(producer_id, 0, sequence), **more)
    return bench.plane.produce_records(handle, records, VERSION).error_code


def known(bench, *handles):
    return {state.producer_id for handle in handles for state in bench.plane.dump_producers(handle)}


def at(bench, later_ms):
    lib.tpc_plane_set_monotonic(bench.plane.pointer, NOW_MS + later_ms)


@pytest.fixture
def bounded(bench):
    """To 100 of them."""
    lib.tpc_plane_bound_producers(bench.plane.pointer, 100 * STATE_BYTES)
    return bench


def test_those_that_were_silent_for_longest_go(bounded):
    """Of some that are looked at: not always the very longest, but none that writes now and then."""
    handles = [bounded.lead("a"), bounded.lead("b"), bounded.lead("c")]
    for number in range(1_000):
        at(bounded, number)
        assert produce(bounded, handles[number % 2], 1_000 + number) is E.NONE
        if number % 10 == 0:
            assert produce(bounded, handles[2], 7, number // 10) is E.NONE
        if number % 25 == 24:
            bounded.settle()
    found = known(bounded, *handles)
    assert len(found) == 100
    assert 7 in found
    assert sorted(found)[-50:] == list(range(1_950, 2_000)), "none of the last ones is gone"
    assert min(found - {7}) > 1_700
    statistics = bounded.plane.statistics()
    assert (statistics["producers"], statistics["producers_forgotten"]) == (100, 901)


def test_those_with_an_open_transaction_stay(bounded):
    """However many: the bound gives way to them, and there again is one for the others when they have ended."""
    handle, other = bounded.lead("a"), bounded.lead("b")
    for number in range(120):
        at(bounded, number)
        bounded.plane.append(handle, records_of(1, producer=(number, 0, 0), attributes=TRANSACTIONAL))
        bounded.settle()
    assert known(bounded, handle) == set(range(120))
    for number in range(200, 230):
        at(bounded, number)
        assert produce(bounded, other, number) is E.NONE
        bounded.settle()
    assert known(bounded, handle) == set(range(120))
    assert len(known(bounded, other)) == 1


def test_a_partition_that_goes_makes_room(bounded):
    handle, other = bounded.lead("a"), bounded.lead("b")
    for number in range(90):
        assert produce(bounded, handle, number) is E.NONE
    bounded.settle()
    bounded.plane.withdraw(handle)
    for number in range(100):
        assert produce(bounded, other, number) is E.NONE
    bounded.settle()
    assert len(known(bounded, other)) == 100
    assert bounded.plane.statistics()["producers_forgotten"] == 0


def test_an_append_of_one_that_was_forgotten_meanwhile_is_undone(bounded):
    handle = bounded.lead("a")
    assert produce(bounded, handle, 7) is E.NONE
    bounded.settle()
    bounded.break_disk()
    assert produce(bounded, handle, 7, 1) is E.NONE
    at(bounded, 1)
    for number in range(1_000, 1_300):
        assert produce(bounded, handle, number) is E.NONE
    assert bounded.plane.statistics()["producers_forgotten"] > 0
    bounded.until(lambda: bounded.failures)
    bounded.mend_disk()
    bounded.plane.reopen_journal(bounded.descriptor, bounded.mode, 2)
    assert known(bounded, handle) == {7}
    assert produce(bounded, handle, 7, 1) is E.NONE


def test_with_a_checkpoint_python_knows_no_more_of_them(tmp_path):
    """A round of retention may be minutes away."""

    async def body(bench):
        bench.plane.bound_producers(100 * STATE_BYTES)
        for number in range(300):
            data = batch(0, producer=(number, 0, 0), epoch=bench.files.leader_epoch)
            await bench.storage.make_room(bench.files, bench.handle, len(data))
            result = bench.plane.append(bench.handle, data)
            await bench.plane.wait_committed(bench.handle, result.end_offset, result.leader_epoch)
        await bench.storage.write_behind()
        assert len(bench.files.producers) == 300
        assert await bench.storage.checkpoint()
        assert len(bench.files.producers) == 100
        assert 299 in bench.files.producers.producers

    on_core(tmp_path, body)
