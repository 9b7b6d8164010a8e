/*
 * The ring begins with what the kernel has, and ends when that holds nothing of it any more (uring_shim.c counts).
 * liburing is used for mapping, probing and its prep functions.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io.h"
#include "ring_state.h"
#include "substitute.h"

static bool hides(uint32_t hidden, enum tpc_feature feature) { return (hidden >> feature) & 1u; }

/* ------------------------------------------------------------------------------------------------ set-up */

static int try_setup(tpc_ring *ring, unsigned entries, uint32_t flags) {
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    params.flags = flags | IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE;
    params.cq_entries = entries * 4;
    int result = io_uring_queue_init_params(entries, &ring->uring, &params);
    if (result == 0) ring->setup_flags = flags;
    return result;
}

/* The best flags the kernel takes: an unknown flag is -EINVAL. Rings are locked memory before 5.12 and count against
 * RLIMIT_MEMLOCK, so on -ENOMEM a smaller ring is tried. */
static int setup(tpc_ring *ring, unsigned entries) {
    uint32_t choices[3];
    unsigned count = 0;
    if (!hides(ring->hidden, TPC_FEATURE_SINGLE_ISSUER) && !hides(ring->hidden, TPC_FEATURE_DEFER_TASKRUN))
        choices[count++] = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
                           IORING_SETUP_SUBMIT_ALL;
    if (!hides(ring->hidden, TPC_FEATURE_COOP_TASKRUN))
        choices[count++] = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL;
    choices[count++] = 0;
    int result = -EINVAL;
    for (; entries >= 64; entries /= 2) {
        for (unsigned i = 0; i < count; i++) {
            result = try_setup(ring, entries, choices[i]);
            if (result != -EINVAL) break;
        }
        if (result != -ENOMEM) break;
    }
    return result;
}

static bool has_cachestat(void) { return syscall(SYSCALL_CACHESTAT, -1, NULL, NULL, 0) < 0 && errno == EBADF; }

static void found(tpc_ring *ring, enum tpc_feature feature, bool there) {
    if (there && !hides(ring->hidden, feature)) ring->features |= 1u << feature;
}

/* Rule: Features that older kernels lack have replacements. TPC_HIDE_FEATURES=5.8 takes the features away. See also
 * tpc_broker/engine/ring.py. Held by tests/engine/conftest.py (each test of the ring also with features hidden),
 * tests/integration/test_whole_life.py. */
/*
 * What the kernel has. Opcodes are probed. Flags of opcodes cannot be, so the opcode that came with the same release stands
 * for them: SOCKET (5.19) for multishot accept, buffer rings and cancel-any, SEND_ZC (6.0) for multishot receive, the
 * feature bit of resource tags (5.13) for multishot poll. Version numbers would lie on kernels with back-ports.
 */
static int probe_features(tpc_ring *ring) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring->uring);
    if (!probe) return -ENOSYS;
    bool with_5_19 = io_uring_opcode_supported(probe, IORING_OP_SOCKET);
    bool with_6_0 = io_uring_opcode_supported(probe, IORING_OP_SEND_ZC);
    found(ring, TPC_FEATURE_SINGLE_ISSUER, ring->setup_flags & IORING_SETUP_SINGLE_ISSUER);
    found(ring, TPC_FEATURE_DEFER_TASKRUN, ring->setup_flags & IORING_SETUP_DEFER_TASKRUN);
    found(ring, TPC_FEATURE_COOP_TASKRUN, ring->setup_flags != 0);
    found(ring, TPC_FEATURE_EXT_ARG, ring->uring.features & IORING_FEAT_EXT_ARG);
    found(ring, TPC_FEATURE_MULTISHOT_ACCEPT, with_5_19);
    found(ring, TPC_FEATURE_BUFFER_RING, with_5_19);
    found(ring, TPC_FEATURE_CANCEL_ANY, with_5_19);
    found(ring, TPC_FEATURE_MULTISHOT_RECEIVE, with_6_0);
    found(ring, TPC_FEATURE_SEND_ZC, with_6_0);
    found(ring, TPC_FEATURE_SENDMSG_ZC, io_uring_opcode_supported(probe, IORING_OP_SENDMSG_ZC));
    found(ring, TPC_FEATURE_UNLINKAT, io_uring_opcode_supported(probe, IORING_OP_UNLINKAT));
    found(ring, TPC_FEATURE_FTRUNCATE, io_uring_opcode_supported(probe, TPC_OP_FTRUNCATE));
    found(ring, TPC_FEATURE_CACHESTAT, has_cachestat());
    io_uring_free_probe(probe);
    return 0;
}

/* What the plain backend does itself is there, whatever is hidden of the kernel's. */
static void plain_features(tpc_ring *ring) {
    ring->features = 1u << TPC_FEATURE_EXT_ARG | 1u << TPC_FEATURE_CANCEL_ANY;
    found(ring, TPC_FEATURE_UNLINKAT, true);
    found(ring, TPC_FEATURE_FTRUNCATE, true);
    found(ring, TPC_FEATURE_CACHESTAT, has_cachestat());
}

static void on_wake(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    (void)user_data, (void)result, (void)flags;
    tpc_ring *ring = context;
    uint64_t count;
    ring->wake_armed = false;
    if (read(ring->wake_fd, &count, sizeof count) == sizeof count) {
        ring->woken = true;
        ring->statistics.wakes++;
    }
}

