/* Routes, the life of a forwarded request, and Produce. forward.h says how it works. */
#include "forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "keyed_hash.h"
#include "wire.h"

enum { CORES_MAX = 1024, TOPIC_IDS_FROM = 13, FLEXIBLE_FROM = 9 };

/* ---- routes ---- */

static uint32_t bucket_of(const uint8_t *bytes, uint32_t count) {
    return (uint32_t)tpc_keyed_hash(0, bytes, count) % TPC_ROUTE_BUCKETS;
}

static const tpc_route *route_named(const tpc_forwarding *forwarding, const uint8_t *name, uint32_t bytes) {
    const tpc_route *at = forwarding->by_name[bucket_of(name, bytes)];
    while (at && (at->name_bytes != bytes || memcmp(at->name, name, bytes) != 0)) at = at->name_next;
    return at;
}

static const tpc_route *route_identified(const tpc_forwarding *forwarding, const uint8_t *id) {
    const tpc_route *at = forwarding->by_id[bucket_of(id, 16)];
    while (at && memcmp(at->id, id, 16) != 0) at = at->id_next;
    return at;
}

uint16_t tpc_forward_owner(const tpc_forwarding *forwarding, const uint8_t *name, int32_t name_bytes, const uint8_t *id,
                           int32_t partition) {
    const tpc_route *route =
        name ? route_named(forwarding, name, (uint32_t)name_bytes) : route_identified(forwarding, id);
    bool known = route && partition >= 0 && (uint32_t)partition < route->count;
    return known ? route->cores[partition] : (uint16_t)forwarding->core;
}

static void remove_route(tpc_forwarding *forwarding, tpc_route *gone) {
    tpc_route **at = &forwarding->by_name[bucket_of(gone->name, gone->name_bytes)];
    while (*at != gone) at = &(*at)->name_next;
    *at = gone->name_next;
    at = &forwarding->by_id[bucket_of(gone->id, 16)];
    while (*at != gone) at = &(*at)->id_next;
    *at = gone->id_next;
    forwarding->statistics.routes--;
    free(gone);
}

int tpc_forward_set_route(tpc_plane *plane, const uint8_t *topic_name, uint32_t topic_name_bytes,
                          const uint8_t *topic_id, const uint16_t *cores, uint32_t count) {
    tpc_forwarding *forwarding = plane->forwarding;
    if (!forwarding) return -EINVAL;
    tpc_route *made = count ? malloc(sizeof *made + count * sizeof made->cores[0] + topic_name_bytes) : NULL;
    if (count && !made) return -ENOMEM;
    const tpc_route *older = route_identified(forwarding, topic_id);
    if (older) remove_route(forwarding, (tpc_route *)older);
    older = count ? route_named(forwarding, topic_name, topic_name_bytes) : NULL; /* deleted, and made again */
    if (older) remove_route(forwarding, (tpc_route *)older);
    if (!made) return 0;
    *made = (tpc_route){.name_bytes = topic_name_bytes, .count = count};
    memcpy(made->cores, cores, count * sizeof made->cores[0]);
    memcpy(made->id, topic_id, 16);
    made->name = memcpy((uint8_t *)(made->cores + count), topic_name, topic_name_bytes);
    tpc_route **bucket = &forwarding->by_name[bucket_of(topic_name, topic_name_bytes)];
    made->name_next = *bucket;
    *bucket = made;
    bucket = &forwarding->by_id[bucket_of(topic_id, 16)];
    made->id_next = *bucket;
    *bucket = made;
    forwarding->statistics.routes++;
    return 0;
}

int tpc_forward_longest_chain(const tpc_plane *plane) {
    int longest = 0;
    for (uint32_t i = 0; plane->forwarding && i < TPC_ROUTE_BUCKETS; i++) {
        int length = 0;
        for (const tpc_route *at = plane->forwarding->by_name[i]; at; at = at->name_next) length++;
        if (length > longest) longest = length;
    }
    return longest;
}

/* ---- life ---- */

