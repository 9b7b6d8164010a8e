/*
 * Mutations of known inputs through every decoder of native/bytes and a producer's encoder, to be built with the sanitizers.
 *
 *   bytes_mutations CORPUS SEED ROUNDS [canary]
 *
 * The corpus is a sequence of cases: u8 target, i16 version, u32 size (little-endian), bytes. First every case and every
 * prefix of it, then ROUNDS mutated cases. Each input lies in a heap block of exactly its size, so that one byte too far
 * is found. Batches and commits are sealed again after most mutations, or nothing behind the checksum would be reached.
 * `canary` says that inputs are one byte longer than they are: the run must die, or the sanitizer is not there.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "journal_format.h"
#include "wire.h"

enum target {
    PRODUCE = 0,
    FETCH = 1,
    HEADER = 2,
    BATCH = 3,
    LOG = 4,
    JOURNAL = 5,
    COLUMNS = 6,
    LINK = 7,
    PRODUCE_ANSWER = 8,
    FETCH_ANSWER = 9,
    DATAGRAM = 10,
    CLEAN = 11,
    RECORD_ROWS = 12,
    PACKED = 13,
    SEGMENT = 14,
    TARGETS = 15
};
enum { CASES_MAX = 4096, ROOM = 8 };

typedef struct {
    int target;
    int16_t version;
    uint32_t size;
    const uint8_t *bytes;
} input;

static uint64_t random_state;
static size_t lie;
static uint64_t accepted[TARGETS], refused[TARGETS];
static volatile uint8_t sink;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545F4914F6CDD1Dull;
}

static void require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "invariant broken: %s\n", what);
    abort();
}

/* Reads all of what a decoder points at: a pointer beyond the input is as bad as a read there. */
static void touch(const uint8_t *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++) sink ^= bytes[i];
}

static int run_produce(const input *in) {
    tpc_produce_request request;
    tpc_produce_part parts[ROOM], first;
    int peeked = tpc_produce_peek(in->bytes, in->size + lie, in->version, &first);
    require(peeked == 0 || peeked == -EBADMSG, "peek result");
    if (!peeked) touch(first.topic_name, first.topic_name_bytes);
    require(peeked || (first.records >= in->bytes && first.records <= in->bytes + in->size), "peeked place");
    int result = tpc_produce_decode(in->bytes, in->size + lie, in->version, &request, parts, ROOM);
    require(result == 0 || result == -EBADMSG || result == -E2BIG || result == -EPROTONOSUPPORT, "produce result");
    if (result) return result;
    require(peeked || (first.records == parts[0].records && first.records_bytes == parts[0].records_bytes),
            "peeked records");
    require(peeked || first.partition == parts[0].partition, "peeked partition");
    touch(request.transactional_id, request.transactional_id_bytes);
    for (int i = 0; i < request.parts_count; i++) {
        touch(parts[i].topic_name, parts[i].topic_name_bytes);
        touch(parts[i].records, parts[i].records_bytes);
        require(parts[i].topic_index < request.topics_count, "topic index");
    }
    return 0;
}

static int run_fetch(const input *in) {
    tpc_fetch_request request;
    tpc_fetch_part parts[ROOM];
    tpc_fetch_forgotten forgotten[ROOM];
    int result = tpc_fetch_decode(in->bytes, in->size + lie, in->version, &request, parts, ROOM, forgotten, ROOM);
    require(result == 0 || result == -EBADMSG || result == -E2BIG || result == -EPROTONOSUPPORT, "fetch result");
    if (result) return result;
    touch(request.cluster_id, request.cluster_id_bytes);
    touch(request.rack_id, request.rack_id_bytes);
    for (int i = 0; i < request.parts_count; i++) touch(parts[i].topic_name, parts[i].topic_name_bytes);
    for (int i = 0; i < request.forgotten_count; i++) touch(forgotten[i].topic_name, forgotten[i].topic_name_bytes);
    return 0;
}

static int run_header(const input *in) {
    tpc_request_header header;
    int result = tpc_request_header_decode(in->bytes, in->size + lie, &header);
    if (result) return result;
    touch(header.client_id, header.client_id_bytes);
    require(header.body_position >= 0 && (size_t)header.body_position <= in->size, "body position");
    return 0;
}

