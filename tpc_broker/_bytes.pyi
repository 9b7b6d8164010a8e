# Made by tools/generate_stubs.py: change what it is made from.
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, Self, TypeVar, final, overload

from typing_extensions import Buffer

_T = TypeVar("_T")

# A C object, a pointer or an array.
class CData:
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

# Fits every pointer.
@final
class Null(CData): ...

# To one or to many of a type that is no structure.
class Pointer(CData, Generic[_T]):
    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __setitem__(self, index: int | slice, value: Any) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_T]: ...
    def __add__(self, count: int) -> Self: ...

# One, a pointer to one, or an array of them: the fields are reached in the same way.
class Structure(CData):
    def __getitem__(self, index: int | slice) -> Self: ...
    def __setitem__(self, index: int, value: Any) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Self]: ...
    def __add__(self, count: int) -> Self: ...

class Field:
    type: CType

class CType:
    cname: str
    kind: str
    fields: Sequence[tuple[str, Field]]

class tpc_aborted_transaction(Structure):
    producer_id: int
    first_offset: int

class tpc_answer_entry(Structure):
    begin: int
    end: int
    records_begin: int
    records_bytes: int
    high_watermark: int
    log_start_offset: int
    partition: int
    error_code: int
    reserved: int

class tpc_batch_builder(Structure):
    base_timestamp: int
    max_timestamp: int
    bytes: int
    records_count: int

class tpc_batch_entry(Structure):
    position: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    batch_bytes: int
    partition_leader_epoch: int
    base_sequence: int
    records_count: int
    producer_epoch: int
    attributes: int

class tpc_batch_header(Structure):
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    batch_bytes: int
    partition_leader_epoch: int
    crc: int
    last_offset_delta: int
    base_sequence: int
    records_count: int
    attributes: int
    producer_epoch: int
    magic: int

class tpc_batch_limits(Structure):
    now_ms: int
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int
    batch_bytes_max: int
    segment_bytes_max: int
    produce_version: int
    log_append_time: int
    compacted: int

