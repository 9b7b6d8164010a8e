/*
 * The bounds of fetches that settings and memory say, and their counters.
 *
 * What fetches take while they wait, or are with Python, has a bound of its own: sessions that fill theirs must not
 * keep everybody else from waiting. Above it one of many partitions is answered at once, with what there is, and its client
 * asks again: that costs CPU, where waiting would cost the memory. Those of few partitions are charged and always wait,
 * so together they are bounded by the number of connections alone.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>

enum { RESPONSE_BYTES_MAX_DEFAULT = 55 * 1024 * 1024 };

enum {
    FEW_PARTS = 64,             /* that wait whatever others take: a connection has one */
    PART_BYTES_IN_PYTHON = 1024 /* in the objects of its request, its reading and its answer */
};

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

/* ---- of those that wait, or are with Python ---- */

/* Beside its frame, which is charged to the connections' budget, and what its session keeps. */
static int64_t bytes_of(const tpc_fetch *fetch) {
    size_t part = sizeof *fetch->parts + sizeof *fetch->waits;
    if (fetch->with_names) part += sizeof(tpc_fetch_known);
    return (int64_t)(sizeof *fetch + (size_t)fetch->parts_count * part);
}

/* Whether there was so much, or it is so little that nobody asks. If not, it waits no more, and is counted once. */
static bool charge(tpc_fetches *fetches, tpc_fetch *fetch, int64_t bytes, bool even_so) {
    bool fits = fetch->parts_count <= FEW_PARTS || bytes <= fetches->waiting_bytes_max - fetches->waiting_bytes;
    if (!fits) {
        fetches->statistics.hurried += fetch->deadline_ns != 0;
        fetch->deadline_ns = 0;
        if (!even_so) return false;
    }
    TPC_HOLDS(bytes >= 0 && fetch->waiting_bytes <= fetches->waiting_bytes);
    fetch->waiting_bytes += bytes;
    fetches->waiting_bytes += bytes;
    return fits;
}

bool tpc_fetch_may_wait(tpc_fetches *fetches, tpc_fetch *fetch) {
    return fetch->waiting_bytes || charge(fetches, fetch, bytes_of(fetch), false);
}

void tpc_fetch_charge_python(tpc_fetches *fetches, tpc_fetch *fetch) {
    int64_t bytes = (int64_t)fetch->parts_count * PART_BYTES_IN_PYTHON;
    if (!fetch->waiting_bytes) bytes += bytes_of(fetch);
    charge(fetches, fetch, bytes, true);
}

/* ---- settings and counters ---- */

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
