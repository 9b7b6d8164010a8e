/*
 * A Fetch whose partitions belong to several cores. Each owner is asked without a session, waits for its share of min_bytes,
 * and the first one that ends its wait releases the others; then the answer is put together from theirs, whose records are
 * sent from the frames that they came in.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "forward.h"
#include "wire.h"

enum {
    TOPIC_IDS_FROM = 13,
    FLEXIBLE_FROM = 12,
    SESSIONS_FROM = 7,
    COPIED_BYTES_MAX = 256, /* of a partition's entry */
    ANSWER_BYTES_SURE = 65536,
    FIELDS_BYTES_MAX = 64, /* of an answer, or of a topic beside its name */
    NS_PER_MS = 1000000
};

static void finish_fetch(tpc_forwarded *it);
static void release_others(tpc_forwarded *it);

static const tpc_forwarded_kind fetch_kind = {.finish = finish_fetch, .progressed = release_others};

/* ---- asking ---- */

static void ask_part(const tpc_fetch_asked *asked, int32_t topic_index, tpc_fetch_part *part) {
    *part = (tpc_fetch_part){.topic_name = asked->topic_name,
                             .topic_name_bytes = asked->topic_name_bytes,
                             .topic_index = topic_index,
                             .partition = asked->partition,
                             .current_leader_epoch = asked->current_leader_epoch,
                             .last_fetched_epoch = asked->last_fetched_epoch,
                             .fetch_offset = asked->fetch_offset,
                             .partition_bytes_max = asked->bytes_max};
    memcpy(part->topic_id, asked->topic_id, sizeof part->topic_id);
}

static bool send_part(tpc_forwarded *it, tpc_forwarded_part *part, const tpc_fetch_request *asked,
                      tpc_fetch_part *parts) {
    const tpc_fetch *fetch = it->fetch;
    uint32_t header_bytes = it->request.header_bytes;
    int32_t topic_index = 0;
    for (int32_t i = 0; i < it->asked_count; i++) {
        if (it->cores[i] == part->core) ask_part(fetch->parts[it->order[i]], topic_index, &parts[part->asked_count++]);
        topic_index += it->topics_end[i];
    }
    TPC_HOLDS(part->asked_count > 0 && part->asked_count <= it->asked_count);
    int64_t bytes = tpc_fetch_request_encode(it->request.api_version, asked, parts, part->asked_count, NULL, 0);
    tpc_frame *frame = tpc_frame_new_forced(it->plane->budget, header_bytes + (uint32_t)bytes);
    if (!frame) return false;
    memcpy(frame->data, it->request.body - header_bytes, header_bytes);
    tpc_fetch_request_encode(it->request.api_version, asked, parts, part->asked_count, frame->data + header_bytes,
                             (size_t)bytes);
    tpc_slice all = {.frame = frame, .data = frame->data, .length = frame->length};
    tpc_forwarded_send(it, part, TPC_LINK_FORWARD_FETCH, &all, 1);
    return true;
}

static bool send_parts(tpc_forwarded *it) {
    tpc_fetch *fetch = it->fetch;
    int64_t bytes_max, wait_ns = fetch->deadline_ns - tpc_ring_now_ns(it->plane->ring);
    int32_t count = (int32_t)it->parts_count, bytes_min = fetch->response_bytes_min;
    if (tpc_fetch_reserve(it->plane, fetch, &bytes_max) < 0) bytes_max = ANSWER_BYTES_SURE;
    tpc_fetch_request asked = {.wait_ms_max = wait_ns > 0 ? (int32_t)(wait_ns / NS_PER_MS) : 0,
                               .response_bytes_min = bytes_min > 0 ? (bytes_min - 1) / count + 1 : bytes_min,
                               .response_bytes_max = (int32_t)(bytes_max / count) + 1,
                               .isolation_level = fetch->isolation_level};
    tpc_fetch_part *parts = malloc((size_t)it->asked_count * sizeof *parts);
    bool sent = parts != NULL;
    for (uint32_t i = 0; i < it->parts_count && sent; i++) sent = send_part(it, &it->parts[i], &asked, parts) || i > 0;
    free(parts);
    return sent;
}

