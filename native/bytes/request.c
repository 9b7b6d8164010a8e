/*
 * Decoding of request headers and of the two hot requests.
 *
 * A count is checked against the bytes that are left before anything is done with it (an element takes at least a byte),
 * so work is bounded by the frame's size; what would not fit into the caller's arrays is an answer of its own.
 */
#include <errno.h>

#include "bytes.h"
#include "wire.h"

enum { NEVER = 127, UNKNOWN = -1 };

/* clang-format off */
/* First flexible version by API key, as of Kafka 4.4. */
static const int8_t flexible_from[TPC_API_KEYS_COUNT] = {
    /*  0 */ 9, 12, 6, 9, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 8, 6,
    /* 10 */ 3, 6, 4, 4, 4, 5, 3, NEVER, 3, 5,
    /* 20 */ 4, 2, 2, 4, 3, 3, 3, 1, 3, 2,
    /* 30 */ 2, 2, 4, 2, 2, 2, 2, 2, 2, 2,
    /* 40 */ 2, 2, 2, 2, 1, 0, 0, NEVER, 1, 1,
    /* 50 */ 0, 0, 0, 1, 1, 0, 0, 0, 0, 0,
    /* 60 */ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    /* 70 */ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    /* 80 */ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    /* 90 */ 0, 0, 0, 0, 0,
};
/* clang-format on */

bool tpc_api_flexible(int16_t api_key, int16_t api_version) {
    if (api_key < 0 || api_key >= TPC_API_KEYS_COUNT || flexible_from[api_key] == UNKNOWN) return false;
    return api_version >= flexible_from[api_key];
}

/* A length or count that is sent as it is (i32 or i16), or plus one as an unsigned varint. -1 is null. */
static int32_t sized(wire_reader *reader, int32_t value) {
    if (value < -1) reader->bad = true;
    return value;
}

static inline int32_t compact_size(wire_reader *reader) {
    uint32_t raw = wire_read_uvarint(reader);
    if (raw > INT32_MAX) reader->bad = true;
    return reader->bad ? -1 : (int32_t)raw - 1;
}

static inline const uint8_t *read_nullable_string(wire_reader *reader, bool flexible, int32_t *bytes_count) {
    int32_t length = flexible ? compact_size(reader) : sized(reader, wire_read_i16(reader));
    if (length > INT16_MAX) reader->bad = true;
    const uint8_t *bytes = length < 0 ? NULL : wire_take(reader, (size_t)length);
    *bytes_count = bytes ? length : -1;
    return bytes;
}

static const uint8_t *read_string(wire_reader *reader, bool flexible, int32_t *bytes_count) {
    const uint8_t *bytes = read_nullable_string(reader, flexible, bytes_count);
    if (!bytes) reader->bad = true;
    return bytes;
}

static const uint8_t *read_records(wire_reader *reader, bool flexible, int32_t *bytes_count) {
    int32_t length = flexible ? compact_size(reader) : sized(reader, wire_read_i32(reader));
    const uint8_t *bytes = length < 0 ? NULL : wire_take(reader, (size_t)length);
    *bytes_count = bytes ? length : -1;
    return bytes;
}

static void read_uuid(wire_reader *reader, uint8_t out[16]) {
    const uint8_t *at = wire_take(reader, 16);
    if (at) memcpy(out, at, 16);
}

/* The count of an array that may not be null; 0 when anything is wrong. */
static inline int32_t read_count(wire_reader *reader, bool flexible, size_t element_bytes_min) {
    int32_t count = flexible ? compact_size(reader) : wire_read_i32(reader);
    if (count < 0 || (size_t)count > wire_left(reader) / element_bytes_min) reader->bad = true;
    return reader->bad ? 0 : count;
}

/*
 * Tagged fields: count, then tag, size and bytes each. `known` is given each field's bytes as a reader of its own (and
 * must take all of them); it returns false for a tag it does not know, which is skipped. KIP-482 wants rising tags, but
 * Kafka does not look, and neither do we: of a repeated one the last counts.
 */
