#include "frame.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096 };

static int64_t cost_bytes(uint32_t capacity) { return (int64_t)sizeof(tpc_frame) + capacity; }

static void charge(tpc_budget *budget, int64_t bytes) {
    budget->bytes_used += bytes;
    assert(budget->bytes_used >= 0);
    if (budget->bytes_used <= budget->bytes_peak_lately) return;
    budget->bytes_peak_lately = budget->bytes_used;
    if (budget->bytes_used > budget->bytes_peak) budget->bytes_peak = budget->bytes_used;
}

/* Rule: Requests, answers and what is parked count against one budget, with a cap and a send deadline for each
 * connection. See also native/net/connection_framing.c, native/net/connection_answers.c. Held by
 * tests/engine/test_connections.py, tests/integration/test_bad_input.py. */
static bool has_room(tpc_budget *budget, int64_t bytes) {
    int64_t missing = bytes - tpc_budget_room(budget);
    if (missing > 0 && budget->reclaim) {
        budget->reclaim(budget->reclaim_context, missing);
        missing = bytes - tpc_budget_room(budget);
    }
    if (missing <= 0) return true;
    budget->refusals++;
    return false;
}

tpc_budget *tpc_budget_new(int64_t bytes_max) {
    tpc_budget *budget = calloc(1, sizeof *budget);
    if (budget != NULL) budget->bytes_max = bytes_max;
    return budget;
}

void tpc_budget_free(tpc_budget *budget) {
    if (budget == NULL) return;
    assert(!budget->closed);
    budget->closed = 1;
    if (budget->frames == 0) free(budget);
}

/* With the slack that an aligned one has before or behind it. */
static int64_t cost_of(const tpc_frame *frame) { return cost_bytes(frame->capacity) + (frame->shift ? PAGE_BYTES : 0); }

static tpc_frame *begin(void *memory, uint32_t shift, tpc_budget *budget, uint32_t length) {
    tpc_frame *frame = (tpc_frame *)(void *)((uint8_t *)memory + shift);
    frame->budget = budget;
    frame->references = 1;
    frame->length = length;
    frame->capacity = length;
    frame->holds_file = 0;
    frame->shift = (uint16_t)shift;
    budget->frames++;
    charge(budget, cost_of(frame));
    return frame;
}

tpc_frame *tpc_frame_new_forced(tpc_budget *budget, uint32_t length) {
    void *memory = malloc(sizeof(tpc_frame) + length);
    return memory == NULL ? NULL : begin(memory, 0, budget, length);
}

tpc_frame *tpc_frame_new(tpc_budget *budget, uint32_t length) {
    return has_room(budget, cost_bytes(length)) ? tpc_frame_new_forced(budget, length) : NULL;
}

tpc_frame *tpc_frame_new_at(tpc_budget *budget, uint32_t length, uint32_t residue) {
    assert(residue % sizeof(uint64_t) == 0);
    if (!has_room(budget, cost_bytes(length) + PAGE_BYTES)) return NULL;
    uint8_t *memory = malloc(PAGE_BYTES + sizeof(tpc_frame) + length);
    if (memory == NULL) return NULL;
    uint32_t shift = (uint32_t)(residue - (uintptr_t)(memory + offsetof(tpc_frame, data))) % PAGE_BYTES;
    return begin(memory, shift, budget, length);
}

int tpc_frame_resize(tpc_frame **frame, uint32_t capacity) {
    tpc_frame *old = *frame;
    assert(old->references == 1 && capacity >= old->length);
    int64_t added = (int64_t)capacity - old->capacity;
    if (added > 0 && !has_room(old->budget, added)) return -ENOBUFS;
    uint32_t shift = old->shift;
    tpc_frame *resized = shift ? malloc(sizeof *resized + capacity) : realloc(old, sizeof *resized + capacity);
    if (resized == NULL) return -ENOMEM;
    if (shift) { /* its place was for the length that it had */
        memcpy(resized, old, sizeof *old + old->length);
        free((uint8_t *)old - shift);
        resized->shift = 0;
        charge(resized->budget, -PAGE_BYTES);
    }
    resized->capacity = capacity;
    charge(resized->budget, added);
    *frame = resized;
    return 0;
}

tpc_frame *tpc_frame_retain(tpc_frame *frame) {
    assert(frame->references > 0);
    frame->references++;
    return frame;
}

void tpc_frame_release(tpc_frame *frame) {
    if (frame == NULL) return;
    assert(frame->references > 0);
    if (--frame->references > 0) return;
    tpc_budget *budget = frame->budget;
    if (frame->holds_file) tpc_frame_file(frame)->release(tpc_frame_file(frame)->owner);
    charge(budget, -cost_of(frame));
    budget->frames--;
    if (budget->closed && budget->frames == 0) free(budget);
    free((uint8_t *)frame - frame->shift);
}
