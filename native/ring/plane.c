/* The plane's life, its clock, and its observers. */
#include "plane.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <time.h>

#include "forward.h"
#include "steady.h"

#define PRODUCE_PARTITIONS_DEFAULT 10000
#define UNREAD_BYTES_DEFAULT (256u << 20)

enum { TRIM_PIECE_BYTES = 4 << 20, TRIM_PIECES_MAX = 256 };

/* Asked once per turn, which takes less than the millisecond it is told in. */
int64_t tpc_plane_now_ms(tpc_plane *plane) {
    if (plane->clock_ms >= 0) return plane->clock_ms;
    int64_t ring_ns = tpc_ring_now_ns(plane->ring);
    if (ring_ns != plane->now_of_ns) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        plane->now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
        plane->now_of_ns = ring_ns;
    }
    return plane->now_ms;
}

/* What a machine without a clock of its own takes for the time jumps by decades when it hears of the right one. */
int64_t tpc_plane_monotonic_ms(tpc_plane *plane) {
    if (plane->monotonic_ms >= 0) return plane->monotonic_ms;
    return plane->began_ms + (tpc_ring_now_ns(plane->ring) - plane->began_ns) / 1000000;
}

/* ---- observers ---- */

void tpc_plane_observe(tpc_plane *plane, const tpc_plane_observer *observer) {
    TPC_INVARIANT(plane->observers_count < TPC_PLANE_OBSERVERS_MAX, "%u observers", plane->observers_count);
    plane->observers[plane->observers_count++] = observer;
}

#define PUBLISH(plane, member, ...)                         \
    for (uint32_t i = 0; i < (plane)->observers_count; i++) \
        if ((plane)->observers[i]->member) (plane)->observers[i]->member(__VA_ARGS__)

void tpc_plane_publish_partition_durable(tpc_plane *plane, tpc_partition *partition, int64_t bytes) {
    PUBLISH(plane, partition_durable, plane, partition, bytes);
}

void tpc_plane_publish_partition_committed(tpc_plane *plane, tpc_partition *partition) {
    PUBLISH(plane, partition_committed, plane, partition);
}

void tpc_plane_publish_advanced(tpc_plane *plane) { PUBLISH(plane, advanced, plane); }

void tpc_plane_publish_rights_changed(tpc_plane *plane) { PUBLISH(plane, rights_changed, plane); }

void tpc_plane_publish_disarmed(tpc_plane *plane, tpc_partition *partition) {
    PUBLISH(plane, disarmed, plane, partition);
}

void tpc_plane_publish_withdrawn(tpc_plane *plane, tpc_partition *partition) {
    PUBLISH(plane, withdrawn, plane, partition);
}

/* ---- life ---- */

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
    tpc_partitions_free(plane);
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

void tpc_plane_get_statistics(const tpc_plane *plane, tpc_plane_statistics *statistics) {
    *statistics = plane->statistics;
    statistics->appends_undurable = plane->undo_count;
    statistics->cuts_pending = plane->cuts_count;
    statistics->producers = plane->producers_count;
    statistics->tail_bytes_max = plane->params.tail_bytes_max;
}

void tpc_plane_set_tail_bytes_max(tpc_plane *plane, int64_t bytes_max) { plane->params.tail_bytes_max = bytes_max; }

void tpc_plane_set_tail_bytes_behind_max(tpc_plane *plane, int64_t bytes_max) {
    plane->tail_bytes_behind_max = bytes_max;
}

void tpc_plane_trim_memory(int64_t kept_bytes) {
    void *kept[TRIM_PIECES_MAX]; /* taken meanwhile: of malloc's free memory it gives back all or nothing */
    uint32_t count = 0;
    while (count < TRIM_PIECES_MAX && (count + 1) * TRIM_PIECE_BYTES <= kept_bytes)
        if (!(kept[count++] = malloc(TRIM_PIECE_BYTES))) break;
    malloc_trim(0);
    while (count) free(kept[--count]);
}

void tpc_plane_set_clock(tpc_plane *plane, int64_t wall_ms) { plane->clock_ms = wall_ms; }

void tpc_plane_set_monotonic(tpc_plane *plane, int64_t monotonic_ms) { plane->monotonic_ms = monotonic_ms; }