typedef bool (*tag_reader)(wire_reader *field, uint32_t tag, void *context);

static void read_tagged(wire_reader *reader, tag_reader known, void *context) {
    uint32_t count = wire_read_uvarint(reader);
    for (uint32_t i = 0; i < count && !reader->bad; i++) {
        uint32_t tag = wire_read_uvarint(reader);
        uint32_t field_bytes = wire_read_uvarint(reader);
        const uint8_t *bytes = wire_take(reader, field_bytes);
        if (!bytes) return;
        wire_reader field = wire_reader_of(bytes, field_bytes);
        if (known && known(&field, tag, context) && (field.bad || field.at != field.end)) reader->bad = true;
    }
}

static inline void skip_tagged(wire_reader *reader, bool flexible) {
    if (!flexible) return;
    if (__builtin_expect(!reader->bad && reader->at != reader->end && *reader->at == 0, 1))
        reader->at++;
    else
        read_tagged(reader, NULL, NULL);
}

int tpc_request_header_decode(const uint8_t *frame, size_t frame_bytes, tpc_request_header *out) {
    wire_reader reader = wire_reader_of(frame, frame_bytes);
    memset(out, 0, sizeof *out);
    out->client_id_bytes = -1;
    out->api_key = wire_read_i16(&reader);
    out->api_version = wire_read_i16(&reader);
    out->correlation_id = wire_read_i32(&reader);
    if (reader.bad) return -EBADMSG;
    if (out->api_key < 0 || out->api_key >= TPC_API_KEYS_COUNT || flexible_from[out->api_key] == UNKNOWN)
        return -ENOSYS;
    out->flexible = tpc_api_flexible(out->api_key, out->api_version);
    out->client_id = read_nullable_string(&reader, false, &out->client_id_bytes);
    skip_tagged(&reader, out->flexible);
    if (reader.bad || reader.at - frame > INT32_MAX) return -EBADMSG;
    out->body_position = (int32_t)(reader.at - frame);
    return 0;
}

typedef struct {
    const uint8_t *name;
    int32_t name_bytes;
    uint8_t id[16];
} topic_key;

static topic_key read_topic(wire_reader *reader, bool flexible, bool by_id) {
    topic_key topic = {.name_bytes = -1};
    if (by_id)
        read_uuid(reader, topic.id);
    else
        topic.name = read_string(reader, flexible, &topic.name_bytes);
    return topic;
}

/* The array is full or not; counts what would have been there. */
static bool next_slot(int32_t *count, int slots_max) { return (*count)++ < slots_max; }

static void read_produce_part(wire_reader *reader, bool flexible, const topic_key *topic, int32_t topic_index,
                              tpc_produce_part *part) {
    memset(part, 0, sizeof *part);
    part->topic_name = topic->name;
    part->topic_name_bytes = topic->name_bytes;
    memcpy(part->topic_id, topic->id, 16);
    part->topic_index = topic_index;
    part->partition = wire_read_i32(reader);
    part->records = read_records(reader, flexible, &part->records_bytes);
    skip_tagged(reader, flexible);
}

