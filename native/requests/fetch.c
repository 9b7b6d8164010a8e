/*
 * A fetch's attempt: its partitions are read, and if that is enough it is answered.
 *
 * An attempt goes over the partitions of the fetch twice. The first pass changes nothing: it finds out what each has to
 * give, and whether all of it can be had here. The second one builds the answer: records are sent from where they lie, in
 * memory or in a segment; only a little is copied beside the answer's own fields.
 */
#include "fetch.h"
#include "grants.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "keyed_hash.h"

enum { VERSION_WITH_FOLLOWERS = 11, READINGS_CAPACITY_MIN = 64, COPIED_BYTES_MAX = 8192 };

/* ---- scratch ---- */

int tpc_fetch_reserve_readings(tpc_fetches *fetches, int32_t parts) {
    if (parts <= fetches->readings_capacity) return 0;
    int32_t capacity = fetches->readings_capacity ? fetches->readings_capacity : READINGS_CAPACITY_MIN;
    while (capacity < parts) capacity *= 2;
    size_t count = (size_t)capacity;
    if (tpc_fetch_resize(&fetches->readings, count * sizeof *fetches->readings) < 0 ||
        tpc_fetch_resize(&fetches->outcomes, count * sizeof *fetches->outcomes) < 0 ||
        tpc_fetch_resize(&fetches->results, count * sizeof *fetches->results) < 0 ||
        tpc_fetch_resize(&fetches->splits, count * sizeof *fetches->splits) < 0 ||
        tpc_fetch_resize(&fetches->topics, 4 * count * sizeof *fetches->topics) < 0 ||
        tpc_fetch_resize(&fetches->chosen, count * sizeof *fetches->chosen) < 0)
        return -ENOMEM;
    fetches->readings_capacity = capacity;
    return 0;
}

void tpc_fetch_free(tpc_plane *plane, tpc_fetch *fetch) {
    TPC_HOLDS(fetch->state != TPC_FETCH_PARKED && !fetch->woken); /* no list of waiting ones has it */
    TPC_HOLDS(fetch->waiting_bytes >= 0 && fetch->waiting_bytes <= plane->fetches->waiting_bytes);
    tpc_fetch_forget_context(&plane->fetches->sessions, fetch);
    plane->fetches->waiting_bytes -= fetch->waiting_bytes;
    tpc_frame_release(fetch->frame);
    free(fetch->waits);
    free(fetch);
}

/* ---- reading ---- */

tpc_partition *tpc_fetch_partition_of(tpc_plane *plane, tpc_fetch_asked *asked) {
    tpc_fetch_known *known = tpc_fetch_known_of(asked);
    tpc_partition *partition = tpc_partition_of(plane, known->handle);
    if (partition) return partition;
    known->handle = asked->topic_name ? tpc_partition_find_name(plane, asked->topic_name,
                                                                (uint32_t)asked->topic_name_bytes, asked->partition)
                                      : tpc_partition_find_id(plane, asked->topic_id, asked->partition);
    return tpc_partition_of(plane, known->handle);
}

/* That an offset is nowhere only a leader can say, and one of replicas only when a quorum has just said that it is one: it may
 * have been paused, and not have heard of the next one. So it is Python's to ask (broker/confirmed.py). */
static enum tpc_fetch_fallback out_of_range(tpc_fetch_reading *reading) {
    const tpc_partition *partition = reading->partition;
    if (partition->role != TPC_ROLE_LEADER || partition->is_replicated) return TPC_FETCH_FALLBACK_OFFSET;
    reading->error_code = TPC_ERROR_OFFSET_OUT_OF_RANGE;
    reading->high_watermark = reading->last_stable_offset = reading->log_start_offset = -1;
    return TPC_FETCH_FALLBACK_NONE;
}

static bool serves(const tpc_fetch *fetch, const tpc_partition *partition) {
    if (partition->role == TPC_ROLE_LEADER) return true;
    return partition->role == TPC_ROLE_FOLLOWER && partition->read_term == partition->leader_epoch &&
           fetch->version >= VERSION_WITH_FOLLOWERS;
}

