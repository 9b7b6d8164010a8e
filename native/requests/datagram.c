/* Datagrams: receiving, routing, batches, answers. datagram.h says how they work. */
#define _GNU_SOURCE
#include "datagram.h"

#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "bytes.h"
#include "grants.h"

enum {
    BUFFER_GROUP = 0xfe00,
    BUFFER_HEAD_BYTES = sizeof(struct io_uring_recvmsg_out) + sizeof(struct sockaddr_in6),
    BUFFER_BYTES = (BUFFER_HEAD_BYTES + TPC_DATAGRAM_BYTES_MAX + 63) / 64 * 64,
    ROUTE_BUCKETS = 4096,
    BATCH_BYTES_FIRST = 2048,
    BATCH_BYTES_MAX = 65536,
    BATCH_RECORDS_MAX = 4096,
    ROOM_WAIT_NS = 500000000,
    ROOM_LOOK_NS = 1000000,
    WANTED_AGAIN_MS = 1000,
    ANSWERS_IN_A_CALL = 64,
    PRODUCE_VERSION = 9,
    FRAME_WASTE_BYTES_MAX = 4096,
    DELTA_BYTES_MAX = 10,
    MEMINFO_DROPS = 8,
    MEMINFO_COUNT = 9,
    SO_MEMINFO_OPTION = 55
};

typedef struct {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name;
    uint32_t bytes;
} address;

/* In front of a datagram on a link. */
typedef struct {
    uint32_t address_bytes;
    uint8_t address[sizeof(struct sockaddr_in6)];
} forwarded_head;

typedef struct {
    address to;
    uint8_t bytes[TPC_DATAGRAM_HEADER_BYTES];
} datagram_answer;

/* Who is told what becomes of a record. */
typedef struct {
    address from;
    tpc_datagram asked;
    int32_t record; /* its place in the batch */
} asker;

typedef struct datagram_batch {
    tpc_commit_wait wait; /* first */
    struct datagram_batch *next, *previous;
    tpc_datagrams *owner;
    uint64_t handle;
    tpc_frame *frame;
    tpc_batch_builder builder;
    uint32_t keyless_count;
    uint32_t bytes_max;
    bool is_relaxed;        /* who asks waits for no commit */
    int64_t tries_until_ns; /* 0: it was not tried yet */
    asker *askers;
    uint32_t askers_count, askers_capacity;
} datagram_batch;

typedef struct datagram_route {
    struct datagram_route *next;
    uint32_t topic;
    uint8_t id[16];
    tpc_granted granted;        /* to whom all datagrams are */
    uint64_t wanted_generation; /* in which Python was asked to decide */
    int64_t wanted_until_ms;    /* by the plane's monotonic clock: it is not asked again before */
    uint32_t count;
    uint16_t cores[];
} datagram_route;

struct tpc_datagrams {
    tpc_plane *plane;
    tpc_ring *ring;
    int descriptor;
    uint32_t core;
    uint32_t generation;
    bool armed, started, stopping, multishot, answers;
    struct msghdr message;
    struct io_uring_buf_ring *buffer_ring;
    uint8_t *buffers;
    uint16_t lent[TPC_DATAGRAMS_A_TURN]; /* ids of buffers that were filled */
    uint32_t lent_count;
    datagram_batch *open;    /* take records */
    datagram_batch *waiting; /* appended, not durable */
    datagram_answer out[ANSWERS_IN_A_CALL];
    uint32_t out_count;
    datagram_route *routes[ROUTE_BUCKETS];
    tpc_datagram_statistics statistics;
};

/* ---- answers ---- */

static void flush_answers(tpc_datagrams *it) {
    struct mmsghdr messages[ANSWERS_IN_A_CALL];
    struct iovec vectors[ANSWERS_IN_A_CALL];
    for (uint32_t i = 0; i < it->out_count; i++) {
        vectors[i] = (struct iovec){it->out[i].bytes, sizeof it->out[i].bytes};
        messages[i] = (struct mmsghdr){.msg_hdr = {.msg_name = &it->out[i].to.name,
                                                   .msg_namelen = it->out[i].to.bytes,
                                                   .msg_iov = &vectors[i],
                                                   .msg_iovlen = 1}};
    }
    for (uint32_t sent = 0; sent < it->out_count;) {
        int count = sendmmsg(it->descriptor, messages + sent, it->out_count - sent, MSG_DONTWAIT);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) it->statistics.answers_lost++; /* the first of them; its sender asks again */
        sent += count > 0 ? (uint32_t)count : 1;
    }
    it->out_count = 0;
}

