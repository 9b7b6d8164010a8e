/* The bounds of fetches that settings and memory say, and their counters. */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>

enum { RESPONSE_BYTES_MAX_DEFAULT = 55 * 1024 * 1024 };

tpc_fetches *tpc_fetches_new(void) {
    tpc_fetches *fetches = calloc(1, sizeof *fetches);
    if (!fetches) return NULL;
    fetches->response_bytes_max = RESPONSE_BYTES_MAX_DEFAULT;
    fetches->waiting_bytes_max = TPC_FETCH_SESSION_BYTES_MAX;
    if (tpc_fetch_sessions_init(&fetches->sessions) == 0) return fetches;
    free(fetches);
    return NULL;
}

int tpc_fetch_reserve(tpc_plane *plane, tpc_fetch *fetch, int64_t *bytes_max) {
    int64_t bytes = 0, allowed_bytes;
    tpc_fetch_unreserve(plane, fetch);
    for (int32_t i = 0; i < fetch->parts_count; i++)
        bytes += fetch->parts[i]->bytes_max > 0 ? fetch->parts[i]->bytes_max : 0;
    if (bytes > fetch->response_bytes_max) bytes = fetch->response_bytes_max > 0 ? fetch->response_bytes_max : 0;
    allowed_bytes = tpc_answers_reserve(plane->connections, bytes);
    if (allowed_bytes < 0) return (int)allowed_bytes;
    fetch->reserved_bytes = allowed_bytes;
    *bytes_max = allowed_bytes < bytes ? allowed_bytes : fetch->response_bytes_max;
    return 0;
}

void tpc_fetch_unreserve(tpc_plane *plane, tpc_fetch *fetch) {
    tpc_answers_unreserve(plane->connections, fetch->reserved_bytes);
    fetch->reserved_bytes = 0;
}

int tpc_plane_set_fetch_limits(tpc_plane *plane, int32_t response_bytes_max, uint32_t sessions_max,
                               int64_t eviction_ms) {
    if (response_bytes_max < 0) return -EINVAL;
    plane->fetches->response_bytes_max = response_bytes_max;
    plane->fetches->sessions.slots_max = sessions_max;
    plane->fetches->sessions.eviction_ms = eviction_ms;
    return 0;
}

void tpc_plane_set_fetch_session_bytes(tpc_plane *plane, int64_t bytes_max) {
    plane->fetches->sessions.bytes_max = plane->fetches->waiting_bytes_max = bytes_max;
}

void tpc_plane_set_fetch_seed(tpc_plane *plane, uint64_t seed) { plane->fetches->sessions.chance = seed ? seed : 1; }

void tpc_plane_get_fetch_statistics(const tpc_plane *plane, tpc_fetch_statistics *statistics) {
    const tpc_fetches *fetches = plane->fetches;
    *statistics = fetches->statistics;
    statistics->windows = plane->windows.count;
    statistics->sessions = fetches->sessions.count;
    statistics->session_partitions = fetches->sessions.parts_count;
    statistics->sessions_evicted = fetches->sessions.evicted;
    statistics->sessions_refused = fetches->sessions.refused;
    statistics->session_bytes = fetches->sessions.bytes;
    statistics->waiting_bytes = fetches->waiting_bytes;
}
