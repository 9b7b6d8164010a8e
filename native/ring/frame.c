#include "frame.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static int64_t cost_bytes(uint32_t capacity) { return (int64_t)sizeof(tpc_frame) + capacity; }

static void charge(tpc_budget *budget, int64_t bytes) {
    budget->bytes_used += bytes;
    assert(budget->bytes_used >= 0);
    if (budget->bytes_used > budget->bytes_peak)
        budget->bytes_peak = budget->bytes_used;
}

static bool has_room(tpc_budget *budget, int64_t bytes) {
    if (bytes <= budget->bytes_max - budget->bytes_used)
        return true;
    budget->refusals++;
    return false;
}

tpc_budget *tpc_budget_new(int64_t bytes_max) {
    tpc_budget *budget = calloc(1, sizeof *budget);
    if (budget != NULL)
        budget->bytes_max = bytes_max;
    return budget;
}

void tpc_budget_free(tpc_budget *budget) {
    if (budget == NULL)
        return;
    assert(!budget->closed);
    budget->closed = 1;
    if (budget->frames == 0)
        free(budget);
}

tpc_frame *tpc_frame_new_forced(tpc_budget *budget, uint32_t length) {
    tpc_frame *frame = malloc(sizeof *frame + length);
    if (frame == NULL)
        return NULL;
    frame->budget = budget;
    frame->references = 1;
    frame->length = length;
    frame->capacity = length;
    frame->holds_file = 0;
    budget->frames++;
    charge(budget, cost_bytes(length));
    return frame;
}

tpc_frame *tpc_frame_new(tpc_budget *budget, uint32_t length) {
    return has_room(budget, cost_bytes(length)) ? tpc_frame_new_forced(budget, length) : NULL;
}

int tpc_frame_resize(tpc_frame **frame, uint32_t capacity) {
    tpc_frame *old = *frame;
    assert(old->references == 1 && capacity >= old->length);
    int64_t added = (int64_t)capacity - old->capacity;
    if (added > 0 && !has_room(old->budget, added))
        return -ENOBUFS;
    tpc_frame *resized = realloc(old, sizeof *resized + capacity);
    if (resized == NULL)
        return -ENOMEM;
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
    if (frame == NULL)
        return;
    assert(frame->references > 0);
    if (--frame->references > 0)
        return;
    tpc_budget *budget = frame->budget;
    if (frame->holds_file)
        tpc_frame_file(frame)->release(tpc_frame_file(frame)->owner);
    charge(budget, -cost_bytes(frame->capacity));
    budget->frames--;
    if (budget->closed && budget->frames == 0)
        free(budget);
    free(frame);
}