static void answer(tpc_datagrams *it, const address *to, const tpc_datagram *asked, int16_t error_code) {
    if (!it->answers || !(asked->flags & TPC_DATAGRAM_ACKNOWLEDGE)) return;
    it->statistics.acknowledged += error_code == 0;
    it->statistics.refused += error_code != 0;
    it->out[it->out_count].to = *to;
    tpc_datagram_answer(asked, error_code, it->out[it->out_count++].bytes);
    if (it->out_count == ANSWERS_IN_A_CALL) flush_answers(it);
}

/* ---- batches ---- */

static void batch_link(datagram_batch **list, datagram_batch *batch) {
    batch->previous = NULL;
    batch->next = *list;
    if (*list) (*list)->previous = batch;
    *list = batch;
}

static void batch_unlink(datagram_batch **list, datagram_batch *batch) {
    *(batch->previous ? &batch->previous->next : list) = batch->next;
    if (batch->next) batch->next->previous = batch->previous;
}

static void batch_free(datagram_batch *batch) {
    tpc_commit_wait_end(&batch->wait);
    if (batch->frame) tpc_frame_release(batch->frame);
    free(batch->askers);
    free(batch);
}

/* All who asked are told; it is in no list any more. */
static void batch_over(datagram_batch *batch, int16_t error_code) {
    for (uint32_t i = 0; i < batch->askers_count; i++)
        answer(batch->owner, &batch->askers[i].from, &batch->askers[i].asked, error_code);
    batch_free(batch);
}

/* Rule: A datagram is acknowledged when its record is committed, answered with no more than it brought, and sent on
 * once at most. One that is wrong spoils no other's batch. Why: docs/decisions/2026-11-23-datagrams.md. Held by
 * tests/engine/test_datagrams.py, tests/integration/test_datagrams.py. */
static void committed(tpc_plane *plane, tpc_commit_wait *wait, int16_t error_code) {
    (void)plane;
    datagram_batch *batch = (datagram_batch *)(void *)wait;
    tpc_datagrams *it = batch->owner;
    if (error_code) it->statistics.failed += (uint64_t)batch->builder.records_count;
    it->statistics.waiting--;
    batch_unlink(&it->waiting, batch);
    batch_over(batch, error_code);
}

static void appended(tpc_datagrams *it, tpc_partition *partition, datagram_batch *batch,
                     const tpc_append_result *result) {
    it->statistics.appended += (uint64_t)batch->builder.records_count;
    it->statistics.batches++;
    tpc_frame_release(batch->frame); /* the tail has what it needs */
    batch->frame = NULL;
    bool is_reached = tpc_partition_reached(partition, TPC_WAIT_COMMITTED) >= result->next_offset;
    if (!batch->askers_count || result->relaxed || is_reached) {
        batch_over(batch, TPC_ERROR_NONE);
        return;
    }
    it->statistics.waiting++;
    batch_link(&it->waiting, batch);
    tpc_commit_wait_begin(partition, &batch->wait, TPC_WAIT_COMMITTED, result->next_offset, committed);
}

static void refuse_batch(datagram_batch *batch, uint64_t *counted, int16_t error_code) {
    *counted += (uint64_t)batch->builder.records_count;
    batch_over(batch, error_code);
}

/* The topic has become compacted while the batch was open: it takes what has a key, and the rest is refused alone. 0 or
 * -ENOMEM. */
