/* Routes, and the life of a forwarded request. forward.h says how it works. */
#include "forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "keyed_hash.h"

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

tpc_forwarded *tpc_forwarded_new(tpc_plane *plane, const tpc_forwarded_kind *kind, const tpc_request *request,
                                 int32_t asked_count, uint32_t parts_count) {
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
    it->kind = kind;
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
        TPC_HOLDS(at < TPC_FORWARD_CORES_MAX);
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

static void finish(tpc_forwarded *it) {
    TPC_HOLDS(it->open == 0 && !it->is_sending);
    it->kind->finish(it);
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
    else if (it->kind->progressed)
        it->kind->progressed(it);
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
