/* Short runs of many partitions, taken from their tails in one call: see cdef/53_short_runs.h. */
#include <errno.h>

#include "plane.h"
#include "cdef/53_short_runs.h"

/* Into `out`, if it is short: how many bytes. */
static int64_t take_one(tpc_plane *plane, tpc_short_run *run, int64_t run_bytes_max, uint8_t *out,
                        tpc_tail_batch *batches, uint32_t batches_max) {
    int taken = tpc_partition_write_behind_take(plane, run->handle, run_bytes_max, batches, batches_max);
    if (taken <= 0) return 0;
    uint32_t count = (uint32_t)taken;
    int64_t bytes = (int64_t)tpc_tail_batches_bytes(batches, count);
    const tpc_partition *partition = tpc_partition_of(plane, run->handle);
    bool is_whole = partition->dirty_bytes == bytes;
    TPC_PARTITION_INVARIANT(partition, !is_whole || batches[count - 1].next_offset == partition->durable_offset);
    if (bytes > run_bytes_max || !is_whole || tpc_tail_batches_next_in_place(batches, count, 0) < count)
        bytes = 0;
    else
        run->end_offset = batches[count - 1].next_offset;
    if (bytes) tpc_tail_batches_copy(plane, batches, count, out);
    tpc_tail_batches_release(batches, count);
    return bytes;
}

uint32_t tpc_plane_short_runs_take(tpc_plane *plane, tpc_short_run *runs, uint32_t count, int64_t run_bytes_max,
                                   uint8_t *out, uint64_t out_bytes, tpc_tail_batch *batches, uint32_t batches_max) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        tpc_ring_serve(plane->ring, TPC_COPY_SERVES_AFTER_NS);
        const tpc_partition *partition = tpc_partition_of(plane, runs[i].handle);
        runs[i].bytes = 0;
        if (!partition || partition->dirty_bytes > run_bytes_max) continue;
        if (partition->dirty_bytes > (int64_t)(out_bytes - used)) return i;
        runs[i].bytes = take_one(plane, &runs[i], run_bytes_max, out + used, batches, batches_max);
        used += (uint64_t)runs[i].bytes;
        TPC_HOLDS(runs[i].bytes >= 0 && used <= out_bytes);
    }
    return count;
}

void tpc_plane_short_runs_done(tpc_plane *plane, tpc_short_run *runs, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        tpc_ring_serve(plane->ring, TPC_COPY_SERVES_AFTER_NS);
        runs[i].bytes = tpc_partition_write_behind_done(plane, runs[i].handle, runs[i].end_offset);
        const tpc_partition *partition = tpc_partition_of(plane, runs[i].handle);
        runs[i].bytes_admitted = partition ? partition->bytes_admitted : 0;
    }
}
