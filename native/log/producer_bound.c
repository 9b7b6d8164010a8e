/*
 * Producers of all partitions together are bounded: whoever makes new ids for ever would fill the memory. For each new one
 * above the bound one goes that was silent for longer than others: the longest of some that are looked at, from where the
 * look before ended. So it costs little at any moment, and those that write stay; one with an open transaction does, too.
 */
#include "partition.h"
#include "plane.h"

enum { SAMPLE = 32, LOOKS_MAX = 512 };

void tpc_plane_bound_producers(tpc_plane *plane, int64_t bytes_max) {
    plane->producers_max = bytes_max <= 0 ? 0 : (uint64_t)bytes_max / sizeof(tpc_producer_state);
}

/* The next one, and its partition; NULL: nothing was there. */
static const tpc_producer_state *look(tpc_plane *plane, tpc_partition **partition) {
    TPC_HOLDS(plane->looked_slot < plane->slots_count);
    *partition = plane->slots[plane->looked_slot].partition;
    if (*partition && plane->looked_number < (*partition)->producers.states_used)
        return tpc_producers_at(&(*partition)->producers, plane->looked_number++);
    plane->looked_slot = (plane->looked_slot + 1) % plane->slots_count;
    plane->looked_number = 0;
    return NULL;
}

static bool forget_one(tpc_plane *plane) {
    tpc_partition *partition, *of_silent = NULL;
    const tpc_producer_state *silent = NULL;
    if (plane->looked_slot >= plane->slots_count) plane->looked_slot = 0;
    for (int looks = 0, found = 0; looks < LOOKS_MAX && found < SAMPLE; looks++) {
        const tpc_producer_state *state = look(plane, &partition);
        if (!state || state->transaction) continue;
        found++;
        if (!silent || state->last_append_ms < silent->last_append_ms) silent = state, of_silent = partition;
    }
    if (!silent) return false;
    TPC_HOLDS(plane->producers_count > 0);
    tpc_producers_remove(&of_silent->producers, silent->producer_id);
    plane->statistics.producers_forgotten++;
    return true;
}

/* Rule: Above producer.states.bytes.max a producer that was long silent is forgotten for each new one, and none that has a
 * transaction open. Held by tests/engine/test_producer_bound.py. */
void tpc_plane_make_room_for_producer(tpc_plane *plane) {
    for (int i = 0; i < 2 && plane->producers_count >= plane->producers_max; i++) /* it may have been lowered */
        if (!forget_one(plane)) return;
}
