/*
 * What modules do with the ring: entries and their submission, handlers, hooks, events. It begins and ends in
 * ring_life.c; the turn is in wait.c.
 *
 * Accounting: every entry taken with tpc_ring_sqe() counts as outstanding until its last completion (the one without
 * IORING_CQE_F_MORE), whatever module it belongs to. So closing knows when the kernel holds nothing any more. Nobody may use
 * IOSQE_CQE_SKIP_SUCCESS, which would break the count.
 *
 * The one hot system call is made here, because liburing 2.3 has no call that submits, waits with a time-out and runs
 * deferred task work in one go on every kernel.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "invariant.h"
#include "io.h"
#include "ring_state.h"
#include "substitute.h"

/* ------------------------------------------------------------------------------------------------ submission */

/* Makes the entries taken so far visible to the kernel; the number that are waiting to be submitted. */
static unsigned flush_entries(struct io_uring *uring) {
    struct io_uring_sq *sq = &uring->sq;
    unsigned tail = *sq->ktail;
    for (; sq->sqe_head != sq->sqe_tail; sq->sqe_head++, tail++)
        sq->array[tail & sq->ring_mask] = sq->sqe_head & sq->ring_mask;
    io_uring_smp_store_release(sq->ktail, tail);
    return tail - io_uring_smp_load_acquire(sq->khead);
}

