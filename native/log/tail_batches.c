/* Batches that write-behind has taken from a tail: what it knows of them, and copies. */
#include <string.h>

#include "plane.h"

#define COPIED_AT_ONCE_BYTES 32768u

void tpc_tail_batches_release(tpc_tail_batch *batches, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        tpc_frame_release(batches[i].slice.frame);
        batches[i].slice.frame = NULL;
    }
}

uint64_t tpc_tail_batches_bytes(const tpc_tail_batch *batches, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += batches[i].slice.length;
    return bytes;
}

void tpc_tail_batches_copy(tpc_plane *plane, const tpc_tail_batch *batches, uint32_t count, uint8_t *out) {
    uint32_t in_a_row = 0;
    for (uint32_t i = 0; i < count; i++) {
        const tpc_slice *slice = &batches[i].slice;
        for (uint32_t done = 0, part; done < slice->length; done += part, out += part) {
            part = slice->length - done < COPIED_AT_ONCE_BYTES ? slice->length - done : COPIED_AT_ONCE_BYTES;
            memcpy(out, slice->data + done, part);
            in_a_row += part;
            if (in_a_row < COPIED_AT_ONCE_BYTES) continue;
            tpc_ring_serve(plane->ring, TPC_COPY_SERVES_AFTER_NS);
            in_a_row = 0;
        }
    }
}

uint32_t tpc_tail_batches_next_in_place(const tpc_tail_batch *batches, uint32_t count, uint32_t from) {
    while (from < count && !batches[from].in_place_blocks) from++;
    return from;
}

uint64_t tpc_tail_batches_within(const tpc_tail_batch *batches, uint32_t count, uint64_t bytes) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < count && end + batches[i].slice.length <= bytes; i++) end += batches[i].slice.length;
    return end;
}