static void on_timer(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    (void)result, (void)flags;
    tpc_ring *ring = context;
    if (tpc_user_data_generation(user_data) == (ring->timer_generation & 0xffffffu)) ring->timer_until_ns = INT64_MAX;
}

/* A ring that only its own thread may enter is registered with it (5.18), so that the kernel need not look its descriptor up
 * and count the use of it each time. */
static void register_with_thread(tpc_ring *ring) {
    ring->enter_fd = ring->uring.ring_fd;
    if (!tpc_ring_has(ring, TPC_FEATURE_SINGLE_ISSUER) || io_uring_register_ring_fd(&ring->uring) != 1) return;
    ring->enter_fd = ring->uring.enter_ring_fd;
    ring->enter_flags = IORING_ENTER_REGISTERED_RING;
}

static int begin_io_uring(tpc_ring *ring, unsigned entries) {
    int result = setup(ring, entries);
    if (result < 0) return result;
    result = probe_features(ring);
    if (result < 0)
        io_uring_queue_exit(&ring->uring);
    else
        register_with_thread(ring);
    return result;
}

static int begin_plain(tpc_ring *ring, unsigned entries) {
    plain_features(ring);
    return tpc_plain_new(entries, &ring->substitute);
}

/* As a kernel 5.8 with what the simulation does itself: receives begin with readiness, and what is in the page cache is not asked. */
static int begin_simulated(tpc_ring *ring, unsigned entries) {
    ring->features = 1u << TPC_FEATURE_EXT_ARG | 1u << TPC_FEATURE_CANCEL_ANY;
    ring->is_simulated = true;
    return tpc_simulated_new(entries, &ring->substitute);
}

static int begin(tpc_ring *ring, enum tpc_backend backend, unsigned entries) {
    if (backend == TPC_BACKEND_SIMULATED) return begin_simulated(ring, entries);
    return backend == TPC_BACKEND_PLAIN ? begin_plain(ring, entries) : begin_io_uring(ring, entries);
}

static void end_backend(tpc_ring *ring) {
    if (ring->substitute)
        ring->substitute->free(ring->substitute);
    else
        io_uring_queue_exit(&ring->uring);
}

int tpc_ring_new(unsigned entries, uint32_t hidden, enum tpc_backend backend, tpc_ring **out) {
    tpc_ring *ring = calloc(1, sizeof *ring);
    if (!ring) return -ENOMEM;
    ring->hidden = hidden;
    ring->timer_until_ns = INT64_MAX;
    entries = entries < 64 ? 64 : entries;
    int result = begin(ring, backend, entries);
    if (result < 0) goto free_memory;
    ring->beat_fd = -1;
    ring->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->wake_fd < 0) {
        result = -errno;
        goto exit_backend;
    }
    tpc_ring_handle(ring, TPC_KIND_WAKE, on_wake, ring);
    tpc_ring_handle(ring, TPC_KIND_TIMER, on_timer, ring);
    result = tpc_operations_new(ring);
    if (result < 0) goto close_wake;
    tpc_stall_new(ring);
    ring->now_ns = tpc_monotonic_ns();
    *out = ring;
    return 0;
close_wake:
    close(ring->wake_fd);
exit_backend:
    end_backend(ring);
free_memory:
    free(ring);
    return result;
}

/* ------------------------------------------------------------------------------------------------ shut-down */

static void cancel_everything(tpc_ring *ring) {
    tpc_operations_cancel_all(ring);
    if (tpc_ring_has(ring, TPC_FEATURE_CANCEL_ANY)) {
        struct io_uring_sqe *sqe = tpc_ring_sqe(ring, tpc_user_data(TPC_KIND_NONE, 0, 0));
        if (!sqe) return;
        io_uring_prep_rw(IORING_OP_ASYNC_CANCEL, sqe, -1, NULL, 0, 0);
        sqe->cancel_flags = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY;
        return;
    }
    tpc_ring_wake(ring); /* ends the armed poll of the wake-up descriptor */
    if (ring->timer_until_ns == INT64_MAX) return;
    struct io_uring_sqe *sqe = tpc_ring_sqe(ring, tpc_user_data(TPC_KIND_NONE, 0, 0));
    if (!sqe) return;
    io_uring_prep_rw(IORING_OP_TIMEOUT_REMOVE, sqe, -1, NULL, 0, 0);
    sqe->addr = tpc_user_data(TPC_KIND_TIMER, ring->timer_generation, 0);
}

int tpc_ring_close(tpc_ring *ring, int64_t timeout_ns) {
    int64_t until = tpc_monotonic_ns() + timeout_ns;
    ring->hooks_count = 0;
    cancel_everything(ring);
    while (ring->statistics.outstanding > 0) {
        if (tpc_monotonic_ns() >= until) return -ETIMEDOUT;
        /* Without EXT_ARG a wait could not end, so this polls: a shut-down on an old kernel. */
        bool timed = tpc_ring_has(ring, TPC_FEATURE_EXT_ARG);
        int result = tpc_ring_enter(ring, timed ? 1 : 0, 10000000);
        if (result < 0 && result != -ETIME && result != -EINTR && result != -EBUSY && result != -EAGAIN) return result;
        if (!tpc_ring_harvest(ring, UINT32_MAX) && !timed) usleep(1000);
        ring->events_head = ring->events_tail = 0;
    }
    end_backend(ring);
    close(ring->wake_fd);
    tpc_operations_free(ring);
    tpc_stall_free(ring);
    free(ring->events);
    free(ring);
    return 0;
}
