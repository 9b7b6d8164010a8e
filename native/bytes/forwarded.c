/* Requests that are sent on in parts, and where the partitions stand in their answers. */
#include <errno.h>

#include "bytes.h"
#include "wire.h"

enum {
    PRODUCE_FLEXIBLE = 9,
    FETCH_FLEXIBLE = 12,
    WITH_TOPIC_IDS = 13, /* of both */
    RACK_FROM = 11,
    SESSIONLESS_EPOCH = -1
};

/* ---- writing ---- */

/* The next part that is chosen, from `from` on. */
static int32_t next_chosen(const uint8_t *chosen, int32_t parts_count, int32_t from) {
    while (from < parts_count && !chosen[from]) from++;
    return from;
}

int64_t tpc_produce_request_encode(int16_t version, const tpc_produce_request *request, const tpc_produce_part *parts,
                                   int32_t parts_count, const uint8_t *chosen, uint8_t *out, size_t out_bytes,
                                   uint32_t *splits) {
    const bool flexible = version >= PRODUCE_FLEXIBLE;
    wire_writer writer = {.out = out, .out_bytes = out_bytes};
    int32_t topics = 0, last_topic = -1;
    wire_put_string(&writer, flexible, request->transactional_id, request->transactional_id_bytes);
    wire_put_i16(&writer, request->acks);
    wire_put_i32(&writer, request->timeout_ms);
    for (int32_t i = next_chosen(chosen, parts_count, 0); i < parts_count;
         i = next_chosen(chosen, parts_count, i + 1)) {
        topics += parts[i].topic_index != last_topic;
        last_topic = parts[i].topic_index;
    }
    wire_put_count(&writer, flexible, topics);
    for (int32_t i = next_chosen(chosen, parts_count, 0); i < parts_count;) {
        const tpc_produce_part *first = &parts[i];
        int32_t count = 0;
        for (int32_t j = i; j < parts_count && parts[j].topic_index == first->topic_index; j++) count += chosen[j] != 0;
        wire_put_topic(&writer, flexible, version >= WITH_TOPIC_IDS, first->topic_name, first->topic_name_bytes,
                       first->topic_id);
        wire_put_count(&writer, flexible, count);
        for (; i < parts_count && parts[i].topic_index == first->topic_index;
             i = next_chosen(chosen, parts_count, i + 1)) {
            wire_put_i32(&writer, parts[i].partition);
            wire_put_count(&writer, flexible,
                           parts[i].records_bytes); /* bytes have their length as arrays their count */
            splits[i] = (uint32_t)writer.bytes;
            wire_put_no_tags(&writer, flexible);
        }
        wire_put_no_tags(&writer, flexible);
    }
    wire_put_no_tags(&writer, flexible);
    return (int64_t)writer.bytes;
}

static int32_t fetch_topic_end(const tpc_fetch_part *parts, int32_t count, int32_t begin) {
    int32_t end = begin + 1;
    while (end < count && parts[end].topic_index == parts[begin].topic_index) end++;
    return end;
}

static void put_fetch_part(wire_writer *writer, int16_t version, const tpc_fetch_part *part) {
    wire_put_i32(writer, part->partition);
    if (version >= 9) wire_put_i32(writer, part->current_leader_epoch);
    wire_put_i64(writer, part->fetch_offset);
    if (version >= 12) wire_put_i32(writer, part->last_fetched_epoch);
    if (version >= 5) wire_put_i64(writer, -1); /* log_start_offset: of followers */
    wire_put_i32(writer, part->partition_bytes_max);
    wire_put_no_tags(writer, version >= FETCH_FLEXIBLE);
}