static int leave_keyless_out(tpc_datagrams *it, datagram_batch *batch) {
    const uint8_t *records = batch->frame->data + TPC_BATCH_HEADER_BYTES;
    size_t position = 0, bytes = batch->builder.bytes - TPC_BATCH_HEADER_BYTES;
    uint32_t capacity = batch->builder.bytes + DELTA_BYTES_MAX * (uint32_t)batch->builder.records_count;
    uint32_t askers = 0, kept_askers = 0;
    tpc_batch_builder kept = {0};
    tpc_record record;
    tpc_frame *frame = tpc_frame_new(it->plane->budget, capacity);
    if (!frame) return -ENOMEM;
    while (tpc_record_read(records, bytes, &position, &record) == 0) {
        asker *asks = askers < batch->askers_count && batch->askers[askers].record == record.offset_delta
                          ? &batch->askers[askers++]
                          : NULL;
        if (!record.key) {
            it->statistics.invalid++;
            if (asks) answer(it, &asks->from, &asks->asked, TPC_ERROR_INVALID_RECORD);
            continue;
        }
        if (asks) {
            asks->record = kept.records_count;
            batch->askers[kept_askers++] = *asks;
        }
        tpc_datagram said = {.key = record.key,
                             .value = record.value,
                             .timestamp_ms = batch->builder.base_timestamp + record.timestamp_delta,
                             .value_bytes = (uint32_t)record.value_bytes,
                             .key_bytes = (uint16_t)record.key_bytes};
        tpc_batch_builder_add(&kept, &said, frame->data);
    }
    frame->length = kept.bytes; /* a frame is made with all of its capacity in use */
    tpc_frame_release(batch->frame);
    batch->frame = frame;
    batch->builder = kept;
    batch->keyless_count = 0;
    batch->askers_count = kept_askers;
    return 0;
}