int tpc_produce_decode(const uint8_t *body, size_t body_bytes, int16_t version, tpc_produce_request *out,
                       tpc_produce_part *parts, int parts_max) {
    if (version < TPC_PRODUCE_VERSION_MIN || version > TPC_PRODUCE_VERSION_MAX) return -EPROTONOSUPPORT;
    const bool flexible = version >= 9, by_id = version >= 13;
    wire_reader reader = wire_reader_of(body, body_bytes);
    memset(out, 0, sizeof *out);
    out->transactional_id = read_nullable_string(&reader, flexible, &out->transactional_id_bytes);
    out->acks = wire_read_i16(&reader);
    out->timeout_ms = wire_read_i32(&reader);
    out->topics_count = read_count(&reader, flexible, 2);
    for (int32_t topic_index = 0; topic_index < out->topics_count && !reader.bad; topic_index++) {
        const topic_key topic = read_topic(&reader, flexible, by_id);
        int32_t count = read_count(&reader, flexible, 5);
        for (int32_t i = 0; i < count && !reader.bad; i++) {
            tpc_produce_part surplus;
            int32_t at = out->parts_count;
            bool fits = next_slot(&out->parts_count, parts_max);
            read_produce_part(&reader, flexible, &topic, topic_index, fits ? &parts[at] : &surplus);
        }
        skip_tagged(&reader, flexible);
    }
    skip_tagged(&reader, flexible);
    if (reader.bad || wire_left(&reader) > 0) return -EBADMSG;
    return out->parts_count > parts_max ? -E2BIG : 0;
}

int tpc_produce_peek(const uint8_t *body, size_t body_bytes, int16_t version, tpc_produce_part *part) {
    const bool flexible = version >= 9, by_id = version >= 13;
    wire_reader reader = wire_reader_of(body, body_bytes);
    int32_t name_bytes;
    memset(part, 0, sizeof *part);
    if (version < TPC_PRODUCE_VERSION_MIN || version > TPC_PRODUCE_VERSION_MAX) return -EBADMSG;
    read_nullable_string(&reader, flexible, &name_bytes);
    wire_take(&reader, sizeof(int16_t) + sizeof(int32_t)); /* acks, time-out */
    int32_t topics_count = read_count(&reader, flexible, 2);
    const topic_key topic = read_topic(&reader, flexible, by_id);
    int32_t count = read_count(&reader, flexible, 5);
    part->topic_name = topic.name;
    part->topic_name_bytes = topic.name_bytes;
    memcpy(part->topic_id, topic.id, 16);
    part->partition = wire_read_i32(&reader);
    part->records_bytes = flexible ? compact_size(&reader) : wire_read_i32(&reader);
    part->records = reader.at;
    return reader.bad || topics_count < 1 || count < 1 || part->records_bytes < 0 ? -EBADMSG : 0;
}

static bool read_request_tag(wire_reader *field, uint32_t tag, void *context) {
    tpc_fetch_request *out = context;
    if (tag == 0) {
        out->cluster_id = read_nullable_string(field, true, &out->cluster_id_bytes);
        return true;
    }
    if (tag != 1) return false;
    out->replica_id = wire_read_i32(field);
    out->replica_epoch = wire_read_i64(field);
    skip_tagged(field, true);
    return true;
}

/* Before version 15 the replica's state is no tag yet. */
static bool read_request_tag_before_15(wire_reader *field, uint32_t tag, void *context) {
    return tag == 0 && read_request_tag(field, tag, context);
}

static bool read_directory_tag(wire_reader *field, uint32_t tag, void *context) {
    tpc_fetch_part *part = context;
    if (tag == 0) read_uuid(field, part->replica_directory_id);
    return tag == 0;
}

static bool read_part_tag(wire_reader *field, uint32_t tag, void *context) {
    tpc_fetch_part *part = context;
    if (tag == 1) part->high_watermark = wire_read_i64(field);
    return tag == 1 || read_directory_tag(field, tag, context);
}

static void read_fetch_part(wire_reader *reader, int16_t version, const topic_key *topic, int32_t topic_index,
                            tpc_fetch_part *part) {
    memset(part, 0, sizeof *part);
    part->topic_name = topic->name;
    part->topic_name_bytes = topic->name_bytes;
    memcpy(part->topic_id, topic->id, 16);
    part->topic_index = topic_index;
    part->high_watermark = INT64_MAX;
    part->partition = wire_read_i32(reader);
    part->current_leader_epoch = version >= 9 ? wire_read_i32(reader) : -1;
    part->fetch_offset = wire_read_i64(reader);
    part->last_fetched_epoch = version >= 12 ? wire_read_i32(reader) : -1;
    part->log_start_offset = version >= 5 ? wire_read_i64(reader) : -1;
    part->partition_bytes_max = wire_read_i32(reader);
    if (version >= 12)
        read_tagged(reader, version >= 18 ? read_part_tag : version == 17 ? read_directory_tag : NULL, part);
}