int64_t tpc_fetch_request_encode(int16_t version, const tpc_fetch_request *request, const tpc_fetch_part *parts,
                                 int32_t parts_count, uint8_t *out, size_t out_bytes) {
    const bool flexible = version >= FETCH_FLEXIBLE;
    wire_writer writer = {.out = out, .out_bytes = out_bytes};
    int32_t topics = 0;
    if (version < 15) wire_put_i32(&writer, -1); /* no replica; later it is a tag */
    wire_put_i32(&writer, request->wait_ms_max);
    wire_put_i32(&writer, request->response_bytes_min);
    wire_put_i32(&writer, request->response_bytes_max);
    wire_put_u8(&writer, (uint8_t)request->isolation_level);
    if (version >= 7) {
        wire_put_i32(&writer, 0);
        wire_put_i32(&writer, SESSIONLESS_EPOCH);
    }
    for (int32_t i = 0; i < parts_count; i = fetch_topic_end(parts, parts_count, i)) topics++;
    wire_put_count(&writer, flexible, topics);
    for (int32_t i = 0; i < parts_count;) {
        const int32_t end = fetch_topic_end(parts, parts_count, i);
        wire_put_topic(&writer, flexible, version >= WITH_TOPIC_IDS, parts[i].topic_name, parts[i].topic_name_bytes,
                       parts[i].topic_id);
        wire_put_count(&writer, flexible, end - i);
        for (; i < end; i++) put_fetch_part(&writer, version, &parts[i]);
        wire_put_no_tags(&writer, flexible);
    }
    if (version >= 7) wire_put_count(&writer, flexible, 0);
    if (version >= RACK_FROM) wire_put_string(&writer, flexible, (const uint8_t *)"", 0);
    wire_put_no_tags(&writer, flexible);
    return (int64_t)writer.bytes;
}

uint32_t tpc_produce_error_entry(int16_t version, int32_t partition, int16_t error_code, uint8_t *out) {
    const bool flexible = version >= PRODUCE_FLEXIBLE;
    wire_writer writer = {.out = out, .out_bytes = TPC_ERROR_ENTRY_BYTES_MAX};
    wire_put_i32(&writer, partition);
    wire_put_i16(&writer, error_code);
    wire_put_i64(&writer, -1);
    wire_put_i64(&writer, -1);
    if (version >= 5) wire_put_i64(&writer, -1);
    if (version >= 8) {
        wire_put_count(&writer, flexible, 0);
        wire_put_string(&writer, flexible, NULL, -1);
    }
    wire_put_no_tags(&writer, flexible);
    return (uint32_t)writer.bytes;
}

uint32_t tpc_fetch_error_entry(int16_t version, int32_t partition, int16_t error_code, uint8_t *out) {
    const bool flexible = version >= FETCH_FLEXIBLE;
    wire_writer writer = {.out = out, .out_bytes = TPC_ERROR_ENTRY_BYTES_MAX};
    wire_put_i32(&writer, partition);
    wire_put_i16(&writer, error_code);
    wire_put_i64(&writer, -1);
    wire_put_i64(&writer, -1);
    if (version >= 5) wire_put_i64(&writer, -1);
    wire_put_count(&writer, flexible, -1); /* aborted transactions: not asked */
    if (version >= 11) wire_put_i32(&writer, -1);
    wire_put_count(&writer, flexible, 0);
    wire_put_no_tags(&writer, flexible);
    return (uint32_t)writer.bytes;
}

/* ---- reading ---- */

static int32_t read_size(wire_reader *reader, bool flexible) {
    int64_t size = flexible ? (int64_t)wire_read_uvarint(reader) - 1 : wire_read_i32(reader);
    if (size < -1 || size > (int64_t)wire_left(reader)) reader->bad = true;
    return reader->bad ? -1 : (int32_t)size;
}

static void skip_string(wire_reader *reader, bool flexible) {
    int32_t bytes = flexible ? read_size(reader, true) : wire_read_i16(reader);
    if (bytes > 0) wire_take(reader, (size_t)bytes);
    if (bytes < -1) reader->bad = true;
}

static void skip_tags(wire_reader *reader, bool flexible) {
    uint32_t count = flexible ? wire_read_uvarint(reader) : 0;
    for (uint32_t i = 0; i < count && !reader->bad; i++) {
        wire_read_uvarint(reader);
        wire_take(reader, wire_read_uvarint(reader));
    }
}

static void skip_topic(wire_reader *reader, bool flexible, bool by_id) {
    if (by_id)
        wire_take(reader, 16);
    else
        skip_string(reader, flexible);
}

static void read_produce_entry(wire_reader *reader, int16_t version, tpc_answer_entry *entry) {
    const bool flexible = version >= PRODUCE_FLEXIBLE;
    entry->partition = wire_read_i32(reader);
    entry->error_code = wire_read_i16(reader);
    wire_take(reader, version >= 5 ? 24 : 16);
    if (version >= 8) {
        for (int32_t i = read_size(reader, flexible); i > 0 && !reader->bad; i--) {
            wire_read_i32(reader);
            skip_string(reader, flexible);
            skip_tags(reader, flexible);
        }
        skip_string(reader, flexible);
    }
    skip_tags(reader, flexible);
}

