"""What C says of a batch that a client has sent (`native/bytes/batch.c`), and what an append changes in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.error_codes import ErrorCode
from tpc_broker.native_bytes import ffi, lib

if TYPE_CHECKING:
    from tpc_broker.metadata.topic_config import TopicConfig


class Judged(NamedTuple):
    """`records`: what is to be appended, if there is no error."""

    error_code: ErrorCode
    records: bytes
    reason: str = ""
    bad_records: tuple[int, ...] = ()
    """Places of those that are named in the answer, with the reason."""
    tells_log_start: bool = False
    """Whether the answer says where the log starts."""
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
    tells_log_start = bool(report.flags & lib.TPC_BATCH_TELLS_LOG_START)
    if code:
        count = min(report.bad_records_count, lib.TPC_BATCH_BAD_RECORDS_MAX)
        bad_records = tuple(int(report.bad_records[place]) for place in range(count))
        return Judged(ErrorCode(code), records, _text(report.reason), bad_records, tells_log_start)
    del taken[report.header.batch_bytes :]
    if is_append_time:
        lib.tpc_batch_stamp_append_time(ffi.from_buffer(taken), len(taken), 0, -1, now_ms)
    elif report.flags & lib.TPC_BATCH_MAX_TIMESTAMP_WRONG:
        lib.tpc_batch_set_max_timestamp(ffi.from_buffer(taken), len(taken), report.records_max_timestamp)
    append_ms = now_ms if is_append_time else -1
    return Judged(ErrorCode.NONE, bytes(taken), tells_log_start=tells_log_start, append_ms=append_ms)


def _text(reason: int) -> str:
    text = ffi.string(lib.tpc_batch_reason_text(reason))
    return text.decode() if isinstance(text, bytes) else text