/* Why the partition cannot be read from here, if it cannot. */
static enum tpc_fetch_fallback examine(const tpc_fetch *fetch, const tpc_fetch_asked *asked,
                                       const tpc_partition *partition) {
    if (!partition || !serves(fetch, partition)) return TPC_FETCH_FALLBACK_UNKNOWN;
    if (partition->flags & TPC_PARTITION_INTERNAL) return TPC_FETCH_FALLBACK_INTERNAL;
    if (asked->current_leader_epoch >= 0 && asked->current_leader_epoch != partition->leader_epoch)
        return TPC_FETCH_FALLBACK_LEADER_EPOCH;
    if (asked->last_fetched_epoch >= 0) return TPC_FETCH_FALLBACK_LAST_EPOCH;
    if (partition->near_racks & fetch->rack && partition->role == TPC_ROLE_LEADER) return TPC_FETCH_FALLBACK_NEARER;
    return TPC_FETCH_FALLBACK_NONE;
}

/* Where it was deleted while the fetch waited; another core's it cannot have become while this one runs. */
static void tell_deleted(const tpc_fetch_asked *asked, tpc_fetch_reading *reading) {
    reading->error_code = asked->topic_name ? TPC_ERROR_UNKNOWN_TOPIC_OR_PARTITION : TPC_ERROR_UNKNOWN_TOPIC_ID;
    reading->aborted_count = 0;
}

/* From memory, no more than the answer may keep of it. 0 or -ERANGE. */
static int read_tail(tpc_fetches *fetches, int64_t offset, int64_t bytes_max, int64_t upto, bool may_exceed,
                     tpc_fetch_reading *reading) {
    const tpc_partition *partition = reading->partition;
    int64_t left_bytes = fetches->memory_left_bytes;
    int64_t kept_bytes_max = bytes_max < left_bytes ? bytes_max : left_bytes;
    int result =
        tpc_tail_measure(partition, offset, kept_bytes_max, upto, may_exceed, TPC_READ_BATCHES_MAX, &reading->tail);
    int64_t bytes = (int64_t)reading->tail.bytes;
    reading->bytes = reading->tail.bytes;
    fetches->memory_left_bytes -= bytes < left_bytes ? bytes : left_bytes;
    if (result == 0 && kept_bytes_max < bytes_max) {
        tpc_tail_stretch wanted;
        tpc_tail_measure(partition, offset, bytes_max, upto, may_exceed, TPC_READ_BATCHES_MAX, &wanted);
        fetches->is_clipped |= wanted.bytes > reading->tail.bytes;
    }
    return result;
}

/* From memory, else from a segment. *next_offset: of what follows. */
static enum tpc_fetch_fallback read_records(tpc_plane *plane, int64_t offset, int64_t bytes_max, int64_t upto,
                                            bool may_exceed, tpc_fetch_reading *reading, int64_t *next_offset) {
    tpc_fetches *fetches = plane->fetches;
    tpc_partition *partition = reading->partition;
    int result = read_tail(fetches, offset, bytes_max, upto, may_exceed, reading);
    *next_offset = reading->tail.next_offset;
    if (result == 0) return TPC_FETCH_FALLBACK_NONE;
    result = tpc_window_find(&plane->windows, partition, offset, bytes_max, upto, may_exceed, &reading->window,
                             &reading->position, &reading->bytes, next_offset);
    if (result == 0) return TPC_FETCH_FALLBACK_NONE;
    return result == -EAGAIN ? TPC_FETCH_FALLBACK_COLD : TPC_FETCH_FALLBACK_SEGMENT;
}

/* Rule: A reader of committed records gets none at or above the last stable offset, and is told of every aborted transaction that
 * reaches into what it gets: of the same moment, or else by Python, which knows the older ones. See also native/log/aborted.c,
 * tpc_broker/broker/partition.py. Held by tests/engine/test_read_committed.py,
 * tests/engine/test_read_committed_random.py. */