static void read_fetch_entry(wire_reader *reader, int16_t version, const uint8_t *answer, tpc_answer_entry *entry) {
    const bool flexible = version >= FETCH_FLEXIBLE;
    entry->partition = wire_read_i32(reader);
    entry->error_code = wire_read_i16(reader);
    entry->high_watermark = wire_read_i64(reader);
    wire_read_i64(reader);
    entry->log_start_offset = version >= 5 ? wire_read_i64(reader) : -1;
    for (int32_t i = read_size(reader, flexible); i > 0 && !reader->bad; i--) {
        wire_take(reader, 16);
        skip_tags(reader, flexible);
    }
    if (version >= 11) wire_read_i32(reader);
    int32_t records_bytes = read_size(reader, flexible);
    entry->records_bytes = records_bytes > 0 ? records_bytes : 0;
    entry->records_begin = (uint32_t)(reader->at - answer);
    wire_take(reader, (size_t)entry->records_bytes);
    skip_tags(reader, flexible);
}

static wire_reader answer_reader(const uint8_t *answer, size_t answer_bytes, bool flexible) {
    wire_reader reader = wire_reader_of(answer, answer_bytes);
    if ((size_t)wire_read_i32(&reader) + 4 != answer_bytes) reader.bad = true;
    wire_read_i32(&reader);
    skip_tags(&reader, flexible);
    return reader;
}

/* The topics of either answer. */
static int32_t read_entries(wire_reader *reader, bool is_fetch, int16_t version, const uint8_t *answer,
                            tpc_answer_entry *entries, int32_t entries_max) {
    const bool flexible = version >= (is_fetch ? FETCH_FLEXIBLE : PRODUCE_FLEXIBLE);
    int32_t found = 0;
    for (int32_t topics = read_size(reader, flexible); topics > 0 && !reader->bad; topics--) {
        skip_topic(reader, flexible, version >= WITH_TOPIC_IDS);
        for (int32_t count = read_size(reader, flexible); count > 0 && !reader->bad; count--) {
            if (found == entries_max) return -EBADMSG;
            tpc_answer_entry *entry = &entries[found++];
            *entry = (tpc_answer_entry){.begin = (uint32_t)(reader->at - answer)};
            if (is_fetch)
                read_fetch_entry(reader, version, answer, entry);
            else
                read_produce_entry(reader, version, entry);
            entry->end = (uint32_t)(reader->at - answer);
        }
        skip_tags(reader, flexible);
    }
    return reader->bad ? -EBADMSG : found;
}

int32_t tpc_produce_answer_entries(int16_t version, const uint8_t *answer, size_t answer_bytes,
                                   tpc_answer_entry *entries, int32_t entries_max) {
    if (version < TPC_PRODUCE_VERSION_MIN || version > TPC_PRODUCE_VERSION_MAX) return -EPROTONOSUPPORT;
    wire_reader reader = answer_reader(answer, answer_bytes, version >= PRODUCE_FLEXIBLE);
    int32_t found = read_entries(&reader, false, version, answer, entries, entries_max);
    wire_read_i32(&reader); /* throttle time */
    skip_tags(&reader, version >= PRODUCE_FLEXIBLE);
    return reader.bad || wire_left(&reader) ? -EBADMSG : found;
}

int32_t tpc_fetch_answer_entries(int16_t version, const uint8_t *answer, size_t answer_bytes, tpc_answer_entry *entries,
                                 int32_t entries_max) {
    if (version < TPC_FETCH_VERSION_MIN || version > TPC_FETCH_VERSION_MAX) return -EPROTONOSUPPORT;
    wire_reader reader = answer_reader(answer, answer_bytes, version >= FETCH_FLEXIBLE);
    wire_read_i32(&reader); /* throttle time */
    if (version >= 7 && wire_read_i16(&reader) != 0) return -EBADMSG;
    if (version >= 7) wire_read_i32(&reader);
    int32_t found = read_entries(&reader, true, version, answer, entries, entries_max);
    skip_tags(&reader, version >= FETCH_FLEXIBLE);
    return reader.bad || wire_left(&reader) ? -EBADMSG : found;
}
