"""Large batches, and small segments, for runs of whole nodes: what is written in place, and what rolls.

Bounds that a core has for batches of many megabytes a second are made small, so that a run of some seconds comes to
all of them: batches are written in place from 8 KiB on, segments are full after some of those, and written behind soon.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

from tests.simulator import nodes_cluster
from tpc_broker.metadata.broker_config import BROKER_CONFIGS
from tpc_broker.storage.segments import segment_appender, segments
from tpc_broker.storage.upkeep import in_place_windows, write_behind

SEGMENT_BYTES = "log.segment.bytes"
SEGMENTS_BYTES = 192 * 1024
PADDING_BYTES = (0, 0, 300, 5000, 9000, 20_000, 40_000, 70_000)
"""Of a batch, all of which find room in a segment."""
SMALLER = (
    (in_place_windows, "IN_PLACE_BATCH_BYTES_MIN", 8192), (in_place_windows, "IN_PLACE_BYTES_MIN_OPEN", 1),
    (write_behind, "BYTES_MIN", 4096), (write_behind, "BYTES_AT_ONCE", 64 * 1024), (write_behind, "LOOK_S", 0.1),
    (segment_appender, "DIRECT_BYTES_MIN", 4096), (segments, "INDEX_LAG_ENTRIES", 2), (segments, "INDEX_LAG_SPREAD", 6),
)  # fmt: skip


@contextmanager
def small_bounds():
    """While nodes are simulated."""
    row = BROKER_CONFIGS[SEGMENT_BYTES]
    settings = (*nodes_cluster.SETTINGS, f"{SEGMENT_BYTES}={SEGMENTS_BYTES}", "log.index.interval.bytes=1000")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(BROKER_CONFIGS, {SEGMENT_BYTES: replace(row, minimum=1)}))
        stack.enter_context(mock.patch.object(nodes_cluster, "SETTINGS", settings))
        for owner, name, value in SMALLER:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