tpc_forwarded *tpc_forwarded_new(tpc_plane *plane, const tpc_request *request, int32_t asked_count,
                                 uint32_t parts_count) {
    uint32_t request_bytes = request->header_bytes + request->body_bytes;
    TPC_HOLDS(asked_count > 0 && parts_count > 0 && parts_count <= (uint32_t)asked_count);
    const uint8_t *begin = request->body - request->header_bytes;
    tpc_forwarded *it = calloc(1, sizeof *it + parts_count * sizeof it->parts[0]);
    tpc_frame *frame = !it              ? NULL
                       : request->frame ? tpc_frame_retain(request->frame)
                                        : tpc_frame_new(plane->budget, request_bytes);
    if (!frame) {
        free(it);
        return NULL;
    }
    it->request = *request;
    it->request.decoded = NULL; /* goes with the request */
    if (!request->frame)
        it->request.body = (uint8_t *)memcpy(frame->data, begin, request_bytes) + request->header_bytes;
    it->plane = plane;
    it->frame = frame;
    it->asked_count = asked_count;
    it->parts_count = parts_count;
    it->is_sending = true;
    it->next = plane->forwarding->first;
    if (it->next) it->next->previous = it;
    plane->forwarding->first = it;
    plane->forwarding->statistics.under_way++;
    return it;
}

void tpc_forwarded_free(tpc_forwarded *it) {
    tpc_forwarding *forwarding = it->plane->forwarding;
    TPC_HOLDS(it->previous ? it->previous->next == it : forwarding->first == it);
    TPC_HOLDS(forwarding->statistics.under_way > 0);
    *(it->previous ? &it->previous->next : &forwarding->first) = it->next;
    if (it->next) it->next->previous = it->previous;
    forwarding->statistics.under_way--;
    for (uint32_t i = 0; i < it->parts_count; i++) {
        tpc_frame_release(it->parts[i].answer.frame);
        free(it->parts[i].entries);
    }
    tpc_frame_release(it->frame);
    free(it->cores), free(it->order), free(it->topics_end);
    free(it);
}

uint32_t tpc_forwarded_cores(const uint16_t *cores, int32_t count, uint16_t *distinct) {
    uint32_t found = 0;
    for (int32_t i = 0; i < count; i++) {
        uint32_t at = 0;
        while (at < found && distinct[at] != cores[i]) at++;
        TPC_HOLDS(at < CORES_MAX);
        if (at == found) distinct[found++] = cores[i];
    }
    return found;
}

tpc_forwarded_part *tpc_forwarded_part_of(tpc_forwarded *it, uint16_t core) {
    tpc_forwarded_part *at = it->parts;
    while (at < it->parts + it->parts_count && at->core != core) at++;
    TPC_HOLDS(at < it->parts + it->parts_count);
    return at;
}

void tpc_forwarded_send(tpc_forwarded *it, tpc_forwarded_part *part, uint8_t kind, const tpc_slice *slices,
                        uint32_t count) {
    TPC_HOLDS(it->is_sending && !part->whole && !part->is_done); /* once */
    TPC_HOLDS(part->asked_count > 0 && it->open < it->parts_count);
    part->whole = it;
    it->open++;
    it->plane->forwarding->statistics.parts++;
    if (tpc_link_send(it->plane->connections, part->core, it->request.connection, it->request.listener, kind, slices,
                      count, &part->call) == 0)
        return;
    it->open--;
    part->is_done = true;
    part->outcome = TPC_LINK_LOST;
}

static void finish_produce(tpc_forwarded *it);

static void finish(tpc_forwarded *it) {
    TPC_HOLDS(it->open == 0 && !it->is_sending);
    if (it->fetch)
        tpc_forward_fetch_finish(it);
    else
        finish_produce(it);
}

void tpc_forwarded_sent(tpc_forwarded *it) {
    TPC_HOLDS(it->is_sending);
    it->is_sending = false;
    if (it->open == 0) finish(it);
}

/* The answer's bytes for longer than the call. */
static tpc_slice keep(tpc_plane *plane, const tpc_slice *answer) {
    if (answer->frame) return tpc_slice_of(answer->frame, answer->data, answer->length);
    tpc_frame *copy = tpc_frame_new_forced(plane->budget, answer->length);
    if (!copy) return (tpc_slice){0};
    memcpy(copy->data, answer->data, answer->length);
    return (tpc_slice){.frame = copy, .data = copy->data, .length = answer->length};
}

static bool answer_small(tpc_plane *plane, const tpc_forwarded *it, const tpc_slice *answer) {
    uint32_t room_bytes;
    tpc_frame *chunk;
    if (answer->frame || it->parts_count > 1 || it->fetch || it->request.throttle_ms) return false;
    uint8_t *room = tpc_answer_room(plane->connections, it->request.connection, &room_bytes, &chunk);
    if (!room || room_bytes < answer->length) return false;
    memcpy(room, answer->data, answer->length);
    tpc_slice copied = tpc_answer_take(chunk, answer->length);
    tpc_answer_framed(plane->connections, it->request.connection, it->request.sequence, &copied, 1);
    return true;
}

