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

class tpc_api_latency(Structure):
    sum_ns: int
    @property
    def spans(self) -> Pointer[int]: ...
    @spans.setter
    def spans(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_append_result(Structure):
    base_offset: int
    next_offset: int
    append_ms: int
    sequence: int
    error_code: int
    reason: int
    duplicate: int
    relaxed: int
    leader_epoch: int
    reserved: int

class tpc_appended_range(Structure):
    handle: int
    base_offset: int
    next_offset: int
    sequence: int
    leader_epoch: int
    reserved: int

class tpc_asked_part(Structure):
    partition: int
    records_place: int
    records_bytes: int
    name_place: int
    name_bytes: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_asked_produce(Structure):
    parts: tpc_asked_part
    parts_count: int
    timeout_ms: int
    transactional_id_place: int
    transactional_id_bytes: int

class tpc_budget(Structure):
    bytes_used: int
    bytes_max: int
    bytes_cached: int
    reclaim: Any
    reclaim_context: CData
    bytes_peak: int
    frames: int
    refusals: int
    closed: int

class tpc_connection_info(Structure):
    connection: int
    opened_ns: int
    active_ns: int
    requests: int
    received_bytes: int
    sent_bytes: int
    held_bytes: int
    requests_unanswered: int
    descriptor: int
    paused: int
    closing: int
    listener: int
    @property
    def peer(self) -> Pointer[bytes]: ...
    @peer.setter
    def peer(self, value: Pointer[bytes] | bytes | Sequence[Any]) -> None: ...

class tpc_connection_limits(Structure):
    connections_max: int
    request_bytes_max: int
    pipelined_requests_max: int
    zero_copy_local: int
    receive_share_bytes: int
    zero_copy_bytes_min: int
    send_deadline_ms: int
    idle_ms_max: int
    assembly_stall_ms_max: int
    receive_buffers_count: int
    receive_buffer_bytes: int
    handshake_ms_max: int
    accept_retry_ms: int
    connections_per_ip_max: int
    authentication_bytes_max: int
    authentication_ms_max: int
    strangers_bytes_max: int

class tpc_connection_statistics(Structure):
    opened: int
    closed: int
    refused: int
    refused_per_ip: int
    accept_failures: int
    requests: int
    requests_hot: int
    answers: int
    answers_none: int
    answers_void: int
    received_bytes: int
    sent_bytes: int
    receives: int
    sends: int
    sends_partial: int
    sends_zero_copy: int
    sends_of_files: int
    reads_of_files: int
    pauses: int
    starvations: int
    receive_buffers_short: int
    handshakes: int
    @property
    def closed_by_reason(self) -> Pointer[int]: ...
    @closed_by_reason.setter
    def closed_by_reason(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    requests_unanswered: int
    answer_bytes_unsent: int
    answer_bytes_held: int
    assembling_bytes: int
    connections: int
    operations: int
    sends_in_kernel: int
    slots: int

class tpc_connections(Structure): ...

class tpc_datagram_statistics(Structure):
    received: int
    received_bytes: int
    forwarded_here: int
    appended: int
    batches: int
    acknowledged: int
    refused: int
    malformed: int
    oversized: int
    unknown: int
    unowned: int
    invalid: int
    forwarded: int
    forward_failures: int
    without_room: int
    failed: int
    answers_lost: int
    kernel_drops: int
    waiting: int
    routes: int

class tpc_datagrams(Structure): ...

class tpc_disk_record(Structure):
    magic: int
    kind: int
    flags: int
    order: int
    token: int
    device: int
    inode: int
    offset: int
    length: int
    result: int
    path_bytes: int
    payload_bytes: int

class tpc_event(Structure):
    kind: int
    reserved: int
    token: int
    a: int
    b: int
    pointer: CData

class tpc_fetch(Structure):
    connection: int
    sequence: int
    deadline_ns: int
    request: tpc_request
    frame: tpc_frame
    session: tpc_fetch_session
    parts: Pointer[tpc_fetch_asked]
    waits: tpc_fetch_wait
    next: tpc_fetch
    previous: tpc_fetch
    woken_next: tpc_fetch
    parts_count: int
    error_code: int
    session_id: int
    correlation_id: int
    response_bytes_min: int
    response_bytes_max: int
    version: int
    isolation_level: int
    incremental: int
    is_follower: int
    state: int
    woken: int
    retried: int
    with_names: int
    left_reason: int
    subject: int
    rack: int
    reserved_bytes: int
    waiting_bytes: int

class tpc_fetch_asked(Structure):
    topic_name: Pointer[int]
    fetch_offset: int
    topic_name_bytes: int
    partition: int
    bytes_max: int
    current_leader_epoch: int
    last_fetched_epoch: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_fetch_outcome(Structure):
    high_watermark: int
    log_start_offset: int
    error_code: int
    has_records: int
    is_elsewhere: int
    reserved: int

class tpc_fetch_session(Structure): ...

class tpc_fetch_statistics(Structure):
    taken: int
    parked: int
    handed_over: int
    timed_out: int
    woken: int
    parked_now: int
    sessions: int
    session_partitions: int
    sessions_evicted: int
    sessions_refused: int
    session_bytes: int
    waiting_bytes: int
    hurried: int
    record_bytes: int
    segment_bytes: int
    windows: int
    @property
    def left(self) -> Pointer[int]: ...
    @left.setter
    def left(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_fetch_wait(Structure): ...

class tpc_file_space(Structure):
    position: int
    length: int
    fd: int
    result: int

class tpc_file_write(Structure):
    position: int
    data: CData
    data_bytes: int
    fd: int
    result: int

class tpc_forward_statistics(Structure):
    produces: int
    fetches: int
    parts: int
    under_way: int
    not_available: int
    routes: int

class tpc_frame(Structure):
    budget: tpc_budget
    references: int
    length: int
    capacity: int
    holds_file: int
    shift: int
    @property
    def data(self) -> Pointer[int]: ...
    @data.setter
    def data(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_grant_statistics(Structure):
    generation: int
    installed: int
    evicted: int
    forgotten: int
    unknown: int
    refused_produces: int
    refused_fetches: int
    refused_datagrams: int

class tpc_in_place_window_params(Structure):
    segment_base_offset: int
    written_offset: int
    written_position: int
    segment_bytes_max: int
    reserved_position: int
    descriptor: int
    batch_bytes_min: int

class tpc_journal(Structure): ...

class tpc_journal_cursor(Structure):
    sequence: int
    block: int
    position: int
    previous_crc: int
    is_end: int

class tpc_journal_params(Structure):
    descriptor: int
    mode: int
    @property
    def journal_id(self) -> Pointer[int]: ...
    @journal_id.setter
    def journal_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    run_id: int
    region_blocks: int
    sequence_next: int
    block_next: int
    block_first: int
    previous_crc: int
    commits_in_flight_max: int
    commit_bytes_max: int
    buffers_pooled_max: int
    space_event_blocks: int
    region_blocks_max: int
    in_place_bytes_max: int

class tpc_journal_statistics(Structure):
    sequence_next: int
    durable_sequence: int
    blocks_used: int
    region_blocks: int
    blocks_wanted: int
    space_event_blocks: int
    commits_durable: int
    commits_failed: int
    entries_appended: int
    bytes_appended: int
    bytes_written: int
    refused_full: int
    commits_paced: int
    in_place_bytes_written: int
    in_place_bytes_staged: int
    commits_waiting: int
    commits_in_flight: int
    error: int
    mode: int
    space_refused: int
    @property
    def commit_spans(self) -> Pointer[int]: ...
    @commit_spans.setter
    def commit_spans(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_journal_view(Structure):
    commits_in_flight: int
    commits_in_flight_max: int
    in_place_in_flight: int
    is_waiting: int
    state: int
    has_in_place: int
    in_place_asked: int
    is_paced: int
    has_failed: int
    failure_told: int
    in_place_early: int

class tpc_known_aborted(Structure):
    from_offset: int
    room: int
    reserved: int

class tpc_latencies(Structure):
    @property
    def apis(self) -> tpc_api_latency: ...
    @apis.setter
    def apis(self, value: tpc_api_latency | bytes | Sequence[Any]) -> None: ...
    window_until_ns: int
    floor_ns: int
    @property
    def slowest(self) -> tpc_slow_request: ...
    @slowest.setter
    def slowest(self, value: tpc_slow_request | bytes | Sequence[Any]) -> None: ...
    @property
    def slowest_before(self) -> tpc_slow_request: ...
    @slowest_before.setter
    def slowest_before(self, value: tpc_slow_request | bytes | Sequence[Any]) -> None: ...

class tpc_link_statistics(Structure):
    links_up: int
    lost: int
    streams: int
    pages: int
    forwarded: int
    forwarded_bytes: int
    answered: int
    failed: int
    served: int
    served_bytes: int
    held_bytes: int
    pauses: int
    refused: int

class tpc_listener_statistics(Structure):
    opened: int
    refused: int
    requests: int
    received_bytes: int
    sent_bytes: int
    connections: int

class tpc_open_transaction(Structure): ...

class tpc_partition_cut(Structure):
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    offset: int
    partition: int
    last_epoch_kept: int

class tpc_partition_params(Structure):
    topic_name: Pointer[int]
    topic_name_bytes: int
    partition: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int
    bytes_admitted: int
    leader_epoch: int
    batch_bytes_max: int
    segment_bytes_max: int
    flags: int

class tpc_partition_state(Structure):
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    durable_offset: int
    log_end_offset: int
    tail_offset: int
    written_offset: int
    tail_bytes: int
    unwritten_bytes: int
    dirty_bytes: int
    bytes_admitted: int
    in_place_end_offset: int
    partition: int
    leader_epoch: int
    flags: int
    producers_count: int
    appends_undurable: int
    role: int
    watched: int
    is_replicated: int

class tpc_partition_use(Structure):
    appends: int
    append_bytes: int
    reads: int
    read_bytes: int

class tpc_plane(Structure): ...

class tpc_plane_endpoint(Structure):
    host: Pointer[int]
    rack: Pointer[int]
    host_bytes: int
    rack_bytes: int
    node_id: int
    port: int

class tpc_plane_params(Structure):
    tail_bytes_max: int
    producer_expiry_ms: int
    produce_partitions_max: int
    reserved: int

class tpc_plane_statistics(Structure):
    partitions: int
    appends: int
    append_bytes: int
    produces_taken: int
    produces_decoded: int
    produce_fallbacks: int
    produces_timed_out: int
    produces_pending: int
    partition_errors: int
    duplicates: int
    answers_doubted: int
    appends_undurable: int
    appends_rolled_back: int
    tail_runs: int
    tail_bytes: int
    tail_clean_bytes: int
    tail_bytes_max: int
    tail_evicted_bytes: int
    reads: int
    reads_below_tail: int
    cuts_pending: int
    prepared_answers: int
    producers: int
    producers_forgotten: int

class tpc_prefault(Structure): ...

class tpc_produce_verdict(Structure):
    error_message: Pointer[int]
    error_message_bytes: int
    leader_id: int
    leader_epoch: int
    error_code: int
    gap_code: int
    guard: int
    keyless: Pointer[int]
    keyless_count: int

class tpc_producer_batch(Structure):
    base_offset: int
    last_offset: int
    timestamp_ms: int
    base_sequence: int
    last_sequence: int

class tpc_producer_state(Structure):
    producer_id: int
    last_append_ms: int
    transaction: tpc_open_transaction
    coordinator_epoch: int
    producer_epoch: int
    batches_count: int
    sequence_lost: int
    @property
    def batches(self) -> tpc_producer_batch: ...
    @batches.setter
    def batches(self, value: tpc_producer_batch | bytes | Sequence[Any]) -> None: ...

class tpc_request(Structure):
    connection: int
    sequence: int
    frame: tpc_frame
    body: Pointer[int]
    client_id: Pointer[int]
    received_ns: int
    body_bytes: int
    client_id_bytes: int
    correlation_id: int
    api_key: int
    api_version: int
    flexible: int
    in_python: int
    listener: int
    header_bytes: int
    fallback_reason: int
    subject: int
    decoded: tpc_frame
    next: tpc_request

class tpc_ring(Structure): ...

class tpc_ring_statistics(Structure):
    turns: int
    enters: int
    submissions: int
    completions: int
    events: int
    wakes: int
    timeouts: int
    hot_limits: int
    outstanding: int
    operations: int
    overflows: int
    wait_ns: int
    work_ns: int
    python_ns: int
    stalls: int
    stall_ns_max: int
    turns_with_events: int
    serves: int
    @property
    def python_spans(self) -> Pointer[int]: ...
    @python_spans.setter
    def python_spans(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_short_run(Structure):
    handle: int
    end_offset: int
    bytes: int
    bytes_admitted: int

class tpc_slice(Structure):
    frame: tpc_frame
    data: Pointer[int]
    length: int
    reserved: int

class tpc_slow_request(Structure):
    took_ns: int
    answered_ns: int
    connection: int
    answer_bytes: int
    request_bytes: int
    api_key: int
    api_version: int

class tpc_steady_message(Structure):
    link: int
    @property
    def topic_id(self) -> Pointer[int]: ...
    @topic_id.setter
    def topic_id(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    partition: int
    term: int
    source: int
    target: int
    offset: int
    commit_offset: int
    kind: int
    batches_bytes: int
    frame: tpc_frame
    batches: Pointer[int]

class tpc_steady_peer_state(Structure):
    link: int
    incarnation: int
    match_offset: int
    next_offset: int
    known_offset: int
    votes: int
    reserved: int

class tpc_steady_state(Structure):
    log_end_offset: int
    durable_offset: int
    commit_offset: int
    uncommitted_bytes: int
    sequence: int
    term: int
    role: int
    leader_commit_offset: int
    peers_count: int
    is_stopped: int
    @property
    def peers(self) -> tpc_steady_peer_state: ...
    @peers.setter
    def peers(self, value: tpc_steady_peer_state | bytes | Sequence[Any]) -> None: ...

class tpc_steady_statistics(Structure):
    links_up: int
    links_lost: int
    leaders: int
    followers: int
    appends_sent: int
    append_bytes_sent: int
    appends_taken: int
    append_bytes_taken: int
    acks_sent: int
    acks_taken: int
    commits: int
    unsteady: int
    held: int
    wanted: int
    given_bytes: int
    asked_again: int
    frames_sent: int
    frames_taken: int
    sent_bytes: int
    taken_bytes: int
    beats_sent: int
    beats_taken: int

class tpc_steady_want(Structure):
    handle: int
    link: int
    incarnation: int
    offset: int
    term: int
    peer: int

class tpc_subject_names(Structure):
    principal_bytes: int
    host_bytes: int
    @property
    def principal(self) -> Pointer[int]: ...
    @principal.setter
    def principal(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...
    @property
    def host(self) -> Pointer[int]: ...
    @host.setter
    def host(self, value: Pointer[int] | bytes | Sequence[Any]) -> None: ...

class tpc_tail_batch(Structure):
    slice: tpc_slice
    base_offset: int
    next_offset: int
    sequence: int
    in_place_block: int
    in_place_blocks: int

class tpc_tls_context(Structure): ...

class tpc_tls_settings(Structure):
    chain: Pointer[bytes]
    key: Pointer[bytes]
    password: Pointer[bytes]
    trusted: Pointer[bytes]
    ciphers: Pointer[bytes]
    suites: Pointer[bytes]
    client_auth: int
    versions: int

class tpc_told_aborted(Structure):
    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int

class tpc_told_producer(Structure):
    producer_id: int
    last_timestamp_ms: int
    transaction_first_offset: int
    last_sequence: int
    coordinator_epoch: int
    producer_epoch: int
    reserved: int

class tpc_window_params(Structure):
    entries: Pointer[int]
    segment_base_offset: int
    from_offset: int
    upto_offset: int
    from_position: int
    end_position: int
    entries_count: int
    descriptor: int
    to_segment_end: int
    is_sealed: int

class _Lib:
    TPC_ABORTED_MAX: int
    TPC_BACKEND_IO_URING: int
    TPC_BACKEND_PLAIN: int
    TPC_CLOSE_AFTER_ANSWERED: int
    TPC_CLOSE_AFTER_TAKEN: int
    TPC_CLOSE_AUTHENTICATION: int
    TPC_CLOSE_AUTHENTICATION_LATE: int
    TPC_CLOSE_BUDGET: int
    TPC_CLOSE_FRAME_EMPTY: int
    TPC_CLOSE_FRAME_NEGATIVE: int
    TPC_CLOSE_FRAME_TOO_LARGE: int
    TPC_CLOSE_HANDSHAKE_DEADLINE: int
    TPC_CLOSE_HEADER_MALFORMED: int
    TPC_CLOSE_IDLE: int
    TPC_CLOSE_IO_ERROR: int
    TPC_CLOSE_LOCAL: int
    TPC_CLOSE_NONE: int
    TPC_CLOSE_NOW: int
    TPC_CLOSE_PEER: int
    TPC_CLOSE_REASONS_COUNT: int
    TPC_CLOSE_REQUEST_INVALID: int
    TPC_CLOSE_RESET: int
    TPC_CLOSE_SEND_DEADLINE: int
    TPC_CLOSE_SESSION_OVER: int
    TPC_CLOSE_SHUTDOWN: int
    TPC_CLOSE_STRANGER_TOO_LARGE: int
    TPC_CLOSE_TLS: int
    TPC_CLOSE_UNAUTHENTICATED: int
    TPC_COMMIT_ASK_IN_PLACE: int
    TPC_COMMIT_CLOSE: int
    TPC_COMMIT_CLOSED: int
    TPC_COMMIT_EVENTS_COUNT: int
    TPC_COMMIT_FAIL: int
    TPC_COMMIT_FAILED: int
    TPC_COMMIT_IN_PLACE: int
    TPC_COMMIT_IN_PLACE_ENDED: int
    TPC_COMMIT_OPEN: int
    TPC_COMMIT_PROVEN: int
    TPC_COMMIT_STATES_COUNT: int
    TPC_COMMIT_SUBMIT: int
    TPC_COMMIT_SUBMITTED: int
    TPC_COMMIT_WRITE_ENDED: int
    TPC_COMMIT_WRITTEN: int
    TPC_DATAGRAMS_A_TURN: int
    TPC_DATAGRAM_BYTES_MAX: int
    TPC_DISK_RECORD_ALLOCATE: int
    TPC_DISK_RECORD_COMPLETED: int
    TPC_DISK_RECORD_CREATE: int
    TPC_DISK_RECORD_DATA_ONLY: int
    TPC_DISK_RECORD_DIRECT: int
    TPC_DISK_RECORD_DSYNC: int
    TPC_DISK_RECORD_FLUSH: int
    TPC_DISK_RECORD_LINKED: int
    TPC_DISK_RECORD_MAGIC: int
    TPC_DISK_RECORD_RENAME: int
    TPC_DISK_RECORD_TRUNCATE: int
    TPC_DISK_RECORD_UNLINK: int
    TPC_DISK_RECORD_WRITE: int
    TPC_EVENT_ACCEPT_FAILED: int
    TPC_EVENT_APPENDED: int
    TPC_EVENT_CLOSED: int
    TPC_EVENT_GRANT_WANTED: int
    TPC_EVENT_JOURNAL_DURABLE: int
    TPC_EVENT_JOURNAL_FAILED: int
    TPC_EVENT_JOURNAL_SPACE: int
    TPC_EVENT_LINK: int
    TPC_EVENT_OPENED: int
    TPC_EVENT_OPERATION: int
    TPC_EVENT_PARTITION_ADVANCED: int
    TPC_EVENT_REQUEST: int
    TPC_EVENT_ROOM_LOW: int
    TPC_EVENT_SECURED: int
    TPC_EVENT_STEADY: int
    TPC_EVENT_STEADY_LINK: int
    TPC_EVENT_WAIT_OVER: int
    TPC_EVENT_WAKE: int
    TPC_EVENT_WRITE_BEHIND_DUE: int
    TPC_FALLBACK_AUTHORIZE: int
    TPC_FALLBACK_GAP: int
    TPC_FALLBACK_JOURNAL_FULL: int
    TPC_FALLBACK_MALFORMED: int
    TPC_FALLBACK_NONE: int
    TPC_FALLBACK_NOT_ADMITTED: int
    TPC_FALLBACK_NO_MEMORY: int
    TPC_FALLBACK_PYTHON_VALIDATES: int
    TPC_FALLBACK_REASONS_COUNT: int
    TPC_FALLBACK_TOO_MANY: int
    TPC_FALLBACK_UNCOMMITTED: int
    TPC_FALLBACK_UNKNOWN: int
    TPC_FALLBACK_VERIFY: int
    TPC_FALLBACK_VERSION: int
    TPC_FEATURES_COUNT: int
    TPC_FEATURE_BUFFER_RING: int
    TPC_FEATURE_CACHESTAT: int
    TPC_FEATURE_CANCEL_ANY: int
    TPC_FEATURE_COOP_TASKRUN: int
    TPC_FEATURE_DEFER_TASKRUN: int
    TPC_FEATURE_EXT_ARG: int
    TPC_FEATURE_FTRUNCATE: int
    TPC_FEATURE_MULTISHOT_ACCEPT: int
    TPC_FEATURE_MULTISHOT_RECEIVE: int
    TPC_FEATURE_SENDMSG_ZC: int
    TPC_FEATURE_SEND_ZC: int
    TPC_FEATURE_SINGLE_ISSUER: int
    TPC_FEATURE_UNLINKAT: int
    TPC_FETCH_FALLBACK_AUTHORIZE: int
    TPC_FETCH_FALLBACK_COLD: int
    TPC_FETCH_FALLBACK_FOLLOWER: int
    TPC_FETCH_FALLBACK_INTERNAL: int
    TPC_FETCH_FALLBACK_LAST_EPOCH: int
    TPC_FETCH_FALLBACK_LEADER_EPOCH: int
    TPC_FETCH_FALLBACK_MALFORMED: int
    TPC_FETCH_FALLBACK_NEARER: int
    TPC_FETCH_FALLBACK_NONE: int
    TPC_FETCH_FALLBACK_NO_MEMORY: int
    TPC_FETCH_FALLBACK_OFFSET: int
    TPC_FETCH_FALLBACK_REASONS_COUNT: int
    TPC_FETCH_FALLBACK_SEGMENT: int
    TPC_FETCH_FALLBACK_TRANSACTIONS: int
    TPC_FETCH_FALLBACK_UNKNOWN: int
    TPC_FETCH_FALLBACK_VERSION: int
    TPC_GRANTS_MAX: int
    TPC_HOST_BYTES_MAX: int
    TPC_JOURNAL_ABANDON_IN_PLACE: int
    TPC_JOURNAL_BUFFERED_DSYNC: int
    TPC_JOURNAL_BUFFERED_FDATASYNC: int
    TPC_JOURNAL_COMMITS_MAX: int
    TPC_JOURNAL_DIRECT_DSYNC: int
    TPC_JOURNAL_DROP_FAILED: int
    TPC_JOURNAL_ENTRY_BYTES_MAX: int
    TPC_JOURNAL_NOTHING: int
    TPC_JOURNAL_PACE_NS_MAX: int
    TPC_JOURNAL_WRITE_COMMIT: int
    TPC_JOURNAL_WRITE_IN_PLACE: int
    TPC_LATENCY_APIS: int
    TPC_LATENCY_SPANS: int
    TPC_LEVEL_COMMITTED: int
    TPC_LEVEL_DURABLE: int
    TPC_LINK_PLACES_MAX: int
    TPC_MUTANT_EARLY_ACKNOWLEDGE: int
    TPC_MUTANT_IN_PLACE_EARLY: int
    TPC_MUTANT_IN_PLACE_NO_DSYNC: int
    TPC_MUTANT_NO_DSYNC: int
    TPC_PARTITION_COMPACTED: int
    TPC_PARTITION_INTERNAL: int
    TPC_PARTITION_LOG_APPEND_TIME: int
    TPC_PARTITION_PYTHON_VALIDATES: int
    TPC_PARTITION_RELAXED: int
    TPC_PRINCIPAL_BYTES_MAX: int
    TPC_PRODUCER_BATCHES_MAX: int
    TPC_PRODUCER_ENCODED_MAX: int
    TPC_READ_BATCHES_MAX: int
    TPC_RIGHT_READ: int
    TPC_RIGHT_TRANSACT: int
    TPC_RIGHT_WRITE: int
    TPC_ROLE_FOLLOWER: int
    TPC_ROLE_LEADER: int
    TPC_ROLE_NONE: int
    TPC_SLOWEST: int
    TPC_SPANS: int
    TPC_STAGES_COUNT: int
    TPC_STAGE_SASL: int
    TPC_STAGE_SERVES: int
    TPC_STAGE_TOKEN: int
    TPC_STEADY_ACK_KIND: int
    TPC_STEADY_APPEND_KIND: int
    TPC_STEADY_BEAT_MS: int
    TPC_STEADY_GAP_MS: int
    TPC_STEADY_MACHINES: int
    TPC_STEADY_OF_METADATA: int
    TPC_STEADY_OF_PARTITIONS: int
    TPC_STEADY_PEERS_MAX: int
    TPC_TLS_1_2: int
    TPC_TLS_1_3: int
    TPC_TLS_CLIENT_NONE: int
    TPC_TLS_CLIENT_REQUESTED: int
    TPC_TLS_CLIENT_REQUIRED: int
    TPC_TLS_NAME_DNS: int
    TPC_TLS_NAME_SUBJECT: int
    TPC_TLS_NAME_URI: int
    TPC_TLS_PART_CHAIN: int
    TPC_TLS_PART_CIPHERS: int
    TPC_TLS_PART_KEY: int
    TPC_TLS_PART_LIBRARY: int
    TPC_TLS_PART_NONE: int
    TPC_TLS_PART_TRUSTED: int
    def tpc_answer_bytes(self, _0: tpc_connections | Null, _1: int, _2: int, _3: Pointer[int] | bytes | Null, _4: int, /) -> int: ...
    def tpc_answer_none(self, _0: tpc_connections | Null, _1: int, _2: int, /) -> int: ...
    def tpc_answer_slices(self, _0: tpc_connections | Null, _1: int, _2: int, _3: tpc_slice | Null, _4: int, /) -> int: ...
    def tpc_budget_free(self, _0: tpc_budget | Null, /) -> None: ...
    def tpc_budget_new(self, _0: int, /) -> tpc_budget: ...
    def tpc_commit_next_state(self, _0: int, _1: int, /) -> int: ...
    def tpc_connection_carried_subject(self, _0: tpc_connections | Null, _1: int, _2: tpc_subject_names | Null, /) -> int: ...
    def tpc_connection_close(self, _0: tpc_connections | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_connection_describe(self, _0: tpc_connections | Null, _1: int, _2: tpc_connection_info | Null, /) -> int: ...
    def tpc_connection_expect_tokens(self, _0: tpc_connections | Null, _1: int, _2: int, /) -> int: ...
    def tpc_connection_let_in(self, _0: tpc_connections | Null, _1: int, _2: int, _3: int, _4: tpc_subject_names | Null, /) -> int: ...
    def tpc_connection_mark(self, _0: tpc_connections | Null, _1: int, /) -> int: ...
    def tpc_connection_named(self, _0: tpc_connections | Null, _1: int, /) -> int: ...
    def tpc_connection_peer_name(self, _0: tpc_connections | Null, _1: int, _2: int, _3: Pointer[int] | bytes | Null, _4: int, /) -> int: ...
    def tpc_connection_subject(self, _0: tpc_connections | Null, _1: int, /) -> int: ...
    def tpc_connections_adopt(self, _0: tpc_connections | Null, _1: int, _2: int, _3: Pointer[int] | Null, /) -> int: ...
    def tpc_connections_close_all(self, _0: tpc_connections | Null, _1: int, _2: int, /) -> None: ...
    def tpc_connections_free(self, _0: tpc_connections | Null, /) -> int: ...
    def tpc_connections_latencies(self, _0: tpc_connections | Null, /) -> tpc_latencies: ...
    def tpc_connections_listen(self, _0: tpc_connections | Null, _1: int, /) -> int: ...
    def tpc_connections_listener_stage(self, _0: tpc_connections | Null, _1: int, _2: int, /) -> int: ...
    def tpc_connections_listener_statistics(self, _0: tpc_connections | Null, _1: tpc_listener_statistics | Null, _2: int, /) -> int: ...
    def tpc_connections_new(self, _0: tpc_ring | Null, _1: tpc_budget | Null, _2: tpc_connection_limits | Null, /) -> tpc_connections: ...
    def tpc_connections_require_subject(self, _0: tpc_connections | Null, _1: int, /) -> None: ...
    def tpc_connections_secure(self, _0: tpc_connections | Null, _1: int, _2: tpc_tls_context | Null, /) -> int: ...
    def tpc_connections_set_echo(self, _0: tpc_connections | Null, _1: int, /) -> None: ...
    def tpc_connections_set_hot(self, _0: tpc_connections | Null, _1: Any, _2: CData | bytes, /) -> None: ...
    def tpc_connections_set_limits(self, _0: tpc_connections | Null, _1: tpc_connection_limits | Null, /) -> None: ...
    def tpc_connections_show_open(self, _0: tpc_connections | Null, _1: Pointer[int] | Null, /) -> None: ...
    def tpc_connections_statistics(self, _0: tpc_connections | Null, _1: tpc_connection_statistics | Null, /) -> None: ...
    def tpc_connections_stop_accepting(self, _0: tpc_connections | Null, /) -> None: ...
    def tpc_datagrams_free(self, _0: tpc_datagrams | Null, /) -> None: ...
    def tpc_datagrams_get_statistics(self, _0: tpc_datagrams | Null, _1: tpc_datagram_statistics | Null, /) -> None: ...
    def tpc_datagrams_new(self, _0: tpc_plane | Null, _1: int, _2: int, _3: Pointer[tpc_datagrams] | Null, /) -> int: ...
    def tpc_datagrams_quiet(self, _0: tpc_datagrams | Null, /) -> int: ...
    def tpc_datagrams_set_answers(self, _0: tpc_datagrams | Null, _1: int, /) -> None: ...
    def tpc_datagrams_set_route(self, _0: tpc_datagrams | Null, _1: int, _2: Pointer[int] | bytes | Null, _3: Pointer[int] | Null, _4: int, /) -> int: ...
    def tpc_datagrams_start(self, _0: tpc_datagrams | Null, /) -> None: ...
    def tpc_datagrams_stop(self, _0: tpc_datagrams | Null, /) -> None: ...
    def tpc_disk_record_completed(self, _0: int, _1: int, /) -> None: ...
    def tpc_disk_record_flush(self, _0: int, _1: int, /) -> int: ...
    def tpc_disk_record_name(self, _0: int, _1: Pointer[int] | bytes | Null, _2: Pointer[int] | bytes | Null, /) -> int: ...
    def tpc_disk_record_range(self, _0: int, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_disk_record_write(self, _0: int, _1: CData | bytes, _2: int, _3: int, _4: int, /) -> int: ...
    def tpc_fetch_again(self, _0: tpc_plane | Null, _1: tpc_request | Null, _2: tpc_fetch | Null, /) -> int: ...
    def tpc_fetch_begin(self, _0: tpc_plane | Null, _1: tpc_request | Null, _2: Pointer[tpc_fetch] | Null, /) -> int: ...
    def tpc_fetch_end(self, _0: tpc_plane | Null, _1: tpc_fetch | Null, /) -> None: ...
    def tpc_fetch_reserve(self, _0: tpc_plane | Null, _1: tpc_fetch | Null, _2: Pointer[int] | Null, /) -> int: ...
    def tpc_fetch_select(self, _0: tpc_fetch | Null, _1: tpc_fetch_outcome | Null, _2: Pointer[int] | bytes | Null, /) -> None: ...
    def tpc_fetch_session_describe(self, _0: tpc_plane | Null, _1: int, _2: Pointer[int] | Null, _3: tpc_fetch_asked | Null, _4: tpc_fetch_outcome | Null, _5: int, /) -> int: ...
    def tpc_fetch_session_longest_chain(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_fetch_unreserve(self, _0: tpc_plane | Null, _1: tpc_fetch | Null, /) -> None: ...
    def tpc_forward_get_statistics(self, _0: tpc_plane | Null, _1: tpc_forward_statistics | Null, /) -> None: ...
    def tpc_forward_longest_chain(self, _0: tpc_plane | Null, /) -> int: ...
    def tpc_forward_open(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_forward_set_route(self, _0: tpc_plane | Null, _1: Pointer[int] | bytes | Null, _2: int, _3: Pointer[int] | bytes | Null, _4: Pointer[int] | Null, _5: int, /) -> int: ...
    def tpc_frame_new(self, _0: tpc_budget | Null, _1: int, /) -> tpc_frame: ...
    def tpc_frame_new_forced(self, _0: tpc_budget | Null, _1: int, /) -> tpc_frame: ...
    def tpc_frame_release(self, _0: tpc_frame | Null, /) -> None: ...
    def tpc_frame_retain(self, _0: tpc_frame | Null, /) -> tpc_frame: ...
    def tpc_grants_begin(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_grants_end(self, _0: tpc_plane | Null, /) -> None: ...
    def tpc_grants_forget(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_grants_get_statistics(self, _0: tpc_plane | Null, _1: tpc_grant_statistics | Null, /) -> None: ...
    def tpc_grants_install(self, _0: tpc_plane | Null, _1: int, _2: int, _3: Pointer[int] | bytes | Null, _4: int, _5: int, /) -> int: ...
    def tpc_grants_install_transactional(self, _0: tpc_plane | Null, _1: int, _2: int, _3: Pointer[int] | bytes | Null, _4: int, _5: int, /) -> int: ...
    def tpc_grants_set_datagrams(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_journal_append(self, _0: tpc_journal | Null, _1: int, _2: Pointer[int] | bytes | Null, _3: int, _4: int, _5: int, _6: Pointer[int] | bytes | Null, _7: int, _8: Pointer[int] | Null, /) -> int: ...
    def tpc_journal_close(self, _0: tpc_journal | Null, /) -> int: ...
    def tpc_journal_durable_cursor(self, _0: tpc_journal | Null, _1: tpc_journal_cursor | Null, /) -> None: ...
    def tpc_journal_extend(self, _0: tpc_journal | Null, _1: int, /) -> int: ...
    def tpc_journal_get_statistics(self, _0: tpc_journal | Null, _1: tpc_journal_statistics | Null, /) -> None: ...
    def tpc_journal_next_action(self, _0: tpc_journal_view | Null, /) -> int: ...
    def tpc_journal_open(self, _0: tpc_ring | Null, _1: tpc_journal_params | Null, _2: Pointer[tpc_journal] | Null, /) -> int: ...
    def tpc_journal_pace_ns(self, _0: int, _1: int, _2: int, /) -> int: ...
    def tpc_journal_recycle(self, _0: tpc_journal | Null, _1: int, /) -> int: ...
    def tpc_journal_reopen(self, _0: tpc_journal | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_journal_set_mutants(self, _0: tpc_journal | Null, _1: int, /) -> int: ...
    def tpc_journal_settled(self, _0: tpc_journal | Null, /) -> int: ...
    def tpc_journal_stop(self, _0: tpc_journal | Null, /) -> None: ...
    def tpc_journal_want_space_at(self, _0: tpc_journal | Null, _1: int, /) -> None: ...
    def tpc_journal_watch(self, _0: tpc_journal | Null, _1: int, /) -> None: ...
    def tpc_journal_would_fit(self, _0: tpc_journal | Null, _1: Pointer[int] | Null, _2: int, /) -> int: ...
    def tpc_link_adopt(self, _0: tpc_connections | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_link_is_up(self, _0: tpc_connections | Null, _1: int, /) -> int: ...
    def tpc_links_open(self, _0: tpc_connections | Null, _1: int, _2: int, /) -> int: ...
    def tpc_links_set_share(self, _0: tpc_connections | Null, _1: int, /) -> None: ...
    def tpc_links_statistics(self, _0: tpc_connections | Null, _1: tpc_link_statistics | Null, /) -> None: ...
    def tpc_operation_cancel(self, _0: tpc_ring | Null, _1: int, /) -> int: ...
    def tpc_operation_close(self, _0: tpc_ring | Null, _1: int, _2: int, /) -> int: ...
    def tpc_operation_fallocate(self, _0: tpc_ring | Null, _1: int, _2: int, _3: int, _4: int, _5: int, /) -> int: ...
    def tpc_operation_fsync(self, _0: tpc_ring | Null, _1: int, _2: int, _3: bool, /) -> int: ...
    def tpc_operation_ftruncate(self, _0: tpc_ring | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_operation_nop(self, _0: tpc_ring | Null, _1: int, /) -> int: ...
    def tpc_operation_openat(self, _0: tpc_ring | Null, _1: int, _2: int, _3: Pointer[int] | bytes | Null, _4: int, _5: int, /) -> int: ...
    def tpc_operation_poll(self, _0: tpc_ring | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_operation_read(self, _0: tpc_ring | Null, _1: int, _2: int, _3: CData | bytes, _4: int, _5: int, /) -> int: ...
    def tpc_operation_read_ahead(self, _0: tpc_ring | Null, _1: int, _2: int, _3: int, _4: int, /) -> int: ...
    def tpc_operation_unlinkat(self, _0: tpc_ring | Null, _1: int, _2: int, _3: Pointer[int] | bytes | Null, _4: int, /) -> int: ...
    def tpc_operation_write(self, _0: tpc_ring | Null, _1: int, _2: int, _3: CData | bytes, _4: int, _5: int, _6: int, /) -> int: ...
    def tpc_operation_write_fdatasync(self, _0: tpc_ring | Null, _1: int, _2: int, _3: CData | bytes, _4: int, _5: int, /) -> int: ...
    def tpc_operation_write_in_parts(self, _0: tpc_ring | Null, _1: int, _2: int, _3: CData | bytes, _4: int, _5: int, _6: int, /) -> int: ...
    def tpc_operation_writev(self, _0: tpc_ring | Null, _1: int, _2: int, _3: Pointer[CData] | Null, _4: Pointer[int] | Null, _5: int, _6: int, _7: int, /) -> int: ...
    def tpc_partition_aborted(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: tpc_told_aborted | Null, _5: int, _6: tpc_known_aborted | Null, /) -> int: ...
    def tpc_partition_add_aborted(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: tpc_told_aborted | Null, _5: int, /) -> int: ...
    def tpc_partition_admit(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_partition_append_replica(self, _0: tpc_plane | Null, _1: int, _2: int, _3: Pointer[int] | bytes | Null, _4: int, _5: tpc_append_result | Null, /) -> int: ...
    def tpc_partition_arm(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_partition_close_in_place_window(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_partition_close_windows(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_partition_commit(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_partition_count_read(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> None: ...
    def tpc_partition_disarm(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_partition_dump_producers(self, _0: tpc_plane | Null, _1: int, _2: int, _3: Pointer[int] | bytes | Null, _4: int, /) -> int: ...
    def tpc_partition_expire_producers(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_partition_find_id(self, _0: tpc_plane | Null, _1: Pointer[int] | bytes | Null, _2: int, /) -> int: ...
    def tpc_partition_find_name(self, _0: tpc_plane | Null, _1: Pointer[int] | bytes | Null, _2: int, _3: int, /) -> int: ...
    def tpc_partition_get_state(self, _0: tpc_plane | Null, _1: int, _2: tpc_partition_state | Null, /) -> int: ...
    def tpc_partition_get_use(self, _0: tpc_plane | Null, _1: int, _2: tpc_partition_use | Null, /) -> int: ...
    def tpc_partition_load_producers(self, _0: tpc_plane | Null, _1: int, _2: Pointer[int] | bytes | Null, _3: int, _4: bool, /) -> int: ...
    def tpc_partition_longest_search(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_partition_open_in_place_window(self, _0: tpc_plane | Null, _1: int, _2: tpc_in_place_window_params | Null, /) -> int: ...
    def tpc_partition_open_window(self, _0: tpc_plane | Null, _1: int, _2: tpc_window_params | Null, /) -> int: ...
    def tpc_partition_read(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: int, _5: int, _6: tpc_slice | Null, _7: int, /) -> int: ...
    def tpc_partition_read_log(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: int, _5: tpc_slice | Null, _6: int, /) -> int: ...
    def tpc_partition_refuse(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_partition_register(self, _0: tpc_plane | Null, _1: tpc_partition_params | Null, _2: Pointer[int] | Null, /) -> int: ...
    def tpc_partition_reset_producers(self, _0: tpc_plane | Null, _1: int, _2: Pointer[int] | bytes | Null, _3: int, /) -> int: ...
    def tpc_partition_serve_reads(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_partition_set_in_place_space(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_partition_set_log_start(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_partition_set_near_racks(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_partition_set_replicated(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_partition_tell_producers(self, _0: tpc_plane | Null, _1: int, _2: tpc_told_producer | Null, _3: int, /) -> int: ...
    def tpc_partition_truncate(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: Pointer[int] | Null, /) -> int: ...
    def tpc_partition_update(self, _0: tpc_plane | Null, _1: int, _2: tpc_partition_params | Null, /) -> int: ...
    def tpc_partition_wait(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: int, _5: int, /) -> int: ...
    def tpc_partition_wants_window(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_partition_watch(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_partition_withdraw(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_partition_write_behind_done(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> int: ...
    def tpc_partition_write_behind_take(self, _0: tpc_plane | Null, _1: int, _2: int, _3: tpc_tail_batch | Null, _4: int, /) -> int: ...
    def tpc_plane_adopt(self, _0: tpc_plane | Null, _1: Pointer[int] | bytes | Null, _2: int, _3: int, _4: Pointer[int] | bytes | Null, _5: int, _6: Pointer[int] | Null, /) -> int: ...
    def tpc_plane_append(self, _0: tpc_plane | Null, _1: int, _2: Pointer[int] | bytes | Null, _3: int, _4: tpc_append_result | Null, /) -> int: ...
    def tpc_plane_append_marker(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: int, _5: int, _6: int, _7: tpc_append_result | Null, /) -> int: ...
    def tpc_plane_begin_verification(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: int, _5: int, _6: Pointer[int] | Null, /) -> int: ...
    def tpc_plane_bound_producers(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_cuts_sequence(self, _0: tpc_plane | Null, /) -> int: ...
    def tpc_plane_dirty(self, _0: tpc_plane | Null, _1: Pointer[int] | Null, _2: int, /) -> int: ...
    def tpc_plane_dirty_due(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: Pointer[int] | Null, _5: int, /) -> int: ...
    def tpc_plane_end_verification(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, /) -> None: ...
    def tpc_plane_evict(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_plane_fallback_reason(self, _0: tpc_plane | Null, /) -> int: ...
    def tpc_plane_fetch(self, _0: tpc_plane | Null, _1: tpc_request | Null, /) -> int: ...
    def tpc_plane_forget_answers(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_free(self, _0: tpc_plane | Null, /) -> None: ...
    def tpc_plane_get_fetch_statistics(self, _0: tpc_plane | Null, _1: tpc_fetch_statistics | Null, /) -> None: ...
    def tpc_plane_get_statistics(self, _0: tpc_plane | Null, _1: tpc_plane_statistics | Null, /) -> None: ...
    def tpc_plane_is_unwritten_below(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_plane_new(self, _0: tpc_ring | Null, _1: tpc_journal | Null, _2: tpc_connections | Null, _3: tpc_budget | Null, _4: tpc_plane_params | Null, _5: Pointer[tpc_plane] | Null, /) -> int: ...
    def tpc_plane_prepare_answer(self, _0: tpc_plane | Null, _1: tpc_request | Null, _2: Pointer[int] | bytes | Null, _3: int, _4: int, /) -> int: ...
    def tpc_plane_produce(self, _0: tpc_plane | Null, _1: tpc_request | Null, /) -> int: ...
    def tpc_plane_produce_asked(self, _0: tpc_plane | Null, _1: tpc_request | Null, _2: tpc_asked_produce | Null, /) -> int: ...
    def tpc_plane_produce_records(self, _0: tpc_plane | Null, _1: int, _2: Pointer[int] | bytes | Null, _3: int, _4: int, _5: tpc_append_result | Null, /) -> int: ...
    def tpc_plane_produce_with(self, _0: tpc_plane | Null, _1: tpc_request | Null, _2: tpc_produce_verdict | Null, _3: int, _4: tpc_plane_endpoint | Null, _5: int, /) -> int: ...
    def tpc_plane_release_fetches(self, _0: tpc_plane | Null, /) -> None: ...
    def tpc_plane_reopen_journal(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: Pointer[int] | Null, /) -> int: ...
    def tpc_plane_set_clock(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_set_fetch_limits(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_plane_set_fetch_seed(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_set_fetch_session_bytes(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_set_hot(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_set_monotonic(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_set_racks(self, _0: tpc_plane | Null, _1: Pointer[int] | bytes | Null, _2: Pointer[int] | Null, _3: int, /) -> int: ...
    def tpc_plane_set_tail_bytes_behind_max(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_set_tail_bytes_max(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_short_runs_done(self, _0: tpc_plane | Null, _1: tpc_short_run | Null, _2: int, /) -> None: ...
    def tpc_plane_short_runs_take(self, _0: tpc_plane | Null, _1: tpc_short_run | Null, _2: int, _3: int, _4: Pointer[int] | bytes | Null, _5: int, _6: tpc_tail_batch | Null, _7: int, /) -> int: ...
    def tpc_plane_take_appended(self, _0: tpc_plane | Null, _1: tpc_appended_range | Null, _2: int, /) -> int: ...
    def tpc_plane_take_transactions(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_plane_trim_memory(self) -> None: ...
    def tpc_plane_watch_due(self, _0: tpc_plane | Null, _1: int, _2: int, /) -> None: ...
    def tpc_prefault_free(self, _0: tpc_prefault | Null, /) -> None: ...
    def tpc_prefault_keep_heap(self) -> None: ...
    def tpc_prefault_new(self) -> tpc_prefault: ...
    def tpc_prefault_turn(self, _0: tpc_prefault | Null, _1: int, _2: int, /) -> int: ...
    def tpc_recorder_start(self, _0: Pointer[int] | bytes | Null, /) -> int: ...
    def tpc_recorder_stop(self) -> int: ...
    def tpc_request_answer_bytes(self, _0: tpc_connections | Null, _1: tpc_request | Null, _2: Pointer[int] | bytes | Null, _3: int, /) -> int: ...
    def tpc_request_answer_none(self, _0: tpc_connections | Null, _1: tpc_request | Null, /) -> int: ...
    def tpc_request_answer_slices(self, _0: tpc_connections | Null, _1: tpc_request | Null, _2: tpc_slice | Null, _3: int, /) -> int: ...
    def tpc_request_release(self, _0: tpc_request | Null, /) -> None: ...
    def tpc_request_set_subject(self, _0: tpc_request | Null, _1: int, /) -> None: ...
    def tpc_reserve_many(self, _0: tpc_file_space | Null, _1: int, /) -> None: ...
    def tpc_ring_abi(self) -> int: ...
    def tpc_ring_beat_on(self, _0: tpc_ring | Null, _1: int, _2: int, /) -> None: ...
    def tpc_ring_close(self, _0: tpc_ring | Null, _1: int, /) -> int: ...
    def tpc_ring_features(self, _0: tpc_ring | Null, /) -> int: ...
    def tpc_ring_get_statistics(self, _0: tpc_ring | Null, _1: tpc_ring_statistics | Null, /) -> None: ...
    def tpc_ring_hold_file(self, _0: tpc_ring | Null, _1: int, /) -> int: ...
    def tpc_ring_live_statistics(self, _0: tpc_ring | Null, /) -> tpc_ring_statistics: ...
    def tpc_ring_new(self, _0: int, _1: int, _2: int, _3: Pointer[tpc_ring] | Null, /) -> int: ...
    def tpc_ring_serve(self, _0: tpc_ring | Null, _1: int, /) -> int: ...
    def tpc_ring_stall_stop(self, _0: tpc_ring | Null, /) -> None: ...
    def tpc_ring_stall_threshold(self, _0: tpc_ring | Null, _1: int, /) -> None: ...
    def tpc_ring_submit(self, _0: tpc_ring | Null, /) -> int: ...
    def tpc_ring_take_longest_turn(self, _0: tpc_ring | Null, /) -> int: ...
    def tpc_ring_wait(self, _0: tpc_ring | Null, _1: int, _2: int, _3: tpc_event | Null, _4: int, /) -> int: ...
    def tpc_ring_wait_stalled(self, _0: tpc_ring | Null, _1: int, /) -> int: ...
    def tpc_ring_wake(self, _0: tpc_ring | Null, /) -> None: ...
    def tpc_slices_release(self, _0: tpc_slice | Null, _1: int, /) -> None: ...
    def tpc_steady_ack(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: int, _5: int, _6: int, /) -> int: ...
    def tpc_steady_adopt(self, _0: tpc_plane | Null, _1: int, _2: int, _3: Pointer[int] | Null, /) -> int: ...
    def tpc_steady_ask_again(self, _0: tpc_plane | Null, _1: int, _2: int, _3: tpc_steady_want | Null, _4: int, /) -> int: ...
    def tpc_steady_beat(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, /) -> int: ...
    def tpc_steady_close(self, _0: tpc_plane | Null, _1: int, /) -> None: ...
    def tpc_steady_disarm(self, _0: tpc_plane | Null, _1: int, _2: tpc_steady_state | Null, /) -> int: ...
    def tpc_steady_follow(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: int, _5: int, _6: int, _7: int, _8: int, /) -> int: ...
    def tpc_steady_get_state(self, _0: tpc_plane | Null, _1: int, _2: tpc_steady_state | Null, /) -> int: ...
    def tpc_steady_get_statistics(self, _0: tpc_plane | Null, _1: tpc_steady_statistics | Null, /) -> None: ...
    def tpc_steady_give(self, _0: tpc_plane | Null, _1: tpc_steady_want | Null, _2: Pointer[int] | bytes | Null, _3: int, /) -> int: ...
    def tpc_steady_heard(self, _0: tpc_plane | Null, _1: int, _2: int, _3: Pointer[int] | Null, _4: Pointer[int] | Null, /) -> int: ...
    def tpc_steady_lead(self, _0: tpc_plane | Null, _1: int, _2: int, _3: int, _4: int, _5: int, _6: int, _7: tpc_steady_peer_state | Null, _8: int, /) -> int: ...
    def tpc_steady_stalled(self, _0: tpc_plane | Null, _1: int, _2: Pointer[int] | Null, _3: int, /) -> int: ...
    def tpc_steady_take(self, _0: tpc_plane | Null, _1: tpc_steady_message | Null, /) -> int: ...
    def tpc_steady_take_late(self, _0: tpc_plane | Null, _1: int, /) -> int: ...
    def tpc_steady_take_want(self, _0: tpc_plane | Null, _1: tpc_steady_want | Null, /) -> int: ...
    def tpc_syncfs(self, _0: int, /) -> int: ...
    def tpc_tail_batches_bytes(self, _0: tpc_tail_batch | Null, _1: int, /) -> int: ...
    def tpc_tail_batches_copy(self, _0: tpc_plane | Null, _1: tpc_tail_batch | Null, _2: int, _3: Pointer[int] | bytes | Null, /) -> None: ...
    def tpc_tail_batches_next_in_place(self, _0: tpc_tail_batch | Null, _1: int, _2: int, /) -> int: ...
    def tpc_tail_batches_release(self, _0: tpc_tail_batch | Null, _1: int, /) -> None: ...
    def tpc_tail_batches_within(self, _0: tpc_tail_batch | Null, _1: int, _2: int, /) -> int: ...
    def tpc_tls_context_expires_s(self, _0: tpc_tls_context | Null, /) -> int: ...
    def tpc_tls_context_free(self, _0: tpc_tls_context | Null, /) -> None: ...
    def tpc_tls_context_new(self, _0: tpc_tls_settings | Null, _1: Pointer[int] | Null, _2: Pointer[int] | bytes | Null, _3: int, /) -> tpc_tls_context: ...
    def tpc_tls_error_text(self, _0: int, _1: Pointer[int] | bytes | Null, _2: int, /) -> None: ...
    def tpc_tls_is_built(self) -> int: ...
    def tpc_write_many(self, _0: tpc_file_write | Null, _1: int, /) -> None: ...

class _FFI:
    NULL: Null
    errno: int
    @overload
    def new(self, cdecl: Literal["tpc_api_latency *", "tpc_api_latency[]"], init: Any = ...) -> tpc_api_latency: ...
    @overload
    def new(self, cdecl: Literal["tpc_api_latency **"], init: Any = ...) -> Pointer[tpc_api_latency]: ...
    @overload
    def new(self, cdecl: Literal["tpc_append_result *", "tpc_append_result[]"], init: Any = ...) -> tpc_append_result: ...
    @overload
    def new(self, cdecl: Literal["tpc_append_result **"], init: Any = ...) -> Pointer[tpc_append_result]: ...
    @overload
    def new(self, cdecl: Literal["tpc_appended_range *", "tpc_appended_range[]"], init: Any = ...) -> tpc_appended_range: ...
    @overload
    def new(self, cdecl: Literal["tpc_appended_range **"], init: Any = ...) -> Pointer[tpc_appended_range]: ...
    @overload
    def new(self, cdecl: Literal["tpc_asked_part *", "tpc_asked_part[]"], init: Any = ...) -> tpc_asked_part: ...
    @overload
    def new(self, cdecl: Literal["tpc_asked_part **"], init: Any = ...) -> Pointer[tpc_asked_part]: ...
    @overload
    def new(self, cdecl: Literal["tpc_asked_produce *", "tpc_asked_produce[]"], init: Any = ...) -> tpc_asked_produce: ...
    @overload
    def new(self, cdecl: Literal["tpc_asked_produce **"], init: Any = ...) -> Pointer[tpc_asked_produce]: ...
    @overload
    def new(self, cdecl: Literal["tpc_budget *", "tpc_budget[]"], init: Any = ...) -> tpc_budget: ...
    @overload
    def new(self, cdecl: Literal["tpc_budget **"], init: Any = ...) -> Pointer[tpc_budget]: ...
    @overload
    def new(self, cdecl: Literal["tpc_connection_info *", "tpc_connection_info[]"], init: Any = ...) -> tpc_connection_info: ...
    @overload
    def new(self, cdecl: Literal["tpc_connection_info **"], init: Any = ...) -> Pointer[tpc_connection_info]: ...
    @overload
    def new(self, cdecl: Literal["tpc_connection_limits *", "tpc_connection_limits[]"], init: Any = ...) -> tpc_connection_limits: ...
    @overload
    def new(self, cdecl: Literal["tpc_connection_limits **"], init: Any = ...) -> Pointer[tpc_connection_limits]: ...
    @overload
    def new(self, cdecl: Literal["tpc_connection_statistics *", "tpc_connection_statistics[]"], init: Any = ...) -> tpc_connection_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_connection_statistics **"], init: Any = ...) -> Pointer[tpc_connection_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_connections **"], init: Any = ...) -> Pointer[tpc_connections]: ...
    @overload
    def new(self, cdecl: Literal["tpc_datagram_statistics *", "tpc_datagram_statistics[]"], init: Any = ...) -> tpc_datagram_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_datagram_statistics **"], init: Any = ...) -> Pointer[tpc_datagram_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_datagrams **"], init: Any = ...) -> Pointer[tpc_datagrams]: ...
    @overload
    def new(self, cdecl: Literal["tpc_disk_record *", "tpc_disk_record[]"], init: Any = ...) -> tpc_disk_record: ...
    @overload
    def new(self, cdecl: Literal["tpc_disk_record **"], init: Any = ...) -> Pointer[tpc_disk_record]: ...
    @overload
    def new(self, cdecl: Literal["tpc_event *", "tpc_event[]"], init: Any = ...) -> tpc_event: ...
    @overload
    def new(self, cdecl: Literal["tpc_event **"], init: Any = ...) -> Pointer[tpc_event]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch *", "tpc_fetch[]"], init: Any = ...) -> tpc_fetch: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch **"], init: Any = ...) -> Pointer[tpc_fetch]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_asked *", "tpc_fetch_asked[]"], init: Any = ...) -> tpc_fetch_asked: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_asked **"], init: Any = ...) -> Pointer[tpc_fetch_asked]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_outcome *", "tpc_fetch_outcome[]"], init: Any = ...) -> tpc_fetch_outcome: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_outcome **"], init: Any = ...) -> Pointer[tpc_fetch_outcome]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_session **"], init: Any = ...) -> Pointer[tpc_fetch_session]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_statistics *", "tpc_fetch_statistics[]"], init: Any = ...) -> tpc_fetch_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_statistics **"], init: Any = ...) -> Pointer[tpc_fetch_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_fetch_wait **"], init: Any = ...) -> Pointer[tpc_fetch_wait]: ...
    @overload
    def new(self, cdecl: Literal["tpc_file_space *", "tpc_file_space[]"], init: Any = ...) -> tpc_file_space: ...
    @overload
    def new(self, cdecl: Literal["tpc_file_space **"], init: Any = ...) -> Pointer[tpc_file_space]: ...
    @overload
    def new(self, cdecl: Literal["tpc_file_write *", "tpc_file_write[]"], init: Any = ...) -> tpc_file_write: ...
    @overload
    def new(self, cdecl: Literal["tpc_file_write **"], init: Any = ...) -> Pointer[tpc_file_write]: ...
    @overload
    def new(self, cdecl: Literal["tpc_forward_statistics *", "tpc_forward_statistics[]"], init: Any = ...) -> tpc_forward_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_forward_statistics **"], init: Any = ...) -> Pointer[tpc_forward_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_frame *", "tpc_frame[]"], init: Any = ...) -> tpc_frame: ...
    @overload
    def new(self, cdecl: Literal["tpc_frame **"], init: Any = ...) -> Pointer[tpc_frame]: ...
    @overload
    def new(self, cdecl: Literal["tpc_grant_statistics *", "tpc_grant_statistics[]"], init: Any = ...) -> tpc_grant_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_grant_statistics **"], init: Any = ...) -> Pointer[tpc_grant_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_in_place_window_params *", "tpc_in_place_window_params[]"], init: Any = ...) -> tpc_in_place_window_params: ...
    @overload
    def new(self, cdecl: Literal["tpc_in_place_window_params **"], init: Any = ...) -> Pointer[tpc_in_place_window_params]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal **"], init: Any = ...) -> Pointer[tpc_journal]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_cursor *", "tpc_journal_cursor[]"], init: Any = ...) -> tpc_journal_cursor: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_cursor **"], init: Any = ...) -> Pointer[tpc_journal_cursor]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_params *", "tpc_journal_params[]"], init: Any = ...) -> tpc_journal_params: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_params **"], init: Any = ...) -> Pointer[tpc_journal_params]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_statistics *", "tpc_journal_statistics[]"], init: Any = ...) -> tpc_journal_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_statistics **"], init: Any = ...) -> Pointer[tpc_journal_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_view *", "tpc_journal_view[]"], init: Any = ...) -> tpc_journal_view: ...
    @overload
    def new(self, cdecl: Literal["tpc_journal_view **"], init: Any = ...) -> Pointer[tpc_journal_view]: ...
    @overload
    def new(self, cdecl: Literal["tpc_known_aborted *", "tpc_known_aborted[]"], init: Any = ...) -> tpc_known_aborted: ...
    @overload
    def new(self, cdecl: Literal["tpc_known_aborted **"], init: Any = ...) -> Pointer[tpc_known_aborted]: ...
    @overload
    def new(self, cdecl: Literal["tpc_latencies *", "tpc_latencies[]"], init: Any = ...) -> tpc_latencies: ...
    @overload
    def new(self, cdecl: Literal["tpc_latencies **"], init: Any = ...) -> Pointer[tpc_latencies]: ...
    @overload
    def new(self, cdecl: Literal["tpc_link_statistics *", "tpc_link_statistics[]"], init: Any = ...) -> tpc_link_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_link_statistics **"], init: Any = ...) -> Pointer[tpc_link_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_listener_statistics *", "tpc_listener_statistics[]"], init: Any = ...) -> tpc_listener_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_listener_statistics **"], init: Any = ...) -> Pointer[tpc_listener_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_open_transaction **"], init: Any = ...) -> Pointer[tpc_open_transaction]: ...
    @overload
    def new(self, cdecl: Literal["tpc_partition_cut *", "tpc_partition_cut[]"], init: Any = ...) -> tpc_partition_cut: ...
    @overload
    def new(self, cdecl: Literal["tpc_partition_cut **"], init: Any = ...) -> Pointer[tpc_partition_cut]: ...
    @overload
    def new(self, cdecl: Literal["tpc_partition_params *", "tpc_partition_params[]"], init: Any = ...) -> tpc_partition_params: ...
    @overload
    def new(self, cdecl: Literal["tpc_partition_params **"], init: Any = ...) -> Pointer[tpc_partition_params]: ...
    @overload
    def new(self, cdecl: Literal["tpc_partition_state *", "tpc_partition_state[]"], init: Any = ...) -> tpc_partition_state: ...
    @overload
    def new(self, cdecl: Literal["tpc_partition_state **"], init: Any = ...) -> Pointer[tpc_partition_state]: ...
    @overload
    def new(self, cdecl: Literal["tpc_partition_use *", "tpc_partition_use[]"], init: Any = ...) -> tpc_partition_use: ...
    @overload
    def new(self, cdecl: Literal["tpc_partition_use **"], init: Any = ...) -> Pointer[tpc_partition_use]: ...
    @overload
    def new(self, cdecl: Literal["tpc_plane **"], init: Any = ...) -> Pointer[tpc_plane]: ...
    @overload
    def new(self, cdecl: Literal["tpc_plane_endpoint *", "tpc_plane_endpoint[]"], init: Any = ...) -> tpc_plane_endpoint: ...
    @overload
    def new(self, cdecl: Literal["tpc_plane_endpoint **"], init: Any = ...) -> Pointer[tpc_plane_endpoint]: ...
    @overload
    def new(self, cdecl: Literal["tpc_plane_params *", "tpc_plane_params[]"], init: Any = ...) -> tpc_plane_params: ...
    @overload
    def new(self, cdecl: Literal["tpc_plane_params **"], init: Any = ...) -> Pointer[tpc_plane_params]: ...
    @overload
    def new(self, cdecl: Literal["tpc_plane_statistics *", "tpc_plane_statistics[]"], init: Any = ...) -> tpc_plane_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_plane_statistics **"], init: Any = ...) -> Pointer[tpc_plane_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_prefault **"], init: Any = ...) -> Pointer[tpc_prefault]: ...
    @overload
    def new(self, cdecl: Literal["tpc_produce_verdict *", "tpc_produce_verdict[]"], init: Any = ...) -> tpc_produce_verdict: ...
    @overload
    def new(self, cdecl: Literal["tpc_produce_verdict **"], init: Any = ...) -> Pointer[tpc_produce_verdict]: ...
    @overload
    def new(self, cdecl: Literal["tpc_producer_batch *", "tpc_producer_batch[]"], init: Any = ...) -> tpc_producer_batch: ...
    @overload
    def new(self, cdecl: Literal["tpc_producer_batch **"], init: Any = ...) -> Pointer[tpc_producer_batch]: ...
    @overload
    def new(self, cdecl: Literal["tpc_producer_state *", "tpc_producer_state[]"], init: Any = ...) -> tpc_producer_state: ...
    @overload
    def new(self, cdecl: Literal["tpc_producer_state **"], init: Any = ...) -> Pointer[tpc_producer_state]: ...
    @overload
    def new(self, cdecl: Literal["tpc_request *", "tpc_request[]"], init: Any = ...) -> tpc_request: ...
    @overload
    def new(self, cdecl: Literal["tpc_request **"], init: Any = ...) -> Pointer[tpc_request]: ...
    @overload
    def new(self, cdecl: Literal["tpc_ring **"], init: Any = ...) -> Pointer[tpc_ring]: ...
    @overload
    def new(self, cdecl: Literal["tpc_ring_statistics *", "tpc_ring_statistics[]"], init: Any = ...) -> tpc_ring_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_ring_statistics **"], init: Any = ...) -> Pointer[tpc_ring_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_short_run *", "tpc_short_run[]"], init: Any = ...) -> tpc_short_run: ...
    @overload
    def new(self, cdecl: Literal["tpc_short_run **"], init: Any = ...) -> Pointer[tpc_short_run]: ...
    @overload
    def new(self, cdecl: Literal["tpc_slice *", "tpc_slice[]"], init: Any = ...) -> tpc_slice: ...
    @overload
    def new(self, cdecl: Literal["tpc_slice **"], init: Any = ...) -> Pointer[tpc_slice]: ...
    @overload
    def new(self, cdecl: Literal["tpc_slow_request *", "tpc_slow_request[]"], init: Any = ...) -> tpc_slow_request: ...
    @overload
    def new(self, cdecl: Literal["tpc_slow_request **"], init: Any = ...) -> Pointer[tpc_slow_request]: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_message *", "tpc_steady_message[]"], init: Any = ...) -> tpc_steady_message: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_message **"], init: Any = ...) -> Pointer[tpc_steady_message]: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_peer_state *", "tpc_steady_peer_state[]"], init: Any = ...) -> tpc_steady_peer_state: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_peer_state **"], init: Any = ...) -> Pointer[tpc_steady_peer_state]: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_state *", "tpc_steady_state[]"], init: Any = ...) -> tpc_steady_state: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_state **"], init: Any = ...) -> Pointer[tpc_steady_state]: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_statistics *", "tpc_steady_statistics[]"], init: Any = ...) -> tpc_steady_statistics: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_statistics **"], init: Any = ...) -> Pointer[tpc_steady_statistics]: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_want *", "tpc_steady_want[]"], init: Any = ...) -> tpc_steady_want: ...
    @overload
    def new(self, cdecl: Literal["tpc_steady_want **"], init: Any = ...) -> Pointer[tpc_steady_want]: ...
    @overload
    def new(self, cdecl: Literal["tpc_subject_names *", "tpc_subject_names[]"], init: Any = ...) -> tpc_subject_names: ...
    @overload
    def new(self, cdecl: Literal["tpc_subject_names **"], init: Any = ...) -> Pointer[tpc_subject_names]: ...
    @overload
    def new(self, cdecl: Literal["tpc_tail_batch *", "tpc_tail_batch[]"], init: Any = ...) -> tpc_tail_batch: ...
    @overload
    def new(self, cdecl: Literal["tpc_tail_batch **"], init: Any = ...) -> Pointer[tpc_tail_batch]: ...
    @overload
    def new(self, cdecl: Literal["tpc_tls_context **"], init: Any = ...) -> Pointer[tpc_tls_context]: ...
    @overload
    def new(self, cdecl: Literal["tpc_tls_settings *", "tpc_tls_settings[]"], init: Any = ...) -> tpc_tls_settings: ...
    @overload
    def new(self, cdecl: Literal["tpc_tls_settings **"], init: Any = ...) -> Pointer[tpc_tls_settings]: ...
    @overload
    def new(self, cdecl: Literal["tpc_told_aborted *", "tpc_told_aborted[]"], init: Any = ...) -> tpc_told_aborted: ...
    @overload
    def new(self, cdecl: Literal["tpc_told_aborted **"], init: Any = ...) -> Pointer[tpc_told_aborted]: ...
    @overload
    def new(self, cdecl: Literal["tpc_told_producer *", "tpc_told_producer[]"], init: Any = ...) -> tpc_told_producer: ...
    @overload
    def new(self, cdecl: Literal["tpc_told_producer **"], init: Any = ...) -> Pointer[tpc_told_producer]: ...
    @overload
    def new(self, cdecl: Literal["tpc_window_params *", "tpc_window_params[]"], init: Any = ...) -> tpc_window_params: ...
    @overload
    def new(self, cdecl: Literal["tpc_window_params **"], init: Any = ...) -> Pointer[tpc_window_params]: ...
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
