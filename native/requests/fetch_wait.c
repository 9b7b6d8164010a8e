/*
 * Fetches that wait for min_bytes (Kafka's DelayedFetch): in the lists of their partitions, and in a timer wheel.
 *
 * The wheel has a slot per millisecond and goes round about once a second; a fetch with a longer wait is met once a round
 * and stays. That is when a fetch is dropped whose connection has gone meanwhile. What is left to Python is looked over in
 * the same rhythm, since a request may be forgotten there with its connection.
 *
 * A commit that moves high watermarks marks the fetches that watch those partitions, each once, and when all have moved
 * they attempt again, in the order in which they were marked.
 *
 * What they take while they wait has a bound: fetch_limits.c.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>

enum { NS_PER_MS = 1000000, WORD_BITS = 64 };

/* ---- the wheel ---- */

static uint32_t slot_of(const tpc_fetch *fetch) {
    return (uint32_t)((fetch->deadline_ns + NS_PER_MS - 1) / NS_PER_MS) & (TPC_FETCH_WHEEL_SLOTS - 1);
}

static void wheel_link(tpc_fetches *fetches, tpc_fetch *fetch) {
    uint32_t slot = slot_of(fetch);
    fetch->previous = NULL;
    fetch->next = fetches->wheel[slot];
    if (fetch->next) fetch->next->previous = fetch;
    fetches->wheel[slot] = fetch;
    fetches->wheel_used[slot / WORD_BITS] |= 1ull << slot % WORD_BITS;
}

static void wheel_unlink(tpc_fetches *fetches, tpc_fetch *fetch) {
    uint32_t slot = slot_of(fetch);
    TPC_HOLDS(fetch->previous || fetches->wheel[slot] == fetch); /* its deadline is what it was when it was linked */
    TPC_HOLDS(fetches->wheel_used[slot / WORD_BITS] >> slot % WORD_BITS & 1);
    *(fetch->previous ? &fetch->previous->next : &fetches->wheel[slot]) = fetch->next;
    if (fetch->next) fetch->next->previous = fetch->previous;
    if (!fetches->wheel[slot]) fetches->wheel_used[slot / WORD_BITS] &= ~(1ull << slot % WORD_BITS);
}

/* Milliseconds from `slot` on to the first slot in use, itself included; -1: none is. */
static int32_t next_used(const tpc_fetches *fetches, uint32_t slot) {
    for (uint32_t i = 0; i <= TPC_FETCH_WHEEL_SLOTS / WORD_BITS; i++) {
        uint32_t at = (slot / WORD_BITS + i) % (TPC_FETCH_WHEEL_SLOTS / WORD_BITS);
        uint64_t word = fetches->wheel_used[at];
        if (i == 0) word &= ~0ull << slot % WORD_BITS;
        if (word)
            return (int32_t)((at * WORD_BITS + (uint32_t)__builtin_ctzll(word) - slot) & (TPC_FETCH_WHEEL_SLOTS - 1));
    }
    return -1;
}

/* ---- lists of partitions ---- */

static void watch(tpc_fetch_wait *wait, tpc_partition *partition) {
    TPC_HOLDS(!wait->partition && partition); /* in one list, once */
    wait->partition = partition;
    wait->upto_offset = tpc_fetch_upto(wait->fetch, partition);
    wait->previous = NULL;
    wait->next = partition->fetch_waits;
    if (wait->next) wait->next->previous = wait;
    partition->fetch_waits = wait;
}

static void unwatch(tpc_fetch_wait *wait) {
    if (!wait->partition) return;
    TPC_HOLDS(wait->previous ? wait->previous->next == wait : wait->partition->fetch_waits == wait);
    *(wait->previous ? &wait->previous->next : &wait->partition->fetch_waits) = wait->next;
    if (wait->next) wait->next->previous = wait->previous;
    wait->partition = NULL;
}

static void mark(tpc_fetches *fetches, tpc_fetch *fetch) {
    TPC_HOLDS(fetch->state == TPC_FETCH_PARKED);
    if (fetch->woken) return;
    TPC_HOLDS((fetches->woken_first == NULL) == (fetches->woken_last == NULL));
    fetch->woken = 1;
    fetch->woken_next = NULL;
    *(fetches->woken_last ? &fetches->woken_last->woken_next : &fetches->woken_first) = fetch;
    fetches->woken_last = fetch;
}

/* ---- in and out ---- */