static void run_stamps(const input *in) {
    uint8_t *copy = malloc(in->size ? in->size : 1);
    memcpy(copy, in->bytes, in->size);
    if (tpc_batch_stamp_append_time(copy, in->size, 5, 6, 7) == 0) {
        tpc_batch_header header;
        require(tpc_batch_header_read(copy, in->size, &header) == 0 && header.max_timestamp == 7, "append time");
        require(tpc_batch_set_max_timestamp(copy, in->size, 9) == 0, "max timestamp");
    }
    free(copy);
}

static int run_batch(const input *in) {
    const tpc_batch_limits limits = {
        .now_ms = 1700000001000,
        .timestamp_before_ms_max = INT64_MAX,
        .timestamp_after_ms_max = 3600000,
        .batch_bytes_max = 1 << 20,
        .produce_version = in->version,
        .compacted = in->version & 1,
    };
    tpc_batch_report report;
    int code = tpc_batch_validate(in->bytes, in->size + lie, &limits, &report);
    require(code == report.error_code && (code == 0) == (report.reason == TPC_BATCH_OK), "code and reason");
    run_stamps(in);
    if (code) return code;
    require(report.header.batch_bytes >= 61 && (size_t)report.header.batch_bytes <= in->size, "size of the batch");
    if (!(report.flags & TPC_BATCH_WALKED)) return 0;
    size_t position = 0, records_bytes = (size_t)report.header.batch_bytes - 61;
    tpc_record record;
    int32_t count = 0;
    for (; tpc_record_read(in->bytes + 61, records_bytes, &position, &record) == 0; count++) {
        touch(record.key, record.key_bytes);
        touch(record.value, record.value_bytes);
        touch(record.headers, record.headers_bytes);
    }
    require(count == report.header.records_count && position == records_bytes, "all records are read");
    return 0;
}

static void walk_key_values(const input *in) {
    tpc_key_values_walk walk = {.position = 0};
    tpc_key_value places[ROOM];
    int filled;
    do {
        walk.is_none_open = (int32_t)(walk.position / 8 % 2);
        filled = tpc_key_values_read(in->bytes, in->size + lie, &walk, places, ROOM);
        require(walk.position >= 0 && (size_t)walk.position <= in->size, "the walk stays within the bytes");
        for (int i = 0; i < filled; i++) {
            if (places[i].key_begin >= 0)
                touch(in->bytes + places[i].key_begin, places[i].key_end - places[i].key_begin);
            if (places[i].value_begin >= 0)
                touch(in->bytes + places[i].value_begin, places[i].value_end - places[i].value_begin);
        }
    } while (filled >= 0 && walk.stopped == TPC_KEY_VALUES_FULL);
}

static int run_log(const input *in) {
    walk_key_values(in);
    tpc_scan_state state = {.next_offset = -1};
    tpc_batch_entry entries[ROOM];
    int64_t last_position = 0;
    do {
        int filled = tpc_batch_scan(in->bytes, in->size + lie, in->version & 7, &state, entries, ROOM);
        require(filled >= 0 && state.position >= last_position && (size_t)state.position <= in->size, "scan moves on");
        last_position = state.position;
    } while (state.reason == TPC_BATCH_ARRAY_FULL);
    return state.reason;
}

static int run_journal(const input *in) {
    tpc_journal_scan_state state = {.region_bytes = in->size / 4096 * 4096, .next_sequence = 1, .any_previous_crc = 1};
    tpc_journal_damage damage = {.region_bytes = state.region_bytes, .first_missing_sequence = 1};
    tpc_journal_entry entries[ROOM];
    memset(state.journal_id, 'j', 16);
    memset(damage.journal_id, 'j', 16);
    do {
        int filled = tpc_journal_scan(in->bytes, in->size + lie, 0, &state, entries, ROOM);
        require(filled >= 0 && filled <= ROOM, "entries");
        for (int i = 0; i < filled; i++) {
            require(entries[i].payload_position + entries[i].payload_bytes <= in->size, "payload");
            touch(in->bytes + entries[i].payload_position, entries[i].payload_bytes);
        }
    } while (state.stop == TPC_JOURNAL_MORE_ROOM);
    damage.first_missing_sequence = state.next_sequence;
    tpc_journal_find_damage(in->bytes, in->size + lie, 0, &damage);
    return state.commits_count ? 0 : 1;
}

