/*
 * Frames: the buffers in which requests arrive, batches stay, and answers leave. One reference count, one budget.
 *
 * Theory of operation. A large request is received into one frame. Its large batches are stamped in place and kept
 * there: the tail cache, a journal entry not yet durable and the answers of fetches hold references (slices) instead of
 * copies. The bytes are given back when the last reference goes, so one batch in the tail keeps its whole request: who
 * keeps bytes for long and finds `capacity` much above what it needs should copy. Small batches are copied into frames of
 * their own kind, a row of batches in each (tail.c).
 *
 * The budget counts capacities, from the moment they are allocated. The cache (batches in memory that lie in segments as well)
 * is on top of it, with a bound of its own (tail.c). tpc_frame_new() refuses above `bytes_max` (the
 * caller waits, or tells its client); tpc_frame_new_forced() does not, and is for what must not fail: an answer to a
 * request that was taken already. Whoever forces has a bound of its own on how many.
 */
#ifndef TPC_FRAME_H
#define TPC_FRAME_H

#include <stdint.h>
#include <stddef.h>
#include <stdbool.h>

#include "cdef/25_frame.h"

/* What counts against bytes_max. */
static inline int64_t tpc_budget_held(const tpc_budget *budget) { return budget->bytes_used - budget->bytes_cached; }
static inline int64_t tpc_budget_room(const tpc_budget *budget) { return budget->bytes_max - tpc_budget_held(budget); }

/* As tpc_frame_new(), with an address of `data` that is `residue` above a multiple of a page; both are multiples of 8. */
tpc_frame *tpc_frame_new_at(tpc_budget *budget, uint32_t length, uint32_t residue);

/* Changes the capacity of a frame that only the caller refers to. 0, -ENOBUFS (budget) or -ENOMEM; then it is as before. */
int tpc_frame_resize(tpc_frame **frame, uint32_t capacity);

/* The data of a frame that holds a file: its slices are `length` bytes from `position` on, and have no data of their own. The
 * file is let go with the frame. */
typedef struct {
    void *owner;
    void (*release)(void *owner);
    int64_t position;
    int descriptor;
} tpc_file_range;

static inline tpc_file_range *tpc_frame_file(tpc_frame *frame) { return (tpc_file_range *)(void *)frame->data; }

static inline tpc_slice tpc_slice_of(tpc_frame *frame, const uint8_t *data, uint32_t length) {
    return (tpc_slice){.frame = tpc_frame_retain(frame), .data = data, .length = length};
}

#endif