static struct __kernel_timespec timespec_of(int64_t ns) {
    return (struct __kernel_timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

static int enter_substitute(tpc_ring *ring, unsigned wait_count, int64_t timeout_ns) {
    ring->statistics.enters++;
    ring->statistics.submissions += ring->substitute->submit(ring->substitute);
    return ring->substitute->wait(ring->substitute, wait_count > 0, timeout_ns);
}

int tpc_ring_enter(tpc_ring *ring, unsigned wait_count, int64_t timeout_ns) {
    if (ring->substitute) return enter_substitute(ring, wait_count, timeout_ns);
    struct io_uring *uring = &ring->uring;
    unsigned to_submit = flush_entries(uring);
    unsigned flags = IORING_ENTER_GETEVENTS | ring->enter_flags;
    struct __kernel_timespec wait_for;
    struct io_uring_getevents_arg argument = {.sigmask = 0, .sigmask_sz = _NSIG / 8, .ts = 0};
    void *extra = NULL;
    size_t extra_size = _NSIG / 8;
    if (wait_count && timeout_ns >= 0 && tpc_ring_has(ring, TPC_FEATURE_EXT_ARG)) {
        wait_for = timespec_of(timeout_ns);
        argument.ts = (uintptr_t)&wait_for;
        extra = &argument;
        extra_size = sizeof argument;
        flags |= IORING_ENTER_EXT_ARG;
    }
    ring->statistics.enters++;
    int result = io_uring_enter2((unsigned)ring->enter_fd, to_submit, wait_count, flags, extra, extra_size);
    if (result < 0) return result;
    ring->statistics.submissions += (unsigned)result;
    return 0;
}

bool tpc_ring_puts_off(const tpc_ring *ring) {
    if (ring->substitute || !(ring->setup_flags & IORING_SETUP_TASKRUN_FLAG)) return false;
    return __atomic_load_n(ring->uring.sq.kflags, __ATOMIC_RELAXED) & IORING_SQ_TASKRUN;
}

int tpc_ring_submit(tpc_ring *ring) {
    if (ring->substitute) {
        ring->statistics.submissions += ring->substitute->submit(ring->substitute);
        return 0;
    }
    unsigned to_submit = flush_entries(&ring->uring);
    while (to_submit) {
        ring->statistics.enters++;
        int result = io_uring_enter2((unsigned)ring->enter_fd, to_submit, 0, ring->enter_flags, NULL, _NSIG / 8);
        if (result == -EINTR) continue;
        if (result < 0) return result;
        if (result == 0) return -EAGAIN;
        ring->statistics.submissions += (unsigned)result;
        to_submit -= (unsigned)result;
    }
    return 0;
}

static struct io_uring_sqe *take_entry(tpc_ring *ring) {
    return ring->substitute ? ring->substitute->entry(ring->substitute) : io_uring_get_sqe(&ring->uring);
}

struct io_uring_sqe *tpc_ring_sqe(tpc_ring *ring, uint64_t user_data) {
    struct io_uring_sqe *sqe = take_entry(ring);
    if (!sqe) {
        tpc_ring_submit(ring);
        sqe = take_entry(ring);
        if (!sqe) return NULL;
    }
    memset(sqe, 0, sizeof *sqe);
    sqe->user_data = user_data;
    ring->statistics.outstanding++;
    return sqe;
}

static unsigned space_left(const tpc_ring *ring) {
    return ring->substitute ? ring->substitute->space_left(ring->substitute) : io_uring_sq_space_left(&ring->uring);
}

int tpc_ring_reserve(tpc_ring *ring, unsigned entries) {
    if (space_left(ring) >= entries) return 0;
    int result = tpc_ring_submit(ring);
    if (result < 0) return result;
    if (space_left(ring) >= entries) return 0;
    return tpc_ring_queued(ring) ? -EBUSY : -EINVAL;
}

bool tpc_ring_queued(const tpc_ring *ring) {
    return ring->substitute ? ring->substitute->queued(ring->substitute) > 0 : io_uring_sq_ready(&ring->uring) > 0;
}

/* ------------------------------------------------------------------------------------------------ modules */

int tpc_ring_handle(tpc_ring *ring, enum tpc_kind kind, tpc_completion_handler handler, void *context) {
    if ((unsigned)kind >= TPC_KINDS_MAX) return -EINVAL;
    ring->handlers[kind] = (tpc_handler_entry){handler, context};
    if (ring->substitute) ring->substitute->keep_nothing(ring->substitute);
    return 0;
}

int tpc_ring_add_turn_hook(tpc_ring *ring, enum tpc_turn_order place, tpc_turn_hook hook, void *context) {
    if (ring->hooks_count == TPC_TURN_HOOKS_MAX) return -ENOSPC;
    unsigned at = place == TPC_TURN_FIRST ? 0 : ring->hooks_count;
    while (place == TPC_TURN_MIDDLE && at && ring->hooks[at - 1].place == TPC_TURN_LAST) at--;
    memmove(&ring->hooks[at + 1], &ring->hooks[at], (ring->hooks_count - at) * sizeof ring->hooks[0]);
    ring->hooks[at] = (tpc_turn_hook_entry){hook, context, place};
    ring->hooks_count++;
    return 0;
}

void tpc_ring_remove_turn_hook(tpc_ring *ring, tpc_turn_hook hook, void *context) {
    unsigned kept = 0;
    for (unsigned i = 0; i < ring->hooks_count; i++)
        if (ring->hooks[i].hook != hook || ring->hooks[i].context != context) ring->hooks[kept++] = ring->hooks[i];
    ring->hooks_count = kept;
}

/* The buffer starts over whenever Python has taken everything, so it grows only when handlers push more in one turn than
 * ever before. */
static int make_event_room(tpc_ring *ring) {
    size_t pending = tpc_ring_events_pending(ring);
    if (ring->events_head > 0) {
        memmove(ring->events, ring->events + ring->events_head, pending * sizeof *ring->events);
        ring->events_head = 0;
        ring->events_tail = pending;
        if (pending + ring->events_promised < ring->events_capacity) return 0;
    }
    size_t capacity = ring->events_capacity ? ring->events_capacity * 2 : 1024;
    tpc_event *events = realloc(ring->events, capacity * sizeof *events);
    if (!events) return -ENOBUFS;
    ring->events = events;
    ring->events_capacity = capacity;
    return 0;
}

int tpc_ring_push_event(tpc_ring *ring, uint32_t kind, uint64_t token, int64_t a, int64_t b, void *pointer) {
    if (ring->events_tail + ring->events_promised >= ring->events_capacity && make_event_room(ring) < 0)
        return -ENOBUFS;
    ring->events[ring->events_tail++] = (tpc_event){.kind = kind, .token = token, .a = a, .b = b, .pointer = pointer};
    return 0;
}

int tpc_ring_promise_event(tpc_ring *ring) {
    if (ring->events_tail + ring->events_promised >= ring->events_capacity && make_event_room(ring) < 0)
        return -ENOBUFS;
    ring->events_promised++;
    return 0;
}

void tpc_ring_release_event(tpc_ring *ring) {
    TPC_HOLDS(ring->events_promised > 0);
    ring->events_promised--;
}

void tpc_ring_wake(tpc_ring *ring) {
    uint64_t one = 1;
    int saved_errno = errno;
    ssize_t written = write(ring->wake_fd, &one, sizeof one);
    (void)written; /* EAGAIN: the counter is at its maximum, so the wake-up is on its way already */
    errno = saved_errno;
}

struct io_uring *tpc_ring_raw(tpc_ring *ring) { return &ring->uring; }
bool tpc_ring_is_serving(const tpc_ring *ring) { return ring->serving; }

int64_t tpc_ring_now_ns(tpc_ring *ring) { return ring->now_ns; }
int64_t tpc_ring_instant_ns(const tpc_ring *ring) { return tpc_stall_since(ring) ? tpc_monotonic_ns() : ring->now_ns; }
bool tpc_ring_has(const tpc_ring *ring, enum tpc_feature feature) { return (ring->features >> feature) & 1u; }
uint32_t tpc_ring_features(const tpc_ring *ring) { return ring->features; }

void tpc_ring_get_statistics(const tpc_ring *ring, tpc_ring_statistics *statistics) {
    *statistics = ring->statistics;
    statistics->overflows = ring->substitute ? 0 : *ring->uring.cq.koverflow;
}

const tpc_ring_statistics *tpc_ring_live_statistics(const tpc_ring *ring) { return &ring->statistics; }

int tpc_ring_hold_file(tpc_ring *ring, int descriptor) {
    if (ring->substitute) return ring->substitute->hold_file(ring->substitute, descriptor);
    return io_uring_register_files(&ring->uring, &descriptor, 1);
}