enum { ROWS = 16, ITEMS = 12, COLUMN_BYTES = 512 };

/* Every buffer is a heap block of exactly the size that is told. */
static void binary_make(tpc_binary_builder *column, int64_t room) {
    *column = (tpc_binary_builder){.data = malloc(COLUMN_BYTES),
                                   .offsets = malloc(4 * (size_t)(room + 1)),
                                   .valid = calloc(1, (size_t)(room + 7) / 8),
                                   .data_capacity = COLUMN_BYTES};
    column->offsets[0] = 0;
}

static void binary_free(tpc_binary_builder *column) {
    free(column->data);
    free(column->offsets);
    free(column->valid);
}

static void columns_make(tpc_columns *columns) {
    *columns = (tpc_columns){.rows_capacity = ROWS, .headers_capacity = ITEMS};
    columns->offsets = malloc(8 * ROWS);
    columns->timestamps_us = malloc(8 * ROWS);
    columns->timestamp_types = malloc(4 * ROWS);
    columns->header_offsets = malloc(4 * (ROWS + 1));
    columns->header_offsets[0] = 0;
    binary_make(&columns->key, ROWS);
    binary_make(&columns->value, ROWS);
    binary_make(&columns->header_name, ITEMS);
    binary_make(&columns->header_value, ITEMS);
}

static void columns_free(tpc_columns *columns) {
    free(columns->offsets);
    free(columns->timestamps_us);
    free(columns->timestamp_types);
    free(columns->header_offsets);
    binary_free(&columns->key);
    binary_free(&columns->value);
    binary_free(&columns->header_name);
    binary_free(&columns->header_value);
}

static tpc_binary_input input_of(const tpc_binary_builder *column) {
    return (tpc_binary_input){.data = column->data, .offsets = column->offsets, .valid = column->valid};
}

static void require_column(const tpc_binary_builder *column, int64_t count) {
    require(column->offsets[0] == 0, "a column begins at 0");
    for (int64_t i = 0; i < count; i++) require(column->offsets[i] <= column->offsets[i + 1], "offsets rise");
    require(column->offsets[count] <= column->data_capacity, "data in its buffer");
    require(column->nulls_count >= 0 && column->nulls_count <= count, "nulls");
}

static void require_cell(const tpc_binary_builder *column, int64_t row, const uint8_t *bytes, int32_t count) {
    int valid = column->valid[row >> 3] >> (row & 7) & 1;
    require(valid == (count >= 0), "null as it was");
    int32_t taken = count < 0 ? 0 : count;
    require(column->offsets[row + 1] - column->offsets[row] == taken, "length as it was");
    require(taken == 0 || memcmp(column->data + column->offsets[row], bytes, (size_t)taken) == 0, "bytes as they were");
}

