/* The plane's life: what stands on each other is put together here. */
#include <errno.h>
#include <stdlib.h>

#include "forward.h"
#include "plane.h"
#include "steady.h"

#define PRODUCE_PARTITIONS_DEFAULT 10000
#define UNREAD_BYTES_DEFAULT (256u << 20)

int tpc_plane_new(tpc_ring *ring, tpc_journal *journal, tpc_connections *connections, tpc_budget *budget,
                  const tpc_plane_params *params, tpc_plane **out) {
    tpc_plane *plane = calloc(1, sizeof *plane);
    if (!plane) return -ENOMEM;
    *plane = (tpc_plane){
        .ring = ring,
        .journal = journal,
        .connections = connections,
        .budget = budget,
        .params = *params,
        .clock_ms = -1,
        .monotonic_ms = -1,
        .due_bytes_min = INT64_MAX,
        .due_bytes_max = INT64_MAX,
        .pending_deadline_ns = INT64_MAX,
        .undo_records = {.item_bytes = sizeof(tpc_undo_record), .kept_max = TPC_POOLED_MAX},
        .producer_states = {.item_bytes = sizeof(tpc_producer_state), .kept_max = TPC_POOLED_MAX},
        .pendings = {.item_bytes = sizeof(tpc_pending) + sizeof(tpc_pending_wait), .kept_max = TPC_POOLED_MAX}};
    if (!plane->params.unread_bytes_max) plane->params.unread_bytes_max = UNREAD_BYTES_DEFAULT;
    if (!plane->params.produce_partitions_max) plane->params.produce_partitions_max = PRODUCE_PARTITIONS_DEFAULT;
    plane->replication = &tpc_replication;
    plane->began_ms = tpc_plane_now_ms(plane);
    plane->began_ns = tpc_ring_now_ns(ring);
    plane->fetches = tpc_fetches_new();
    int result = tpc_partitions_init(plane);
    if (!plane->fetches) result = -ENOMEM;
    if (result == 0) result = tpc_ring_add_turn_hook(ring, TPC_TURN_LAST, tpc_pending_turn, plane);
    if (result == 0 && (result = tpc_ring_add_turn_hook(ring, TPC_TURN_LAST, tpc_fetch_turn, plane)) < 0)
        tpc_ring_remove_turn_hook(ring, tpc_pending_turn, plane);
    if (result == 0 && (result = tpc_steady_begin(plane)) < 0) {
        tpc_ring_remove_turn_hook(ring, tpc_pending_turn, plane);
        tpc_ring_remove_turn_hook(ring, tpc_fetch_turn, plane);
    }
    if (result < 0) {
        if (plane->fetches) tpc_fetches_free(plane);
        tpc_partitions_free(plane);
        free(plane);
        return result;
    }
    tpc_plane_observe(plane, &tpc_produce_observer);
    tpc_plane_observe(plane, &tpc_fetch_observer);
    tpc_plane_observe(plane, &tpc_tail_observer); /* a fetch may still look at what a withdrawn partition had */
    tpc_journal_listen(journal, (tpc_journal_listener){plane, tpc_append_durable, tpc_append_failed});
    budget->reclaim = tpc_tail_reclaim;
    budget->reclaim_context = plane;
    *out = plane;
    return 0;
}

void tpc_plane_free(tpc_plane *plane) {
    plane->budget->reclaim = NULL;
    if (plane->connections) tpc_plane_set_hot(plane, 0);
    tpc_ring_remove_turn_hook(plane->ring, tpc_pending_turn, plane);
    tpc_ring_remove_turn_hook(plane->ring, tpc_fetch_turn, plane);
    tpc_journal_listen(plane->journal, (tpc_journal_listener){0});
    tpc_forward_free(plane);
    tpc_pending_forget(plane);
    tpc_python_waits_forget(plane);
    tpc_fetch_forget_parked(plane); /* they stand in lists of their partitions */
    tpc_partitions_drop(plane);
    tpc_partitions_free(plane);
    TPC_HOLDS(!plane->dirty_first && !plane->dirty_count && !plane->dirty_bytes); /* each has given back all it had */
    TPC_HOLDS(!plane->statistics.tail_runs && !plane->statistics.tail_bytes);
    TPC_HOLDS(!plane->statistics.tail_clean_bytes);
    TPC_HOLDS(!plane->producers_count);
    TPC_HOLDS(!plane->windows.count && !plane->windows.oldest);
    tpc_steady_end(plane);
    tpc_prepared_free(plane);
    free(plane->grants);
    tpc_fetches_free(plane);
    tpc_tail_free_spare(plane);
    for (tpc_undo_record *at = plane->undo_first, *next; at; at = next) {
        next = at->next;
        free(at->producer);
        free(at);
    }
    tpc_pool_drain(&plane->undo_records);
    tpc_pool_drain(&plane->producer_states);
    tpc_pool_drain(&plane->pendings);
    for (tpc_truncation *at = plane->truncations, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    for (tpc_adoption *at = plane->adoptions, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    free(plane->clean), free(plane->cuts);
    tpc_produce_scratch_free(&plane->scratch);
    free(plane);
}
