/*
 * The ring's own state, shared by uring_shim.c (submission), operations.c (what Python awaits), wait.c (the turn)
 * and ring_life.c (set-up, shut-down). Nothing else includes this; the other parts of a core use ring.h.
 */
#ifndef TPC_RING_STATE_H
#define TPC_RING_STATE_H

#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>

#include "ring.h"

/* Constants that liburing 2.3 does not know yet, with the kernel that brought them. */
enum {
    TPC_OP_FTRUNCATE = 55,   /* IORING_OP_FTRUNCATE, 6.9 */
    SYSCALL_CACHESTAT = 451, /* 6.5; the same number on every architecture */
};

enum { TPC_TURN_HOOKS_MAX = 16 };

typedef struct {
    tpc_completion_handler handler;
    void *context;
} tpc_handler_entry;

typedef struct {
    tpc_turn_hook hook;
    void *context;
    enum tpc_turn_order place;
} tpc_turn_hook_entry;

struct tpc_operations;

/* Python's part of a turn, watched by another thread: only the atomics are shared. */
typedef struct {
    int64_t threshold_ns;            /* 0: off */
    _Atomic int64_t python_since_ns; /* 0: inside the wait */
    _Atomic uint64_t turns;          /* of Python */
    atomic_bool stopped;
    pthread_mutex_t lock;
    pthread_cond_t stop_wanted;
} tpc_stall_watch;

struct tpc_substitute;

struct tpc_ring {
    struct io_uring uring;
    struct tpc_substitute *substitute; /* NULL: io_uring */
    bool is_simulated;
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
    size_t events_promised; /* so many more find room */

    /* What io_uring_enter(2) is called with: the index under which the ring is registered with its thread, or its descriptor. */
    int enter_fd;
    unsigned enter_flags;

    int wake_fd;
    bool wake_armed;
    bool woken;
    bool serving;

    /* Time-outs without EXT_ARG (before 5.11): one absolute timeout entry, re-armed when an earlier one is wanted. */
    int64_t timer_until_ns; /* INT64_MAX: none armed */
    uint32_t timer_generation;
    struct __kernel_timespec timer_value;

    int64_t now_ns;
    int64_t hooks_until_ns; /* when the turn hooks want to be called at the latest, as they said last */
    struct tpc_operations *operations;
    tpc_stall_watch stall;
    int64_t python_ns_before_turn; /* of the statistics, when the last wait began */
    int64_t longest_turn_ns;       /* of Python, since it was asked for */
    int beat_fd;                   /* -1: none */
    int64_t beat_interval_ns;
    int64_t beat_next_ns;
    tpc_ring_statistics statistics;
};

/* A condition whose timed waits end by that clock. */
void tpc_monotonic_condition_init(pthread_cond_t *condition);

/* One io_uring_enter(2): submits what is queued, waits for `wait_count` completions until `timeout_ns` from now (< 0: no
 * end). 0 or -errno; -ETIME and -EINTR are not failures. */
int tpc_ring_enter(tpc_ring *ring, unsigned wait_count, int64_t timeout_ns);

/* Whether the kernel has more to carry out for this thread, and waits to be entered for it. Known from 6.1. */
bool tpc_ring_puts_off(const tpc_ring *ring);

/* Whether entries wait to be submitted. */
bool tpc_ring_queued(const tpc_ring *ring);

/* Hands completions to their handlers: until the ring is empty, or `events_max` events wait for Python. Returns the
 * number handled that count as work (not time-outs and wake-ups). */
unsigned tpc_ring_harvest(tpc_ring *ring, unsigned events_max);

static inline size_t tpc_ring_events_pending(const tpc_ring *ring) { return ring->events_tail - ring->events_head; }

int tpc_operations_new(tpc_ring *ring);
void tpc_operations_free(tpc_ring *ring);
void tpc_operations_cancel_all(tpc_ring *ring);

/* At the start of a turn: cancels that found no room. */
void tpc_operations_turn(tpc_ring *ring);

void tpc_stall_new(tpc_ring *ring);
void tpc_stall_free(tpc_ring *ring);
void tpc_stall_enter(tpc_ring *ring, int64_t now_ns); /* Python's part ends: the wait begins */
void tpc_stall_leave(tpc_ring *ring);
void tpc_beat(tpc_ring *ring, int64_t now_ns);
int64_t tpc_stall_since(const tpc_ring *ring); /* when C was left */

#endif
