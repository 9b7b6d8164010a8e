/*
 * Encoding of the Produce and Fetch answers, all versions that Kafka 4.3 serves.
 *
 * The writer goes on counting when the room is used up, so one pass gives the size as well. Structures inside tagged
 * fields are preceded by their size: they are of fixed size, or counted first by a writer without room.
 */
#include <errno.h>

#include "bytes.h"
#include "wire.h"

enum {
    PRODUCE_FLEXIBLE = 9,
    PRODUCE_LEADERS = 10,
    PRODUCE_TOPIC_ID = 13,
    FETCH_FLEXIBLE = 12,
    FETCH_TOPIC_ID = 13,
    FETCH_ENDPOINTS = 16,
};

static bool string_fits(int32_t bytes_count) { return bytes_count >= -1 && bytes_count <= INT16_MAX; }

static void put_header(wire_writer *writer, bool flexible, int32_t correlation_id) {
    wire_put_i32(writer, 0); /* the size, set at the end */
    wire_put_i32(writer, correlation_id);
    wire_put_no_tags(writer, flexible);
}

static void put_endpoint_list(wire_writer *writer, const tpc_node_endpoint *endpoints, int count) {
    wire_put_count(writer, true, count);
    for (int i = 0; i < count; i++) {
        wire_put_i32(writer, endpoints[i].node_id);
        wire_put_string(writer, true, endpoints[i].host, endpoints[i].host_bytes);
        wire_put_i32(writer, endpoints[i].port);
        wire_put_string(writer, true, endpoints[i].rack, endpoints[i].rack_bytes);
        wire_put_no_tags(writer, true);
    }
}

/* The answer's own tagged fields: NodeEndpoints as tag 0, or none. */
static void put_endpoints(wire_writer *writer, const tpc_node_endpoint *endpoints, int count) {
    if (count <= 0) {
        wire_put_no_tags(writer, true);
        return;
    }
    wire_writer counter = {0};
    put_endpoint_list(&counter, endpoints, count);
    wire_put_uvarint(writer, 1);
    wire_put_uvarint(writer, 0);
    wire_put_uvarint(writer, (uint32_t)counter.bytes);
    put_endpoint_list(writer, endpoints, count);
}

static bool endpoints_fit(const tpc_node_endpoint *endpoints, int count) {
    for (int i = 0; i < count; i++)
        if (endpoints[i].host_bytes < 0 || !string_fits(endpoints[i].host_bytes) ||
            !string_fits(endpoints[i].rack_bytes))
            return false;
    return true;
}

static int64_t finish(wire_writer *writer, uint64_t bytes_beside) {
    uint64_t frame_bytes = (uint64_t)writer->bytes - 4 + bytes_beside;
    if (frame_bytes > INT32_MAX) return -EMSGSIZE;
    if (writer->out_bytes >= 4) wire_set_u32(writer->out, (uint32_t)frame_bytes);
    return (int64_t)writer->bytes;
}

/* An i32 pair in a tagged field: tag, size, the pair, no tags of its own. */
static void put_leader_tag(wire_writer *writer, uint32_t tag, int32_t leader_id, int32_t leader_epoch) {
    wire_put_uvarint(writer, tag);
    wire_put_uvarint(writer, 9);
    wire_put_i32(writer, leader_id);
    wire_put_i32(writer, leader_epoch);
    wire_put_no_tags(writer, true);
}

static void put_record_errors(wire_writer *writer, bool flexible, const tpc_produce_result *result) {
    wire_put_count(writer, flexible, result->record_errors_count);
    for (int32_t i = 0; i < result->record_errors_count; i++) {
        const tpc_record_error *error = &result->record_errors[i];
        wire_put_i32(writer, error->batch_index);
        wire_put_string(writer, flexible, error->message, error->message_bytes);
        wire_put_no_tags(writer, flexible);
    }
}

