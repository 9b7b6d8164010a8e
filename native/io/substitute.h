/*
 * What carries out a ring's entries in place of io_uring: system calls (plain.c), or a test (simulated.c). Only
 * ring_life.c, uring_shim.c and wait.c know of it; no module above the ring does.
 */
#ifndef TPC_SUBSTITUTE_H
#define TPC_SUBSTITUTE_H

#include <stdbool.h>
#include <stdint.h>

struct io_uring_sqe;
typedef struct tpc_substitute tpc_substitute;

typedef struct {
    uint64_t user_data;
    int32_t result;
} tpc_substitute_completion;

struct tpc_substitute {
    /* Nothing may be under way. */
    void (*free)(tpc_substitute *substitute);

    /* An entry that is not zeroed; NULL: all are taken, or there is no memory. What it takes to complete it is there. */
    struct io_uring_sqe *(*entry)(tpc_substitute *substitute);
    unsigned (*queued)(const tpc_substitute *substitute);
    unsigned (*space_left)(const tpc_substitute *substitute);

    /* Begins what is queued, in its order; how many entries that were. */
    unsigned (*submit)(tpc_substitute *substitute);

    /* Looks at what became ready or was done; when nothing is complete and it `waits`, until something is or `timeout_ns` have
     * passed (< 0: no end). 0, -ETIME, -EINTR, or another -errno. */
    int (*wait)(tpc_substitute *substitute, bool waits, int64_t timeout_ns);

    unsigned (*completed)(const tpc_substitute *substitute);
    bool (*next)(tpc_substitute *substitute, tpc_substitute_completion *completion);

    /* A kind's user_data may mean something else from here on. */
    void (*keep_nothing)(tpc_substitute *substitute);

    /* As tpc_ring_hold_file(). */
    int (*hold_file)(tpc_substitute *substitute, int descriptor);
};

/* 0 or -errno. `entries` are taken before they have to be submitted. */
int tpc_plain_new(unsigned entries, tpc_substitute **out);
int tpc_simulated_new(unsigned entries, tpc_substitute **out);

#endif