static enum tpc_fetch_fallback read_visible(tpc_plane *plane, const tpc_fetch *fetch, int64_t offset, int64_t bytes_max,
                                            bool may_exceed, tpc_fetch_reading *reading) {
    int64_t upto = tpc_fetch_upto(fetch, reading->partition), next_offset = 0;
    bool committed = fetch->isolation_level == TPC_READ_COMMITTED;
    if (committed) reading->aborted_count = 0;
    if (offset >= upto || (bytes_max <= 0 && !may_exceed)) return TPC_FETCH_FALLBACK_NONE;
    if (committed && offset < reading->partition->aborted_from_offset) return TPC_FETCH_FALLBACK_TRANSACTIONS;
    enum tpc_fetch_fallback reason = read_records(plane, offset, bytes_max, upto, may_exceed, reading, &next_offset);
    const tpc_partition *partition = reading->partition;
    bool is_read = !reason && reading->bytes;
    TPC_PARTITION_INVARIANT(partition, !is_read || (next_offset > offset && next_offset <= upto)); /* visible all */
    TPC_PARTITION_INVARIANT(partition, upto <= partition->high_watermark);
    TPC_PARTITION_INVARIANT(partition, !is_read || may_exceed || (int64_t)reading->bytes <= bytes_max);
    if (reason || !committed || !reading->bytes) return reason;
    return tpc_fetch_tell_aborted(plane->fetches, reading, offset, next_offset) < 0 ? TPC_FETCH_FALLBACK_NO_MEMORY
                                                                                    : TPC_FETCH_FALLBACK_NONE;
}

/* Rule: Who reads is asked about in each attempt, so a Fetch that waits gets no record that came when its subject had lost the right
 * to read, nor any from before. See also native/requests/grants.h. Held by tests/engine/test_grants.py,
 * tests/engine/test_grants_random.py. */
/* Whether the partition is not to be read: it is refused, or *reason says that Python has to decide. */
static __attribute__((noinline)) bool lacks_right(tpc_plane *plane, const tpc_fetch *fetch, tpc_partition *partition,
                                                  tpc_fetch_reading *reading, enum tpc_fetch_fallback *reason) {
    enum tpc_grant found = tpc_grants_ask(plane, partition, fetch->subject, TPC_RIGHT_READ);
    *reason = found == TPC_GRANT_UNKNOWN ? TPC_FETCH_FALLBACK_AUTHORIZE : TPC_FETCH_FALLBACK_NONE;
    if (found != TPC_GRANT_REFUSED) return found == TPC_GRANT_UNKNOWN;
    plane->grant_statistics.refused_fetches++;
    reading->error_code = TPC_ERROR_TOPIC_AUTHORIZATION_FAILED;
    reading->aborted_count = 0; /* null is for partitions that were read */
    return true;
}

static enum tpc_fetch_fallback read_part(tpc_plane *plane, const tpc_fetch *fetch, tpc_fetch_asked *asked,
                                         int64_t left_bytes, bool may_exceed, tpc_fetch_reading *reading) {
    tpc_partition *partition = tpc_fetch_partition_of(plane, asked);
    *reading = (tpc_fetch_reading){
        .high_watermark = -1, .last_stable_offset = -1, .log_start_offset = -1, .aborted_count = -1};
    if (!partition && fetch->retried) {
        tell_deleted(asked, reading);
        return TPC_FETCH_FALLBACK_NONE;
    }
    enum tpc_fetch_fallback reason;
    if (partition && tpc_grants_count(plane) && lacks_right(plane, fetch, partition, reading, &reason)) return reason;
    reason = examine(fetch, asked, partition);
    if (reason) return reason;
    tpc_tail_note_read(plane, partition, asked->fetch_offset);
    reading->partition = partition;
    reading->high_watermark = partition->high_watermark;
    reading->last_stable_offset = tpc_partition_last_stable_offset(partition);
    reading->log_start_offset = partition->log_start_offset;
    TPC_PARTITION_INVARIANT(partition, reading->last_stable_offset <= reading->high_watermark);
    TPC_PARTITION_INVARIANT(partition, reading->log_start_offset <= reading->last_stable_offset);
    if (asked->fetch_offset < partition->log_start_offset || asked->fetch_offset > partition->log_end_offset)
        return out_of_range(reading);
    int64_t bytes_max = asked->bytes_max < left_bytes ? asked->bytes_max : left_bytes;
    return read_visible(plane, fetch, asked->fetch_offset, bytes_max, may_exceed, reading);
}

