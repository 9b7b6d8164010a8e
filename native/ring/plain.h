/*
 * The same entries without io_uring: what a ring does on a host that refuses it. Only uring_shim.c and wait.c know of it; no
 * module above the ring does.
 *
 * An entry is interpreted when it is submitted. Sockets and readiness: at once and without waiting, and where that would wait,
 * again when epoll says so. Files: by a few threads, and by one of its own for what is the journal's (plain_files.c). Results
 * are kept until tpc_ring_harvest() hands them out, so handlers run where they run with io_uring.
 */
#ifndef TPC_PLAIN_H
#define TPC_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

struct io_uring_sqe;
typedef struct tpc_plain tpc_plain;

typedef struct {
    uint64_t user_data;
    int32_t result;
} tpc_plain_completion;

/* 0 or -errno. `entries` are taken before they have to be submitted. */
int tpc_plain_new(unsigned entries, tpc_plain **out);

/* Nothing may be under way. Ends the threads. */
void tpc_plain_free(tpc_plain *plain);

/* An entry that is not zeroed; NULL: `entries` are taken, or there is no memory. What it takes to complete it is there. */
struct io_uring_sqe *tpc_plain_entry(tpc_plain *plain);
unsigned tpc_plain_queued(const tpc_plain *plain);
unsigned tpc_plain_space_left(const tpc_plain *plain);

/* Begins what is queued, in its order; how many entries that were. */
unsigned tpc_plain_submit(tpc_plain *plain);

/* Looks at what became ready or was done; when nothing is complete and it `waits`, until something is or `timeout_ns` have
 * passed (< 0: no end). 0, -ETIME, -EINTR, or another -errno. */
int tpc_plain_wait(tpc_plain *plain, bool waits, int64_t timeout_ns);

unsigned tpc_plain_completed(const tpc_plain *plain);
bool tpc_plain_next(tpc_plain *plain, tpc_plain_completion *completion);

/* A kind's user_data may mean something else from here on. */
void tpc_plain_keep_nothing(tpc_plain *plain);

/* As tpc_ring_hold_file(). */
int tpc_plain_hold_file(tpc_plain *plain, int descriptor);

#endif