static void part_done(void *context, tpc_link_call *call, enum tpc_link_outcome outcome, const tpc_slice *answer) {
    tpc_plane *plane = context;
    tpc_forwarded_part *part = (tpc_forwarded_part *)(void *)call;
    tpc_forwarded *it = part->whole;
    TPC_HOLDS(it && it->plane == plane && !part->is_done); /* of a call that was sent, once */
    TPC_HOLDS(it->open > 0 && it->open <= it->parts_count);
    part->is_done = true;
    part->outcome = (uint8_t)outcome;
    it->open--;
    if (outcome == TPC_LINK_ANSWERED && answer_small(plane, it, answer)) {
        tpc_forwarded_free(it);
        return;
    }
    if (outcome == TPC_LINK_ANSWERED) {
        part->answer = keep(plane, answer);
        if (!part->answer.frame) part->outcome = TPC_LINK_LOST;
    }
    if (it->is_sending) return;
    if (it->open == 0)
        finish(it);
    else if (it->fetch)
        tpc_forward_fetch_progressed(it, part);
}

static void release_fetch(void *context, uint64_t connection) { tpc_fetch_release(context, connection); }

int tpc_forward_open(tpc_plane *plane, uint32_t core, uint64_t listeners) {
    tpc_forwarding *made = plane->forwarding ? plane->forwarding : calloc(1, sizeof *made);
    if (!made) return -ENOMEM;
    made->core = core;
    made->listeners = listeners;
    plane->forwarding = made;
    tpc_links_listen(plane->connections, (tpc_link_listener){plane, part_done, release_fetch});
    return 0;
}

void tpc_forward_free(tpc_plane *plane) {
    tpc_forwarding *forwarding = plane->forwarding;
    if (!forwarding) return;
    tpc_links_listen(plane->connections, (tpc_link_listener){0});
    while (forwarding->first) {
        tpc_forwarded *it = forwarding->first;
        if (it->fetch) {
            tpc_request_release(it->fetch->request);
            it->fetch->request = NULL;
            tpc_fetch_end(plane, it->fetch);
        }
        tpc_forwarded_free(it);
    }
    for (uint32_t i = 0; i < TPC_ROUTE_BUCKETS; i++)
        while (forwarding->by_name[i]) remove_route(forwarding, forwarding->by_name[i]);
    free(forwarding);
    plane->forwarding = NULL;
}

void tpc_forward_get_statistics(const tpc_plane *plane, tpc_forward_statistics *statistics) {
    *statistics = plane->forwarding ? plane->forwarding->statistics : (tpc_forward_statistics){0};
}

/* ---- Produce ---- */

static void send_whole(tpc_forwarded *it) {
    const uint8_t *begin = it->request.body - it->request.header_bytes;
    tpc_slice all = tpc_slice_of(it->frame, begin, it->request.header_bytes + it->request.body_bytes);
    tpc_forwarded_send(it, &it->parts[0], TPC_LINK_FORWARD_PRODUCE, &all, 1);
}

/* The fields of one owner's part in a frame of their own, the records from where they lie. False: no memory. */
static bool send_part(tpc_forwarded *it, tpc_forwarded_part *part, const tpc_produce_request *asked,
                      const tpc_produce_part *parts, uint8_t *chosen, uint32_t *splits) {
    int16_t version = it->request.api_version;
    uint32_t header_bytes = it->request.header_bytes, done = 0, count = 0;
    for (int32_t i = 0; i < it->asked_count; i++) {
        chosen[i] = it->cores[i] == part->core;
        part->asked_count += chosen[i];
    }
    int64_t bytes = tpc_produce_request_encode(version, asked, parts, it->asked_count, chosen, NULL, 0, splits);
    tpc_frame *frame = tpc_frame_new_forced(it->plane->budget, header_bytes + (uint32_t)bytes);
    tpc_slice *slices = frame ? malloc((2 * (size_t)part->asked_count + 2) * sizeof *slices) : NULL;
    if (!slices) {
        tpc_frame_release(frame);
        return false;
    }
    memcpy(frame->data, it->request.body - header_bytes, header_bytes);
    tpc_produce_request_encode(version, asked, parts, it->asked_count, chosen, frame->data + header_bytes,
                               (size_t)bytes, splits);
    for (int32_t i = 0; i < it->asked_count; i++) {
        if (!chosen[i]) continue;
        uint32_t end = header_bytes + splits[i];
        slices[count++] = tpc_slice_of(frame, frame->data + done, end - done);
        if (parts[i].records_bytes > 0)
            slices[count++] = tpc_slice_of(it->frame, parts[i].records, (uint32_t)parts[i].records_bytes);
        done = end;
    }
    TPC_HOLDS(done <= frame->length && count <= 2 * (uint32_t)part->asked_count);
    uint32_t rest = header_bytes + (uint32_t)bytes - done;
    if (rest) slices[count++] = tpc_slice_of(frame, frame->data + done, rest);
    tpc_frame_release(frame);
    tpc_forwarded_send(it, part, TPC_LINK_FORWARD_PRODUCE, slices, count);
    free(slices);
    return true;
}