/* What the columns hold, written as records and read again, is the same. Empties the columns. */
static void columns_there_and_back(tpc_columns *columns) {
    int32_t rows[ROWS], partitions[ROWS], count = (int32_t)columns->rows_count;
    require_column(&columns->key, count);
    require_column(&columns->value, count);
    require_column(&columns->header_name, columns->headers_count);
    require_column(&columns->header_value, columns->headers_count);
    require(columns->header_offsets[count] == columns->headers_count, "all headers belong to rows");
    for (int32_t i = 0; i < count; i++) rows[i] = i;
    tpc_records_input written = {.key = input_of(&columns->key),
                                 .value = input_of(&columns->value),
                                 .timestamps_ms = columns->timestamps_us,
                                 .header_offsets = columns->header_offsets,
                                 .header_name = input_of(&columns->header_name),
                                 .header_value = input_of(&columns->header_value)};
    tpc_records_partitions(&written.key, count, 7, partitions);
    size_t out_bytes = 1 + (size_t)(next_random() % 4096);
    uint8_t *out = malloc(out_bytes);
    tpc_records_output output;
    int64_t used = tpc_records_write(&written, rows, count, out, (int64_t)out_bytes, &output);
    require(used >= 0 && used <= (int64_t)out_bytes && output.records_count <= count, "what was written");
    size_t position = 0;
    tpc_record record;
    for (int32_t i = 0; i < output.records_count; i++) {
        require(tpc_record_read(out, (size_t)used, &position, &record) == 0, "a record is read again");
        require_cell(&columns->key, i, record.key, record.key_bytes);
        require_cell(&columns->value, i, record.value, record.value_bytes);
        require(record.headers_count == columns->header_offsets[i + 1] - columns->header_offsets[i], "headers");
    }
    require(position == (size_t)used, "nothing else was written");
    free(out);
    columns_free(columns);
    columns_make(columns);
}

/* The batch at the walk's position as if its records had been unpacked; false when there is no way on. */
static int columns_caller(tpc_columns *columns, const input *in, tpc_columns_walk *walk) {
    tpc_batch_header header;
    const uint8_t *at = in->bytes + walk->position;
    require(tpc_batch_header_read(at, in->size - (size_t)walk->position, &header) == 0,
            "the caller gets a whole batch");
    int result =
        tpc_columns_append(columns, &header, at + TPC_BATCH_HEADER_BYTES,
                           (size_t)header.batch_bytes - TPC_BATCH_HEADER_BYTES, walk->first_offset, walk->end_offset);
    require(result == 0 || result == -ENOSPC || result == -EBADMSG, "result of a batch");
    walk->position += header.batch_bytes;
    return result == 0;
}

static int run_columns(const input *in) {
    tpc_columns_walk walk = {.first_offset = in->version & 1 ? 103 : 0,
                             .end_offset = in->version & 2 ? 140 : INT64_MAX};
    tpc_columns columns;
    columns_make(&columns);
    for (int going = 1; going;) {
        int64_t before = walk.position, rows = columns.rows_count;
        tpc_columns_append_batches(&columns, in->bytes, in->size + lie, &walk);
        require(walk.position >= before && (size_t)walk.position <= in->size, "the walk goes on");
        require(columns.rows_count >= rows && columns.rows_count <= ROWS, "rows in their room");
        for (int64_t i = 0; i < columns.rows_count; i++)
            require(columns.offsets[i] >= walk.first_offset && columns.offsets[i] < walk.end_offset,
                    "rows of the range");
        if (walk.stop == TPC_COLUMNS_FULL && columns.rows_count)
            columns_there_and_back(&columns);
        else
            going = walk.stop == TPC_COLUMNS_NEEDS_CALLER && columns_caller(&columns, in, &walk);
    }
    columns_there_and_back(&columns);
    columns_free(&columns);
    return walk.stop == TPC_COLUMNS_END ? 0 : 1;
}

#include "packed_mutations.h"
#include "rows_mutations.h"
#include "segment_mutations.h"

/* Names that were understood are all that was said, and are said in the same way again. */
static int run_subject(const tpc_link_frame *frame) {
    tpc_link_subject_names names;
    uint8_t again[TPC_LINK_SUBJECT_BYTES_MAX];
    int result = tpc_link_subject_decode(frame->payload, frame->payload_bytes, &names);
    require(result == 0 || result == -EBADMSG, "subject result");
    if (result) return result;
    touch(names.principal, names.principal_bytes);
    touch(names.host, names.host_bytes);
    uint32_t bytes = tpc_link_subject(names.principal, names.principal_bytes, names.host, names.host_bytes, again);
    require(bytes == frame->payload_bytes && memcmp(again, frame->payload, bytes) == 0, "a subject as it was");
    return 0;
}