/* Returns where the error code is. */
static size_t put_produce_result(wire_writer *writer, int16_t version, const tpc_produce_result *result) {
    const bool flexible = version >= PRODUCE_FLEXIBLE;
    wire_put_i32(writer, result->partition);
    const size_t place = writer->bytes;
    wire_put_i16(writer, result->error_code);
    wire_put_i64(writer, result->base_offset);
    wire_put_i64(writer, result->log_append_time_ms);
    if (version >= 5) wire_put_i64(writer, result->log_start_offset);
    if (version >= 8) {
        put_record_errors(writer, flexible, result);
        wire_put_string(writer, flexible, result->error_message, result->error_message_bytes);
    }
    if (version >= PRODUCE_LEADERS && (result->leader_id != -1 || result->leader_epoch != -1)) {
        wire_put_uvarint(writer, 1);
        put_leader_tag(writer, 0, result->leader_id, result->leader_epoch);
    } else {
        wire_put_no_tags(writer, flexible);
    }
    return place;
}

static bool produce_result_fits(const tpc_produce_result *result) {
    if (!string_fits(result->topic_name_bytes) || !string_fits(result->error_message_bytes)) return false;
    if (result->record_errors_count < 0) return false;
    for (int32_t i = 0; i < result->record_errors_count; i++)
        if (!string_fits(result->record_errors[i].message_bytes)) return false;
    return true;
}

/* The end of the run of neighbours that share a topic_index. */
static int produce_topic_end(const tpc_produce_result *results, int count, int begin) {
    int end = begin + 1;
    while (end < count && results[end].topic_index == results[begin].topic_index) end++;
    return end;
}

static int produce_topics_count(const tpc_produce_result *results, int count) {
    int topics = 0;
    for (int i = 0; i < count; i = produce_topic_end(results, count, i)) topics++;
    return topics;
}

enum { PLAIN_BYTES = 64, PLAIN_NAME_BYTES_MAX = 126 };

/* Nearly every answer: one partition, and nothing in it that varies in size but the topic's name. */
static bool is_plain(int16_t version, const tpc_produce_result *result, int endpoints_count, size_t out_bytes) {
    return version >= PRODUCE_FLEXIBLE && result->record_errors_count == 0 && result->error_message_bytes == -1 &&
           result->topic_name_bytes <= PLAIN_NAME_BYTES_MAX && result->topic_name_bytes >= -1 &&
           result->leader_id == -1 && result->leader_epoch == -1 && endpoints_count <= 0 &&
           out_bytes >= PLAIN_BYTES + PLAIN_NAME_BYTES_MAX;
}

/* The same bytes as by put_produce_result() and what is around it. */
static int64_t encode_plain(int16_t version, int32_t correlation_id, int32_t throttle_ms,
                            const tpc_produce_result *result, uint8_t *out, uint32_t *place) {
    uint8_t *at = out + 4;
    wire_set_u32(at, (uint32_t)correlation_id);
    at[4] = 0; /* no tags */
    at[5] = 2; /* one topic */
    at += 6;
    if (version >= PRODUCE_TOPIC_ID) {
        memcpy(at, result->topic_id, 16);
        at += 16;
    } else {
        size_t name_bytes = result->topic_name_bytes > 0 ? (size_t)result->topic_name_bytes : 0;
        *at++ = (uint8_t)(name_bytes + 1);
        if (name_bytes) memcpy(at, result->topic_name, name_bytes);
        at += name_bytes;
    }
    *at++ = 2; /* one partition */
    wire_set_u32(at, (uint32_t)result->partition);
    at += 4;
    if (place) *place = (uint32_t)(at - out);
    wire_set_u16(at, (uint16_t)result->error_code);
    wire_set_u64(at + 2, (uint64_t)result->base_offset);
    wire_set_u64(at + 10, (uint64_t)result->log_append_time_ms);
    wire_set_u64(at + 18, (uint64_t)result->log_start_offset);
    at += 26;
    static const uint8_t no_errors_message_tags_tags[] = {1, 0, 0, 0};
    memcpy(at, no_errors_message_tags_tags, 4);
    wire_set_u32(at + 4, (uint32_t)throttle_ms);
    at[8] = 0; /* no tags, no endpoints */
    at += 9;
    wire_set_u32(out, (uint32_t)(at - out - 4));
    return at - out;
}