/* The first pass. Whether there is enough to answer, in *enough. */
static enum tpc_fetch_fallback read_all(tpc_plane *plane, const tpc_fetch *fetch, bool *enough) {
    tpc_fetch_reading *readings = plane->fetches->readings;
    int64_t left_bytes = fetch->response_bytes_max, bytes = 0;
    bool failed = false;
    plane->fetches->memory_left_bytes = tpc_answers_allowance(plane->connections);
    plane->fetches->is_clipped = false;
    plane->fetches->aborted_count = 0;
    for (int32_t i = 0; i < fetch->parts_count; i++) {
        bool may_exceed = left_bytes == fetch->response_bytes_max;
        enum tpc_fetch_fallback reason = read_part(plane, fetch, fetch->parts[i], left_bytes, may_exceed, &readings[i]);
        if (reason) return reason;
        int64_t read_bytes = (int64_t)readings[i].bytes;
        left_bytes = left_bytes > read_bytes ? left_bytes - read_bytes : 0;
        bytes += read_bytes;
        failed |= readings[i].error_code != 0;
    }
    *enough = !fetch->parts_count || bytes >= fetch->response_bytes_min || failed || plane->fetches->is_clipped;
    return TPC_FETCH_FALLBACK_NONE;
}

/* ---- answering ---- */

static bool is_same_topic(const tpc_fetch_asked *one, const tpc_fetch_asked *other) {
    if (!one->topic_name || !other->topic_name)
        return !one->topic_name && !other->topic_name && memcmp(one->topic_id, other->topic_id, 16) == 0;
    return one->topic_name_bytes == other->topic_name_bytes &&
           memcmp(one->topic_name, other->topic_name, (size_t)one->topic_name_bytes) == 0;
}

static uint32_t topic_hash(const tpc_fetch_asked *asked) {
    if (!asked->topic_name) return (uint32_t)tpc_keyed_hash(0, asked->topic_id, 16);
    return (uint32_t)tpc_keyed_hash(0, asked->topic_name, (size_t)asked->topic_name_bytes);
}

/* The earliest result of the same topic, from a table in which the place's own is entered when there is none: -1. */
static int32_t find_topic(tpc_fetches *fetches, const tpc_fetch *fetch, const int32_t *places, int32_t place,
                          uint32_t slots) {
    const tpc_fetch_asked *asked = fetch->parts[places[place]];
    uint32_t slot = topic_hash(asked) & (slots - 1);
    for (; fetches->topics[slot]; slot = (slot + 1) & (slots - 1))
        if (is_same_topic(asked, fetch->parts[places[fetches->topics[slot] - 1]])) return fetches->topics[slot] - 1;
    fetches->topics[slot] = place + 1;
    return -1;
}

/* Partitions of a topic stand together in the answer, topics in the order in which they come first. Their numbers; whether
 * they rise already. */
static bool number_topics(tpc_fetches *fetches, const tpc_fetch *fetch, const int32_t *places, int32_t count) {
    tpc_fetch_result *results = fetches->results;
    int32_t topics = 0;
    uint32_t slots = 2;
    bool sorted = true;
    if (count == 0) return true; /* a Fetch of nothing: the table may never have been made */
    while (slots < 2 * (uint32_t)count) slots *= 2;
    memset(fetches->topics, 0, slots * sizeof *fetches->topics);
    for (int32_t i = 0; i < count; i++) {
        bool as_before = i && is_same_topic(fetch->parts[places[i]], fetch->parts[places[i - 1]]);
        int32_t earlier = as_before ? i - 1 : find_topic(fetches, fetch, places, i, slots);
        results[i].topic_index = earlier >= 0 ? results[earlier].topic_index : topics++;
        sorted &= !i || results[i].topic_index >= results[i - 1].topic_index;
    }
    return sorted;
}