/* Appends it. False: there is no room now, and it stays open. */
static bool close_batch(tpc_datagrams *it, datagram_batch *batch) {
    tpc_partition *partition = tpc_partition_of(it->plane, batch->handle);
    int64_t now_ns = tpc_ring_now_ns(it->ring);
    if (!partition || partition->role != TPC_ROLE_LEADER) {
        batch_unlink(&it->open, batch);
        refuse_batch(batch, &it->statistics.unowned, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
        return true;
    }
    int left_out =
        batch->keyless_count && partition->flags & TPC_PARTITION_COMPACTED ? leave_keyless_out(it, batch) : 0;
    if (left_out < 0 || !batch->builder.records_count) {
        batch_unlink(&it->open, batch);
        refuse_batch(batch, &it->statistics.without_room, TPC_ERROR_KAFKA_STORAGE_ERROR);
        return true;
    }
    uint32_t bytes = batch->builder.bytes;
    if (batch->frame->capacity > bytes + FRAME_WASTE_BYTES_MAX) tpc_frame_resize(&batch->frame, bytes);
    tpc_batch_builder_finish(&batch->builder, batch->frame->data);
    tpc_produce_records records = {.frame = batch->frame,
                                   .records = batch->frame->data,
                                   .bytes = batch->builder.bytes,
                                   .version = PRODUCE_VERSION,
                                   .acks = TPC_ACKS_ALL,
                                   .now_ms = tpc_plane_now_ms(it->plane),
                                   .timestamps_checked = true}; /* check() */
    tpc_batch_report report;
    tpc_append_result result;
    int error = tpc_produce_to(it->plane, partition, &records, &report, &result);
    if ((error == -EAGAIN || error == -ENOSPC) && (!batch->tries_until_ns || now_ns < batch->tries_until_ns)) {
        if (!batch->tries_until_ns) {
            batch->tries_until_ns = now_ns + ROOM_WAIT_NS;
            tpc_ring_push_event(it->ring, TPC_EVENT_ROOM_LOW, batch->handle, partition->bytes_admitted, bytes, NULL);
        }
        return false;
    }
    batch_unlink(&it->open, batch);
    if (error < 0)
        refuse_batch(batch, &it->statistics.without_room,
                     error == -EMSGSIZE ? TPC_ERROR_MESSAGE_TOO_LARGE : TPC_ERROR_KAFKA_STORAGE_ERROR);
    else if (result.error_code)
        refuse_batch(batch, &it->statistics.invalid, (int16_t)result.error_code);
    else
        appended(it, partition, batch, &result);
    return true;
}

static datagram_batch *open_batch(tpc_datagrams *it, const tpc_partition *partition) {
    for (datagram_batch *at = it->open; at; at = at->next)
        if (at->handle == partition->handle) return at;
    datagram_batch *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    uint32_t bytes_max = BATCH_BYTES_MAX;
    if ((uint32_t)partition->batch_bytes_max < bytes_max) bytes_max = (uint32_t)partition->batch_bytes_max;
    if (partition->segment_bytes_max && (uint32_t)partition->segment_bytes_max < bytes_max)
        bytes_max = (uint32_t)partition->segment_bytes_max;
    made->owner = it;
    made->handle = partition->handle;
    made->bytes_max = bytes_max;
    made->is_relaxed = partition->flags & TPC_PARTITION_RELAXED;
    batch_link(&it->open, made);
    return made;
}

/* Room for so many bytes and one more that asks. */
static bool make_room(tpc_datagrams *it, datagram_batch *batch, uint32_t bytes) {
    uint32_t wanted = batch->builder.bytes + bytes;
    uint32_t capacity = batch->frame ? batch->frame->capacity : BATCH_BYTES_FIRST;
    while (capacity < wanted) capacity *= 2;
    if (!batch->frame) {
        batch->frame = tpc_frame_new(it->plane->budget, capacity);
        if (!batch->frame) return false;
    } else if (capacity > batch->frame->capacity && tpc_frame_resize(&batch->frame, capacity) < 0)
        return false;
    if (batch->askers_count < batch->askers_capacity) return true;
    uint32_t askers = batch->askers_capacity ? 2 * batch->askers_capacity : 16;
    asker *grown = realloc(batch->askers, askers * sizeof *grown);
    if (!grown) return false;
    batch->askers = grown;
    batch->askers_capacity = askers;
    return true;
}

/* Adds a record to its partition's batch. 0 or why not. */
static int16_t add(tpc_datagrams *it, const tpc_partition *partition, const address *from, const tpc_datagram *said) {
    datagram_batch *batch = open_batch(it, partition);
    if (!batch) return TPC_ERROR_KAFKA_STORAGE_ERROR;
    uint32_t bytes = tpc_batch_builder_record_bytes(&batch->builder, said);
    bool is_full = batch->builder.bytes + bytes > batch->bytes_max || batch->builder.records_count == BATCH_RECORDS_MAX;
    if (is_full && batch->builder.records_count) {
        if (!close_batch(it, batch)) return TPC_ERROR_KAFKA_STORAGE_ERROR;
        return add(it, partition, from, said); /* into an empty one */
    }
    if (is_full || !make_room(it, batch, bytes)) {
        if (!batch->builder.records_count) {
            batch_unlink(&it->open, batch);
            batch_free(batch);
        }
        return is_full ? TPC_ERROR_MESSAGE_TOO_LARGE : TPC_ERROR_KAFKA_STORAGE_ERROR;
    }
    tpc_batch_builder_add(&batch->builder, said, batch->frame->data);
    batch->frame->length = batch->builder.bytes;
    batch->keyless_count += !said->key;
    if (said->flags & TPC_DATAGRAM_ACKNOWLEDGE)
        batch->askers[batch->askers_count++] = (asker){*from, *said, batch->builder.records_count - 1};
    return TPC_ERROR_NONE;
}

/* ---- routes ---- */

static datagram_route **bucket_of(tpc_datagrams *it, uint32_t topic) { return &it->routes[topic % ROUTE_BUCKETS]; }

/* NULL: no topic has this hash, or several have. */
static datagram_route *route_of(tpc_datagrams *it, uint32_t topic) {
    datagram_route *found = NULL;
    for (datagram_route *at = *bucket_of(it, topic); at; at = at->next) {
        if (at->topic != topic) continue;
        if (found) return NULL;
        found = at;
    }
    return found;
}

int tpc_datagrams_set_route(tpc_datagrams *it, uint32_t topic, const uint8_t *topic_id, const uint16_t *cores,
                            uint32_t count) {
    datagram_route *made = count ? malloc(sizeof *made + count * sizeof *cores) : NULL;
    if (count && !made) return -ENOMEM;
    for (datagram_route **at = bucket_of(it, topic); *at; at = &(*at)->next) {
        if ((*at)->topic != topic || memcmp((*at)->id, topic_id, sizeof(*at)->id) != 0) continue;
        datagram_route *gone = *at;
        *at = gone->next;
        free(gone);
        it->statistics.routes--;
        break;
    }
    if (!made) return 0;
    *made = (datagram_route){.next = *bucket_of(it, topic), .topic = topic, .count = count};
    memcpy(made->id, topic_id, sizeof made->id);
    memcpy(made->cores, cores, count * sizeof *cores);
    *bucket_of(it, topic) = made;
    it->statistics.routes++;
    return 0;
}

/* ---- one datagram ---- */

static bool forward(tpc_datagrams *it, uint32_t core, const address *from, const uint8_t *bytes, uint32_t count) {
    forwarded_head head = {.address_bytes = from->bytes};
    memcpy(head.address, &from->name, from->bytes);
    tpc_frame *frame = tpc_frame_new(it->plane->budget, (uint32_t)sizeof head + count);
    if (!frame) return false;
    memcpy(frame->data, &head, sizeof head);
    memcpy(frame->data + sizeof head, bytes, count);
    tpc_slice slice = {.frame = frame, .data = frame->data, .length = (uint32_t)sizeof head + count};
    return tpc_link_send_datagram(it->plane->connections, core, &slice) == 0;
}

/* Whether the partition takes such a record at all: what it would refuse must not spoil a batch of others. Its time
 * is judged here only: the clock goes on while the batch is open. Where the topic stamps its records, the time that one
 * tells is not even kept: when the batch is appended, the topic may not stamp them any more, and nobody judges it then. */
static int16_t check(tpc_datagrams *it, const tpc_partition *partition, tpc_datagram *said) {
    int64_t now_ms = tpc_plane_now_ms(it->plane), age_ms;
    if (said->timestamp_ms < 0 || partition->flags & TPC_PARTITION_LOG_APPEND_TIME) said->timestamp_ms = now_ms;
    if (partition->flags & TPC_PARTITION_INTERNAL) return TPC_ERROR_INVALID_TOPIC_EXCEPTION;
    if (partition->flags & TPC_PARTITION_PYTHON_VALIDATES) return TPC_ERROR_INVALID_CONFIG;
    if (partition->flags & TPC_PARTITION_COMPACTED && !said->key) return TPC_ERROR_INVALID_RECORD;
    age_ms = now_ms - said->timestamp_ms; /* neither is negative */
    bool is_out = age_ms > partition->timestamp_before_ms_max || -age_ms > partition->timestamp_after_ms_max;
    return is_out ? TPC_ERROR_INVALID_TIMESTAMP : TPC_ERROR_NONE;
}

/* Rule: Who may not write a topic by datagrams is not told by them that there is one, so it is asked about before anything else, and
 * refused as for a topic that there is not. What Python has not decided yet is not answered: its sender sends it again. See also
 * docs/datagrams.md. Held by tests/engine/test_grants.py. */
static bool is_allowed(tpc_datagrams *it, datagram_route *route, const address *from, const tpc_datagram *said) {
    tpc_plane *plane = it->plane;
    uint32_t subject = plane->datagrams_subject;
    enum tpc_grant found = TPC_GRANT_REFUSED;
    if (subject) found = tpc_grants_ask_topic(plane, &route->granted, route->id, subject, TPC_RIGHT_WRITE);
    if (found == TPC_GRANT_ALLOWED) return true;
    it->statistics.invalid++;
    plane->grant_statistics.refused_datagrams++;
    if (found == TPC_GRANT_REFUSED) answer(it, from, said, TPC_ERROR_TOPIC_AUTHORIZATION_FAILED);
    if (found == TPC_GRANT_REFUSED) return false;
    int64_t now_ms = tpc_plane_monotonic_ms(plane), id[2];
    memcpy(id, route->id, sizeof id);
    bool is_asked = route->wanted_generation == plane->grants_generation && now_ms < route->wanted_until_ms;
    if (!is_asked && tpc_ring_push_event(plane->ring, TPC_EVENT_GRANT_WANTED, subject, id[0], id[1], NULL) == 0) {
        route->wanted_generation = plane->grants_generation;
        route->wanted_until_ms = now_ms + WANTED_AGAIN_MS;
    }
    return false;
}

/* For a partition of this core. */
static void take_own(tpc_datagrams *it, const datagram_route *route, const address *from, tpc_datagram *said) {
    tpc_partition *partition = tpc_partition_identified(it->plane, route->id, (int32_t)said->partition);
    if (!partition || partition->role != TPC_ROLE_LEADER) {
        it->statistics.unowned++;
        answer(it, from, said, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
        return;
    }
    int16_t error_code = check(it, partition, said);
    if (error_code) {
        it->statistics.invalid++;
        answer(it, from, said, error_code);
        return;
    }
    error_code = add(it, partition, from, said);
    if (!error_code) return;
    it->statistics.oversized += error_code == TPC_ERROR_MESSAGE_TOO_LARGE;
    it->statistics.without_room += error_code != TPC_ERROR_MESSAGE_TOO_LARGE;
    answer(it, from, said, error_code);
}

static void take(tpc_datagrams *it, const address *from, const uint8_t *bytes, uint32_t count, bool is_truncated,
                 bool was_forwarded) {
    tpc_datagram said;
    int result = tpc_datagram_decode(bytes, count, &said);
    if (result == -EBADMSG) {
        it->statistics.malformed++;
    } else if (is_truncated) {
        it->statistics.oversized++;
        answer(it, from, &said, TPC_ERROR_MESSAGE_TOO_LARGE);
    } else if (result < 0) {
        it->statistics.malformed++;
        answer(it, from, &said, TPC_ERROR_INVALID_REQUEST);
    } else {
        datagram_route *route = route_of(it, said.topic);
        if (!route || said.partition >= route->count) {
            it->statistics.unknown++;
            answer(it, from, &said, /* who may write nothing does not hear either which topics there are */
                   tpc_grants_count(it->plane) ? TPC_ERROR_TOPIC_AUTHORIZATION_FAILED
                                               : TPC_ERROR_UNKNOWN_TOPIC_OR_PARTITION);
        } else if (tpc_grants_count(it->plane) && !is_allowed(it, route, from, &said)) {
            return;
        } else if (route->cores[said.partition] == it->core) {
            take_own(it, route, from, &said);
        } else if (was_forwarded) {
            it->statistics.unowned++;
            answer(it, from, &said, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
        } else if (forward(it, route->cores[said.partition], from, bytes, count)) {
            it->statistics.forwarded++;
        } else {
            it->statistics.forward_failures++;
            answer(it, from, &said, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
        }
    }
}

static void from_link(void *context, const uint8_t *bytes, uint32_t count) {
    tpc_datagrams *it = context;
    forwarded_head head;
    if (!it->started || it->stopping || count < sizeof head) return;
    memcpy(&head, bytes, sizeof head);
    if (head.address_bytes > sizeof head.address) return;
    address from = {.bytes = head.address_bytes};
    memcpy(&from.name, head.address, head.address_bytes);
    it->statistics.forwarded_here++;
    take(it, &from, bytes + sizeof head, count - (uint32_t)sizeof head, false, true);
}

/* ---- receiving ---- */

static void received(tpc_datagrams *it, const address *from, const uint8_t *bytes, uint32_t count, bool is_truncated) {
    it->statistics.received++;
    it->statistics.received_bytes += count;
    take(it, from, bytes, count, is_truncated || count > TPC_DATAGRAM_BYTES_MAX, false);
}

static void read_buffer(tpc_datagrams *it, uint16_t id, uint32_t bytes) {
    const uint8_t *at = it->buffers + (size_t)id * BUFFER_BYTES;
    struct io_uring_recvmsg_out out;
    if (bytes < BUFFER_HEAD_BYTES) return;
    memcpy(&out, at, sizeof out);
    address from = {.bytes = out.namelen < sizeof from.name ? out.namelen : (uint32_t)sizeof from.name};
    memcpy(&from.name, at + sizeof out, from.bytes);
    received(it, &from, at + BUFFER_HEAD_BYTES, bytes - BUFFER_HEAD_BYTES, out.flags & MSG_TRUNC);
}

static void read_socket(tpc_datagrams *it) {
    for (int i = 0; i < TPC_DATAGRAMS_A_TURN; i++) {
        address from;
        struct iovec vector = {it->buffers, TPC_DATAGRAM_BYTES_MAX};
        struct msghdr message = {
            .msg_name = &from.name, .msg_namelen = sizeof from.name, .msg_iov = &vector, .msg_iovlen = 1};
        ssize_t count = recvmsg(it->descriptor, &message, MSG_DONTWAIT);
        if (count < 0) return;
        from.bytes = message.msg_namelen;
        received(it, &from, it->buffers, (uint32_t)count, message.msg_flags & MSG_TRUNC);
    }
}

static void on_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    tpc_datagrams *it = context;
    if (tpc_user_data_generation(user_data) != it->generation) return;
    if (!(flags & IORING_CQE_F_MORE)) it->armed = false;
    if (flags & IORING_CQE_F_BUFFER) {
        uint16_t id = (uint16_t)(flags >> IORING_CQE_BUFFER_SHIFT);
        it->lent[it->lent_count++] = id; /* never more than there are: each is lent once */
        if (result > 0 && !it->stopping) read_buffer(it, id, (uint32_t)result);
    } else if (!it->multishot && result > 0 && !it->stopping) {
        read_socket(it);
    }
}

static void give_back(tpc_datagrams *it) {
    int mask = io_uring_buf_ring_mask(TPC_DATAGRAMS_A_TURN);
    for (uint32_t i = 0; i < it->lent_count; i++)
        io_uring_buf_ring_add(it->buffer_ring, it->buffers + (size_t)it->lent[i] * BUFFER_BYTES, BUFFER_BYTES,
                              it->lent[i], mask, (int)i);
    if (it->lent_count) io_uring_buf_ring_advance(it->buffer_ring, (int)it->lent_count);
    it->lent_count = 0;
}

static void arm(tpc_datagrams *it) {
    struct io_uring_sqe *sqe = tpc_ring_sqe(it->ring, tpc_user_data(TPC_KIND_DATAGRAM, it->generation, 0));
    if (!sqe) return;
    if (it->multishot) {
        io_uring_prep_rw(IORING_OP_RECVMSG, sqe, it->descriptor, &it->message, 1, 0);
        sqe->ioprio |= IORING_RECV_MULTISHOT;
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = BUFFER_GROUP;
    } else {
        io_uring_prep_poll_add(sqe, it->descriptor, POLLIN);
    }
    it->armed = true;
}

/* In front of the journal's: what came in this turn is in the commit that the journal seals now. While it cannot seal another
 * one, what comes joins the batches that are open. */
static int64_t on_turn(void *context, int64_t now_ns) {
    tpc_datagrams *it = context;
    bool any_waits = false, stays_open = tpc_journal_is_writing(it->plane->journal);
    for (datagram_batch *at = it->open, *next; at; at = next) {
        next = at->next;
        if (!stays_open || at->is_relaxed) any_waits |= !close_batch(it, at);
    }
    if (it->multishot) give_back(it);
    if (!it->armed && it->started && !it->stopping) arm(it);
    return any_waits ? now_ns + ROOM_LOOK_NS : INT64_MAX;
}

/* Behind the journal's: what became durable in this turn is acknowledged in it. */
static int64_t on_turn_answers(void *context, int64_t now_ns) {
    (void)now_ns;
    tpc_datagrams *it = context;
    if (it->out_count) flush_answers(it);
    return INT64_MAX;
}

/* ---- life ---- */

static void *map_bytes(size_t bytes) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static size_t entries_bytes(void) { return TPC_DATAGRAMS_A_TURN * sizeof(struct io_uring_buf); }

static size_t buffers_bytes(const tpc_datagrams *it) {
    return (size_t)BUFFER_BYTES * (it->multishot ? TPC_DATAGRAMS_A_TURN : 1);
}

static int start_multishot(tpc_datagrams *it) {
    it->buffer_ring = map_bytes(entries_bytes());
    if (!it->buffer_ring) return -ENOMEM;
    io_uring_buf_ring_init(it->buffer_ring);
    struct io_uring_buf_reg registration = {
        .ring_addr = (uintptr_t)it->buffer_ring, .ring_entries = TPC_DATAGRAMS_A_TURN, .bgid = BUFFER_GROUP};
    int result = io_uring_register_buf_ring(tpc_ring_raw(it->ring), &registration, 0);
    if (result < 0) {
        munmap(it->buffer_ring, entries_bytes());
        it->buffer_ring = NULL;
    }
    return result;
}

int tpc_datagrams_new(tpc_plane *plane, int descriptor, uint32_t core, tpc_datagrams **out) {
    tpc_datagrams *it = calloc(1, sizeof *it);
    if (!it) return -ENOMEM;
    it->plane = plane;
    it->ring = plane->ring;
    it->descriptor = descriptor;
    it->core = core;
    it->answers = true;
    it->message.msg_namelen = sizeof(struct sockaddr_in6);
    it->multishot = tpc_ring_has(it->ring, TPC_FEATURE_MULTISHOT_RECEIVE) &&
                    tpc_ring_has(it->ring, TPC_FEATURE_BUFFER_RING) && start_multishot(it) == 0;
    it->buffers = map_bytes(buffers_bytes(it));
    int result = it->buffers ? tpc_ring_handle(it->ring, TPC_KIND_DATAGRAM, on_completion, it) : -ENOMEM;
    if (result == 0) result = tpc_ring_add_turn_hook(it->ring, TPC_TURN_FIRST, on_turn, it);
    if (result == 0) result = tpc_ring_add_turn_hook(it->ring, TPC_TURN_MIDDLE, on_turn_answers, it);
    if (result < 0) {
        it->stopping = true;
        tpc_datagrams_free(it);
        return result;
    }
    for (uint16_t id = 0; it->multishot && id < TPC_DATAGRAMS_A_TURN; id++) it->lent[it->lent_count++] = id;
    if (plane->connections) tpc_links_on_datagram(plane->connections, from_link, it);
    *out = it;
    return 0;
}

void tpc_datagrams_start(tpc_datagrams *it) { it->started = true; }

void tpc_datagrams_set_answers(tpc_datagrams *it, int on) { it->answers = on; }

void tpc_datagrams_stop(tpc_datagrams *it) {
    if (it->stopping) return;
    for (datagram_batch *at = it->open, *next; at; at = next) { /* what was taken is appended, if it can be now */
        next = at->next;
        if (!close_batch(it, at)) {
            batch_unlink(&it->open, at);
            refuse_batch(at, &it->statistics.without_room, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
        }
    }
    if (it->out_count) flush_answers(it);
    it->stopping = true;
    if (it->plane->connections) tpc_links_on_datagram(it->plane->connections, NULL, NULL);
    if (!it->armed) return;
    struct io_uring_sqe *sqe = tpc_ring_sqe(it->ring, tpc_user_data(TPC_KIND_NONE, 0, 0));
    if (!sqe) return;
    io_uring_prep_rw(IORING_OP_ASYNC_CANCEL, sqe, -1, NULL, 0, 0);
    sqe->addr = tpc_user_data(TPC_KIND_DATAGRAM, it->generation, 0);
}

int tpc_datagrams_quiet(const tpc_datagrams *it) { return it->stopping && !it->armed; }

void tpc_datagrams_free(tpc_datagrams *it) {
    tpc_ring_remove_turn_hook(it->ring, on_turn, it);
    tpc_ring_remove_turn_hook(it->ring, on_turn_answers, it);
    tpc_ring_handle(it->ring, TPC_KIND_DATAGRAM, NULL, NULL);
    for (datagram_batch *at = it->waiting, *next; at; at = next) {
        next = at->next;
        batch_free(at);
    }
    for (uint32_t i = 0; i < ROUTE_BUCKETS; i++)
        for (datagram_route *at = it->routes[i], *next; at; at = next) {
            next = at->next;
            free(at);
        }
    if (it->armed) return; /* the kernel may still write: its memory is left to it */
    if (it->buffer_ring) {
        io_uring_unregister_buf_ring(tpc_ring_raw(it->ring), BUFFER_GROUP);
        munmap(it->buffer_ring, entries_bytes());
    }
    if (it->buffers) munmap(it->buffers, buffers_bytes(it));
    free(it);
}

void tpc_datagrams_get_statistics(const tpc_datagrams *it, tpc_datagram_statistics *statistics) {
    uint32_t memory[MEMINFO_COUNT] = {0};
    socklen_t bytes = sizeof memory;
    *statistics = it->statistics;
    if (getsockopt(it->descriptor, SOL_SOCKET, SO_MEMINFO_OPTION, memory, &bytes) == 0)
        statistics->kernel_drops = memory[MEMINFO_DROPS];
}