int64_t tpc_produce_encode(int16_t version, int32_t correlation_id, int32_t throttle_ms,
                           const tpc_produce_result *results, int results_count, const tpc_node_endpoint *endpoints,
                           int endpoints_count, uint8_t *out, size_t out_bytes, uint32_t *places) {
    if (version < TPC_PRODUCE_VERSION_MIN || version > TPC_PRODUCE_VERSION_MAX) return -EPROTONOSUPPORT;
    if (results_count == 1 && is_plain(version, results, endpoints_count, out_bytes))
        return encode_plain(version, correlation_id, throttle_ms, results, out, places);
    if (!endpoints_fit(endpoints, endpoints_count)) return -EINVAL;
    const bool flexible = version >= PRODUCE_FLEXIBLE;
    wire_writer writer = {.out = out, .out_bytes = out_bytes};
    put_header(&writer, flexible, correlation_id);
    wire_put_count(&writer, flexible, produce_topics_count(results, results_count));
    for (int begin = 0; begin < results_count;) {
        const int end = produce_topic_end(results, results_count, begin);
        const tpc_produce_result *first = &results[begin];
        wire_put_topic(&writer, flexible, version >= PRODUCE_TOPIC_ID, first->topic_name, first->topic_name_bytes,
                       first->topic_id);
        wire_put_count(&writer, flexible, end - begin);
        for (; begin < end; begin++) {
            if (!produce_result_fits(&results[begin])) return -EINVAL;
            size_t place = put_produce_result(&writer, version, &results[begin]);
            if (places) places[begin] = (uint32_t)place;
        }
        wire_put_no_tags(&writer, flexible);
    }
    wire_put_i32(&writer, throttle_ms);
    if (version >= PRODUCE_LEADERS)
        put_endpoints(&writer, endpoints, endpoints_count);
    else
        wire_put_no_tags(&writer, flexible);
    return finish(&writer, 0);
}

void tpc_produce_answer_fail(int16_t version, uint8_t *answer, uint32_t place, int16_t error_code, int keep_offset) {
    wire_set_u16(answer + place, (uint16_t)error_code);
    if (!keep_offset) memset(answer + place + 2, 0xff, version >= 5 ? 24 : 16);
}

static void put_offset_epoch_tag(wire_writer *writer, const tpc_fetch_result *result, bool snapshot) {
    wire_put_uvarint(writer, snapshot ? 2 : 0);
    wire_put_uvarint(writer, 13);
    if (snapshot) {
        wire_put_i64(writer, result->snapshot_end_offset);
        wire_put_i32(writer, result->snapshot_epoch);
    } else {
        wire_put_i32(writer, result->diverging_epoch);
        wire_put_i64(writer, result->diverging_end_offset);
    }
    wire_put_no_tags(writer, true);
}

static void put_fetch_tags(wire_writer *writer, const tpc_fetch_result *result) {
    const bool diverges = result->diverging_epoch != -1 || result->diverging_end_offset != -1;
    const bool leads = result->leader_id != -1 || result->leader_epoch != -1;
    const bool snapshot = result->snapshot_end_offset != -1 || result->snapshot_epoch != -1;
    wire_put_uvarint(writer, (uint32_t)diverges + leads + snapshot);
    if (diverges) put_offset_epoch_tag(writer, result, false);
    if (leads) put_leader_tag(writer, 1, result->leader_id, result->leader_epoch);
    if (snapshot) put_offset_epoch_tag(writer, result, true);
}