/* A connection waits for one fetch at most. Without memory it cannot be released, and waits its time. */
static void note_parked(tpc_plane *plane, tpc_fetch *fetch) {
    tpc_fetches *fetches = plane->fetches;
    uint32_t slot = (uint32_t)fetch->connection, slots = fetches->parked_slots ? fetches->parked_slots : WORD_BITS;
    if (!plane->forwarding) return;
    while (slots <= slot) slots *= 2;
    if (slots > fetches->parked_slots) {
        tpc_fetch **grown = realloc(fetches->parked_by_slot, slots * sizeof(tpc_fetch *));
        if (!grown) return;
        for (uint32_t i = fetches->parked_slots; i < slots; i++) grown[i] = NULL;
        fetches->parked_by_slot = grown;
        fetches->parked_slots = slots;
    }
    fetches->parked_by_slot[slot] = fetch;
}

int tpc_fetch_park(tpc_plane *plane, tpc_fetch *fetch) {
    tpc_fetches *fetches = plane->fetches;
    TPC_HOLDS(fetch->state == TPC_FETCH_FRESH && !fetch->woken);
    TPC_HOLDS(fetch->request && fetch->parts_count > 0);
    if (!fetch->waits) /* what comes back from Python has them */
        fetch->waits = calloc((size_t)fetch->parts_count, sizeof *fetch->waits);
    if (!fetch->waits) return -ENOMEM;
    for (int32_t i = 0; i < fetch->parts_count; i++) {
        fetch->waits[i].fetch = fetch;
        watch(&fetch->waits[i], tpc_fetch_partition_of(plane, fetch->parts[i]));
    }
    fetch->state = TPC_FETCH_PARKED;
    fetch->retried = 1;
    if (!fetches->statistics.parked_now++) /* the wheel stood still */
        fetches->wheel_ms = tpc_ring_now_ns(plane->ring) / NS_PER_MS;
    fetches->statistics.parked++;
    wheel_link(fetches, fetch);
    note_parked(plane, fetch);
    return 0;
}

static void unpark(tpc_plane *plane, tpc_fetch *fetch) {
    tpc_fetches *fetches = plane->fetches;
    uint32_t slot = (uint32_t)fetch->connection;
    TPC_HOLDS(fetch->state == TPC_FETCH_PARKED && !fetch->woken);
    TPC_HOLDS(fetches->statistics.parked_now > 0);
    if (slot < fetches->parked_slots && fetches->parked_by_slot[slot] == fetch) fetches->parked_by_slot[slot] = NULL;
    for (int32_t i = 0; i < fetch->parts_count; i++) unwatch(&fetch->waits[i]);
    wheel_unlink(fetches, fetch);
    fetches->statistics.parked_now--;
    fetch->state = TPC_FETCH_FRESH;
}

static void park_again(tpc_fetches *fetches, tpc_plane *plane, tpc_fetch *fetch) {
    TPC_HOLDS(fetch->state == TPC_FETCH_FRESH && !fetch->woken);
    for (int32_t i = 0; i < fetch->parts_count; i++) {
        tpc_partition *partition = tpc_fetch_partition_of(plane, fetch->parts[i]);
        if (partition) watch(&fetch->waits[i], partition);
    }
    fetch->state = TPC_FETCH_PARKED;
    fetches->statistics.parked_now++;
    wheel_link(fetches, fetch);
    note_parked(plane, fetch);
}

static void attempt_again(tpc_plane *plane, tpc_fetch *fetch, bool last) {
    enum tpc_fetch_fallback reason;
    unpark(plane, fetch);
    switch (tpc_fetch_attempt(plane, fetch, last, &reason)) {
    case TPC_FETCH_ANSWERED:
        break;
    case TPC_FETCH_TOO_LITTLE:
        park_again(plane->fetches, plane, fetch);
        break;
    case TPC_FETCH_NOT_HERE:
        tpc_fetch_hand_over(plane, fetch, reason);
        break;
    }
}

static void forget(tpc_plane *plane, tpc_fetch *fetch) {
    unpark(plane, fetch);
    tpc_request_release(fetch->request);
    tpc_fetch_free(plane, fetch);
}

/* ---- what wakes ---- */

static void wake_watching(tpc_plane *plane, const tpc_partition *partition) {
    for (tpc_fetch_wait *wait = partition->fetch_waits; wait; wait = wait->next) mark(plane->fetches, wait->fetch);
}

static void attempt_woken(tpc_plane *plane) {
    tpc_fetches *fetches = plane->fetches;
    while (fetches->woken_first) {
        tpc_fetch *fetch = fetches->woken_first;
        fetches->woken_first = fetch->woken_next;
        if (!fetches->woken_first) fetches->woken_last = NULL;
        TPC_HOLDS(fetch->woken && fetch->state == TPC_FETCH_PARKED);
        fetch->woken = 0;
        fetches->statistics.woken++;
        attempt_again(plane, fetch, false);
    }
}

/* Rule: Who waits for committed records is woken where the last stable offset has moved: beside a transaction that is open for
 * long every commit would else cost an attempt. Held by tests/engine/test_read_committed.py. */
