/*
 * How long Python takes between two waits, and a way for another thread to see that it takes too long while it still does;
 * and a sign of life for another process.
 *
 * The core's thread pays two relaxed stores per turn. The watching thread sleeps here without the GIL, looks every half
 * threshold while Python works and rarely while the core waits (once a second when Python has had few turns: this thread
 * shares the core's CPU, and takes it from the core or from its neighbours), and goes back to Python only when there is something to show.
 */
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "io.h"
#include "ring_state.h"
#include "cdef/23_stall.h"

enum { IDLE_LOOK_NS = 20000000, REST_LOOK_NS = 1000000000, BUSY_TURN_NS = 10000000 };

void tpc_stall_new(tpc_ring *ring) {
    tpc_monotonic_condition_init(&ring->stall.stop_wanted);
    pthread_mutex_init(&ring->stall.lock, NULL);
}

void tpc_stall_free(tpc_ring *ring) {
    pthread_cond_destroy(&ring->stall.stop_wanted);
    pthread_mutex_destroy(&ring->stall.lock);
}

void tpc_stall_enter(tpc_ring *ring, int64_t now_ns) {
    tpc_stall_watch *stall = &ring->stall;
    int64_t since = atomic_load_explicit(&stall->python_since_ns, memory_order_relaxed);
    atomic_store_explicit(&stall->python_since_ns, 0, memory_order_relaxed);
    if (since == 0) return;
    int64_t took = now_ns - since;
    ring->statistics.python_ns += took;
    ring->statistics.python_spans[tpc_span_of(took)]++;
    if (stall->threshold_ns == 0 || took <= stall->threshold_ns) return;
    ring->statistics.stalls++;
    if (took > ring->statistics.stall_ns_max) ring->statistics.stall_ns_max = took;
}

void tpc_stall_leave(tpc_ring *ring) {
    uint64_t turns = atomic_load_explicit(&ring->stall.turns, memory_order_relaxed);
    atomic_store_explicit(&ring->stall.turns, turns + 1, memory_order_relaxed);
    atomic_store_explicit(&ring->stall.python_since_ns, tpc_monotonic_ns(), memory_order_relaxed);
}

int64_t tpc_stall_since(const tpc_ring *ring) {
    return atomic_load_explicit(&ring->stall.python_since_ns, memory_order_relaxed);
}

void tpc_ring_stall_threshold(tpc_ring *ring, int64_t threshold_ns) { ring->stall.threshold_ns = threshold_ns; }

static void sleep_or_stop(tpc_stall_watch *stall, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    pthread_mutex_lock(&stall->lock);
    if (!atomic_load(&stall->stopped)) pthread_cond_timedwait(&stall->stop_wanted, &stall->lock, &until);
    pthread_mutex_unlock(&stall->lock);
}

/* Until the next look when Python does not work: longer and longer as long as it has few turns. */
static int64_t next_look_ns(tpc_stall_watch *stall, int64_t look_ns, uint64_t *turns_before) {
    uint64_t turns = atomic_load_explicit(&stall->turns, memory_order_relaxed), taken = turns - *turns_before;
    *turns_before = turns;
    if ((int64_t)taken * BUSY_TURN_NS > look_ns) return IDLE_LOOK_NS;
    return 2 * look_ns < REST_LOOK_NS ? 2 * look_ns : REST_LOOK_NS;
}

int tpc_ring_wait_stalled(tpc_ring *ring, int64_t after_ns) {
    tpc_stall_watch *stall = &ring->stall;
    int64_t reported = -1, look_ns = IDLE_LOOK_NS;
    uint64_t turns = atomic_load_explicit(&stall->turns, memory_order_relaxed);
    int64_t first = atomic_load_explicit(&stall->python_since_ns, memory_order_relaxed);
    /* The turn under way at the call was reported already when it was over that then. */
    if (first && tpc_monotonic_ns() - first > after_ns) reported = first;
    while (!atomic_load(&stall->stopped)) {
        int64_t now = tpc_monotonic_ns();
        int64_t since = atomic_load_explicit(&stall->python_since_ns, memory_order_relaxed);
        bool works = since != 0 && since != reported;
        if (works && now - since > after_ns) return 1;
        look_ns = works ? IDLE_LOOK_NS : next_look_ns(stall, look_ns, &turns);
        sleep_or_stop(stall, now + (works && after_ns / 2 < look_ns ? after_ns / 2 : look_ns));
    }
    return -ECANCELED;
}

void tpc_ring_stall_stop(tpc_ring *ring) {
    pthread_mutex_lock(&ring->stall.lock);
    atomic_store(&ring->stall.stopped, true);
    pthread_cond_broadcast(&ring->stall.stop_wanted);
    pthread_mutex_unlock(&ring->stall.lock);
}

void tpc_ring_beat_on(tpc_ring *ring, int fd, int64_t interval_ns) {
    ring->beat_fd = fd;
    ring->beat_interval_ns = interval_ns;
    ring->beat_next_ns = 0;
}

void tpc_beat(tpc_ring *ring, int64_t now_ns) {
    if (ring->beat_fd < 0 || now_ns < ring->beat_next_ns) return;
    ring->beat_next_ns = now_ns + ring->beat_interval_ns;
    uint64_t one = 1;
    ssize_t written = write(ring->beat_fd, &one, sizeof one);
    (void)written; /* the counter is full: nobody reads it, and it says what it has to */
}
