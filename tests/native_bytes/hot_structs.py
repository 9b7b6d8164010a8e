"""Between messages of the Python codec and the flat structures of the C codec."""

from tpc_broker._bytes import ffi, lib

ROOM = 64


def text(pointer, count):
    return None if count < 0 else bytes(ffi.buffer(pointer, count))


def encoded(string):
    return None if string is None else string.encode()


def header_of(frame):
    out = ffi.new("tpc_request_header *")
    result = lib.tpc_request_header_decode(frame, len(frame), out)
    client_id = text(out.client_id, out.client_id_bytes)
    fields = (out.api_key, out.api_version, out.correlation_id, client_id, bool(out.flexible), out.body_position)
    return result, fields


def decode_produce(data, version, room=ROOM):
    out, parts = ffi.new("tpc_produce_request *"), ffi.new("tpc_produce_part[]", room)
    body = ffi.from_buffer(data)
    result = lib.tpc_produce_decode(body, len(data), version, out, parts, room)
    if result:
        return result, None
    return 0, {
        "transactional_id": text(out.transactional_id, out.transactional_id_bytes),
        "acks": out.acks,
        "timeout_ms": out.timeout_ms,
        "topics_count": out.topics_count,
        "parts": [
            (
                part.topic_index,
                text(part.topic_name, part.topic_name_bytes),
                bytes(part.topic_id),
                part.partition,
                text(part.records, part.records_bytes),
            )
            for part in parts[0 : out.parts_count]
        ],
    }


def flat_produce(message):
    return [(index, topic, part) for index, topic in enumerate(message.topic_data) for part in topic.partition_data]


def produce_request_of(message, version):
    return {
        "transactional_id": encoded(message.transactional_id),
        "acks": message.acks,
        "timeout_ms": message.timeout_ms,
        "topics_count": len(message.topic_data),
        "parts": [
            (
                index,
                encoded(topic.name) if version < 13 else None,
                topic.topic_id if version >= 13 else bytes(16),
                part.index,
                None if part.records is None else bytes(part.records),
            )
            for index, topic, part in flat_produce(message)
        ],
    }


PART_FIELDS = [
    "partition",
    "current_leader_epoch",
    "fetch_offset",
    "last_fetched_epoch",
    "log_start_offset",
    "partition_bytes_max",
    "high_watermark",
]
REQUEST_FIELDS = [
    "replica_id",
    "replica_epoch",
    "wait_ms_max",
    "response_bytes_min",
    "response_bytes_max",
    "isolation_level",
    "session_id",
    "session_epoch",
]


def decode_fetch(data, version, room=ROOM):
    out, parts = ffi.new("tpc_fetch_request *"), ffi.new("tpc_fetch_part[]", room)
    forgotten = ffi.new("tpc_fetch_forgotten[]", room)
    body = ffi.from_buffer(data)
    result = lib.tpc_fetch_decode(body, len(data), version, out, parts, room, forgotten, room)
    if result:
        return result, None
    return 0, {name: getattr(out, name) for name in REQUEST_FIELDS} | {
        "cluster_id": text(out.cluster_id, out.cluster_id_bytes),
        "rack_id": text(out.rack_id, out.rack_id_bytes),
        "topics_count": out.topics_count,
        "parts": [
            (
                part.topic_index,
                text(part.topic_name, part.topic_name_bytes),
                bytes(part.topic_id),
                *(getattr(part, name) for name in PART_FIELDS),
                bytes(part.replica_directory_id),
            )
            for part in parts[0 : out.parts_count]
        ],
        "forgotten": [
            (text(one.topic_name, one.topic_name_bytes), bytes(one.topic_id), one.partition)
            for one in forgotten[0 : out.forgotten_count]
        ],
    }


def topic_fields(topic, version):
    return encoded(topic.topic) if version < 13 else None, topic.topic_id if version >= 13 else bytes(16)


def fetch_request_of(message, version):
    replica_id, replica_epoch = message.replica_id, -1
    if version >= 15:
        replica_id, replica_epoch = message.replica_state.replica_id, message.replica_state.replica_epoch
    return {
        "replica_id": replica_id,
        "replica_epoch": replica_epoch,
        "wait_ms_max": message.max_wait_ms,
        "response_bytes_min": message.min_bytes,
        "response_bytes_max": message.max_bytes,
        "isolation_level": message.isolation_level,
        "session_id": message.session_id,
        "session_epoch": message.session_epoch,
        "cluster_id": encoded(message.cluster_id),
        "rack_id": encoded(message.rack_id),
        "topics_count": len(message.topics),
        "parts": [
            (
                index,
                *topic_fields(topic, version),
                part.partition,
                part.current_leader_epoch,
                part.fetch_offset,
                part.last_fetched_epoch,
                part.log_start_offset,
                part.partition_max_bytes,
                part.high_watermark,
                part.replica_directory_id,
            )
            for index, topic in enumerate(message.topics)
            for part in topic.partitions
        ],
        "forgotten": [
            (*topic_fields(topic, version), partition)
            for topic in message.forgotten_topics_data
            for partition in topic.partitions
        ],
    }


class Strings:
    """C copies that live as long as this object."""

    def __init__(self):
        self.kept = []

    def put(self, target, name, value):
        data = None if value is None else (value.encode() if isinstance(value, str) else bytes(value))
        copy = ffi.NULL if data is None else ffi.new("uint8_t[]", data or b"\0")
        self.kept.append(copy)
        setattr(target, name, copy)
        setattr(target, f"{name}_bytes", -1 if data is None else len(data))