static void partition_committed(tpc_plane *plane, tpc_partition *partition) {
    for (tpc_fetch_wait *wait = partition->fetch_waits; wait; wait = wait->next)
        if (tpc_fetch_upto(wait->fetch, partition) != wait->upto_offset) mark(plane->fetches, wait->fetch);
}

/* Whoever reads it is told by Python where it is led. */
void tpc_fetch_look_again(tpc_plane *plane, tpc_partition *partition) {
    wake_watching(plane, partition);
    attempt_woken(plane);
}

static void rights_changed(tpc_plane *plane) {
    tpc_fetches *fetches = plane->fetches;
    for (uint32_t slot = 0; slot < TPC_FETCH_WHEEL_SLOTS; slot++)
        for (tpc_fetch *fetch = fetches->wheel[slot]; fetch; fetch = fetch->next) mark(fetches, fetch);
    attempt_woken(plane);
}

static void withdrawn(tpc_plane *plane, tpc_partition *partition) {
    wake_watching(plane, partition);
    while (partition->fetch_waits) unwatch(partition->fetch_waits);
    attempt_woken(plane);
    tpc_windows_close_all(&plane->windows, partition);
}

void tpc_fetch_release(tpc_plane *plane, uint64_t connection) {
    const tpc_fetches *fetches = plane->fetches;
    uint32_t slot = (uint32_t)connection;
    tpc_fetch *fetch = slot < fetches->parked_slots ? fetches->parked_by_slot[slot] : NULL;
    if (fetch && fetch->connection == connection) attempt_again(plane, fetch, true);
}

const tpc_plane_observer tpc_fetch_observer = {.partition_committed = partition_committed,
                                               .advanced = attempt_woken,
                                               .rights_changed = rights_changed,
                                               .looks_changed = tpc_fetch_look_again,
                                               .disarmed = tpc_fetch_look_again,
                                               .withdrawn = withdrawn};

void tpc_plane_release_fetches(tpc_plane *plane) {
    tpc_fetches *fetches = plane->fetches;
    for (uint32_t slot = 0; slot < TPC_FETCH_WHEEL_SLOTS; slot++)
        while (fetches->wheel[slot]) attempt_again(plane, fetches->wheel[slot], true);
}

void tpc_fetch_forget_parked(tpc_plane *plane) {
    tpc_fetches *fetches = plane->fetches;
    for (uint32_t slot = 0; slot < TPC_FETCH_WHEEL_SLOTS; slot++)
        while (fetches->wheel[slot]) forget(plane, fetches->wheel[slot]);
}

/* Whether anybody was answered. */
static bool look_at_slot(tpc_plane *plane, uint32_t slot, int64_t now_ns) {
    bool answered = false;
    for (tpc_fetch *fetch = plane->fetches->wheel[slot], *next; fetch; fetch = next) {
        next = fetch->next; /* an attempt that is the last one touches no other parked fetch */
        if (!tpc_connection_is_open(plane->connections, fetch->connection)) {
            forget(plane, fetch);
        } else if (fetch->deadline_ns <= now_ns) {
            plane->fetches->statistics.timed_out++;
            attempt_again(plane, fetch, true);
            answered = true;
        }
    }
    return answered;
}

int64_t tpc_fetch_turn(void *context, int64_t now_ns) {
    tpc_plane *plane = context;
    tpc_fetches *fetches = plane->fetches;
    int64_t now_ms = now_ns / NS_PER_MS;
    bool answered = false;
    TPC_HOLDS(!fetches->woken_first); /* whoever was woken has looked again, in the call that did it */
    if (!fetches->statistics.parked_now) {
        if (fetches->left_count && now_ms - fetches->wheel_ms > TPC_FETCH_WHEEL_SLOTS) {
            fetches->wheel_ms = now_ms;
            tpc_fetch_forget_left_of_gone(plane);
        }
        return INT64_MAX;
    }
    if (now_ms > fetches->wheel_ms) {
        int64_t steps = now_ms - fetches->wheel_ms;
        bool round =
            steps >= TPC_FETCH_WHEEL_SLOTS || (now_ms & ~(int64_t)(TPC_FETCH_WHEEL_SLOTS - 1)) > fetches->wheel_ms;
        for (int64_t i = 1; i <= steps && i <= TPC_FETCH_WHEEL_SLOTS; i++)
            answered |= look_at_slot(plane, (uint32_t)(fetches->wheel_ms + i) & (TPC_FETCH_WHEEL_SLOTS - 1), now_ns);
        fetches->wheel_ms = now_ms;
        if (round) tpc_fetch_forget_left_of_gone(plane);
    }
    if (answered) /* the connections' own hook has run before this one */
        return now_ns;
    int32_t ahead = next_used(fetches, (uint32_t)(now_ms + 1) & (TPC_FETCH_WHEEL_SLOTS - 1));
    return ahead < 0 ? INT64_MAX : (now_ms + 1 + ahead) * NS_PER_MS;
}