/* The partitions' places are in the bytes that the request lies in, which may only be lent: they are read once more. */
static tpc_produce_part *decode_again(const tpc_forwarded *it, tpc_produce_request *asked) {
    tpc_produce_part *parts = malloc((size_t)it->asked_count * sizeof *parts);
    if (parts && tpc_produce_decode(it->request.body, it->request.body_bytes, it->request.api_version, asked, parts,
                                    it->asked_count) == 0)
        return parts;
    free(parts);
    return NULL;
}

static bool send_parts(tpc_forwarded *it) {
    tpc_produce_request asked;
    tpc_produce_part *parts = decode_again(it, &asked);
    uint8_t *chosen = malloc((size_t)it->asked_count);
    uint32_t *splits = malloc((size_t)it->asked_count * sizeof *splits);
    bool sent = parts && chosen && splits;
    for (uint32_t i = 0; i < it->parts_count && sent; i++)
        sent = send_part(it, &it->parts[i], &asked, parts, chosen, splits) || i > 0;
    free(parts), free(chosen), free(splits);
    return sent;
}

int tpc_forward_produce(tpc_plane *plane, const tpc_request *request, const tpc_produce_request *asked,
                        const tpc_produce_part *parts) {
    tpc_forwarding *forwarding = plane->forwarding;
    int32_t count = asked->parts_count;
    uint16_t distinct[CORES_MAX];
    if (count == 0) return 0;
    uint16_t *cores = malloc((size_t)count * sizeof *cores);
    if (!cores) return -ENOMEM;
    for (int32_t i = 0; i < count; i++)
        cores[i] = tpc_forward_owner(forwarding, parts[i].topic_name, parts[i].topic_name_bytes, parts[i].topic_id,
                                     parts[i].partition);
    uint32_t parts_count = tpc_forwarded_cores(cores, count, distinct);
    bool all_here = parts_count == 1 && distinct[0] == forwarding->core;
    tpc_forwarded *it = all_here ? NULL : tpc_forwarded_new(plane, request, count, parts_count);
    if (!it) {
        free(cores);
        return all_here ? 0 : -ENOMEM;
    }
    it->cores = cores;
    it->acks = asked->acks;
    for (uint32_t i = 0; i < parts_count; i++) it->parts[i].core = distinct[i];
    if (parts_count == 1) {
        it->parts[0].asked_count = count;
        send_whole(it);
    } else if (!send_parts(it)) {
        tpc_forwarded_free(it);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < parts_count; i++) /* for want of memory */
        if (!it->parts[i].whole)
            it->parts[i] = (tpc_forwarded_part){.outcome = TPC_LINK_LOST, .is_done = true, .core = distinct[i]};
    forwarding->statistics.produces++;
    tpc_forwarded_sent(it);
    return 1;
}

void tpc_forwarded_read(tpc_forwarded *it) {
    for (uint32_t i = 0; i < it->parts_count; i++) {
        tpc_forwarded_part *part = &it->parts[i];
        int32_t found = -ENOMEM;
        if (part->outcome == TPC_LINK_ANSWERED)
            part->entries = malloc((size_t)part->asked_count * sizeof *part->entries);
        if (part->entries)
            found = (it->fetch ? tpc_fetch_answer_entries : tpc_produce_answer_entries)(
                it->request.api_version, part->answer.data, part->answer.length, part->entries, part->asked_count);
        TPC_HOLDS(part->is_done && (part->whole || part->outcome == TPC_LINK_LOST));
        if (found == part->asked_count) {
            part->entries_count = found;
        } else {
            part->outcome = TPC_LINK_LOST;
            it->plane->forwarding->statistics.not_available += (uint64_t)part->asked_count;
        }
    }
}

