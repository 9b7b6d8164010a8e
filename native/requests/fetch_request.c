/*
 * A Fetch request, from its bytes to whoever has it next: attempted here, and answered or parked; sent on to other
 * cores; or left to Python.
 */
#include "forward.h"
#include "grants.h"

#include <errno.h>
#include <stdlib.h>

enum { VERSION_WITH_TOPIC_IDS = 13, DECODED_CAPACITY_MIN = 64, DECODED_CAPACITY_MAX = 1 << 20 };

static int reserve_decoded(tpc_fetches *fetches, int32_t parts, int32_t forgotten) {
    if (parts > fetches->decoded_capacity) {
        if (tpc_fetch_resize(&fetches->decoded, (size_t)parts * sizeof *fetches->decoded) < 0) return -ENOMEM;
        fetches->decoded_capacity = parts;
    }
    if (forgotten > fetches->forgotten_capacity) {
        if (tpc_fetch_resize(&fetches->forgotten, (size_t)forgotten * sizeof *fetches->forgotten) < 0) return -ENOMEM;
        fetches->forgotten_capacity = forgotten;
    }
    return 0;
}

static int decode(tpc_fetches *fetches, const tpc_request *request, tpc_fetch_request *out) {
    int result = reserve_decoded(fetches, DECODED_CAPACITY_MIN, DECODED_CAPACITY_MIN);
    for (;;) {
        if (result < 0) return result;
        result = tpc_fetch_decode(request->body, request->body_bytes, request->api_version, out, fetches->decoded,
                                  fetches->decoded_capacity, fetches->forgotten, fetches->forgotten_capacity);
        if (result != -E2BIG) return result;
        if (out->parts_count > DECODED_CAPACITY_MAX || out->forgotten_count > DECODED_CAPACITY_MAX) return -EBADMSG;
        result = reserve_decoded(fetches, out->parts_count, out->forgotten_count);
    }
}

static int64_t deadline_of(const tpc_plane *plane, int32_t wait_ms_max) {
    return tpc_ring_now_ns(plane->ring) + (wait_ms_max > 0 ? (int64_t)wait_ms_max * 1000000 : 0);
}

/* The fetch of a request, its session moved on. 0 or -errno, and then nothing has changed. */
static int begin(tpc_plane *plane, tpc_request *request, tpc_fetch **out) {
    tpc_fetches *fetches = plane->fetches;
    tpc_fetch_request asked;
    int result = decode(fetches, request, &asked);
    if (result < 0) return result;
    if (request->throttle_ms && asked.session_epoch == 0)
        asked.session_epoch = -1; /* no session is begun with nothing */
    tpc_fetch *fetch = calloc(1, sizeof *fetch);
    if (!fetch) return -ENOMEM;
    int32_t bytes_max = asked.response_bytes_max;
    *fetch = (tpc_fetch){.connection = request->connection,
                         .subject = request->subject,
                         .sequence = request->sequence,
                         .request = request,
                         .frame = tpc_frame_retain(request->frame),
                         .deadline_ns = deadline_of(plane, asked.wait_ms_max),
                         .correlation_id = request->correlation_id,
                         .version = request->api_version,
                         .response_bytes_min = asked.response_bytes_min,
                         .response_bytes_max =
                             bytes_max < fetches->response_bytes_max ? bytes_max : fetches->response_bytes_max,
                         .isolation_level = asked.isolation_level,
                         .is_follower = asked.replica_id >= 0,
                         .rack = tpc_fetch_rack_of(fetches, &asked)};
    result =
        tpc_fetch_find_context(&fetches->sessions, &asked, request->api_version >= VERSION_WITH_TOPIC_IDS,
                               fetches->decoded, fetches->forgotten, tpc_ring_now_ns(plane->ring) / 1000000, fetch);
    if (result == 0) result = tpc_fetch_reserve_readings(fetches, fetch->parts_count);
    if (result < 0) {
        tpc_fetch_free(plane, fetch);
        return result;
    }
    *out = fetch;
    return 0;
}

