"""With which sequence a producer may begin that a partition does not know."""

from __future__ import annotations

from tests.engine.test_plane_partitions import outcome
from tests.support.plane_bench import settings_with
from tests.support.plane_values import PartitionFlag
from tpc_broker.error_codes import ErrorCode as E


def test_where_no_record_has_ever_been_the_first_sequence_is_0(bench):
    """Kafka from 4.5 on: what comes before it could never be written."""
    handle = bench.lead("t")
    for _ in range(2):
        assert outcome(bench, handle, (7, 0, 5)) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, False)
    assert outcome(bench, handle, (7, 3, 5))[0] is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert bench.plane.state(handle).log_end_offset == 0
    for sequence in range(6):
        assert outcome(bench, handle, (7, 0, sequence)) == (E.NONE, sequence, False)
    assert outcome(bench, handle, (8, 0, 5)) == (E.NONE, 6, False), "before it may have been what is forgotten by now"


def test_where_all_records_have_gone_a_producer_may_begin_anywhere(bench):
    """By retention or DeleteRecords, and with them what was known of producers; or with a crash, acknowledged early."""
    gone = bench.lead("t", log_start_offset=7, log_end_offset=7)
    assert outcome(bench, gone, (7, 0, 5)) == (E.NONE, 7, False)
    early = bench.lead("early", settings=settings_with(PartitionFlag.RELAXED))
    assert outcome(bench, early, (7, 0, 5))[:2] == (E.NONE, 0)