def endpoints_of(message, strings):
    endpoints = ffi.new("tpc_node_endpoint[]", len(message.node_endpoints))
    for target, node in zip(endpoints, message.node_endpoints, strict=True):
        strings.put(target, "host", node.host)
        strings.put(target, "rack", node.rack)
        target.node_id, target.port = node.node_id, node.port
    return endpoints


def fill_produce_result(target, index, topic, part, strings):
    strings.put(target, "topic_name", topic.name)
    strings.put(target, "error_message", part.error_message)
    errors = ffi.new("tpc_record_error[]", len(part.record_errors))
    for error, given in zip(errors, part.record_errors, strict=True):
        error.batch_index = given.batch_index
        strings.put(error, "message", given.batch_index_error_message)
    strings.kept.append(errors)
    target.record_errors, target.record_errors_count = errors, len(errors)
    target.topic_index, target.topic_id, target.partition = index, topic.topic_id, part.index
    target.leader_id, target.leader_epoch = part.current_leader.leader_id, part.current_leader.leader_epoch
    target.log_append_time_ms = part.log_append_time_ms
    for name in ("error_code", "base_offset", "log_start_offset"):
        setattr(target, name, getattr(part, name))


def encode_produce(message, version, correlation_id, room=None):
    """The frame, or the size it needs when the room is too small."""
    strings = Strings()
    flat = [(index, topic, part) for index, topic in enumerate(message.responses) for part in topic.partition_responses]
    results = ffi.new("tpc_produce_result[]", len(flat))
    for target, (index, topic, part) in zip(results, flat, strict=True):
        fill_produce_result(target, index, topic, part, strings)
    endpoints = endpoints_of(message, strings)
    arguments = (version, correlation_id, message.throttle_time_ms, results, len(flat), endpoints, len(endpoints))
    needed = lib.tpc_produce_encode(*arguments, ffi.NULL, 0, ffi.NULL)
    out = ffi.new("uint8_t[]", needed if room is None else max(room, 1))
    places, places_with_room = ffi.new("uint32_t[]", len(flat)), ffi.new("uint32_t[]", len(flat))
    took = lib.tpc_produce_encode(*arguments, out, needed if room is None else room, places)
    assert took == needed
    if room is None:  # short answers have a way of their own when there is room to spare
        spacious = ffi.new("uint8_t[]", needed + 256)
        assert lib.tpc_produce_encode(*arguments, spacious, needed + 256, places_with_room) == needed
        assert (ffi.buffer(spacious, needed)[:], list(places)) == (ffi.buffer(out)[:], list(places_with_room))
    return bytes(ffi.buffer(out)) if room is None else took


def fill_fetch_result(target, index, topic, part, strings):
    strings.put(target, "topic_name", topic.topic)
    aborted = part.aborted_transactions
    copies = ffi.new("tpc_aborted_transaction[]", [(one.producer_id, one.first_offset) for one in aborted or ()])
    strings.kept.append(copies)
    target.aborted, target.aborted_count = copies, -1 if aborted is None else len(aborted)
    target.topic_index, target.topic_id, target.partition = index, topic.topic_id, part.partition_index
    target.diverging_epoch, target.diverging_end_offset = part.diverging_epoch.epoch, part.diverging_epoch.end_offset
    target.leader_id, target.leader_epoch = part.current_leader.leader_id, part.current_leader.leader_epoch
    target.snapshot_epoch, target.snapshot_end_offset = part.snapshot_id.epoch, part.snapshot_id.end_offset
    target.records_bytes = -1 if part.records is None else len(part.records)
    names = "error_code high_watermark last_stable_offset log_start_offset preferred_read_replica"
    for name in names.split():
        setattr(target, name, getattr(part, name))


def encode_fetch(message, version, correlation_id):
    """The frame with the records put in at the splits."""
    strings = Strings()
    flat = [(index, topic, part) for index, topic in enumerate(message.responses) for part in topic.partitions]
    results = ffi.new("tpc_fetch_result[]", len(flat))
    for target, (index, topic, part) in zip(results, flat, strict=True):
        fill_fetch_result(target, index, topic, part, strings)
    answer = ffi.new("tpc_fetch_answer *", (correlation_id, message.throttle_time_ms, message.session_id, version, 0))
    answer.error_code = message.error_code
    endpoints, splits = endpoints_of(message, strings), ffi.new("uint32_t[]", len(flat))
    arguments = (answer, results, len(flat), endpoints, len(endpoints))
    needed = lib.tpc_fetch_encode(*arguments, ffi.NULL, 0, ffi.NULL)
    out = ffi.new("uint8_t[]", needed)
    assert lib.tpc_fetch_encode(*arguments, out, needed, splits) == needed
    meta, frame, begin = bytes(ffi.buffer(out)), b"", 0
    for split, (_, _, part) in zip(splits, flat, strict=True):
        frame += meta[begin:split] + bytes(part.records or b"")
        begin = split
    return frame + meta[begin:]


def fetch_size_with_records(version, sizes):
    """What the encoder says to partitions with so many bytes of records, without having them."""
    answer = ffi.new("tpc_fetch_answer *", (1, 0, 0, version, 0))
    results = ffi.new("tpc_fetch_result[]", len(sizes))
    for result, size in zip(results, sizes, strict=True):
        result.records_bytes = size
    return lib.tpc_fetch_encode(answer, results, len(sizes), ffi.NULL, 0, ffi.NULL, 0, ffi.NULL)