/* To an answer, or into the wait; otherwise why it is Python's. */
static enum tpc_fetch_fallback go_on(tpc_plane *plane, const tpc_request *request, tpc_fetch *fetch) {
    tpc_fetches *fetches = plane->fetches;
    bool forwards = tpc_forwards(plane, request);
    if (forwards) tpc_fetch_may_wait(fetches, fetch); /* where it must not, it has no deadline any more */
    if (forwards && tpc_forward_fetch(plane, fetch)) {
        fetches->statistics.taken++;
        return TPC_FETCH_FALLBACK_NONE;
    }
    enum tpc_fetch_fallback reason = TPC_FETCH_FALLBACK_NONE;
    bool last = plane->forwarding && tpc_connection_is_released(plane->connections, fetch->connection, fetch->sequence);
    enum tpc_fetch_outcome_kind found = tpc_fetch_attempt(plane, fetch, last, &reason);
    if (found == TPC_FETCH_TOO_LITTLE && !tpc_fetch_may_wait(fetches, fetch))
        found = tpc_fetch_attempt(plane, fetch, true, &reason);
    if (found == TPC_FETCH_TOO_LITTLE && tpc_fetch_park(plane, fetch) < 0) return TPC_FETCH_FALLBACK_NO_MEMORY;
    fetches->statistics.taken += !reason;
    return reason;
}

int tpc_plane_fetch(tpc_plane *plane, tpc_request *request) {
    tpc_fetches *fetches = plane->fetches;
    tpc_fetch *fetch;
    if (tpc_fetch_find_left(fetches, request)) return 0;
    if (tpc_grants_count(plane) && !request->subject) { /* whose session it may have is not known yet */
        fetches->statistics.left[TPC_FETCH_FALLBACK_AUTHORIZE]++;
        return 0;
    }
    int result = begin(plane, request, &fetch);
    if (result < 0) {
        fetches->statistics.left[result == -EBADMSG           ? TPC_FETCH_FALLBACK_MALFORMED
                                 : result == -EPROTONOSUPPORT ? TPC_FETCH_FALLBACK_VERSION
                                                              : TPC_FETCH_FALLBACK_NO_MEMORY]++;
        return 0;
    }
    if (request->throttle_ms) {
        tpc_fetch_answer_nothing(plane, fetch);
        fetches->statistics.taken++;
        return 1;
    }
    enum tpc_fetch_fallback reason = go_on(plane, request, fetch);
    if (reason) tpc_fetch_leave(fetches, fetch, reason);
    return !reason;
}

int tpc_fetch_begin(tpc_plane *plane, tpc_request *request, tpc_fetch **out) {
    tpc_fetch *fetch = tpc_fetch_take_left(plane->fetches, request);
    if (!fetch) {
        int result = begin(plane, request, &fetch);
        if (result < 0) return result;
        fetch->request = NULL;
        if (tpc_grants_count(plane)) fetch->left_reason = TPC_FETCH_FALLBACK_AUTHORIZE; /* C was not asked */
        tpc_fetch_charge_python(plane->fetches, fetch);
    }
    fetch->state = TPC_FETCH_FRESH;
    *out = fetch;
    return 0;
}

int tpc_fetch_again(tpc_plane *plane, tpc_request *request, tpc_fetch *fetch) {
    if (fetch->error_code || tpc_fetch_reserve_readings(plane->fetches, fetch->parts_count) < 0) return 0;
    fetch->request = request;
    tpc_request_leaves_python(plane->connections, request);
    enum tpc_fetch_fallback reason = go_on(plane, request, fetch);
    if (!reason) return 1;
    tpc_request_enters_python(plane->connections, request);
    plane->fetches->statistics.left[reason]++;
    fetch->left_reason = (uint8_t)reason;
    fetch->request = NULL;
    return 0;
}

void tpc_fetches_free(tpc_plane *plane) {
    tpc_fetches *fetches = plane->fetches;
    tpc_fetch_forget_parked(plane);
    for (uint32_t i = 0; i < TPC_FETCH_LEFT_BUCKETS; i++)
        while (fetches->left[i]) tpc_fetch_end(plane, fetches->left[i]);
    tpc_fetch_sessions_free(&fetches->sessions);
    free(fetches->decoded), free(fetches->forgotten), free(fetches->readings), free(fetches->outcomes);
    free(fetches->parked_by_slot);
    free(fetches->results), free(fetches->topics), free(fetches->splits), free(fetches->chosen), free(fetches->header),
        free(fetches->pieces), free(fetches->aborted);
    free(fetches->rack_names), free(fetches->rack_ends);
    free(fetches);
    plane->fetches = NULL;
}