static void put_entry(wire_writer *writer, tpc_forwarded *it, int32_t i, int32_t partition) {
    tpc_forwarded_part *part = tpc_forwarded_part_of(it, it->cores[i]);
    if (part->entries_at < part->entries_count && part->entries[part->entries_at].partition == partition) {
        const tpc_answer_entry *entry = &part->entries[part->entries_at++];
        wire_put(writer, part->answer.data + entry->begin, entry->end - entry->begin);
        return;
    }
    uint8_t error[TPC_ERROR_ENTRY_BYTES_MAX];
    wire_put(writer, error,
             tpc_produce_error_entry(it->request.api_version, partition, TPC_ERROR_NOT_LEADER_OR_FOLLOWER, error));
}

/* The whole answer: every partition with what its owner said, as the request names them. */
static size_t put_answer(tpc_forwarded *it, const tpc_produce_request *asked, const tpc_produce_part *parts,
                         uint8_t *out, size_t out_bytes) {
    bool flexible = it->request.api_version >= FLEXIBLE_FROM;
    wire_writer writer = {.out = out, .out_bytes = out_bytes};
    for (uint32_t i = 0; i < it->parts_count; i++) it->parts[i].entries_at = 0;
    wire_put_i32(&writer, (int32_t)out_bytes - 4);
    wire_put_i32(&writer, it->request.correlation_id);
    wire_put_no_tags(&writer, flexible);
    int32_t topics = 0;
    for (int32_t i = 0; i < asked->parts_count; i++) topics += !i || parts[i].topic_index != parts[i - 1].topic_index;
    wire_put_count(&writer, flexible, topics);
    for (int32_t i = 0; i < asked->parts_count;) {
        int32_t end = i + 1;
        while (end < asked->parts_count && parts[end].topic_index == parts[i].topic_index) end++;
        wire_put_topic(&writer, flexible, it->request.api_version >= TOPIC_IDS_FROM, parts[i].topic_name,
                       parts[i].topic_name_bytes, parts[i].topic_id);
        wire_put_count(&writer, flexible, end - i);
        for (; i < end; i++) put_entry(&writer, it, i, parts[i].partition);
        wire_put_no_tags(&writer, flexible);
    }
    wire_put_i32(&writer, (int32_t)it->request.throttle_ms);
    wire_put_no_tags(&writer, flexible);
    return writer.bytes;
}

static void answer_produce(tpc_forwarded *it) {
    tpc_plane *plane = it->plane;
    tpc_produce_request asked;
    tpc_slice answer = {0};
    if (it->parts_count == 1 && it->parts[0].outcome == TPC_LINK_ANSWERED && !it->request.throttle_ms) {
        answer = tpc_slice_of(it->parts[0].answer.frame, it->parts[0].answer.data, it->parts[0].answer.length);
    } else {
        tpc_produce_part *parts = decode_again(it, &asked);
        tpc_forwarded_read(it);
        size_t bytes = parts ? put_answer(it, &asked, parts, NULL, 0) : 0;
        answer.frame = parts ? tpc_frame_new_forced(plane->budget, (uint32_t)bytes) : NULL;
        if (answer.frame) {
            size_t put_bytes = put_answer(it, &asked, parts, answer.frame->data, bytes);
            TPC_INVARIANT(put_bytes == bytes, "an answer of %zu bytes, which was to have %zu", put_bytes, bytes);
            answer.data = answer.frame->data;
            answer.length = (uint32_t)bytes;
        }
        free(parts);
    }
    if (answer.frame)
        tpc_answer_framed(plane->connections, it->request.connection, it->request.sequence, &answer, 1);
    else
        tpc_connection_close(plane->connections, it->request.connection, TPC_CLOSE_BUDGET, TPC_CLOSE_NOW);
}

/* acks=0 has no answer: an error closes the connection, as it would here. */
static void finish_produce(tpc_forwarded *it) {
    tpc_connections *connections = it->plane->connections;
    bool refused = false, failed = false;
    for (uint32_t i = 0; i < it->parts_count; i++) {
        refused |= it->parts[i].outcome == TPC_LINK_REFUSED;
        failed |= it->parts[i].outcome == TPC_LINK_LOST;
    }
    if (refused || (it->acks == 0 && failed))
        tpc_connection_close(connections, it->request.connection, TPC_CLOSE_REQUEST_INVALID, TPC_CLOSE_AFTER_ANSWERED);
    else if (it->acks == 0)
        tpc_answer_none(connections, it->request.connection, it->request.sequence);
    else
        answer_produce(it);
    tpc_forwarded_free(it);
}
