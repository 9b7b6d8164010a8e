"""What C says of a batch that a client has sent (`native/bytes/batch.c`), and what an append changes in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.error_codes import ErrorCode
from tpc_broker.native_bytes import ffi, lib

if TYPE_CHECKING:
    from tpc_broker.metadata.topic_config import TopicConfig


class Judged(NamedTuple):
    """`records`: what is to be appended, as soon as there is no error."""

    error_code: ErrorCode
    message: str | None
    records: bytes
    append_ms: int = -1
    """-1: records keep their time stamps."""


def judge_batch(records: bytes, config: TopicConfig, version: int, now_ms: int) -> Judged:
    """Whole, sound, in bounds, with the topic's time stamps; `version`: of the Produce that it came by."""
    is_append_time = config.message_timestamp_type == "LogAppendTime"
    limits = ffi.new("tpc_batch_limits *")
    limits.now_ms = now_ms
    limits.timestamp_before_ms_max = min(config.message_timestamp_before_max_ms, sys.maxsize)
    limits.timestamp_after_ms_max = min(config.message_timestamp_after_max_ms, sys.maxsize)
    limits.batch_bytes_max = config.max_message_bytes
    limits.segment_bytes_max = config.segment_bytes
    limits.produce_version = version
    limits.log_append_time = is_append_time
    limits.compacted = "compact" in config.cleanup_policy
    report = ffi.new("tpc_batch_report *")
    taken = bytearray(records)
    code = lib.tpc_batch_validate(ffi.from_buffer(taken), len(taken), limits, report)
    if code:
        text = ffi.string(lib.tpc_batch_reason_text(report.reason))
        return Judged(ErrorCode(code), text.decode() if isinstance(text, bytes) else text, records)
    del taken[report.header.batch_bytes :]
    if is_append_time:
        lib.tpc_batch_stamp_append_time(ffi.from_buffer(taken), len(taken), 0, -1, now_ms)
        return Judged(ErrorCode.NONE, None, bytes(taken), now_ms)
    if report.flags & lib.TPC_BATCH_MAX_TIMESTAMP_WRONG:
        lib.tpc_batch_set_max_timestamp(ffi.from_buffer(taken), len(taken), report.records_max_timestamp)
    return Judged(ErrorCode.NONE, None, bytes(taken))