static int run_link(const input *in) {
    tpc_link_frame frame;
    int result = tpc_link_frame_decode(in->bytes, in->size + lie, &frame);
    require(result == 0 || result == -EBADMSG || result == -EPROTONOSUPPORT, "link result");
    if (result) return result;
    touch(frame.payload, frame.payload_bytes);
    uint8_t written[4 + TPC_LINK_HEADER_BYTES];
    tpc_link_frame_header(&frame, written);
    require(memcmp(written + 4, in->bytes, TPC_LINK_HEADER_BYTES) == 0, "a header as it was");
    return frame.kind == TPC_LINK_SUBJECT ? run_subject(&frame) : 0;
}

/* What is told of the partitions lies behind one another, inside of the answer. */
static int run_answer(const input *in) {
    bool is_fetch = in->target == FETCH_ANSWER;
    tpc_answer_entry entries[ROOM];
    int32_t found = (is_fetch ? tpc_fetch_answer_entries : tpc_produce_answer_entries)(in->version, in->bytes,
                                                                                       in->size + lie, entries, ROOM);
    require(found >= 0 || found == -EBADMSG || found == -EPROTONOSUPPORT, "answer result");
    if (found < 0) return found;
    uint32_t end = 0;
    for (int32_t i = 0; i < found; i++) {
        require(entries[i].begin >= end && entries[i].end > entries[i].begin, "entries in their order");
        end = entries[i].end;
        require(end <= in->size, "entries inside of the answer");
        if (is_fetch)
            require(entries[i].records_begin > entries[i].begin && entries[i].records_bytes >= 0 &&
                        entries[i].records_begin + (uint32_t)entries[i].records_bytes <= end,
                    "records inside of their entry");
    }
    return 0;
}

/* What is taken makes a batch that a Produce would take as well. */
static int run_datagram(const input *in) {
    tpc_datagram said;
    int result = tpc_datagram_decode(in->bytes, in->size + lie, &said);
    require(result == 0 || result == -EBADMSG || result == -EINVAL, "datagram result");
    if (result) return result;
    touch(said.key, said.key ? said.key_bytes : 0);
    touch(said.value, said.value_bytes);
    require(said.key_bytes + said.value_bytes + TPC_DATAGRAM_HEADER_BYTES <= in->size + lie, "within the datagram");
    if (said.timestamp_ms < 0) said.timestamp_ms = 1700000000000;
    tpc_batch_builder builder = {0};
    uint32_t once = tpc_batch_builder_record_bytes(&builder, &said);
    uint8_t *batch = malloc(2 * (size_t)once + 8);
    for (int i = 0; i < 2; i++) {
        uint32_t bytes = builder.bytes + tpc_batch_builder_record_bytes(&builder, &said);
        tpc_batch_builder_add(&builder, &said, batch);
        require(builder.bytes == bytes, "a record takes what was said");
    }
    tpc_batch_builder_finish(&builder, batch);
    tpc_batch_limits limits = {.now_ms = said.timestamp_ms,
                               .timestamp_before_ms_max = INT64_MAX,
                               .timestamp_after_ms_max = INT64_MAX,
                               .batch_bytes_max = INT32_MAX,
                               .produce_version = 9};
    tpc_batch_report report;
    require(tpc_batch_validate(batch, builder.bytes, &limits, &report) == 0, "a valid batch");
    require(report.header.records_count == 2, "of two records");
    free(batch);
    return 0;
}

enum { SLOTS = 9, MARKS_BYTES = 1 << 17, UNPACKED_BYTES = 512 };

/* A job over the input: a map of a few keys, an aborted transaction, a producer that is known by a batch. */
typedef struct {
    tpc_cleaner cleaner;
    tpc_clean_key keys[SLOTS];
    tpc_clean_aborted aborted[2];
    int64_t kept_offsets[2];
    uint8_t *marks, *unpacked, *kept, *remembered;
} clean_job;

/* In the place of a library's: what is packed is what was there, or an error. */
static int copy_block(const char *from, char *to, int from_bytes, int to_bytes_max) {
    if (from_bytes > to_bytes_max) return -1;
    memcpy(to, from, (size_t)from_bytes);
    return from_bytes;
}

static int pack_nothing(const char *from, char *to, int from_bytes, int to_bytes_max) {
    touch((const uint8_t *)from, from_bytes);
    if (to_bytes_max) to[to_bytes_max - 1] = 0;
    return 0;
}

