/*
 * Fetches that are with Python, which asks for each by its connection and sequence. One whose request was forgotten
 * there goes with its connection.
 */
#include "fetch.h"

static tpc_fetch **left_bucket(tpc_fetches *fetches, uint64_t connection) {
    return &fetches->left[(uint32_t)connection % TPC_FETCH_LEFT_BUCKETS]; /* by its slot */
}

/* Python will ask for it by connection and sequence, which no other request ever has. */
void tpc_fetch_leave(tpc_fetches *fetches, tpc_fetch *fetch, enum tpc_fetch_fallback reason) {
    tpc_fetch **bucket = left_bucket(fetches, fetch->connection);
    TPC_HOLDS(fetch->state == TPC_FETCH_FRESH && fetch->request && !fetch->woken);
    fetches->statistics.left[reason]++;
    tpc_fetch_charge_python(fetches, fetch);
    fetch->state = TPC_FETCH_IN_PYTHON;
    fetch->left_reason = (uint8_t)reason;
    fetch->request = NULL;
    fetch->previous = NULL;
    fetch->next = *bucket;
    if (*bucket) (*bucket)->previous = fetch;
    *bucket = fetch;
    fetches->left_count++;
}

void tpc_fetch_hand_over(tpc_plane *plane, tpc_fetch *fetch, enum tpc_fetch_fallback reason) {
    tpc_request *request = fetch->request;
    plane->fetches->statistics.handed_over++;
    tpc_fetch_leave(plane->fetches, fetch, reason);
    if (tpc_request_to_python(plane->connections, request) < 0) tpc_fetch_end(plane, fetch);
}

tpc_fetch *tpc_fetch_find_left(tpc_fetches *fetches, const tpc_request *request) {
    tpc_fetch *at = *left_bucket(fetches, request->connection);
    while (at && (at->connection != request->connection || at->sequence != request->sequence)) at = at->next;
    return at;
}

static void unlink_left(tpc_fetches *fetches, tpc_fetch *fetch) {
    TPC_HOLDS(fetch->state == TPC_FETCH_IN_PYTHON && fetches->left_count > 0);
    *(fetch->previous ? &fetch->previous->next : left_bucket(fetches, fetch->connection)) = fetch->next;
    if (fetch->next) fetch->next->previous = fetch->previous;
    fetches->left_count--;
}

tpc_fetch *tpc_fetch_take_left(tpc_fetches *fetches, const tpc_request *request) {
    tpc_fetch *fetch = tpc_fetch_find_left(fetches, request);
    if (fetch) unlink_left(fetches, fetch);
    return fetch;
}

void tpc_fetch_end(tpc_plane *plane, tpc_fetch *fetch) {
    tpc_fetch_unreserve(plane, fetch);
    if (fetch->state == TPC_FETCH_IN_PYTHON) unlink_left(plane->fetches, fetch);
    tpc_fetch_free(plane, fetch);
}

void tpc_fetch_forget_left_of_gone(tpc_plane *plane) {
    if (!plane->fetches->left_count) return;
    for (uint32_t i = 0; i < TPC_FETCH_LEFT_BUCKETS; i++)
        for (tpc_fetch *fetch = plane->fetches->left[i], *next; fetch; fetch = next) {
            next = fetch->next;
            if (!tpc_connection_is_open(plane->connections, fetch->connection)) tpc_fetch_end(plane, fetch);
        }
}