static void read_fetch_topics(wire_reader *reader, int16_t version, tpc_fetch_request *out, tpc_fetch_part *parts,
                              int parts_max) {
    const bool flexible = version >= 12;
    out->topics_count = read_count(reader, flexible, 2);
    for (int32_t topic_index = 0; topic_index < out->topics_count && !reader->bad; topic_index++) {
        const topic_key topic = read_topic(reader, flexible, version >= 13);
        int32_t count = read_count(reader, flexible, 16);
        for (int32_t i = 0; i < count && !reader->bad; i++) {
            tpc_fetch_part surplus;
            int32_t at = out->parts_count;
            bool fits = next_slot(&out->parts_count, parts_max);
            read_fetch_part(reader, version, &topic, topic_index, fits ? &parts[at] : &surplus);
        }
        skip_tagged(reader, flexible);
    }
}

static void read_forgotten(wire_reader *reader, int16_t version, tpc_fetch_request *out, tpc_fetch_forgotten *forgotten,
                           int forgotten_max) {
    const bool flexible = version >= 12;
    int32_t topics_count = read_count(reader, flexible, 2);
    for (int32_t t = 0; t < topics_count && !reader->bad; t++) {
        const topic_key topic = read_topic(reader, flexible, version >= 13);
        int32_t count = read_count(reader, flexible, 4);
        for (int32_t i = 0; i < count && !reader->bad; i++) {
            tpc_fetch_forgotten one = {.topic_name = topic.name, .topic_name_bytes = topic.name_bytes};
            memcpy(one.topic_id, topic.id, 16);
            one.partition = wire_read_i32(reader);
            int32_t at = out->forgotten_count;
            if (next_slot(&out->forgotten_count, forgotten_max)) forgotten[at] = one;
        }
        skip_tagged(reader, flexible);
    }
}

int tpc_fetch_decode(const uint8_t *body, size_t body_bytes, int16_t version, tpc_fetch_request *out,
                     tpc_fetch_part *parts, int parts_max, tpc_fetch_forgotten *forgotten, int forgotten_max) {
    if (version < TPC_FETCH_VERSION_MIN || version > TPC_FETCH_VERSION_MAX) return -EPROTONOSUPPORT;
    wire_reader reader = wire_reader_of(body, body_bytes);
    memset(out, 0, sizeof *out);
    out->cluster_id_bytes = -1;
    out->replica_epoch = -1;
    out->session_epoch = -1;
    out->replica_id = version < 15 ? wire_read_i32(&reader) : -1;
    out->wait_ms_max = wire_read_i32(&reader);
    out->response_bytes_min = wire_read_i32(&reader);
    out->response_bytes_max = wire_read_i32(&reader);
    out->isolation_level = (int8_t)wire_read_u8(&reader);
    if (version >= 7) {
        out->session_id = wire_read_i32(&reader);
        out->session_epoch = wire_read_i32(&reader);
    }
    read_fetch_topics(&reader, version, out, parts, parts_max);
    if (version >= 7) read_forgotten(&reader, version, out, forgotten, forgotten_max);
    if (version >= 11) out->rack_id = read_string(&reader, version >= 12, &out->rack_id_bytes);
    if (version >= 12) read_tagged(&reader, version >= 15 ? read_request_tag : read_request_tag_before_15, out);
    if (reader.bad || wire_left(&reader) > 0) return -EBADMSG;
    return out->parts_count > parts_max || out->forgotten_count > forgotten_max ? -E2BIG : 0;
}