class tpc_batch_report(Structure):
    header: tpc_batch_header
    records_max_timestamp: int
    error_code: int
    reason: int
    flags: int
    bad_records_count: int
    @property
    def bad_records(self) -> Pointer[int]: ...
    @bad_records.setter
    def bad_records(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    @property
    def bad_record_errors(self) -> Pointer[int]: ...
    @bad_record_errors.setter
    def bad_record_errors(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_binary_builder(Structure):
    data: Pointer[int]
    offsets: Pointer[int]
    valid: Pointer[int]
    data_capacity: int
    nulls_count: int

class tpc_binary_input(Structure):
    data: Pointer[int]
    offsets: Pointer[int]
    valid: Pointer[int]
    valid_bit_offset: int

class tpc_clean_aborted(Structure):
    producer_id: int
    first_offset: int
    last_offset: int
    batches_seen: int

class tpc_clean_codecs(Structure):
    lz4_unpack: CData
    lz4_pack: CData
    zstd_unpack: CData
    zstd_pack: CData
    zstd_is_error: CData
    zstd_unpack_context: CData
    zstd_pack_context: CData
    zstd_pack_small_context: CData
    small_bytes: int
    unpacked: Pointer[int]
    unpacked_bytes: int
    kept: Pointer[int]
    kept_bytes: int
    remembered: Pointer[int]
    remembered_bytes: int
    remembered_end: int
    remembered_at: int

class tpc_clean_key(Structure):
    @property
    def hash(self) -> Pointer[int]: ...
    @hash.setter
    def hash(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    next_offset: int

class tpc_clean_verdict(Structure):
    base_timestamp: int
    max_timestamp: int
    records_bytes: int
    removed_upto: int
    records_count: int
    outcome: int
    attributes: int
    is_horizon_new: int
    deltas_stay: int
    reserved: int

class tpc_cleaner(Structure):
    keys: tpc_clean_key
    slots_count: int
    keys_max: int
    @property
    def hash_key(self) -> Pointer[int]: ...
    @hash_key.setter
    def hash_key(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    aborted: tpc_clean_aborted
    aborted_count: int
    kept_offsets: Pointer[int]
    kept_count: int
    marks: Pointer[int]
    marks_bytes: int
    first_offset: int
    now_ms: int
    new_horizon_ms: int
    codecs: tpc_clean_codecs
    batch_bytes_max: int
    may_grow: int
    end_offset: int
    source_end_offset: int
    next_offset: int
    place: int
    horizons_believed: int
    tombstones_stay: int
    stop: int
    reason: int
    batch_bytes: int
    attributes: int
    needed_bytes: int
    written_bytes: int
    keys_count: int
    records_read: int
    records_kept: int
    batches_kept: int
    batches_unreadable: int
    removed_upto: int
    @property
    def seen(self) -> Pointer[int]: ...
    @seen.setter
    def seen(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    seen_count: int
    reserved: int

class tpc_columns(Structure):
    rows_capacity: int
    rows_count: int
    headers_capacity: int
    headers_count: int
    offsets: Pointer[int]
    timestamps_us: Pointer[int]
    timestamp_types: Pointer[int]
    header_offsets: Pointer[int]
    key: tpc_binary_builder
    value: tpc_binary_builder
    header_name: tpc_binary_builder
    header_value: tpc_binary_builder

class tpc_columns_walk(Structure):
    position: int
    first_offset: int
    end_offset: int
    next_offset: int
    stop: int

class tpc_control_marker(Structure):
    kind: int
    coordinator_epoch: int

class tpc_datagram(Structure):
    key: Pointer[int]
    value: Pointer[int]
    timestamp_ms: int
    topic: int
    partition: int
    request_id: int
    value_bytes: int
    key_bytes: int
    flags: int

class tpc_fetch_answer(Structure):
    correlation_id: int
    throttle_ms: int
    session_id: int
    version: int
    error_code: int

class tpc_fetch_forgotten(Structure):
    topic_name: Pointer[int]
    topic_name_bytes: int
    partition: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_fetch_part(Structure):
    topic_name: Pointer[int]
    fetch_offset: int
    log_start_offset: int
    high_watermark: int
    topic_name_bytes: int
    topic_index: int
    partition: int
    current_leader_epoch: int
    last_fetched_epoch: int
    partition_bytes_max: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    @property
    def replica_directory_id(self) -> Pointer[int]: ...
    @replica_directory_id.setter
    def replica_directory_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_fetch_request(Structure):
    cluster_id: Pointer[int]
    rack_id: Pointer[int]
    replica_epoch: int
    cluster_id_bytes: int
    rack_id_bytes: int
    replica_id: int
    wait_ms_max: int
    response_bytes_min: int
    response_bytes_max: int
    session_id: int
    session_epoch: int
    topics_count: int
    parts_count: int
    forgotten_count: int
    isolation_level: int

class tpc_fetch_result(Structure):
    topic_name: Pointer[int]
    aborted: tpc_aborted_transaction
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging_end_offset: int
    snapshot_end_offset: int
    topic_name_bytes: int
    aborted_count: int
    topic_index: int
    partition: int
    diverging_epoch: int
    leader_id: int
    leader_epoch: int
    snapshot_epoch: int
    preferred_read_replica: int
    records_bytes: int
    error_code: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_journal_damage(Structure):
    region_bytes: int
    position: int
    first_missing_sequence: int
    @property
    def journal_id(self) -> Pointer[int]: ...
    @journal_id.setter
    def journal_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    wanted_bytes: int
    found_sequence: int
    found_durable_sequence: int
    torn_count: int

class tpc_journal_entry(Structure):
    sequence: int
    payload_position: int
    offset: int
    argument: int
    payload_bytes: int
    partition: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    kind: int
    flags: int

class tpc_journal_piece(Structure):
    position: int
    offset: int
    end_offset: int
    bytes: int
    run: int

class tpc_journal_run(Structure):
    sequence: int
    payload_position: int
    payload_bytes: int
    offset: int
    argument: int
    partition: int
    partition_number: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    kind: int
    flags: int
    @property
    def payload(self) -> Pointer[int]: ...
    @payload.setter
    def payload(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_journal_runs(Structure):
    runs: tpc_journal_run
    pieces: tpc_journal_piece
    latest_runs: Pointer[int]
    slots: Pointer[int]
    entries_count: int
    runs_count: int
    pieces_count: int
    partitions_count: int
    runs_capacity: int
    pieces_capacity: int
    slots_capacity: int

class tpc_journal_scan_state(Structure):
    region_bytes: int
    position: int
    next_sequence: int
    @property
    def journal_id(self) -> Pointer[int]: ...
    @journal_id.setter
    def journal_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    previous_crc: int
    any_previous_crc: int
    wrapped: int
    inside_commit: int
    stop: int
    entry_position: int
    entries_left: int
    durable_sequence: int
    run_id: int
    submitted_ms: int
    commits_count: int
    wrapped_position: int
    wanted_position: int
    wanted_bytes: int

class tpc_journal_wanted(Structure):
    from_offset: int
    upto_offset: int
    target: int

class tpc_key_value(Structure):
    key_begin: int
    key_end: int
    value_begin: int
    value_end: int

class tpc_key_values_walk(Structure):
    position: int
    batch_end: int
    next_offset: int
    batch_offset: int
    producer_id: int
    records_left: int
    batches_passed: int
    is_none_open: int
    stopped: int
    producer_epoch: int
    kind: int

class tpc_link_frame(Structure):
    stream: int
    life: int
    core: int
    sequence: int
    payload_bytes: int
    detail: int
    feature_level: int
    version: int
    kind: int
    payload: Pointer[int]

class tpc_link_subject_names(Structure):
    principal: Pointer[int]
    host: Pointer[int]
    principal_bytes: int
    host_bytes: int

class tpc_node_endpoint(Structure):
    host: Pointer[int]
    rack: Pointer[int]
    host_bytes: int
    rack_bytes: int
    node_id: int
    port: int

class tpc_packed_around(Structure):
    head: Pointer[int]
    tail: Pointer[int]
    head_bytes: int
    tail_bytes: int
    is_compact: bool

class tpc_produce_part(Structure):
    topic_name: Pointer[int]
    records: Pointer[int]
    topic_name_bytes: int
    topic_index: int
    partition: int
    records_bytes: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_produce_request(Structure):
    transactional_id: Pointer[int]
    transactional_id_bytes: int
    timeout_ms: int
    topics_count: int
    parts_count: int
    acks: int

class tpc_produce_result(Structure):
    topic_name: Pointer[int]
    error_message: Pointer[int]
    record_errors: tpc_record_error
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    topic_name_bytes: int
    error_message_bytes: int
    record_errors_count: int
    topic_index: int
    partition: int
    leader_id: int
    leader_epoch: int
    error_code: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_record(Structure):
    key: Pointer[int]
    value: Pointer[int]
    headers: Pointer[int]
    timestamp_delta: int
    offset_delta: int
    key_bytes: int
    value_bytes: int
    headers_bytes: int
    headers_count: int
    record_bytes: int

class tpc_record_error(Structure):
    message: Pointer[int]
    message_bytes: int
    batch_index: int

class tpc_records_input(Structure):
    key: tpc_binary_input
    value: tpc_binary_input
    timestamps_ms: Pointer[int]
    header_offsets: Pointer[int]
    header_name: tpc_binary_input
    header_value: tpc_binary_input

class tpc_records_output(Structure):
    base_timestamp: int
    max_timestamp: int
    records_count: int

class tpc_request_header(Structure):
    client_id: Pointer[int]
    client_id_bytes: int
    correlation_id: int
    body_position: int
    api_key: int
    api_version: int
    flexible: int

class tpc_rows(Structure):
    rows_capacity: int
    rows_count: int
    offsets: Pointer[int]
    timestamps_ms: Pointer[int]
    present: Pointer[int]
    keys_count: int
    values_count: int
    cells: tpc_rows_format
    header_counts: Pointer[int]
    headers_capacity: int
    headers_count: int
    header_nulls_count: int
    header_nulls: Pointer[int]
    header_cells: tpc_rows_format

class tpc_rows_format(Structure):
    text: Pointer[bytes]
    bytes: int
    begin: int
    end: int

class tpc_rows_walk(Structure):
    position: int
    record_position: int
    next_offset: int
    records_seen: int
    leader_epoch: int
    is_plain: int
    stop: int

class tpc_scan_state(Structure):
    position: int
    next_offset: int
    reason: int
    batches_count: int
    epoch_end: int
    leader_epoch: int

class tpc_segment_producer(Structure):
    producer_id: int
    last_timestamp: int
    transaction_first_offset: int
    producer_epoch: int
    epoch_changed: int
    batches_count: int
    reserved: int
    @property
    def last_offset(self) -> Pointer[int]: ...
    @last_offset.setter
    def last_offset(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    @property
    def timestamp(self) -> Pointer[int]: ...
    @timestamp.setter
    def timestamp(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    @property
    def last_sequence(self) -> Pointer[int]: ...
    @last_sequence.setter
    def last_sequence(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    @property
    def offset_delta(self) -> Pointer[int]: ...
    @offset_delta.setter
    def offset_delta(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_segment_state(Structure):
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    offset_entries_max: int
    time_entries_max: int
    base_offset: int
    position: int
    largest_timestamp: int
    largest_timestamp_offset: int
    first_timestamp: int
    bytes_since_entry: int
    offset_entries: int
    time_entries: int
    last_entry_timestamp: int
    next_offset: int
    place: int
    skipped_bytes: int
    leader_epoch: int
    stop: int
    reason: int
    offset_entries_made: int
    time_entries_made: int
    producers_count: int

class tpc_steady_entry(Structure):
    topic_id: Pointer[int]
    partition: int
    term: int
    source: int
    target: int
    offset: int
    commit_offset: int
    batches_bytes: int
    kind: int
    batches: Pointer[int]

class _Lib:
    TPC_API_API_VERSIONS: int
    TPC_API_FETCH: int
    TPC_API_KEYS_COUNT: int
    TPC_API_PRODUCE: int
    TPC_API_SASL_AUTHENTICATE: int
    TPC_API_SASL_HANDSHAKE: int
    TPC_BATCH_ARRAY_FULL: int
    TPC_BATCH_BAD_BASE_OFFSET: int
    TPC_BATCH_BAD_COUNT: int
    TPC_BATCH_BAD_CRC: int
    TPC_BATCH_BAD_EPOCH: int
    TPC_BATCH_BAD_LENGTH: int
    TPC_BATCH_BAD_MAGIC: int
    TPC_BATCH_BAD_ORDER: int
    TPC_BATCH_BAD_RECORD: int
    TPC_BATCH_BAD_RECORDS_MAX: int
    TPC_BATCH_BAD_SEQUENCE: int
    TPC_BATCH_BAD_TIMESTAMP: int
    TPC_BATCH_COMPRESSION_MASK: int
    TPC_BATCH_COMPRESSION_TOO_NEW: int
    TPC_BATCH_CONTROL: int
    TPC_BATCH_EMPTY: int
    TPC_BATCH_HAS_NULL_KEY: int
    TPC_BATCH_HEADER_BYTES: int
    TPC_BATCH_IS_CONTROL: int
    TPC_BATCH_LENGTH_OVERHEAD_BYTES: int
    TPC_BATCH_LOG_APPEND_TIME: int
    TPC_BATCH_MAX_TIMESTAMP_WRONG: int
    TPC_BATCH_MORE_THAN_ONE: int
    TPC_BATCH_NO_KEY: int
    TPC_BATCH_OK: int
    TPC_BATCH_OLD_MAGIC: int
    TPC_BATCH_OVER_SEGMENT: int
    TPC_BATCH_REASONS_COUNT: int
    TPC_BATCH_TAIL_DROPPED: int
    TPC_BATCH_TELLS_LOG_START: int
    TPC_BATCH_TOO_LARGE: int
    TPC_BATCH_TRANSACTIONAL: int
    TPC_BATCH_TRUNCATED: int
    TPC_BATCH_UNKNOWN_COMPRESSION: int
    TPC_BATCH_WALKED: int
    TPC_CLEAN_BAD: int
    TPC_CLEAN_CONTROL: int
    TPC_CLEAN_EMPTIED: int
    TPC_CLEAN_END: int
    TPC_CLEAN_FULL: int
    TPC_CLEAN_GONE: int
    TPC_CLEAN_HORIZON: int
    TPC_CLEAN_MARKER_DATED: int
    TPC_CLEAN_MARKER_GOES: int
    TPC_CLEAN_MARKER_STAYS: int
    TPC_CLEAN_REWRITTEN: int
    TPC_CLEAN_ROOM: int
    TPC_CLEAN_SEEN_MAX: int
    TPC_CLEAN_STAYS: int
    TPC_CLEAN_UNPACK: int
    TPC_CLEAN_UNREADABLE: int
    TPC_COLUMNS_BAD_BATCH: int
    TPC_COLUMNS_BAD_CRC: int
    TPC_COLUMNS_END: int
    TPC_COLUMNS_FULL: int
    TPC_COLUMNS_NEEDS_CALLER: int
    TPC_CONTROL_ABORT: int
    TPC_CONTROL_BATCH_BYTES: int
    TPC_CONTROL_COMMIT: int
    TPC_DATAGRAM_ACKNOWLEDGE: int
    TPC_DATAGRAM_ANSWER: int
    TPC_DATAGRAM_HAS_KEY: int
    TPC_DATAGRAM_HAS_TIMESTAMP: int
    TPC_DATAGRAM_HEADER_BYTES: int
    TPC_DATAGRAM_VERSION: int
    TPC_ERROR_ENTRY_BYTES_MAX: int
    TPC_FETCH_VERSION_MAX: int
    TPC_FETCH_VERSION_MIN: int
    TPC_JOURNAL_BAD_ENTRIES: int
    TPC_JOURNAL_CHAIN_ENDS: int
    TPC_JOURNAL_MORE_BYTES: int
    TPC_JOURNAL_MORE_ROOM: int
    TPC_KEY_VALUES_ABORT: int
    TPC_KEY_VALUES_COMMIT: int
    TPC_KEY_VALUES_COMPRESSED: int
    TPC_KEY_VALUES_END: int
    TPC_KEY_VALUES_FULL: int
    TPC_KEY_VALUES_PLAIN: int
    TPC_KEY_VALUES_TRANSACTION: int
    TPC_LINK_ANSWER: int
    TPC_LINK_CLOSE: int
    TPC_LINK_FEATURE_LEVEL: int
    TPC_LINK_FORWARD_DATAGRAM: int
    TPC_LINK_FORWARD_FETCH: int
    TPC_LINK_FORWARD_PRODUCE: int
    TPC_LINK_HEADER_BYTES: int
    TPC_LINK_HELLO: int
    TPC_LINK_HELLO_BYTES: int
    TPC_LINK_HOST_BYTES_MAX: int
    TPC_LINK_KINDS_END: int
    TPC_LINK_PRINCIPAL_BYTES_MAX: int
    TPC_LINK_RELEASE: int
    TPC_LINK_SUBJECT: int
    TPC_LINK_SUBJECT_BYTES_MAX: int
    TPC_LINK_VERSION: int
    TPC_PACKED_HEADER_BYTES_MAX: int
    TPC_PACKED_RECORD_BYTES_MAX: int
    TPC_PRODUCE_VERSION_MAX: int
    TPC_PRODUCE_VERSION_MIN: int
    TPC_ROWS_BAD_BATCH: int
    TPC_ROWS_BAD_CRC: int
    TPC_ROWS_END: int
    TPC_ROWS_EPOCH: int
    TPC_ROWS_FORMAT_BYTES: int
    TPC_ROWS_FULL: int
    TPC_ROWS_KEY: int
    TPC_ROWS_NEEDS_CALLER: int
    TPC_ROWS_VALUE: int
    TPC_SCAN_ALLOW_GAPS: int
    TPC_SCAN_CHECK_CRC: int
    TPC_SCAN_CHECK_EPOCH: int
    TPC_SEGMENT_BAD: int
    TPC_SEGMENT_CONTROL: int
    TPC_SEGMENT_END: int
    TPC_SEGMENT_EPOCH: int
    TPC_SEGMENT_ROLL: int
    TPC_SEGMENT_ROOM: int
    TPC_STEADY_ACK: int
    TPC_STEADY_ACK_BYTES: int
    TPC_STEADY_APPEND: int
    TPC_STEADY_APPEND_BYTES: int
    TPC_STEADY_BEAT: int
    TPC_STEADY_BEAT_BYTES: int
    TPC_STEADY_HEADER_BYTES: int
    TPC_STEADY_VERSION: int
    def tpc_api_flexible(self, _0: int, _1: int, /) -> bool: ...
    def tpc_batch_builder_add(self, _0: tpc_batch_builder | Null, _1: tpc_datagram | Null, _2: Pointer[int] | bytes | Null, /) -> None: ...
    def tpc_batch_builder_finish(self, _0: tpc_batch_builder | Null, _1: Pointer[int] | bytes | Null, /) -> None: ...
    def tpc_batch_builder_record_bytes(self, _0: tpc_batch_builder | Null, _1: tpc_datagram | Null, /) -> int: ...
    def tpc_batch_header_read(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_batch_header | Null, /) -> int: ...
    def tpc_batch_reason_text(self, _0: int, /) -> Pointer[bytes]: ...
    def tpc_batch_scan(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: tpc_scan_state | Null, _4: tpc_batch_entry | Null, _5: int, /) -> int: ...
    def tpc_batch_seal(self, _0: Pointer[int] | bytes | Null, _1: int, /) -> int: ...
    def tpc_batch_set_max_timestamp(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, /) -> int: ...
    def tpc_batch_stamp(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, /) -> None: ...
    def tpc_batch_stamp_append_time(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: int, _4: int, /) -> int: ...
    def tpc_batch_validate(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_batch_limits | Null, _3: tpc_batch_report | Null, /) -> int: ...
    def tpc_clean_batches(self, _0: tpc_cleaner | Null, _1: Pointer[int] | bytes | Null, _2: int, _3: Pointer[int] | bytes | Null, _4: int, /) -> int: ...
    def tpc_clean_collect(self, _0: tpc_cleaner | Null, _1: Pointer[int] | bytes | Null, _2: int, /) -> int: ...
    def tpc_clean_collect_unpacked(self, _0: tpc_cleaner | Null, _1: Pointer[int] | bytes | Null, _2: Pointer[int] | bytes | Null, _3: int, /) -> int: ...
    def tpc_clean_control(self, _0: tpc_cleaner | Null, _1: Pointer[int] | bytes | Null, _2: int, _3: Pointer[int] | bytes | Null, _4: int, /) -> int: ...
    def tpc_clean_packed(self, _0: tpc_cleaner | Null, _1: Pointer[int] | bytes | Null, _2: tpc_clean_verdict | Null, _3: Pointer[int] | bytes | Null, _4: int, _5: Pointer[int] | bytes | Null, _6: int, /) -> int: ...
    def tpc_clean_unpacked(self, _0: tpc_cleaner | Null, _1: Pointer[int] | bytes | Null, _2: Pointer[int] | bytes | Null, _3: int, _4: Pointer[int] | bytes | Null, _5: int, _6: tpc_clean_verdict | Null, /) -> int: ...
    def tpc_columns_append(self, _0: tpc_columns | Null, _1: tpc_batch_header | Null, _2: Pointer[int] | bytes | Null, _3: int, _4: int, _5: int, /) -> int: ...
    def tpc_columns_append_batches(self, _0: tpc_columns | Null, _1: Pointer[int] | bytes | Null, _2: int, _3: tpc_columns_walk | Null, /) -> None: ...
    def tpc_control_build(self, _0: Pointer[int] | bytes | Null, _1: tpc_control_marker | Null, _2: int, _3: int, _4: int, /) -> None: ...
    def tpc_control_read(self, _0: Pointer[int] | bytes | Null, _1: tpc_batch_header | Null, _2: tpc_control_marker | Null, /) -> bool: ...
    def tpc_crc32c(self, _0: int, _1: CData | bytes, _2: int, /) -> int: ...
    def tpc_crc32c_lanes(self, _0: int, _1: CData | bytes, _2: int, /) -> int: ...
    def tpc_crc32c_method(self) -> Pointer[bytes]: ...
    def tpc_crc32c_portable(self, _0: int, _1: CData | bytes, _2: int, /) -> int: ...
    def tpc_datagram_answer(self, _0: tpc_datagram | Null, _1: int, _2: Pointer[int] | bytes | Null, /) -> None: ...
    def tpc_datagram_decode(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_datagram | Null, /) -> int: ...
    def tpc_fetch_answer_entries(self, _0: int, _1: Pointer[int] | bytes | Null, _2: int, _3: tpc_answer_entry | Null, _4: int, /) -> int: ...
    def tpc_fetch_decode(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: tpc_fetch_request | Null, _4: tpc_fetch_part | Null, _5: int, _6: tpc_fetch_forgotten | Null, _7: int, /) -> int: ...
    def tpc_fetch_encode(self, _0: tpc_fetch_answer | Null, _1: tpc_fetch_result | Null, _2: int, _3: tpc_node_endpoint | Null, _4: int, _5: Pointer[int] | bytes | Null, _6: int, _7: Pointer[int] | Null, /) -> int: ...
    def tpc_fetch_error_entry(self, _0: int, _1: int, _2: int, _3: Pointer[int] | bytes | Null, /) -> int: ...
    def tpc_fetch_request_encode(self, _0: int, _1: tpc_fetch_request | Null, _2: tpc_fetch_part | Null, _3: int, _4: Pointer[int] | bytes | Null, _5: int, /) -> int: ...
    def tpc_journal_commit_seal(self, _0: Pointer[int] | bytes | Null, _1: int, /) -> int: ...
    def tpc_journal_find_damage(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: tpc_journal_damage | Null, /) -> int: ...
    def tpc_journal_gather(self, _0: tpc_journal_runs | Null, _1: tpc_journal_wanted | Null, _2: Pointer[int] | Null, _3: Pointer[int] | bytes | Null, _4: int, _5: int, _6: Pointer[int] | bytes | Null, _7: int, _8: Pointer[int] | Null, _9: int, /) -> int: ...
    def tpc_journal_next_wanted(self, _0: tpc_journal_runs | Null, _1: tpc_journal_wanted | Null, _2: int, /) -> int: ...
    def tpc_journal_runs_add(self, _0: tpc_journal_runs | Null, _1: tpc_journal_entry | Null, _2: int, _3: Pointer[int] | bytes | Null, _4: int, /) -> int: ...
    def tpc_journal_runs_clear(self, _0: tpc_journal_runs | Null, /) -> None: ...
    def tpc_journal_scan(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: tpc_journal_scan_state | Null, _4: tpc_journal_entry | Null, _5: int, /) -> int: ...
    def tpc_key_partition(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, /) -> int: ...
    def tpc_key_values_read(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_key_values_walk | Null, _3: tpc_key_value | Null, _4: int, /) -> int: ...
    def tpc_keys_partitions(self, _0: Pointer[int] | bytes | Null, _1: Pointer[int] | Null, _2: int, _3: int, _4: Pointer[int] | Null, /) -> None: ...
    def tpc_link_frame_decode(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_link_frame | Null, /) -> int: ...
    def tpc_link_frame_header(self, _0: tpc_link_frame | Null, _1: Pointer[int] | bytes | Null, /) -> None: ...
    def tpc_link_hello(self, _0: int, _1: int, _2: Pointer[int] | bytes | Null, /) -> None: ...
    def tpc_link_subject(self, _0: Pointer[int] | bytes | Null, _1: int, _2: Pointer[int] | bytes | Null, _3: int, _4: Pointer[int] | bytes | Null, /) -> int: ...
    def tpc_link_subject_decode(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_link_subject_names | Null, /) -> int: ...
    def tpc_packed_header(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: int, _4: int, _5: int, _6: int, _7: int, _8: int, /) -> None: ...
    def tpc_packed_one(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_packed_around | Null, _3: int, _4: int, _5: Pointer[int] | bytes | Null, _6: int, _7: Pointer[int] | bytes | Null, _8: int, _9: int, _10: int, _11: int, _12: int, /) -> int: ...
    def tpc_packed_records(self, _0: int, _1: Pointer[int] | Null, _2: Pointer[int] | bytes | Null, _3: Pointer[int] | Null, _4: bool, _5: Pointer[int] | bytes | Null, _6: Pointer[int] | Null, _7: bool, _8: Pointer[int] | Null, _9: Pointer[int] | bytes | Null, _10: Pointer[int] | Null, _11: Pointer[int] | bytes | Null, _12: int, /) -> int: ...
    def tpc_produce_answer_entries(self, _0: int, _1: Pointer[int] | bytes | Null, _2: int, _3: tpc_answer_entry | Null, _4: int, /) -> int: ...
    def tpc_produce_answer_fail(self, _0: int, _1: Pointer[int] | bytes | Null, _2: int, _3: int, _4: int, /) -> None: ...
    def tpc_produce_decode(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: tpc_produce_request | Null, _4: tpc_produce_part | Null, _5: int, /) -> int: ...
    def tpc_produce_encode(self, _0: int, _1: int, _2: int, _3: tpc_produce_result | Null, _4: int, _5: tpc_node_endpoint | Null, _6: int, _7: Pointer[int] | bytes | Null, _8: int, _9: Pointer[int] | Null, /) -> int: ...
    def tpc_produce_error_entry(self, _0: int, _1: int, _2: int, _3: Pointer[int] | bytes | Null, /) -> int: ...
    def tpc_produce_peek(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: tpc_produce_part | Null, /) -> int: ...
    def tpc_produce_request_encode(self, _0: int, _1: tpc_produce_request | Null, _2: tpc_produce_part | Null, _3: int, _4: Pointer[int] | bytes | Null, _5: Pointer[int] | bytes | Null, _6: int, _7: Pointer[int] | Null, /) -> int: ...
    def tpc_record_read(self, _0: Pointer[int] | bytes | Null, _1: int, _2: Pointer[int] | Null, _3: tpc_record | Null, /) -> int: ...
    def tpc_records_keyless(self, _0: Pointer[int] | bytes | Null, _1: int, _2: int, _3: Pointer[int] | Null, _4: int, /) -> int: ...
    def tpc_records_partitions(self, _0: tpc_binary_input | Null, _1: int, _2: int, _3: Pointer[int] | Null, /) -> None: ...
    def tpc_records_read(self, _0: Pointer[int] | bytes | Null, _1: int, _2: Pointer[int] | Null, _3: tpc_record | Null, _4: int, /) -> int: ...
    def tpc_records_validate(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_batch_limits | Null, _3: tpc_batch_report | Null, /) -> int: ...
    def tpc_records_write(self, _0: tpc_records_input | Null, _1: Pointer[int] | Null, _2: int, _3: Pointer[int] | bytes | Null, _4: int, _5: tpc_records_output | Null, /) -> int: ...
    def tpc_request_header_decode(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_request_header | Null, /) -> int: ...
    def tpc_rows_append(self, _0: tpc_rows | Null, _1: tpc_batch_header | Null, _2: Pointer[int] | bytes | Null, _3: int, _4: int, _5: tpc_rows_walk | Null, /) -> int: ...
    def tpc_rows_append_batches(self, _0: tpc_rows | Null, _1: Pointer[int] | bytes | Null, _2: int, _3: tpc_rows_walk | Null, /) -> None: ...
    def tpc_segment_index(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_segment_state | Null, _3: Pointer[int] | bytes | Null, _4: Pointer[int] | bytes | Null, _5: int, /) -> int: ...
    def tpc_segment_walk(self, _0: Pointer[int] | bytes | Null, _1: int, _2: tpc_segment_state | Null, _3: Pointer[int] | bytes | Null, _4: Pointer[int] | bytes | Null, _5: int, _6: tpc_segment_producer | Null, _7: int, /) -> int: ...
    def tpc_steady_beat_decode(self, _0: Pointer[int] | bytes | Null, _1: int, _2: Pointer[int] | Null, _3: Pointer[int] | Null, /) -> int: ...
    def tpc_steady_beat_encode(self, _0: int, _1: Pointer[int] | bytes | Null, /) -> None: ...
    def tpc_steady_entry_decode(self, _0: int, _1: Pointer[int] | bytes | Null, _2: int, _3: Pointer[int] | Null, _4: tpc_steady_entry | Null, /) -> int: ...
    def tpc_steady_entry_encode(self, _0: tpc_steady_entry | Null, _1: Pointer[int] | bytes | Null, /) -> int: ...
    def tpc_steady_frame_decode(self, _0: Pointer[int] | bytes | Null, _1: int, _2: Pointer[int] | Null, /) -> int: ...
    def tpc_steady_frame_header(self, _0: int, _1: int, _2: int, _3: Pointer[int] | bytes | Null, /) -> None: ...

class _FFI:
    NULL: Null
    errno: int
    @overload
    def new(self, cdecl: Literal["tpc_aborted_transaction *", "tpc_aborted_transaction[]"], init: Any = ...) -> tpc_aborted_transaction: ...
    @overload
    def new(self, cdecl: Literal["tpc_aborted_transaction **"], init: Any = ...) -> Pointer[tpc_aborted_transaction]: ...
    @overload
    def new(self, cdecl: Literal["tpc_answer_entry *", "tpc_answer_entry[]"], init: Any = ...) -> tpc_answer_entry: ...
    @overload
    def new(self, cdecl: Literal["tpc_answer_entry **"], init: Any = ...) -> Pointer[tpc_answer_entry]: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_builder *", "tpc_batch_builder[]"], init: Any = ...) -> tpc_batch_builder: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_builder **"], init: Any = ...) -> Pointer[tpc_batch_builder]: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_entry *", "tpc_batch_entry[]"], init: Any = ...) -> tpc_batch_entry: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_entry **"], init: Any = ...) -> Pointer[tpc_batch_entry]: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_header *", "tpc_batch_header[]"], init: Any = ...) -> tpc_batch_header: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_header **"], init: Any = ...) -> Pointer[tpc_batch_header]: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_limits *", "tpc_batch_limits[]"], init: Any = ...) -> tpc_batch_limits: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_limits **"], init: Any = ...) -> Pointer[tpc_batch_limits]: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_report *", "tpc_batch_report[]"], init: Any = ...) -> tpc_batch_report: ...
    @overload
    def new(self, cdecl: Literal["tpc_batch_report **"], init: Any = ...) -> Pointer[tpc_batch_report]: ...
    @overload
    def new(self, cdecl: Literal["tpc_binary_builder *", "tpc_binary_builder[]"], init: Any = ...) -> tpc_binary_builder: ...
    @overload
    def new(self, cdecl: Literal["tpc_binary_builder **"], init: Any = ...) -> Pointer[tpc_binary_builder]: ...
    @overload
    def new(self, cdecl: Literal["tpc_binary_input *", "tpc_binary_input[]"], init: Any = ...) -> tpc_binary_input: ...
    @overload
    def new(self, cdecl: Literal["tpc_binary_input **"], init: Any = ...) -> Pointer[tpc_binary_input]: ...
    @overload
    def new(self, cdecl: Literal["tpc_clean_aborted *", "tpc_clean_aborted[]"], init: Any = ...) -> tpc_clean_aborted: ...
    @overload
    def new(self, cdecl: Literal["tpc_clean_aborted **"], init: Any = ...) -> Pointer[tpc_clean_aborted]: ...
    @overload
    def new(self, cdecl: Literal["tpc_clean_codecs *", "tpc_clean_codecs[]"], init: Any = ...) -> tpc_clean_codecs: ...
    @overload
    def new(self, cdecl: Literal["tpc_clean_codecs **"], init: Any = ...) -> Pointer[tpc_clean_codecs]: ...
    @overload
    def new(self, cdecl: Literal["tpc_clean_key *", "tpc_clean_key[]"], init: Any = ...) -> tpc_clean_key: ...
    @overload
    def new(self, cdecl: Literal["tpc_clean_key **"], init: Any = ...) -> Pointer[tpc_clean_key]: ...
    @overload
    def new(self, cdecl: Literal["tpc_clean_verdict *", "tpc_clean_verdict[]"], init: Any = ...) -> tpc_clean_verdict: ...
    @overload
    def new(self, cdecl: Literal["tpc_clean_verdict **"], init: Any = ...) -> Pointer[tpc_clean_verdict]: ...
    @overload
    def new(self, cdecl: Literal["tpc_cleaner *", "tpc_cleaner[]"], init: Any = ...) -> tpc_cleaner: ...
    @overload
    def new(self, cdecl: Literal["tpc_cleaner **"], init: Any = ...) -> Pointer[tpc_cleaner]: ...
    @overload
    def new(self, cdecl: Literal["tpc_columns *", "tpc_columns[]"], init: Any = ...) -> tpc_columns: ...
    @overload
    def new(self, cdecl: Literal["tpc_columns **"], init: Any = ...) -> Pointer[tpc_columns]: ...
    @overload
    def new(self, cdecl: Literal["tpc_columns_walk *", "tpc_columns_walk[]"], init: Any = ...) -> tpc_columns_walk: ...
    @overload
    def new(self, cdecl: Literal["tpc_columns_walk **"], init: Any = ...) -> Pointer[tpc_columns_walk]: ...
    @overload
    def new(self, cdecl: Literal["tpc_control_marker *", "tpc_control_marker[]"], init: Any = ...) -> tpc_control_marker: ...
    @overload
    def new(self, cdecl: Literal["tpc_control_marker **"], init: Any = ...) -> Pointer[tpc_control_marker]: ...
    @overload
    def new(self, cdecl: Literal["tpc_datagram *", "tpc_datagram[]"], init: Any = ...) -> tpc_datagram: ...
    @overload
    def new(self, cdecl: Literal["tpc_datagram **"], init: Any = ...) -> Pointer[tpc_datagram]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_answer *", "tpc_fetch_answer[]"], init: Any = ...) -> tpc_fetch_answer: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_answer **"], init: Any = ...) -> Pointer[tpc_fetch_answer]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_forgotten *", "tpc_fetch_forgotten[]"], init: Any = ...) -> tpc_fetch_forgotten: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_forgotten **"], init: Any = ...) -> Pointer[tpc_fetch_forgotten]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_part *", "tpc_fetch_part[]"], init: Any = ...) -> tpc_fetch_part: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_part **"], init: Any = ...) -> Pointer[tpc_fetch_part]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_request *", "tpc_fetch_request[]"], init: Any = ...) -> tpc_fetch_request: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_request **"], init: Any = ...) -> Pointer[tpc_fetch_request]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_result *", "tpc_fetch_result[]"], init: Any = ...) -> tpc_fetch_result: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_result **"], init: Any = ...) -> Pointer[tpc_fetch_result]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_damage *", "tpc_journal_damage[]"], init: Any = ...) -> tpc_journal_damage: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_damage **"], init: Any = ...) -> Pointer[tpc_journal_damage]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_entry *", "tpc_journal_entry[]"], init: Any = ...) -> tpc_journal_entry: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_entry **"], init: Any = ...) -> Pointer[tpc_journal_entry]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_piece *", "tpc_journal_piece[]"], init: Any = ...) -> tpc_journal_piece: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_piece **"], init: Any = ...) -> Pointer[tpc_journal_piece]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_run *", "tpc_journal_run[]"], init: Any = ...) -> tpc_journal_run: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_run **"], init: Any = ...) -> Pointer[tpc_journal_run]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_runs *", "tpc_journal_runs[]"], init: Any = ...) -> tpc_journal_runs: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_runs **"], init: Any = ...) -> Pointer[tpc_journal_runs]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_scan_state *", "tpc_journal_scan_state[]"], init: Any = ...) -> tpc_journal_scan_state: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_scan_state **"], init: Any = ...) -> Pointer[tpc_journal_scan_state]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_wanted *", "tpc_journal_wanted[]"], init: Any = ...) -> tpc_journal_wanted: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_wanted **"], init: Any = ...) -> Pointer[tpc_journal_wanted]: ...
    @overload
    def new(self, cdecl: Literal["tpc_key_value *", "tpc_key_value[]"], init: Any = ...) -> tpc_key_value: ...
    @overload
    def new(self, cdecl: Literal["tpc_key_value **"], init: Any = ...) -> Pointer[tpc_key_value]: ...
    @overload
    def new(self, cdecl: Literal["tpc_key_values_walk *", "tpc_key_values_walk[]"], init: Any = ...) -> tpc_key_values_walk: ...
    @overload
    def new(self, cdecl: Literal["tpc_key_values_walk **"], init: Any = ...) -> Pointer[tpc_key_values_walk]: ...
    @overload
    def new(self, cdecl: Literal["tpc_link_frame *", "tpc_link_frame[]"], init: Any = ...) -> tpc_link_frame: ...
    @overload
    def new(self, cdecl: Literal["tpc_link_frame **"], init: Any = ...) -> Pointer[tpc_link_frame]: ...
    @overload
    def new(self, cdecl: Literal["tpc_link_subject_names *", "tpc_link_subject_names[]"], init: Any = ...) -> tpc_link_subject_names: ...
    @overload
    def new(self, cdecl: Literal["tpc_link_subject_names **"], init: Any = ...) -> Pointer[tpc_link_subject_names]: ...
    @overload
    def new(self, cdecl: Literal["tpc_node_endpoint *", "tpc_node_endpoint[]"], init: Any = ...) -> tpc_node_endpoint: ...
    @overload
    def new(self, cdecl: Literal["tpc_node_endpoint **"], init: Any = ...) -> Pointer[tpc_node_endpoint]: ...
    @overload
    def new(self, cdecl: Literal["tpc_packed_around *", "tpc_packed_around[]"], init: Any = ...) -> tpc_packed_around: ...
    @overload
    def new(self, cdecl: Literal["tpc_packed_around **"], init: Any = ...) -> Pointer[tpc_packed_around]: ...
    @overload
    def new(self, cdecl: Literal["tpc_produce_part *", "tpc_produce_part[]"], init: Any = ...) -> tpc_produce_part: ...
    @overload
    def new(self, cdecl: Literal["tpc_produce_part **"], init: Any = ...) -> Pointer[tpc_produce_part]: ...
    @overload
    def new(self, cdecl: Literal["tpc_produce_request *", "tpc_produce_request[]"], init: Any = ...) -> tpc_produce_request: ...
    @overload
    def new(self, cdecl: Literal["tpc_produce_request **"], init: Any = ...) -> Pointer[tpc_produce_request]: ...
    @overload
    def new(self, cdecl: Literal["tpc_produce_result *", "tpc_produce_result[]"], init: Any = ...) -> tpc_produce_result: ...
    @overload
    def new(self, cdecl: Literal["tpc_produce_result **"], init: Any = ...) -> Pointer[tpc_produce_result]: ...
    @overload
    def new(self, cdecl: Literal["tpc_record *", "tpc_record[]"], init: Any = ...) -> tpc_record: ...
    @overload
    def new(self, cdecl: Literal["tpc_record **"], init: Any = ...) -> Pointer[tpc_record]: ...
    @overload
    def new(self, cdecl: Literal["tpc_record_error *", "tpc_record_error[]"], init: Any = ...) -> tpc_record_error: ...
    @overload
    def new(self, cdecl: Literal["tpc_record_error **"], init: Any = ...) -> Pointer[tpc_record_error]: ...
    @overload
    def new(self, cdecl: Literal["tpc_records_input *", "tpc_records_input[]"], init: Any = ...) -> tpc_records_input: ...
    @overload
    def new(self, cdecl: Literal["tpc_records_input **"], init: Any = ...) -> Pointer[tpc_records_input]: ...
    @overload
    def new(self, cdecl: Literal["tpc_records_output *", "tpc_records_output[]"], init: Any = ...) -> tpc_records_output: ...
    @overload
    def new(self, cdecl: Literal["tpc_records_output **"], init: Any = ...) -> Pointer[tpc_records_output]: ...
    @overload
    def new(self, cdecl: Literal["tpc_request_header *", "tpc_request_header[]"], init: Any = ...) -> tpc_request_header: ...
    @overload
    def new(self, cdecl: Literal["tpc_request_header **"], init: Any = ...) -> Pointer[tpc_request_header]: ...
    @overload
    def new(self, cdecl: Literal["tpc_rows *", "tpc_rows[]"], init: Any = ...) -> tpc_rows: ...
    @overload
    def new(self, cdecl: Literal["tpc_rows **"], init: Any = ...) -> Pointer[tpc_rows]: ...
    @overload
    def new(self, cdecl: Literal["tpc_rows_format *", "tpc_rows_format[]"], init: Any = ...) -> tpc_rows_format: ...
    @overload
    def new(self, cdecl: Literal["tpc_rows_format **"], init: Any = ...) -> Pointer[tpc_rows_format]: ...
    @overload
    def new(self, cdecl: Literal["tpc_rows_walk *", "tpc_rows_walk[]"], init: Any = ...) -> tpc_rows_walk: ...
    @overload
    def new(self, cdecl: Literal["tpc_rows_walk **"], init: Any = ...) -> Pointer[tpc_rows_walk]: ...
    @overload
    def new(self, cdecl: Literal["tpc_scan_state *", "tpc_scan_state[]"], init: Any = ...) -> tpc_scan_state: ...
    @overload
    def new(self, cdecl: Literal["tpc_scan_state **"], init: Any = ...) -> Pointer[tpc_scan_state]: ...
    @overload
    def new(self, cdecl: Literal["tpc_segment_producer *", "tpc_segment_producer[]"], init: Any = ...) -> tpc_segment_producer: ...
    @overload
    def new(self, cdecl: Literal["tpc_segment_producer **"], init: Any = ...) -> Pointer[tpc_segment_producer]: ...
    @overload
    def new(self, cdecl: Literal["tpc_segment_state *", "tpc_segment_state[]"], init: Any = ...) -> tpc_segment_state: ...
    @overload
    def new(self, cdecl: Literal["tpc_segment_state **"], init: Any = ...) -> Pointer[tpc_segment_state]: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_entry *", "tpc_steady_entry[]"], init: Any = ...) -> tpc_steady_entry: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_entry **"], init: Any = ...) -> Pointer[tpc_steady_entry]: ...
    @overload
    def new(self, cdecl: Literal["int8_t *", "int8_t[]", "uint8_t *", "uint8_t[]", "int16_t *", "int16_t[]", "uint16_t *", "uint16_t[]", "int32_t *", "int32_t[]", "uint32_t *", "uint32_t[]", "int64_t *", "int64_t[]", "uint64_t *", "uint64_t[]"], init: Any = ...) -> Pointer[int]: ...
    @overload
    def new(self, cdecl: str | CType, init: Any = ...) -> Any: ...
    def new_allocator(
        self, alloc: Callable[..., Any] | None = ..., free: Callable[..., Any] | None = ..., *,
        should_clear_after_alloc: bool = ...,
    ) -> Callable[..., Any]: ...
    def cast(self, cdecl: str | CType, value: Any) -> Any: ...
    def typeof(self, cdecl: str | CData | Callable[..., Any]) -> CType: ...
    def sizeof(self, cdecl: str | CType | CData) -> int: ...
    def addressof(self, cdata: CData, *fields_or_indexes: str | int) -> Any: ...
    @overload
    def from_buffer(self, python_buffer: Buffer, /, require_writable: bool = ...) -> Pointer[int]: ...
    @overload
    def from_buffer(
        self, cdecl: Literal["uint8_t[]"], python_buffer: Buffer, /, require_writable: bool = ...
    ) -> Pointer[int]: ...
    @overload
    def from_buffer(self, cdecl: str, python_buffer: Buffer, /, require_writable: bool = ...) -> Any: ...
    def buffer(self, cdata: CData, size: int = ...) -> Any: ...
    def string(self, cdata: CData, maxlen: int = ...) -> bytes: ...
    def unpack(self, cdata: CData, length: int) -> Any: ...
    def memmove(self, dest: CData | Buffer, src: CData | Buffer, n: int) -> None: ...
    def gc(self, cdata: Any, destructor: Callable[..., Any] | None, size: int = ...) -> Any: ...
    def release(self, cdata: CData) -> None: ...

ffi: _FFI
lib: _Lib