static int by_topic(const void *a, const void *b) {
    const tpc_fetch_result *left = a, *right = b;
    if (left->topic_index != right->topic_index) return left->topic_index < right->topic_index ? -1 : 1;
    return left->snapshot_epoch < right->snapshot_epoch ? -1 : 1; /* holds the place, see below */
}

static void fill_result(const tpc_fetches *fetches, const tpc_fetch_asked *asked, const tpc_fetch_reading *reading,
                        tpc_fetch_result *result) {
    *result = (tpc_fetch_result){.topic_name = asked->topic_name,
                                 .aborted = fetches->aborted ? fetches->aborted + reading->aborted_at : NULL,
                                 .topic_name_bytes = asked->topic_name_bytes,
                                 .partition = asked->partition,
                                 .high_watermark = reading->high_watermark,
                                 .last_stable_offset = reading->last_stable_offset,
                                 .log_start_offset = reading->log_start_offset,
                                 .aborted_count = reading->aborted_count,
                                 .error_code = reading->error_code,
                                 .records_bytes = (int32_t)reading->bytes,
                                 .diverging_epoch = -1,
                                 .diverging_end_offset = -1,
                                 .leader_id = -1,
                                 .leader_epoch = -1,
                                 .snapshot_end_offset = -1,
                                 .preferred_read_replica = -1};
    memcpy(result->topic_id, asked->topic_id, sizeof result->topic_id);
}

/* The chosen partitions as results in the answer's order; `places` says which part each is. How many. */
static int32_t list_results(const tpc_plane *plane, const tpc_fetch *fetch, int32_t *places) {
    tpc_fetches *fetches = plane->fetches;
    int32_t count = 0;
    for (int32_t i = 0; i < fetch->parts_count; i++)
        if (fetches->chosen[i]) {
            fill_result(fetches, fetch->parts[i], &fetches->readings[i], &fetches->results[count]);
            places[count++] = i;
        }
    bool sorted = number_topics(fetches, fetch, places, count);
    for (int32_t i = 0; !sorted && i < count; i++) fetches->results[i].snapshot_epoch = places[i];
    if (!sorted) qsort(fetches->results, (size_t)count, sizeof *fetches->results, by_topic);
    for (int32_t i = 0; i < count; i++) {
        if (!sorted) places[i] = fetches->results[i].snapshot_epoch;
        fetches->results[i].snapshot_epoch = -1;
    }
    return count;
}

int tpc_fetch_order(tpc_plane *plane, const tpc_fetch *fetch, int32_t *order, uint8_t *last) {
    tpc_fetches *fetches = plane->fetches;
    if (tpc_fetch_reserve_readings(fetches, fetch->parts_count) < 0) return -ENOMEM;
    memset(fetches->readings, 0, (size_t)fetch->parts_count * sizeof *fetches->readings);
    memset(fetches->chosen, 1, (size_t)fetch->parts_count);
    int32_t count = list_results(plane, fetch, order);
    for (int32_t i = 0; i < count; i++)
        last[i] = i + 1 == count || fetches->results[i].topic_index != fetches->results[i + 1].topic_index;
    return 0;
}

static int reserve_pieces(tpc_fetches *fetches, uint32_t count) {
    if (count <= fetches->pieces_capacity) return 0;
    if (tpc_fetch_resize(&fetches->pieces, 2 * count * sizeof *fetches->pieces) < 0) return -ENOMEM;
    fetches->pieces_capacity = 2 * count;
    return 0;
}