/* Which core each partition belongs to, by `order`; NULL: all are this one's, or there is no memory. */
static uint16_t *owners(const tpc_forwarding *forwarding, const tpc_fetch *fetch, const int32_t *order) {
    uint16_t *cores = malloc((size_t)fetch->parts_count * sizeof *cores);
    bool any = false;
    for (int32_t i = 0; cores && i < fetch->parts_count; i++) {
        const tpc_fetch_asked *asked = fetch->parts[order ? order[i] : i];
        cores[i] = tpc_forward_owner(forwarding, asked->topic_name, asked->topic_name_bytes, asked->topic_id,
                                     asked->partition);
        any |= cores[i] != forwarding->core;
    }
    if (any) return cores;
    free(cores);
    return NULL;
}

static void give_up(tpc_forwarded *it) {
    tpc_fetch_unreserve(it->plane, it->fetch);
    tpc_forwarded_free(it);
}

bool tpc_forward_fetch(tpc_plane *plane, tpc_fetch *fetch) {
    uint16_t distinct[TPC_FORWARD_CORES_MAX];
    if (fetch->parts_count == 0 || fetch->is_follower) return false;
    uint16_t *cores = owners(plane->forwarding, fetch, NULL);
    if (!cores) return false;
    uint32_t parts_count = tpc_forwarded_cores(cores, fetch->parts_count, distinct);
    free(cores);
    tpc_forwarded *it = tpc_forwarded_new(plane, &fetch_kind, fetch->request, fetch->parts_count, parts_count);
    if (!it) return false;
    it->fetch = fetch;
    it->order = malloc((size_t)fetch->parts_count * sizeof *it->order);
    it->topics_end = malloc((size_t)fetch->parts_count);
    if (it->order && it->topics_end && tpc_fetch_order(plane, fetch, it->order, it->topics_end) == 0)
        it->cores = owners(plane->forwarding, fetch, it->order);
    for (uint32_t i = 0; i < parts_count; i++) it->parts[i].core = distinct[i];
    if (!it->cores || !send_parts(it)) {
        give_up(it);
        return false;
    }
    for (uint32_t i = 0; i < parts_count; i++)
        if (!it->parts[i].whole)
            it->parts[i] = (tpc_forwarded_part){.outcome = TPC_LINK_LOST, .is_done = true, .core = distinct[i]};
    plane->forwarding->statistics.fetches++;
    for (uint32_t i = 0; i < parts_count; i++)
        if (it->parts[i].is_done && it->open > 0) release_others(it);
    tpc_forwarded_sent(it);
    return true;
}

/* An owner has waited, or need not: whoever else is asked waits for nothing any more. */
static void release_others(tpc_forwarded *it) {
    TPC_HOLDS(it->fetch && it->open > 0);
    if (it->is_released) return;
    it->is_released = true;
    /* A link without memory closes, and its parts are over: the last of them does not end it here. */
    bool was_sending = it->is_sending;
    it->is_sending = true;
    for (uint32_t i = 0; i < it->parts_count; i++)
        if (!it->parts[i].is_done)
            tpc_link_release(it->plane->connections, it->parts[i].core, it->request.connection, &it->parts[i].call);
    if (!was_sending) tpc_forwarded_sent(it);
}

/* ---- answering ---- */

/* What is told of one partition. */
typedef struct {
    const tpc_answer_entry *entry; /* NULL: its core could not be asked */
    const tpc_forwarded_part *part;
    bool without_records; /* they would go beyond the limit */
} told;

/* By the places of the fetch's partitions. */
static void match(tpc_forwarded *it, told *all) {
    for (int32_t i = 0; i < it->asked_count; i++) {
        tpc_forwarded_part *part = tpc_forwarded_part_of(it, it->cores[i]);
        TPC_HOLDS(it->order[i] >= 0 && it->order[i] < it->asked_count);
        TPC_HOLDS(part->is_done && part->entries_at <= part->entries_count);
        all[it->order[i]] = (told){.part = part};
        if (part->entries_at == part->entries_count) continue;
        const tpc_answer_entry *entry = &part->entries[part->entries_at++];
        if (entry->partition == it->fetch->parts[it->order[i]]->partition) all[it->order[i]].entry = entry;
    }
}

/* The limit of the whole answer, of which each owner had a share: the first records come whatever their size. */
static void keep_limit(const tpc_forwarded *it, told *all) {
    int64_t left_bytes = it->fetch->response_bytes_max;
    bool any = false;
    for (int32_t i = 0; i < it->asked_count; i++) {
        int32_t bytes = all[i].entry ? all[i].entry->records_bytes : 0;
        all[i].without_records = bytes > left_bytes && any;
        if (bytes == 0 || all[i].without_records) continue;
        any = true;
        left_bytes = bytes < left_bytes ? left_bytes - bytes : 0;
    }
}

