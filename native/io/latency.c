/*
 * The time from the moment at which a request was whole until its answer was ready to be sent, by API.
 *
 * It costs two additions and a bit scan for each request. The clock is that of the ring's turn, which was read anyway, to
 * within a batch of completions; only while Python has the turn, which is slow already, is it read.
 *
 * The slowest are kept of this window and of the one before, so that they are never older than two windows, and never
 * fewer than those of the last one. A request that may wait by design is in the histogram and not among them.
 */
#include "latency.h"

#include <string.h>

#include "bytes.h"

#define WINDOW_NS 60000000000

static unsigned span_of(int64_t took_ns) {
    uint64_t us = (uint64_t)took_ns / 1000;
    unsigned place = us ? 64u - (unsigned)__builtin_clzll(us) : 0;
    return place < TPC_LATENCY_SPANS ? place : TPC_LATENCY_SPANS - 1;
}

static tpc_slow_request *fastest_of(tpc_slow_request *slowest) {
    tpc_slow_request *found = slowest;
    for (tpc_slow_request *at = slowest; at < slowest + TPC_SLOWEST; at++)
        if (at->took_ns < found->took_ns) found = at;
    return found;
}

void latency_note(connection *it, const answer *place, uint64_t answer_bytes) {
    tpc_latencies *latencies = &it->owner->latencies;
    int64_t now_ns = tpc_ring_instant_ns(it->owner->ring);
    int64_t took_ns = now_ns > place->received_ns ? now_ns - place->received_ns : 0;
    if ((uint16_t)place->api_key < TPC_LATENCY_APIS) {
        tpc_api_latency *api = &latencies->apis[place->api_key];
        api->spans[span_of(took_ns)]++;
        api->sum_ns += (uint64_t)took_ns;
    }
    if (took_ns <= latencies->floor_ns || place->api_key < 0 || TPC_API_MAY_WAIT(place->api_key)) return;
    *fastest_of(latencies->slowest) = (tpc_slow_request){.took_ns = took_ns,
                                                         .answered_ns = now_ns,
                                                         .connection = connection_id(it),
                                                         .answer_bytes = answer_bytes,
                                                         .request_bytes = place->request_bytes,
                                                         .api_key = place->api_key,
                                                         .api_version = place->api_version};
    latencies->floor_ns = fastest_of(latencies->slowest)->took_ns;
}

void latency_turn(tpc_latencies *latencies, int64_t now_ns) {
    if (now_ns < latencies->window_until_ns) return;
    latencies->window_until_ns = now_ns + WINDOW_NS;
    memcpy(latencies->slowest_before, latencies->slowest, sizeof latencies->slowest);
    memset(latencies->slowest, 0, sizeof latencies->slowest);
    latencies->floor_ns = 0;
}

const tpc_latencies *tpc_connections_latencies(const tpc_connections *connections) { return &connections->latencies; }
