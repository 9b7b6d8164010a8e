/*
 * What the connections ask the plane about requests (connection.h), all of it inside the wait: the borrowed handler about one
 * that lies whole where it was received, the hot handler about one with a frame of its own, the alignment handler about a large
 * one that has begun to come. What none of them takes goes to Python.
 */
#include "bytes.h"
#include "fetch.h"
#include "grants.h"
#include "in_place_window.h"
#include "plane.h"
#include "prepared.h"

/* A Produce that was not taken carries the reason along. */
static int note_reason(void *context, tpc_request *request, int taken) {
    if (!taken) request->fallback_reason = (uint8_t)tpc_plane_fallback_reason(context);
    return taken;
}

static int hot_handler(void *context, tpc_request *request) {
    switch (request->api_key) {
    case TPC_API_PRODUCE:
        return note_reason(context, request, tpc_plane_produce(context, request));
    case TPC_API_FETCH:
        return tpc_plane_fetch(context, request);
    default:
        if (!tpc_prepared_answer(context, request)) return 0;
        tpc_request_release(request);
        return 1;
    }
}

/* A Fetch outlives the call, so it is not for a request without a frame. */
static int borrowed_handler(void *context, tpc_request *request) {
    if (request->api_key == TPC_API_PRODUCE)
        return note_reason(context, request, tpc_produce_borrowed(context, request));
    return request->api_key != TPC_API_FETCH && tpc_prepared_answer(context, request);
}

/* Rule: What comes from whoever may not write, or of whom that is not known, does not say where others' batches will lie. Held by
 * tests/engine/test_grants_in_place.py. */
static bool alignment_handler(void *context, const uint8_t *bytes, size_t have, uint32_t subject, uint32_t *residue) {
    tpc_plane *plane = context;
    tpc_request_header header;
    tpc_produce_part part;
    if (tpc_request_header_decode(bytes, have, &header) < 0 || header.api_key != TPC_API_PRODUCE) return false;
    const uint8_t *body = bytes + header.body_position;
    if (tpc_produce_peek(body, have - (uint32_t)header.body_position, header.api_version, &part) < 0) return false;
    tpc_partition *partition = tpc_produce_partition_of(plane, &part, header.api_version);
    int64_t position;
    if (!partition) return false;
    if (tpc_grants_count(plane) && tpc_grants_ask(plane, partition, subject, TPC_RIGHT_WRITE) != TPC_GRANT_ALLOWED)
        return false;
    if (!tpc_in_place_window_expect(partition, (uint32_t)part.records_bytes, &position)) return false;
    *residue = (uint32_t)(position - (part.records - bytes)) % TPC_IN_PLACE_BLOCK_BYTES;
    return true;
}

void tpc_plane_set_hot(tpc_plane *plane, int on) {
    tpc_connections_set_hot(plane->connections, on ? hot_handler : NULL, plane);
    tpc_connections_set_borrowed(plane->connections, on ? borrowed_handler : NULL, plane);
    tpc_connections_set_alignment(plane->connections, on ? alignment_handler : NULL, plane);
}
