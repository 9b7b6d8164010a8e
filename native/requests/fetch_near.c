/*
 * Reading from the nearest replica (KIP-392): which followers serve reads, and which consumers are sent to one. Both are Python's
 * to decide; here it is remembered, so that a Fetch is answered without asking.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED_RACK_BIT = 63 };

uint64_t tpc_fetch_rack_of(const tpc_fetches *fetches, const tpc_fetch_request *asked) {
    uint32_t start = 0;
    for (uint32_t i = 0; asked->rack_id_bytes > 0 && i < fetches->racks_count; i++) {
        uint32_t bytes = fetches->rack_ends[i] - start;
        if (bytes == (uint32_t)asked->rack_id_bytes && memcmp(fetches->rack_names + start, asked->rack_id, bytes) == 0)
            return 1ull << (i < SHARED_RACK_BIT ? i : SHARED_RACK_BIT);
        start = fetches->rack_ends[i];
    }
    return 0;
}

int tpc_partition_serve_reads(tpc_plane *plane, uint64_t handle, int32_t term) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    partition->read_term = term;
    tpc_fetch_look_again(plane, partition);
    return 0;
}

int tpc_partition_set_near_racks(tpc_plane *plane, uint64_t handle, uint64_t racks) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    partition->near_racks = racks;
    return 0;
}

int tpc_plane_set_racks(tpc_plane *plane, const uint8_t *names, const uint32_t *ends, uint32_t count) {
    tpc_fetches *fetches = plane->fetches;
    uint32_t bytes = count ? ends[count - 1] : 0;
    uint8_t *kept_names = malloc(bytes + 1);
    uint32_t *kept_ends = malloc((count + 1) * sizeof *ends);
    if (!kept_names || !kept_ends) {
        free(kept_names), free(kept_ends);
        return -ENOMEM;
    }
    memcpy(kept_names, names, bytes);
    memcpy(kept_ends, ends, count * sizeof *ends);
    free(fetches->rack_names), free(fetches->rack_ends);
    fetches->rack_names = kept_names;
    fetches->rack_ends = kept_ends;
    fetches->racks_count = count;
    return 0;
}