/* Encodes everything but the records into the scratch header; its length or -errno. */
static int64_t encode(tpc_fetches *fetches, const tpc_fetch *fetch, int32_t results_count) {
    tpc_fetch_answer answer = {.throttle_ms = fetch->request ? (int32_t)fetch->request->throttle_ms : 0,
                               .correlation_id = fetch->correlation_id,
                               .session_id = fetch->session_id,
                               .version = fetch->version,
                               .error_code = (int16_t)fetch->error_code};
    for (;;) {
        int64_t bytes = tpc_fetch_encode(&answer, fetches->results, results_count, NULL, 0, fetches->header,
                                         fetches->header_capacity, fetches->splits);
        if (bytes < 0 || (size_t)bytes <= fetches->header_capacity) return bytes;
        if (tpc_fetch_resize(&fetches->header, (size_t)bytes * 2) < 0) return -ENOMEM;
        fetches->header_capacity = (size_t)bytes * 2;
    }
}

/* Little is copied beside the answer's fields, so that it leaves in one piece. */
static bool is_copied(const tpc_fetch_reading *reading) {
    return !reading->window && reading->bytes <= COPIED_BYTES_MAX;
}

typedef struct {
    tpc_frame *frame; /* the answer's own fields, and small batches */
    uint8_t *end;
    tpc_slice *pieces;
    uint32_t count;
} layout;

static void add_copy(layout *to, const uint8_t *bytes, uint32_t length) {
    tpc_slice *last = to->count ? &to->pieces[to->count - 1] : NULL;
    if (!length) return;
    memcpy(to->end, bytes, length);
    if (last && last->frame == to->frame)
        last->length += length;
    else
        to->pieces[to->count++] = tpc_slice_of(to->frame, to->end, length);
    to->end += length;
}

/* Small batches lie one behind the other in their partition's memory. */
static void add_reference(layout *to, const tpc_slice *slice) {
    tpc_slice *last = to->count ? &to->pieces[to->count - 1] : NULL;
    if (last && last->frame == slice->frame && last->data + last->length == slice->data)
        last->length += slice->length;
    else
        to->pieces[to->count++] = tpc_slice_of(slice->frame, slice->data, slice->length);
}

static int add_records(tpc_plane *plane, layout *to, const tpc_fetch_reading *reading) {
    if (reading->window && reading->bytes) {
        tpc_frame *file = tpc_file_slice_frame(plane->budget, reading->window->file, reading->position);
        if (!file) return -ENOMEM;
        to->pieces[to->count++] = (tpc_slice){.frame = file, .length = (uint32_t)reading->bytes};
        plane->fetches->statistics.segment_bytes += reading->bytes;
        return 0;
    }
    bool copied = is_copied(reading);
    uint64_t left_bytes = reading->tail.bytes;
    for (uint32_t i = 0; i < reading->tail.count; i++) {
        tpc_slice piece = tpc_tail_piece(reading->partition, &reading->tail, i, left_bytes);
        left_bytes -= piece.length;
        if (copied)
            add_copy(to, piece.data, piece.length);
        else
            add_reference(to, &piece);
    }
    TPC_HOLDS(left_bytes == 0 && reading->bytes == reading->tail.bytes); /* as many as the answer says */
    return 0;
}