static void list_outcomes(const tpc_forwarded *it, const told *all, tpc_fetch_outcome *outcomes) {
    for (int32_t i = 0; i < it->asked_count; i++) {
        const tpc_answer_entry *entry = all[i].entry;
        outcomes[i] = entry ? (tpc_fetch_outcome){.high_watermark = entry->high_watermark,
                                                  .log_start_offset = entry->log_start_offset,
                                                  .error_code = entry->error_code,
                                                  .has_records = entry->records_bytes > 0 && !all[i].without_records}
                            : (tpc_fetch_outcome){.high_watermark = -1,
                                                  .log_start_offset = -1,
                                                  .error_code = TPC_ERROR_NOT_LEADER_OR_FOLLOWER};
    }
}

typedef struct {
    tpc_frame *frame;
    wire_writer writer;
    size_t begin; /* of what no slice has yet */
    tpc_slice *slices;
    uint32_t count;
    uint64_t bytes;
} composition;

static void end_piece(composition *to) {
    if (to->writer.bytes == to->begin) return;
    uint32_t bytes = (uint32_t)(to->writer.bytes - to->begin);
    to->slices[to->count++] = tpc_slice_of(to->frame, to->frame->data + to->begin, bytes);
    to->begin = to->writer.bytes;
    to->bytes += bytes;
}

/* Everything of an entry but its records. */
static void put_without_records(composition *to, const told *of, bool flexible) {
    const tpc_answer_entry *entry = of->entry;
    wire_writer length = {0};
    wire_put_count(&length, flexible, entry->records_bytes);
    uint32_t records_end = entry->records_begin + (uint32_t)entry->records_bytes;
    wire_put(&to->writer, of->part->answer.data + entry->begin,
             entry->records_begin - entry->begin - (uint32_t)length.bytes);
    wire_put_count(&to->writer, flexible, 0);
    wire_put(&to->writer, of->part->answer.data + records_end, entry->end - records_end);
}

static void put_entry(composition *to, const tpc_forwarded *it, const told *of, int32_t partition) {
    const tpc_answer_entry *entry = of->entry;
    uint8_t error[TPC_ERROR_ENTRY_BYTES_MAX];
    if (!entry) {
        wire_put(&to->writer, error,
                 tpc_fetch_error_entry(it->request.api_version, partition, TPC_ERROR_NOT_LEADER_OR_FOLLOWER, error));
        return;
    }
    uint32_t bytes = entry->end - entry->begin;
    if (of->without_records) {
        put_without_records(to, of, it->request.api_version >= FLEXIBLE_FROM);
    } else if (bytes <= COPIED_BYTES_MAX) {
        wire_put(&to->writer, of->part->answer.data + entry->begin, bytes);
    } else {
        end_piece(to);
        to->slices[to->count++] = tpc_slice_of(of->part->answer.frame, of->part->answer.data + entry->begin, bytes);
        to->bytes += bytes;
    }
}

/* How much of the answer is written, and not sent from where it lies. */
static size_t written_bytes_max(const tpc_forwarded *it, const told *all) {
    size_t bytes = FIELDS_BYTES_MAX;
    for (int32_t i = 0; i < it->asked_count; i++) {
        const tpc_fetch_asked *asked = it->fetch->parts[i];
        bytes += FIELDS_BYTES_MAX + (asked->topic_name ? (size_t)asked->topic_name_bytes : 16);
        bytes += TPC_ERROR_ENTRY_BYTES_MAX + COPIED_BYTES_MAX;
        if (all[i].without_records)
            bytes += all[i].entry->end - all[i].entry->begin - (uint32_t)all[i].entry->records_bytes;
    }
    return bytes;
}

/* How many of the topic that begins at this place of the order are in the answer; *end: where the next one begins. */
static int32_t chosen_of_topic(const tpc_forwarded *it, const uint8_t *chosen, int32_t begin, int32_t *end) {
    int32_t count = 0;
    for (*end = begin; *end < it->asked_count;) {
        count += chosen[it->order[*end]] != 0;
        if (it->topics_end[(*end)++]) break;
    }
    return count;
}

