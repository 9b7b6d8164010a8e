/* A partition's in-place window: where in its segment large batches go, which a commit writes there (in_place.h). */
#ifndef TPC_IN_PLACE_WINDOW_H
#define TPC_IN_PLACE_WINDOW_H

#include "in_place.h"

typedef struct tpc_plane tpc_plane;
typedef struct tpc_partition tpc_partition;

typedef struct {
    int64_t base_offset, next_offset;
    tpc_frame *frame;
    const uint8_t *batch;
    uint32_t bytes;
    uint32_t first_block, blocks; /* out: of the segment's file, written in place */
} tpc_in_place_batch;

/* Whether the partition's next batch may be written in place into its segment. */
bool tpc_in_place_window_takes(tpc_plane *plane, tpc_partition *partition, const tpc_in_place_batch *batch);
/* Where a batch will lie that has just begun to arrive, if it is taken; false: it will not be. */
bool tpc_in_place_window_expect(tpc_partition *partition, uint32_t bytes, int64_t *position);
/* As tpc_journal_append(), for a batch that was taken. Before the batch stands in the tail. */
int tpc_in_place_window_append(tpc_plane *plane, tpc_partition *partition, tpc_in_place_batch *batch,
                               uint64_t *sequence);
/* A batch follows, in place or not; the window ends with it when the next one is for another segment. */
void tpc_in_place_window_follow(tpc_partition *partition, const tpc_in_place_batch *batch);
void tpc_in_place_window_close(tpc_partition *partition);
void tpc_in_place_windows_close_all(tpc_plane *plane);

#endif
