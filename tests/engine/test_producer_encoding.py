"""Producers have one encoding: C takes and gives what checkpoints hold (`log.state`), and refuses everything else."""

import struct
from dataclasses import replace
from random import Random

import pytest

from tests.support.plane_bench import NOW_MS, records_of
from tests.support.plane_face import encoded_producers
from tests.support.plane_values import ProducerBatch, ProducerState
from tpc_broker._ring import lib
from tpc_broker.log import producer_state


def some_producers(chooser, count):
    """As Python knows them: transactions, coordinators, sequences that begin again, none with a batch."""
    known = producer_state.ProducerState()
    for producer_id in chooser.sample(range(2**62), count):
        offset, batches = chooser.randrange(1000), []
        for _batch in range(chooser.randrange(6)):
            delta = chooser.choice([0, 3, 2**31 - 1])
            offset += delta + 1
            batches.append(
                producer_state.ProducedBatch(chooser.choice([0, 2, 2**31 - 1]), offset, delta, chooser.randrange(-1, 9))
            )
        known.producers[producer_id] = producer_state.Producer(
            producer_id, chooser.randrange(2**15), chooser.randrange(-1, 9), chooser.randrange(-1, 999), NOW_MS, batches
        )
    return known


def test_producers_have_one_encoding_in_c_and_in_checkpoints(bench):
    chooser = Random(3)
    for number, count in enumerate((0, 1, 3, 200)):
        handle = bench.lead(f"t{number}", log_end_offset=1 << 40)
        known = some_producers(chooser, count)
        bench.plane.load_producers(handle, known.encode_full())
        again, _end = producer_state.ProducerState.decode_full(bench.plane.dump_encoded(handle), 0)
        assert again == known


def test_what_is_no_state_of_producers_is_refused_and_changes_nothing(bench):
    handle = bench.lead("t", log_end_offset=10)
    one = ProducerState(7, 0, NOW_MS, (ProducerBatch(9, 9, NOW_MS, 3, 3),))
    encoded = encoded_producers([one, replace(one, producer_id=8)])
    wrong = [encoded[:end] for end in range(len(encoded))] + [encoded + b"0"]
    wrong += [
        encoded_producers([one, replace(one, producer_id=-1)]),
        encoded_producers([replace(one, batches=one.batches * 6)]),
        encoded_producers([replace(one, batches=(ProducerBatch(-1, 0, 0, 0, 1),))]),
        struct.pack("<I", 2**32 - 1) + encoded[4:],
    ]
    for data in wrong:
        with pytest.raises(ValueError, match="producers"):
            bench.plane.load_producers(handle, data)
        assert bench.plane.dump_producers(handle) == []
    bench.plane.load_producers(handle, encoded)
    assert [state.producer_id for state in bench.plane.dump_producers(handle)] in ([7, 8], [8, 7])


def test_silence_goes_on_where_producers_are_loaded(bench):
    """Or a partition that is opened each day would keep all the producers that it ever had."""
    handle = bench.lead("t", log_end_offset=1)
    batches = (ProducerBatch(0, 0, NOW_MS, 0, 0),)
    bench.plane.load_producers(handle, [ProducerState(1, 0, NOW_MS - 80_000_000, batches)])
    assert bench.plane.expire_producers(handle, NOW_MS + 6_400_000 - 1) == 0
    assert bench.plane.expire_producers(handle, NOW_MS + 6_400_000) == 1


@pytest.mark.parametrize("set_to", [NOW_MS * 2, NOW_MS - 1_800_000], ids=["forward", "back"])
def test_a_wall_clock_that_is_set_makes_no_producer_silent_or_heard(bench, set_to):
    """Machines without a clock of their own begin in 1970, and hear of the time later."""
    handle = bench.lead("t")
    bench.plane.produce_records(handle, records_of(1, producer=(3, 0, 0)), 9)
    lib.tpc_plane_set_clock(bench.plane.pointer, set_to)
    bench.plane.produce_records(handle, records_of(1, producer=(4, 0, 0)), 9)
    bench.settle()
    assert bench.plane.expire_producers(handle, NOW_MS + 86_400_000 - 1) == 0
    assert bench.plane.expire_producers(handle, NOW_MS + 86_400_000) == 2
