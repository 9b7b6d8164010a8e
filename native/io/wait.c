/*
 * The turn of a core: hooks, one io_uring_enter(2) that submits and waits, completions to their handlers, events to Python.
 *
 * What Python has to do ends the wait by itself: a deadline, the wake-up descriptor, an event (at once, after the batch of
 * completions it came in). Besides it ends on its own under load, after 10 ms of work or `work_max` completions that C
 * handled alone, so that nothing that Python does rarely and nobody thought of can be kept out for ever; a turn of Python
 * costs some 30 us, so not more often. Time that the kernel let us wait is no work.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "io.h"
#include "ring_state.h"
#include "substitute.h"

enum { HOT_WORK_NS_MAX = 10000000, TAKES_PER_TURN_MAX = 32, SERVED_EVENTS_MAX = 1024 };

static void arm_wake(tpc_ring *ring) {
    if (ring->wake_armed || ring->is_simulated) return;
    struct io_uring_sqe *sqe = tpc_ring_sqe(ring, tpc_user_data(TPC_KIND_WAKE, 0, 0));
    if (!sqe) return;
    io_uring_prep_poll_add(sqe, ring->wake_fd, POLLIN);
    ring->wake_armed = true;
}

static int64_t run_hooks(tpc_ring *ring) {
    int64_t earliest = INT64_MAX;
    for (unsigned i = 0; i < ring->hooks_count; i++) {
        int64_t wanted = ring->hooks[i].hook(ring->hooks[i].context, ring->now_ns);
        if (wanted < earliest) earliest = wanted;
    }
    ring->hooks_until_ns = earliest;
    return earliest;
}

/* Before 5.11: a timeout entry ends the wait. One that fires too early costs a turn of the loop, so it is left alone. */
static void arm_timer(tpc_ring *ring, int64_t until_ns) {
    if (until_ns >= ring->timer_until_ns) return;
    if (tpc_ring_reserve(ring, 2) < 0) return;
    if (ring->timer_until_ns != INT64_MAX) {
        struct io_uring_sqe *sqe = tpc_ring_sqe(ring, tpc_user_data(TPC_KIND_NONE, 0, 0));
        io_uring_prep_rw(IORING_OP_TIMEOUT_REMOVE, sqe, -1, NULL, 0, 0);
        sqe->addr = tpc_user_data(TPC_KIND_TIMER, ring->timer_generation, 0);
    }
    ring->timer_generation++;
    struct io_uring_sqe *sqe = tpc_ring_sqe(ring, tpc_user_data(TPC_KIND_TIMER, ring->timer_generation, 0));
    ring->timer_value = (struct __kernel_timespec){.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    io_uring_prep_timeout(sqe, &ring->timer_value, 0, IORING_TIMEOUT_ABS);
    ring->timer_until_ns = until_ns;
}

static bool is_ready(const tpc_ring *ring) {
    return ring->substitute ? ring->substitute->completed(ring->substitute) > 0 : io_uring_cq_ready(&ring->uring) > 0;
}

/* Whether it counts as work. */
static bool handle(tpc_ring *ring, uint64_t user_data, int32_t result, uint32_t flags) {
    ring->statistics.completions++;
    if (!(flags & IORING_CQE_F_MORE)) ring->statistics.outstanding--;
    unsigned kind = (unsigned)(user_data >> 56);
    if (kind >= TPC_KINDS_MAX || !ring->handlers[kind].handler) return false;
    ring->handlers[kind].handler(ring->handlers[kind].context, user_data, result, flags);
    return kind != TPC_KIND_WAKE && kind != TPC_KIND_TIMER;
}

/* Those that are there now: what handlers complete at once waits for the next time, as with io_uring. */
static unsigned harvest_substitute(tpc_ring *ring, unsigned events_max) {
    unsigned worked = 0;
    tpc_substitute_completion done;
    tpc_substitute *substitute = ring->substitute;
    for (unsigned left = substitute->completed(substitute); left > 0; left--) {
        if (tpc_ring_events_pending(ring) >= events_max || !substitute->next(substitute, &done)) break;
        worked += handle(ring, done.user_data, done.result, 0);
    }
    return worked;
}

unsigned tpc_ring_harvest(tpc_ring *ring, unsigned events_max) {
    if (ring->substitute) return harvest_substitute(ring, events_max);
    struct io_uring *uring = &ring->uring;
    struct io_uring_cq *cq = &uring->cq;
    unsigned worked = 0;
    unsigned head = *cq->khead;
    unsigned tail = io_uring_smp_load_acquire(cq->ktail);
    for (; head != tail && tpc_ring_events_pending(ring) < events_max; head++) {
        const struct io_uring_cqe cqe = cq->cqes[head & cq->ring_mask];
        io_uring_smp_store_release(cq->khead, head + 1); /* the copy is ours; a handler may submit */
        worked += handle(ring, cqe.user_data, cqe.res, cqe.flags);
    }
    return worked;
}

static void charge_work(tpc_ring *ring) {
    int64_t now = tpc_monotonic_ns();
    ring->statistics.work_ns += now - ring->now_ns;
    ring->now_ns = now;
}

/* What is there, and what the kernel has put off: from 6.13 a call carries out some twenty of what is ready, in its order, so
 * that what comes behind a crowd would wait for as many turns as there are twenties in it, and for all that those turns do
 * besides. Not without end: what is to be answered and written leaves with the turn. */
static unsigned take_ready(tpc_ring *ring, unsigned events_max) {
    unsigned worked = tpc_ring_harvest(ring, events_max);
    for (unsigned i = 1; i < TAKES_PER_TURN_MAX && tpc_ring_puts_off(ring); i++) {
        if (tpc_ring_events_pending(ring) >= events_max || tpc_ring_enter(ring, 0, -1) < 0) break;
        charge_work(ring); /* each take is at a moment of its own: a write may have begun in the one before */
        worked += tpc_ring_harvest(ring, events_max);
    }
    return worked;
}

static int deliver(tpc_ring *ring, tpc_event *events, unsigned events_max) {
    size_t count = tpc_ring_events_pending(ring);
    if (count == 0) return 0;
    if (count > events_max) count = events_max;
    memcpy(events, ring->events + ring->events_head, count * sizeof *events);
    ring->events_head += count;
    if (ring->events_head == ring->events_tail) ring->events_head = ring->events_tail = 0;
    ring->statistics.events += count;
    return (int)count;
}

/* Waits in the kernel until `until_ns`, or not at all when something is there already. A call that also submitted says how
 * much, and not that a signal or the time-out ended its wait: ended too early and with nothing, it was a signal. */
static int submit_and_wait(tpc_ring *ring, int64_t until_ns, int64_t *waited_ns) {
    bool waits = tpc_ring_events_pending(ring) == 0 && !ring->woken && until_ns > ring->now_ns && !is_ready(ring);
    bool ends = until_ns != INT64_MAX;
    if (waits && ends && !tpc_ring_has(ring, TPC_FEATURE_EXT_ARG)) arm_timer(ring, until_ns);
    int result = tpc_ring_enter(ring, waits, ends ? until_ns - ring->now_ns : -1);
    int64_t now = tpc_monotonic_ns();
    ring->statistics.wait_ns += now - ring->now_ns;
    if (waits) *waited_ns += now - ring->now_ns;
    ring->now_ns = now;
    if (result == -EBUSY || result == -EAGAIN) return 0; /* completions first; what is queued stays queued */
    if (result == 0 && waits && now < until_ns && !is_ready(ring)) return -EINTR;
    return result;
}

static int turn(tpc_ring *ring, int64_t timeout_ns, unsigned work_max, tpc_event *events, unsigned events_max) {
    int64_t deadline = timeout_ns < 0 || timeout_ns > INT64_MAX - ring->now_ns ? INT64_MAX : ring->now_ns + timeout_ns;
    int64_t hot_since = 0, waited_ns = 0;
    unsigned worked = 0;
    int result = 0;
    bool late = false, hot = false, busy = false;
    tpc_operations_turn(ring);
    do {
        arm_wake(ring);
        int64_t hooks_until = run_hooks(ring);
        result = submit_and_wait(ring, hooks_until < deadline ? hooks_until : deadline, &waited_ns);
        if (result < 0 && result != -ETIME && result != -EINTR) return result;
        unsigned harvested = take_ready(ring, events_max);
        /* A hook that wants to be called at once again and again is hot work as well. */
        if (!busy && (harvested || hooks_until <= ring->now_ns)) {
            busy = true;
            hot_since = ring->now_ns;
            waited_ns = 0;
        }
        worked += harvested;
        charge_work(ring);
        late = ring->now_ns >= deadline;
        hot = busy && (worked >= work_max || ring->now_ns - hot_since - waited_ns >= HOT_WORK_NS_MAX);
    } while (!tpc_ring_events_pending(ring) && !ring->woken && result != -EINTR && !late && !hot);

    /* What the handlers queued leaves now: it must not wait for Python's part of the turn. */
    run_hooks(ring);
    if (tpc_ring_queued(ring)) tpc_ring_submit(ring);
    bool woken = ring->woken; /* by a completion of this turn, or one that was handled while Python worked */
    ring->woken = false;
    int count = deliver(ring, events, events_max);
    if (count) ring->statistics.turns_with_events++;
    if (count) return count;
    if (hot) ring->statistics.hot_limits++;
    if (result == -EINTR) return -EINTR;
    if (hot || woken || !late) return 0;
    ring->statistics.timeouts++;
    return -ETIME;
}

/* Rule: The wait returns to Python after a bounded share of hot work. Held by tests/engine/test_ring_wait.py. */
int tpc_ring_wait(tpc_ring *ring, int64_t timeout_ns, unsigned work_max, tpc_event *events, unsigned events_max) {
    ring->statistics.turns++;
    ring->now_ns = tpc_monotonic_ns();
    tpc_beat(ring, ring->now_ns);
    tpc_stall_enter(ring, ring->now_ns);
    int64_t took_ns = ring->statistics.python_ns - ring->python_ns_before_turn;
    if (took_ns > ring->longest_turn_ns) ring->longest_turn_ns = took_ns;
    ring->python_ns_before_turn = ring->statistics.python_ns;
    int result = turn(ring, timeout_ns, work_max, events, events_max);
    tpc_stall_leave(ring);
    return result;
}

int64_t tpc_ring_take_longest_turn(tpc_ring *ring) {
    int64_t longest_ns = ring->longest_turn_ns;
    ring->longest_turn_ns = 0;
    return longest_ns;
}

int tpc_ring_serve(tpc_ring *ring, int64_t after_ns) {
    int64_t now = tpc_monotonic_ns();
    if (now - tpc_stall_since(ring) < after_ns) return 0;
    ring->now_ns = now;
    tpc_beat(ring, now);
    tpc_stall_enter(ring, now);
    ring->statistics.serves++;
    ring->serving = true;
    run_hooks(ring);
    int64_t waited_ns = 0;
    submit_and_wait(ring, ring->now_ns, &waited_ns); /* an error comes again in the next wait, which reports it */
    if (take_ready(ring, SERVED_EVENTS_MAX)) {
        run_hooks(ring);
        if (tpc_ring_queued(ring)) tpc_ring_submit(ring);
    }
    charge_work(ring);
    ring->serving = false;
    tpc_stall_leave(ring);
    return 1;
}