static clean_job *clean_begin(const input *in) {
    clean_job *job = calloc(1, sizeof *job);
    job->marks = malloc(MARKS_BYTES);
    job->unpacked = malloc(UNPACKED_BYTES);
    job->kept = malloc(3 * UNPACKED_BYTES);
    size_t remembered_bytes = (size_t)(next_random() % 4) * UNPACKED_BYTES;
    job->remembered = malloc(remembered_bytes);
    job->aborted[0] = (tpc_clean_aborted){.producer_id = 5, .first_offset = 0, .last_offset = 103};
    job->aborted[1] = (tpc_clean_aborted){.producer_id = 6, .first_offset = 104, .last_offset = 120};
    job->kept_offsets[0] = 100, job->kept_offsets[1] = 110;
    job->cleaner = (tpc_cleaner){.keys = job->keys,
                                 .slots_count = SLOTS,
                                 .keys_max = 1 + in->version % (SLOTS - 1),
                                 .aborted = job->aborted,
                                 .aborted_count = 2,
                                 .kept_offsets = job->kept_offsets,
                                 .kept_count = 2,
                                 .marks = job->marks,
                                 .marks_bytes = MARKS_BYTES,
                                 .codecs = {.lz4_unpack = copy_block,
                                            .lz4_pack = pack_nothing,
                                            .unpacked = job->unpacked,
                                            .unpacked_bytes = UNPACKED_BYTES,
                                            .kept = job->kept,
                                            .kept_bytes = 3 * UNPACKED_BYTES,
                                            .remembered = job->remembered,
                                            .remembered_bytes = (int64_t)remembered_bytes},
                                 .batch_bytes_max = in->version & 4 ? 80 : INT32_MAX,
                                 .now_ms = 1700000000003,
                                 .new_horizon_ms = INT64_MAX / 2,
                                 .may_grow = in->version & 1,
                                 .horizons_believed = in->version & 2,
                                 .source_end_offset = INT64_MAX};
    return job;
}

/* What is compressed is taken as if it were not, or cannot be unpacked. */
static const uint8_t *clean_records(const tpc_cleaner *cleaner, const uint8_t *batch, size_t *records_bytes) {
    *records_bytes = (size_t)cleaner->batch_bytes - TPC_BATCH_HEADER_BYTES;
    if (next_random() % 4) return batch + TPC_BATCH_HEADER_BYTES;
    *records_bytes = 0;
    return NULL;
}

static void clean_collect(tpc_cleaner *cleaner, const input *in) {
    size_t records_bytes;
    while (tpc_clean_collect(cleaner, in->bytes, in->size + lie) == TPC_CLEAN_UNPACK) {
        const uint8_t *batch = in->bytes + cleaner->place, *records = clean_records(cleaner, batch, &records_bytes);
        if (tpc_clean_collect_unpacked(cleaner, batch, records, records_bytes) == TPC_CLEAN_FULL) break;
    }
    require(cleaner->keys_count <= cleaner->keys_max && (size_t)cleaner->place <= in->size, "a map in its bounds");
}

/* The compressed or control batch that the walk stands at; -ENOSPC. */
static int clean_one(tpc_cleaner *cleaner, const uint8_t *batch, uint8_t *out, size_t out_bytes) {
    if (cleaner->stop == TPC_CLEAN_CONTROL)
        return tpc_clean_control(cleaner, batch, (int)(next_random() % 3), out, out_bytes);
    size_t records_bytes;
    const uint8_t *records = clean_records(cleaner, batch, &records_bytes);
    tpc_clean_verdict verdict;
    int result = tpc_clean_unpacked(cleaner, batch, records, records_bytes, out, out_bytes, &verdict);
    if (result < 0 || verdict.outcome != TPC_CLEAN_REWRITTEN) return result;
    require(verdict.records_bytes + cleaner->written_bytes <= (int64_t)out_bytes, "records in their room");
    uint8_t *packed = malloc((size_t)verdict.records_bytes);
    memcpy(packed, out + cleaner->written_bytes, (size_t)verdict.records_bytes);
    result = tpc_clean_packed(cleaner, batch, &verdict, packed, (size_t)verdict.records_bytes, out, out_bytes);
    free(packed);
    if (result == -ENOSPC) cleaner->written_bytes = 0;
    return 0;
}