/* The answer as slices in the scratch, each with its reference. Their number, or -errno. */
static int lay_out(tpc_plane *plane, const tpc_fetch *fetch) {
    tpc_fetches *fetches = plane->fetches;
    int32_t few[READINGS_CAPACITY_MIN];
    int32_t *places =
        fetch->parts_count <= READINGS_CAPACITY_MIN ? few : malloc((size_t)fetch->parts_count * sizeof *places);
    if (!places) return -ENOMEM;
    int32_t results_count = list_results(plane, fetch, places);
    int64_t header_bytes = encode(fetches, fetch, results_count);
    uint64_t copied_bytes = 0;
    uint32_t pieces = 1;
    for (int32_t i = 0; i < results_count; i++) {
        const tpc_fetch_reading *reading = &fetches->readings[places[i]];
        pieces += 2 + reading->tail.count;
        copied_bytes += is_copied(reading) ? reading->bytes : 0;
    }
    tpc_frame *frame = NULL;
    if (header_bytes > 0 && reserve_pieces(fetches, pieces) == 0)
        frame = tpc_frame_new_forced(plane->budget, (uint32_t)((uint64_t)header_bytes + copied_bytes));
    if (!frame) {
        if (places != few) free(places);
        return header_bytes < 0 ? (int)header_bytes : -ENOMEM;
    }
    layout to = {.frame = frame, .end = frame->data, .pieces = fetches->pieces};
    uint32_t done = 0;
    int result = 0;
    for (int32_t i = 0; i < results_count && result == 0; i++) {
        TPC_HOLDS(fetches->splits[i] >= done && fetches->splits[i] <= header_bytes);
        add_copy(&to, fetches->header + done, fetches->splits[i] - done);
        result = add_records(plane, &to, &fetches->readings[places[i]]);
        done = fetches->splits[i];
        tpc_partition *partition = fetches->readings[places[i]].partition;
        fetches->statistics.record_bytes += fetches->readings[places[i]].bytes;
        if (partition && fetches->readings[places[i]].bytes) {
            partition->use.reads++;
            partition->use.read_bytes += fetches->readings[places[i]].bytes;
        }
    }
    add_copy(&to, fetches->header + done, (uint32_t)header_bytes - done);
    TPC_HOLDS(to.count <= fetches->pieces_capacity);
    TPC_HOLDS(result < 0 || to.end == frame->data + frame->length); /* all that it was made for, and nothing else */
    tpc_frame_release(frame);
    if (places != few) free(places);
    if (result < 0) tpc_slices_release(fetches->pieces, to.count);
    return result < 0 ? result : (int)to.count;
}

/* Takes the fetch and its request: lays out what was chosen, and ends them. */
static void answer_chosen(tpc_plane *plane, tpc_fetch *fetch) {
    tpc_fetches *fetches = plane->fetches;
    TPC_HOLDS(fetch->state == TPC_FETCH_FRESH && fetch->request);
    int count = lay_out(plane, fetch);
    if (count < 0)
        tpc_connection_close(plane->connections, fetch->connection, TPC_CLOSE_BUDGET, TPC_CLOSE_NOW);
    else
        tpc_answer_framed(plane->connections, fetch->connection, fetch->sequence, fetches->pieces, (uint32_t)count);
    tpc_request_leaves_python(plane->connections, fetch->request);
    tpc_request_release(fetch->request);
    tpc_fetch_free(plane, fetch);
}

/* Above a quota a client gets nothing, and its session is as if it had not asked (Kafka's getThrottledResponse). */
void tpc_fetch_answer_nothing(tpc_plane *plane, tpc_fetch *fetch) {
    memset(plane->fetches->chosen, 0, (size_t)fetch->parts_count);
    answer_chosen(plane, fetch);
}

/* Takes the fetch and its request. The readings are those of this turn. */
static void answer(tpc_plane *plane, tpc_fetch *fetch) {
    tpc_fetches *fetches = plane->fetches;
    for (int32_t i = 0; i < fetch->parts_count; i++) {
        const tpc_fetch_reading *reading = &fetches->readings[i];
        fetches->outcomes[i] = (tpc_fetch_outcome){.high_watermark = reading->high_watermark,
                                                   .log_start_offset = reading->log_start_offset,
                                                   .error_code = reading->error_code,
                                                   .has_records = reading->bytes > 0};
    }
    tpc_fetch_select(fetch, fetches->outcomes, fetches->chosen);
    answer_chosen(plane, fetch);
}

enum tpc_fetch_outcome_kind tpc_fetch_attempt(tpc_plane *plane, tpc_fetch *fetch, bool last,
                                              enum tpc_fetch_fallback *reason) {
    bool enough = false;
    if (tpc_fetch_reserve_readings(plane->fetches, fetch->parts_count) < 0)
        *reason = TPC_FETCH_FALLBACK_NO_MEMORY;
    else
        *reason = fetch->is_follower ? TPC_FETCH_FALLBACK_FOLLOWER : read_all(plane, fetch, &enough);
    if (*reason) return TPC_FETCH_NOT_HERE;
    if (!enough && !last && fetch->deadline_ns > tpc_ring_now_ns(plane->ring)) return TPC_FETCH_TOO_LITTLE;
    answer(plane, fetch);
    return TPC_FETCH_ANSWERED;
}
