/* The plane's clock, its observers, and its counters. Its life is in plane_life.c. */
#include "plane.h"

#include <malloc.h>
#include <stdlib.h>

#include "io.h"

enum { TRIM_PIECE_BYTES = 4 << 20, TRIM_PIECES_MAX = 256 };

/* Asked once per turn, which takes less than the millisecond it is told in. */
int64_t tpc_plane_now_ms(tpc_plane *plane) {
    if (plane->clock_ms >= 0) return plane->clock_ms;
    int64_t ring_ns = tpc_ring_now_ns(plane->ring);
    if (ring_ns != plane->now_of_ns) {
        plane->now_ms = tpc_io.wall_ms();
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

void tpc_plane_publish_looks_changed(tpc_plane *plane, tpc_partition *partition) {
    PUBLISH(plane, looks_changed, plane, partition);
}

void tpc_plane_publish_leads(tpc_plane *plane, tpc_partition *partition) { PUBLISH(plane, leads, plane, partition); }

void tpc_plane_publish_disarmed(tpc_plane *plane, tpc_partition *partition) {
    PUBLISH(plane, disarmed, plane, partition);
}

void tpc_plane_publish_withdrawn(tpc_plane *plane, tpc_partition *partition) {
    PUBLISH(plane, withdrawn, plane, partition);
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