/* What was written is a log. */
static void clean_written(tpc_cleaner *cleaner, const uint8_t *out, size_t out_bytes) {
    require(cleaner->written_bytes >= 0 && (size_t)cleaner->written_bytes <= out_bytes, "an output in its room");
    tpc_scan_state scan = {.next_offset = -1};
    tpc_batch_scan(out, (size_t)cleaner->written_bytes, TPC_SCAN_CHECK_CRC | TPC_SCAN_ALLOW_GAPS, &scan, NULL, 0);
    require(scan.reason == TPC_BATCH_OK && scan.position == cleaner->written_bytes, "whole batches in their order");
    cleaner->written_bytes = 0;
}

static int run_clean(const input *in) {
    clean_job *job = clean_begin(in);
    tpc_cleaner *cleaner = &job->cleaner;
    clean_collect(cleaner, in);
    cleaner->place = cleaner->next_offset = 0;
    size_t out_bytes = 1 + (size_t)(next_random() % 2048);
    uint8_t *out = malloc(out_bytes);
    for (;;) {
        int64_t before = cleaner->place;
        int stop = tpc_clean_batches(cleaner, in->bytes, in->size + lie, out, out_bytes);
        require(cleaner->place >= before && (size_t)cleaner->place <= in->size, "the walk goes on");
        if (stop == TPC_CLEAN_END || stop == TPC_CLEAN_BAD) break;
        if (stop != TPC_CLEAN_ROOM && clean_one(cleaner, in->bytes + cleaner->place, out, out_bytes) == 0) continue;
        clean_written(cleaner, out, out_bytes);
        cleaner->seen_count = 0;
        if (cleaner->needed_bytes > (int64_t)out_bytes) {
            out_bytes = (size_t)cleaner->needed_bytes;
            out = realloc(out, out_bytes);
        }
    }
    clean_written(cleaner, out, out_bytes);
    require(cleaner->records_kept <= cleaner->records_read, "no record is made");
    int result = cleaner->stop == TPC_CLEAN_END && cleaner->records_read ? 0 : 1;
    free(out);
    free(job->marks);
    free(job->unpacked);
    free(job->kept);
    free(job->remembered);
    free(job);
    return result;
}

static void run(const input *in) {
    static int (*const runners[TARGETS])(const input *) = {
        run_produce, run_fetch,  run_header,   run_batch, run_log,  run_journal, run_columns, run_link,
        run_answer,  run_answer, run_datagram, run_clean, run_rows, run_packed,  run_segment};
    input exact = *in;
    uint8_t *copy = malloc(in->size);
    if (in->size) memcpy(copy, in->bytes, in->size);
    exact.bytes = copy;
    if (runners[in->target](&exact) == 0)
        accepted[in->target]++;
    else
        refused[in->target]++;
    free(copy);
}

static void mutate(uint8_t *bytes, uint32_t *size, uint32_t capacity) {
    static const uint8_t interesting[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0xfe, 0x0f, 0x10};
    for (uint64_t times = 1 + next_random() % 4; times > 0 && *size > 0; times--) {
        uint32_t at = (uint32_t)(next_random() % *size);
        switch (next_random() % 6) {
        case 0:
            bytes[at] ^= (uint8_t)(1u << next_random() % 8);
            break;
        case 1:
            bytes[at] = interesting[next_random() % sizeof interesting];
            break;
        case 2:
            memset(bytes + at, next_random() & 1 ? 0xff : 0x00, (*size - at) < 4 ? *size - at : 4);
            break;
        case 3:
            *size = at;
            break;
        case 4:
            if (*size < capacity) {
                memmove(bytes + at + 1, bytes + at, *size - at);
                bytes[at] = (uint8_t)next_random();
                ++*size;
            }
            break;
        default:
            memmove(bytes + at, bytes + at + 1, *size - at - 1);
            --*size;
        }
    }
}

