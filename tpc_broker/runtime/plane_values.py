"""Values of the broker as the data plane's structures want them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.log.producer_state import Producer


def producer_states(producers: Sequence[Producer], *, sequence_lost: bool) -> list[dict[str, Any]]:
    """For an array of `tpc_producer_state`. `sequence_lost`: the next sequence is taken whatever it is, once."""
    states = []
    for producer in producers:
        batches = [
            {
                "base_offset": batch.last_offset - batch.offset_delta,
                "last_offset": batch.last_offset,
                "timestamp_ms": batch.timestamp,
                "base_sequence": (batch.last_sequence - batch.offset_delta) % 2**31,
                "last_sequence": batch.last_sequence,
            }
            for batch in producer.batches
        ]
        states.append(
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "last_append_ms": producer.last_timestamp,
                "batches_count": len(batches),
                "sequence_lost": int(sequence_lost),
                "batches": batches,
            }
        )
    return states
