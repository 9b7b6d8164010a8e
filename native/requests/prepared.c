/*
 * All-topics Metadata and ApiVersions, which a herd of clients that reconnect asks for by the thousand: encoded once, kept in a
 * frame, and answered inside the wait. An answer costs its header; what is sent is the frame, so it takes no memory either.
 *
 * A request is recognised by the bytes of its body, so nothing of it is decoded, and whoever forms it differently goes to Python.
 */
#include <errno.h>
#include <string.h>

#include "grants.h"
#include "cdef/57_prepared.h"

enum { HEADER_BYTES = 8 }; /* length, correlation id */

static bool is_for(const tpc_prepared *it, const tpc_request *request) {
    return it->frame && it->api_key == request->api_key && it->api_version == request->api_version &&
           it->listener == request->listener && it->body_bytes == request->body_bytes &&
           memcmp(it->body, request->body, request->body_bytes) == 0;
}

/* Where subjects are asked about, what is told of topics is different for each: who sees an answer was asked about before it was
 * made. */
static bool is_alike(const tpc_plane *plane, const tpc_request *request) {
    return !tpc_grants_count(plane) || request->api_key == TPC_API_API_VERSIONS;
}

static void drop(tpc_prepared *it) {
    tpc_frame_release(it->frame);
    it->frame = NULL;
}

/* The one for the same request, a free one, or the oldest of its API. */
static tpc_prepared *place_for(tpc_plane *plane, const tpc_request *request) {
    tpc_prepared *free = NULL, *oldest = NULL;
    unsigned count = 0;
    for (tpc_prepared *it = plane->prepared; it < plane->prepared + TPC_PREPARED_MAX; it++) {
        if (is_for(it, request)) return it;
        if (!it->frame)
            free = it;
        else if (it->api_key == request->api_key) {
            count++;
            if (!oldest || it->number < oldest->number) oldest = it;
        }
    }
    return count < TPC_PREPARED_PER_API_MAX && free ? free : oldest;
}

int tpc_plane_prepare_answer(tpc_plane *plane, const tpc_request *request, const uint8_t *answer, uint32_t answer_bytes,
                             uint32_t mark) {
    if (mark) tpc_connection_set_mark(plane->connections, request->connection, mark);
    if (!is_alike(plane, request)) return -EACCES;
    if (request->body_bytes > TPC_PREPARED_BODY_BYTES_MAX) return -EMSGSIZE;
    tpc_prepared *place = place_for(plane, request);
    if (!place) return -ENOBUFS;
    tpc_frame *frame = tpc_frame_new(plane->budget, answer_bytes);
    if (!frame) return -ENOBUFS;
    TPC_HOLDS(answer_bytes > 0 && place >= plane->prepared && place < plane->prepared + TPC_PREPARED_MAX);
    TPC_HOLDS(!place->frame || place->api_key == request->api_key); /* none of another API gives way */
    memcpy(frame->data, answer, answer_bytes);
    drop(place);
    *place = (tpc_prepared){.frame = frame,
                            .number = ++plane->prepared_count,
                            .api_key = request->api_key,
                            .api_version = request->api_version,
                            .listener = request->listener,
                            .body_bytes = request->body_bytes,
                            .mark = mark};
    memcpy(place->body, request->body, request->body_bytes);
    return 0;
}

/* Rule: An answer that is the same for everybody at a listener is forgotten in the call that changes what it says.
 * See also tpc_broker/broker/view.py. Held by tests/engine/test_prepared.py, tests/integration/test_herd.py. */
void tpc_plane_forget_answers(tpc_plane *plane, int16_t api_key) {
    for (unsigned i = 0; i < TPC_PREPARED_MAX; i++)
        if (plane->prepared[i].api_key == api_key) drop(&plane->prepared[i]);
}

void tpc_prepared_free(tpc_plane *plane) {
    for (unsigned i = 0; i < TPC_PREPARED_MAX; i++) drop(&plane->prepared[i]);
}

static void put_int32(uint8_t *at, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(at, &value, sizeof value);
}

bool tpc_prepared_answer(tpc_plane *plane, const tpc_request *request) {
    const tpc_prepared *found = NULL;
    if (request->throttle_ms) return false; /* it says so, and so is no answer for everybody */
    if (!is_alike(plane, request)) return false;
    for (unsigned i = 0; i < TPC_PREPARED_MAX && !found; i++)
        if (is_for(&plane->prepared[i], request)) found = &plane->prepared[i];
    if (!found) return false;
    if (found->mark) tpc_connection_set_mark(plane->connections, request->connection, found->mark);
    uint32_t room_bytes;
    tpc_frame *chunk;
    uint8_t *header = tpc_answer_room(plane->connections, request->connection, &room_bytes, &chunk);
    if (!header) {
        tpc_answer_none(plane->connections, request->connection, request->sequence); /* counted as void */
        return true;
    }
    TPC_HOLDS(room_bytes >= HEADER_BYTES);
    TPC_HOLDS(found->number <= plane->prepared_count && found->api_version == request->api_version);
    put_int32(header, 4 + found->frame->length);
    put_int32(header + 4, (uint32_t)request->correlation_id);
    const tpc_slice slices[2] = {tpc_answer_take(chunk, HEADER_BYTES),
                                 tpc_slice_of(found->frame, found->frame->data, found->frame->length)};
    tpc_answer_framed(plane->connections, request->connection, request->sequence, slices, 2);
    plane->statistics.prepared_answers++;
    return true;
}