static void put_aborted(wire_writer *writer, bool flexible, const tpc_fetch_result *result) {
    wire_put_count(writer, flexible, result->aborted_count);
    for (int32_t i = 0; i < result->aborted_count; i++) {
        wire_put_i64(writer, result->aborted[i].producer_id);
        wire_put_i64(writer, result->aborted[i].first_offset);
        wire_put_no_tags(writer, flexible);
    }
}

/* Returns where the records belong. */
static size_t put_fetch_result(wire_writer *writer, int16_t version, const tpc_fetch_result *result) {
    const bool flexible = version >= FETCH_FLEXIBLE;
    wire_put_i32(writer, result->partition);
    wire_put_i16(writer, result->error_code);
    wire_put_i64(writer, result->high_watermark);
    wire_put_i64(writer, result->last_stable_offset);
    if (version >= 5) wire_put_i64(writer, result->log_start_offset);
    put_aborted(writer, flexible, result);
    if (version >= 11) wire_put_i32(writer, result->preferred_read_replica);
    wire_put_count(writer, flexible, result->records_bytes);
    const size_t split = writer->bytes;
    if (flexible) put_fetch_tags(writer, result);
    return split;
}

static int fetch_topic_end(const tpc_fetch_result *results, int count, int begin) {
    int end = begin + 1;
    while (end < count && results[end].topic_index == results[begin].topic_index) end++;
    return end;
}

static int fetch_topics_count(const tpc_fetch_result *results, int count) {
    int topics = 0;
    for (int i = 0; i < count; i = fetch_topic_end(results, count, i)) topics++;
    return topics;
}

static void put_fetch_answer(wire_writer *writer, const tpc_fetch_answer *answer) {
    put_header(writer, answer->version >= FETCH_FLEXIBLE, answer->correlation_id);
    wire_put_i32(writer, answer->throttle_ms);
    if (answer->version >= 7) {
        wire_put_i16(writer, answer->error_code);
        wire_put_i32(writer, answer->session_id);
    }
}

static bool fetch_result_fits(const tpc_fetch_result *result) {
    return string_fits(result->topic_name_bytes) && result->aborted_count >= -1 && result->records_bytes >= -1;
}

int64_t tpc_fetch_encode(const tpc_fetch_answer *answer, const tpc_fetch_result *results, int results_count,
                         const tpc_node_endpoint *endpoints, int endpoints_count, uint8_t *out, size_t out_bytes,
                         uint32_t *splits) {
    const int16_t version = answer->version;
    if (version < TPC_FETCH_VERSION_MIN || version > TPC_FETCH_VERSION_MAX) return -EPROTONOSUPPORT;
    if (!endpoints_fit(endpoints, endpoints_count)) return -EINVAL;
    const bool flexible = version >= FETCH_FLEXIBLE;
    uint64_t records_bytes = 0;
    wire_writer writer = {.out = out, .out_bytes = out_bytes};
    put_fetch_answer(&writer, answer);
    wire_put_count(&writer, flexible, fetch_topics_count(results, results_count));
    for (int begin = 0; begin < results_count;) {
        const int end = fetch_topic_end(results, results_count, begin);
        const tpc_fetch_result *first = &results[begin];
        wire_put_topic(&writer, flexible, version >= FETCH_TOPIC_ID, first->topic_name, first->topic_name_bytes,
                       first->topic_id);
        wire_put_count(&writer, flexible, end - begin);
        for (; begin < end; begin++) {
            if (!fetch_result_fits(&results[begin])) return -EINVAL;
            size_t split = put_fetch_result(&writer, version, &results[begin]);
            if (writer.bytes > INT32_MAX) return -EMSGSIZE;
            if (splits) splits[begin] = (uint32_t)split;
            if (results[begin].records_bytes > 0) records_bytes += (uint64_t)results[begin].records_bytes;
        }
        wire_put_no_tags(&writer, flexible);
    }
    if (version >= FETCH_ENDPOINTS)
        put_endpoints(&writer, endpoints, endpoints_count);
    else
        wire_put_no_tags(&writer, flexible);
    return finish(&writer, records_bytes);
}
