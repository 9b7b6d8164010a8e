/*
 * How long Python takes between two waits, and a way for another thread to see that it takes too long while it still does.
 *
 * The core's thread pays two relaxed stores per turn. The watching thread sleeps here without the GIL, looks every half
 * threshold while Python works and rarely while the core waits, and goes back to Python only when there is something to show.
 */
#include <errno.h>
#include <time.h>

#include "ring_state.h"
#include "cdef/23_receive_buffers.h"

enum { IDLE_LOOK_NS = 20000000 };

void tpc_stall_new(tpc_ring *ring) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ring->stall.stop_wanted, &attributes);
    pthread_condattr_destroy(&attributes);
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

int tpc_ring_wait_stalled(tpc_ring *ring) {
    tpc_stall_watch *stall = &ring->stall;
    int64_t reported = -1;
    int64_t first = atomic_load_explicit(&stall->python_since_ns, memory_order_relaxed);
    /* The turn under way at the call was reported already when it was over the threshold then. */
    if (first && tpc_monotonic_ns() - first > stall->threshold_ns) reported = first;
    while (!atomic_load(&stall->stopped)) {
        int64_t now = tpc_monotonic_ns();
        int64_t since = atomic_load_explicit(&stall->python_since_ns, memory_order_relaxed);
        bool works = since != 0 && since != reported;
        if (works && stall->threshold_ns && now - since > stall->threshold_ns) return 1;
        sleep_or_stop(stall, now + (works && stall->threshold_ns ? stall->threshold_ns / 2 : IDLE_LOOK_NS));
    }
    return -ECANCELED;
}

void tpc_ring_stall_stop(tpc_ring *ring) {
    pthread_mutex_lock(&ring->stall.lock);
    atomic_store(&ring->stall.stopped, true);
    pthread_cond_broadcast(&ring->stall.stop_wanted);
    pthread_mutex_unlock(&ring->stall.lock);
}
