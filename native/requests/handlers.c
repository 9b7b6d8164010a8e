/*
 * What the connections ask the plane about requests (connection.h), all of it inside the wait: the borrowed handler about one
 * that lies whole where it was received, the hot handler about one with a frame of its own, the alignment handler about a large
 * one that has begun to come. What none of them takes goes to Python.
 */
#include "fetch.h"
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

static bool alignment_handler(void *context, const uint8_t *bytes, size_t have, uint32_t subject, uint32_t *residue) {
    return tpc_produce_alignment(context, bytes, have, subject, residue);
}

void tpc_plane_set_hot(tpc_plane *plane, int on) {
    tpc_connections_set_hot(plane->connections, on ? hot_handler : NULL, plane);
    tpc_connections_set_borrowed(plane->connections, on ? borrowed_handler : NULL, plane);
    tpc_connections_set_alignment(plane->connections, on ? alignment_handler : NULL, plane);
}
