/*
 * The ring's own state, shared by uring_shim.c (set-up, submission, shut-down), wait.c (the turn) and operations.c (what
 * Python awaits). Nothing else includes this; the other parts of a core use ring.h.
 */
#ifndef TPC_RING_STATE_H
#define TPC_RING_STATE_H

#include <liburing.h>

#include "ring.h"

/* Constants that liburing 2.3 does not know yet, with the kernel that brought them. */
enum {
    TPC_OP_FTRUNCATE = 55, /* IORING_OP_FTRUNCATE, 6.9 */
};

enum { TPC_TURN_HOOKS_MAX = 8 };

typedef struct {
    tpc_completion_handler handler;
    void *context;
} tpc_handler_entry;

typedef struct {
    tpc_turn_hook hook;
    void *context;
} tpc_turn_hook_entry;

struct tpc_operations;

struct tpc_ring {
    struct io_uring uring;
    uint32_t setup_flags;
    uint32_t features; /* usable: what the kernel has, less `hidden` */
    uint32_t hidden;

    tpc_handler_entry handlers[TPC_KINDS_MAX];
    tpc_turn_hook_entry hooks[TPC_TURN_HOOKS_MAX];
    unsigned hooks_count;

    /* Events between a handler and Python: [events_head, events_tail) of a buffer that grows. */
    tpc_event *events;
    size_t events_head;
    size_t events_tail;
    size_t events_capacity;

    int wake_fd;
    bool wake_armed;
    bool woken;

    /* Time-outs without EXT_ARG (before 5.11): one absolute timeout entry, re-armed when an earlier one is wanted. */
    int64_t timer_until_ns; /* INT64_MAX: none armed */
    uint32_t timer_generation;
    struct __kernel_timespec timer_value;

    int64_t now_ns;
    struct tpc_operations *operations;
    tpc_ring_statistics statistics;
};

int64_t tpc_monotonic_ns(void);

/* One io_uring_enter(2): submits what is queued, waits for `wait_count` completions until `timeout_ns` from now (< 0: no
 * end). 0 or -errno; -ETIME and -EINTR are not failures. */
int tpc_ring_enter(tpc_ring *ring, unsigned wait_count, int64_t timeout_ns);

/* Hands completions to their handlers: until the ring is empty, or `events_max` events wait for Python. Returns the
 * number handled that count as work (not time-outs and wake-ups). */
unsigned tpc_ring_harvest(tpc_ring *ring, unsigned events_max);

static inline size_t tpc_ring_events_pending(const tpc_ring *ring) { return ring->events_tail - ring->events_head; }

int tpc_operations_new(tpc_ring *ring);
void tpc_operations_free(tpc_ring *ring);
void tpc_operations_cancel_all(tpc_ring *ring);

/* Called with the events that are about to be handed over, and at the start of the turn after that. */
void tpc_operations_turn(tpc_ring *ring);

#endif
