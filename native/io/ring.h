/*
 * The ring of one core, as the C parts of the data plane see it (connections, journal) and as the Python face wraps it.
 *
 * One thread owns a ring. Nothing here locks. cffi releases the GIL around each call, so no other thread may touch the
 * ring or anything hung on it.
 *
 * Completions are dispatched by the high byte of user_data. A C module takes a kind, registers a handler, and from then
 * on gets its own completions inside tpc_ring_wait(), without Python. What Python has to know is pushed as an event;
 * tpc_ring_wait() hands the events over in an array when it returns.
 *
 *   user_data:  bits 63..56 kind | 55..32 generation (24 bits) | 31..0 index
 */
#ifndef TPC_RING_H
#define TPC_RING_H

#include <stdint.h>
#include <stddef.h>
#include <stdbool.h>

struct io_uring;
struct io_uring_sqe;
struct io_uring_cqe;

#include "cdef/20_ring.h"

/* Where a time is counted in an array of TPC_SPANS: [i] has those of less than 2^i us, the last one all longer ones too. */
static inline unsigned tpc_span_of(int64_t ns) {
    unsigned place = 0;
    for (int64_t us = ns / 1000; us > 0 && place < TPC_SPANS - 1; us >>= 1) place++;
    return place;
}

/* Kinds of completions. TPC_KIND_PYTHON is the ring's own table of operations that Python awaits. */
enum tpc_kind {
    TPC_KIND_NONE = 0, /* nobody waits: cancels, wake-ups that are counted only */
    TPC_KIND_PYTHON = 1,
    TPC_KIND_ACCEPT = 2,
    TPC_KIND_RECEIVE = 3,
    TPC_KIND_SEND = 4,
    TPC_KIND_JOURNAL = 6,
    TPC_KIND_TIMER = 7,
    TPC_KIND_WAKE = 8,
    TPC_KIND_DATAGRAM = 9,
    TPC_KINDS_MAX = 16,
};

static inline uint64_t tpc_user_data(enum tpc_kind kind, uint32_t generation, uint32_t index) {
    return ((uint64_t)kind << 56) | ((uint64_t)(generation & 0xffffffu) << 32) | index;
}

static inline uint32_t tpc_user_data_generation(uint64_t user_data) { return (uint32_t)(user_data >> 32) & 0xffffffu; }

/* A handler gets each completion of its kind, in order, inside the wait. It may submit, and push events; it never blocks. */
typedef void (*tpc_completion_handler)(void *context, uint64_t user_data, int32_t result, uint32_t flags);

/* Called once per turn: before submission (journal: seal and submit a commit; connections: send what was queued), and
 * asked for the monotonic instant in ns at which it wants to be called at the latest (INT64_MAX: none). */
typedef int64_t (*tpc_turn_hook)(void *context, int64_t now_ns);

enum tpc_turn_order { TPC_TURN_FIRST, TPC_TURN_MIDDLE, TPC_TURN_LAST };

int tpc_ring_handle(tpc_ring *ring, enum tpc_kind kind, tpc_completion_handler handler, void *context);
/* FIRST: in front of all that are there; LAST: behind them; MIDDLE: behind those that are first and in front of those that are
 * last. The journal tells in its first place what is durable, and connections send in their last: whatever makes something to
 * be sent of what is durable stands in the middle, or it would leave when the next wait is over. A hook may have several places. */
int tpc_ring_add_turn_hook(tpc_ring *ring, enum tpc_turn_order place, tpc_turn_hook hook, void *context);
/* From all its places. */
void tpc_ring_remove_turn_hook(tpc_ring *ring, tpc_turn_hook hook, void *context);

/* A submission entry, zeroed, user_data set. When the submission queue is full it is submitted first; NULL only when
 * the kernel refuses even that (then the caller keeps its work queued and tries in the next turn). Each entry taken counts
 * as outstanding until its last completion: never leave one unprepared, never ask for IOSQE_CQE_SKIP_SUCCESS. */
struct io_uring_sqe *tpc_ring_sqe(tpc_ring *ring, uint64_t user_data);

/* Two entries that must be linked: makes sure that both fit in one submission. */
int tpc_ring_reserve(tpc_ring *ring, unsigned entries);

/* 0, or -ENOBUFS when there is no memory for it. Completions are not taken from the kernel while a whole array of events
 * waits for Python, so handlers that push a bounded number per completion are bounded. */
int tpc_ring_push_event(tpc_ring *ring, uint32_t kind, uint64_t token, int64_t a, int64_t b, void *pointer);
/* Room for an event that must not be lost, taken while there is somebody to refuse: 0, or -ENOBUFS. Behind
 * tpc_ring_release_event() the next event finds it. */
int tpc_ring_promise_event(tpc_ring *ring);
void tpc_ring_release_event(tpc_ring *ring);

struct io_uring *tpc_ring_raw(tpc_ring *ring);
/* For tpc_ring_serve() between the parts of what takes long to copy. */
#define TPC_COPY_SERVES_AFTER_NS 50000

/* While tpc_ring_serve() runs: a hook leaves what is not urgent, and what makes more events for Python, to the next wait. */
bool tpc_ring_is_serving(const tpc_ring *ring);

int64_t tpc_ring_now_ns(tpc_ring *ring);           /* monotonic, taken once per batch of completions */
int64_t tpc_ring_instant_ns(const tpc_ring *ring); /* the same, but read from the clock while Python has the turn */

/* Whether an opcode / feature may be used: what the kernel has, less what the feature switch hides. */
bool tpc_ring_has(const tpc_ring *ring, enum tpc_feature feature);

#endif