/* No checksum covers where a log's batch lies. */
static void move_to_an_edge(uint8_t *batch) {
    static const int64_t edges[] = {
        INT64_MAX, INT64_MAX - 1, INT64_MAX - INT32_MAX, INT64_MAX - 1 - INT32_MAX, INT32_MAX, -1, INT64_MIN};
    uint64_t edge = __builtin_bswap64((uint64_t)edges[next_random() % (sizeof edges / sizeof *edges)]);
    uint32_t delta = __builtin_bswap32(INT32_MAX);
    memcpy(batch, &edge, sizeof edge);
    if (next_random() % 2) memcpy(batch + 23, &delta, sizeof delta);
}

/* So that what lies behind a checksum is reached: lengths and checksums right again, the damage inside kept. */
static void seal_again(const input *in) {
    uint8_t *bytes = (uint8_t *)in->bytes;
    if ((in->target == BATCH || in->target == LOG || in->target == COLUMNS || in->target == CLEAN ||
         in->target == RECORD_ROWS || in->target == SEGMENT) &&
        in->size >= 61) {
        if (in->target == BATCH && next_random() % 4) {
            uint32_t length = __builtin_bswap32(in->size - 12);
            memcpy(bytes + 8, &length, 4);
        }
        if (in->target != BATCH && next_random() % 8 == 0) move_to_an_edge(bytes);
        tpc_batch_seal(bytes, in->size);
    }
    if (in->target == JOURNAL) tpc_journal_commit_seal(bytes, in->size);
    if ((in->target == PRODUCE_ANSWER || in->target == FETCH_ANSWER) && in->size >= 4) {
        uint32_t length = __builtin_bswap32(in->size - 4);
        memcpy(bytes, &length, 4);
    }
    if (in->target == LINK && in->size > 0) bytes[0] = TPC_LINK_VERSION;
    if (in->target == DATAGRAM && in->size > 1) bytes[0] = TPC_DATAGRAM_VERSION, bytes[1] &= 7;
}

static int read_corpus(const char *path, input *cases) {
    FILE *file = fopen(path, "rb");
    int count = 0;
    uint8_t head[7];
    if (!file) return -1;
    while (count < CASES_MAX && fread(head, 1, sizeof head, file) == sizeof head) {
        input *in = &cases[count++];
        in->target = head[0];
        memcpy(&in->version, head + 1, 2);
        memcpy(&in->size, head + 3, 4);
        uint8_t *bytes = malloc(in->size + 1);
        require(in->target < TARGETS && fread(bytes, 1, in->size, file) == in->size, "the corpus is whole");
        in->bytes = bytes;
    }
    fclose(file);
    return count;
}

int main(int argc, char **argv) {
    static input cases[CASES_MAX];
    if (argc < 4) return 2;
    int count = read_corpus(argv[1], cases);
    if (count <= 0) return 2;
    random_state = strtoull(argv[2], NULL, 10) * 2 + 1;
    lie = argc > 4 && strcmp(argv[4], "canary") == 0;
    for (int i = 0; i < count; i++) {
        run(&cases[i]);
        uint32_t step = cases[i].size / 200 + 1;
        for (input prefix = cases[i]; prefix.size >= step; run(&prefix)) prefix.size -= step;
    }
    uint8_t *buffer = malloc(1 << 20);
    for (long rounds = strtol(argv[3], NULL, 10); rounds > 0; rounds--) {
        const input *from = &cases[next_random() % (uint64_t)count];
        input changed = {.target = from->target, .version = from->version, .size = from->size, .bytes = buffer};
        if (from->size > (1 << 19)) continue;
        memcpy(buffer, from->bytes, from->size);
        mutate(buffer, &changed.size, 1 << 20);
        if (next_random() % 5) seal_again(&changed);
        run(&changed);
    }
    for (int target = 0; target < TARGETS; target++)
        printf("%d %llu %llu\n", target, (unsigned long long)accepted[target], (unsigned long long)refused[target]);
    free(buffer);
    for (int i = 0; i < count; i++) free((void *)cases[i].bytes);
    return 0;
}