static void compose(composition *to, const tpc_forwarded *it, const told *all, const uint8_t *chosen) {
    int16_t version = it->request.api_version;
    bool flexible = version >= FLEXIBLE_FROM;
    int32_t topics = 0, end;
    wire_put_i32(&to->writer, 0); /* the length, when it is known */
    wire_put_i32(&to->writer, it->request.correlation_id);
    wire_put_no_tags(&to->writer, flexible);
    wire_put_i32(&to->writer, 0); /* throttle time */
    if (version >= SESSIONS_FROM) {
        wire_put_i16(&to->writer, 0);
        wire_put_i32(&to->writer, it->fetch->session_id);
    }
    for (int32_t i = 0; i < it->asked_count; i = end) topics += chosen_of_topic(it, chosen, i, &end) > 0;
    wire_put_count(&to->writer, flexible, topics);
    for (int32_t i = 0; i < it->asked_count; i = end) {
        int32_t count = chosen_of_topic(it, chosen, i, &end);
        if (count == 0) continue;
        const tpc_fetch_asked *topic = it->fetch->parts[it->order[i]];
        wire_put_topic(&to->writer, flexible, version >= TOPIC_IDS_FROM, topic->topic_name, topic->topic_name_bytes,
                       topic->topic_id);
        wire_put_count(&to->writer, flexible, count);
        for (int32_t at = i; at < end; at++) {
            int32_t place = it->order[at];
            if (chosen[place]) put_entry(to, it, &all[place], it->fetch->parts[place]->partition);
        }
        wire_put_no_tags(&to->writer, flexible);
    }
    wire_put_no_tags(&to->writer, flexible);
    end_piece(to);
    TPC_HOLDS(to->begin == to->writer.bytes && to->count <= 2 * (uint32_t)it->asked_count + 1);
    TPC_HOLDS(to->bytes >= sizeof(uint32_t) && to->bytes <= INT32_MAX);
    wire_set_u32(to->frame->data, (uint32_t)to->bytes - 4);
}

/* False: no memory. */
static bool answer(tpc_forwarded *it) {
    tpc_plane *plane = it->plane;
    size_t count = (size_t)it->asked_count;
    told *all = malloc(count * sizeof *all);
    tpc_fetch_outcome *outcomes = malloc(count * sizeof *outcomes);
    uint8_t *chosen = malloc(count);
    composition to = {.slices = malloc((2 * count + 1) * sizeof *to.slices)};
    if (all && outcomes && chosen && to.slices) {
        tpc_forwarded_read(it);
        match(it, all);
        keep_limit(it, all);
        list_outcomes(it, all, outcomes);
        size_t bytes_max = written_bytes_max(it, all);
        to.frame = tpc_frame_new_forced(plane->budget, (uint32_t)bytes_max);
    }
    bool made = to.frame != NULL;
    if (made) {
        tpc_fetch_select(it->fetch, outcomes, chosen);
        to.writer = (wire_writer){.out = to.frame->data, .out_bytes = to.frame->capacity};
        compose(&to, it, all, chosen);
        TPC_INVARIANT(to.writer.bytes <= to.frame->capacity, "an answer of %zu bytes in a frame of %u", to.writer.bytes,
                      to.frame->capacity);
        tpc_frame_release(to.frame);
        tpc_fetch_unreserve(plane, it->fetch);
        tpc_answer_framed(plane->connections, it->request.connection, it->request.sequence, to.slices, to.count);
    }
    free(all), free(outcomes), free(chosen), free(to.slices);
    return made;
}

static void finish_fetch(tpc_forwarded *it) {
    tpc_plane *plane = it->plane;
    tpc_fetch *fetch = it->fetch;
    bool refused = false;
    TPC_HOLDS(fetch->state == TPC_FETCH_FRESH && fetch->request && !fetch->woken);
    for (uint32_t i = 0; i < it->parts_count; i++) refused |= it->parts[i].outcome == TPC_LINK_REFUSED;
    if (refused)
        tpc_connection_close(plane->connections, fetch->connection, TPC_CLOSE_REQUEST_INVALID,
                             TPC_CLOSE_AFTER_ANSWERED);
    else if (tpc_connection_is_open(plane->connections, fetch->connection) && !answer(it))
        tpc_connection_close(plane->connections, fetch->connection, TPC_CLOSE_BUDGET, TPC_CLOSE_NOW);
    tpc_fetch_unreserve(plane, fetch);
    tpc_request_leaves_python(plane->connections, fetch->request);
    tpc_request_release(fetch->request);
    tpc_forwarded_free(it);
    tpc_fetch_free(plane, fetch);
}
