/* Windows of partitions: where in their segments large batches go; see in_place.h. */
#include "in_place_window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "journal_format.h"
#include "plane.h"

enum { BLOCK_BYTES = TPC_IN_PLACE_BLOCK_BYTES, PAYLOAD_BYTES_MAX = 32 + 2 * BLOCK_BYTES, HEADER_BYTES = 61 };

typedef struct tpc_in_place_window {
    tpc_in_place_file *file;
    int64_t segment_base_offset;
    int64_t segment_bytes_max;
    int64_t reserved_position;
    uint32_t batch_bytes_min;
    int64_t position;          /* of the next batch */
    int64_t expected_position; /* behind those that are arriving, if they come in the order in which they began */
    int64_t chained_position;  /* end of the last batch in place: a neighbour in its commit brings its tail along */
    uint64_t chained_sequence;
} tpc_in_place_window;

static int64_t block_below(int64_t position) { return position / BLOCK_BYTES * BLOCK_BYTES; }
static int64_t block_above(int64_t position) { return block_below(position + BLOCK_BYTES - 1); }

/* ---- windows: opening and closing ---- */

void tpc_in_place_window_close(tpc_partition *partition) {
    if (!partition->in_place_window) return;
    tpc_in_place_file_release(partition->in_place_window->file);
    free(partition->in_place_window);
    partition->in_place_window = NULL;
}

void tpc_in_place_windows_close_all(tpc_plane *plane) {
    for (uint32_t slot = 0; slot < plane->slots_count; slot++)
        if (plane->slots[slot].partition) tpc_in_place_window_close(plane->slots[slot].partition);
}

int tpc_partition_open_in_place_window(tpc_plane *plane, uint64_t handle, const tpc_in_place_window_params *params) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (params->written_position < 0 || params->segment_base_offset > params->written_offset ||
        params->descriptor < 0 || params->batch_bytes_min < 2 * BLOCK_BYTES)
        return -EINVAL;
    if (tpc_journal_health(plane->journal) < 0 || plane->cuts_count ||
        params->written_offset != partition->written_offset)
        return -EAGAIN;
    int64_t position = params->written_position + partition->unwritten_bytes;
    if (position > params->segment_bytes_max || partition->log_end_offset - params->segment_base_offset > INT32_MAX)
        return -EAGAIN; /* some of that goes to the next segment */
    tpc_in_place_window *window = calloc(1, sizeof *window);
    tpc_in_place_file *file = window ? tpc_in_place_file_new(params->descriptor) : NULL;
    if (!file) {
        free(window);
        return -ENOMEM;
    }
    *window = (tpc_in_place_window){.file = file,
                                    .segment_base_offset = params->segment_base_offset,
                                    .segment_bytes_max = params->segment_bytes_max,
                                    .reserved_position = params->reserved_position,
                                    .batch_bytes_min = (uint32_t)params->batch_bytes_min,
                                    .position = position};
    tpc_in_place_window_close(partition);
    partition->in_place_window = window;
    return 0;
}

void tpc_partition_close_in_place_window(tpc_plane *plane, uint64_t handle) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (partition) tpc_in_place_window_close(partition);
}

int tpc_partition_set_in_place_space(tpc_plane *plane, uint64_t handle, int64_t reserved_position) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition || !partition->in_place_window) return 0;
    partition->in_place_window->reserved_position = reserved_position;
    return 1;
}

/* ---- windows: placing ---- */

static bool in_segment(const tpc_in_place_window *window, const tpc_in_place_batch *batch) {
    return window->position + batch->bytes <= window->segment_bytes_max &&
           batch->next_offset - window->segment_base_offset <= INT32_MAX;
}

bool tpc_in_place_window_takes(tpc_plane *plane, tpc_partition *partition, const tpc_in_place_batch *batch) {
    const tpc_in_place_window *window = partition->in_place_window;
    return batch->bytes >= window->batch_bytes_min && in_segment(window, batch) &&
           window->position + batch->bytes <= window->reserved_position &&
           tpc_journal_in_place_ready(plane->journal, PAYLOAD_BYTES_MAX, batch->bytes + BLOCK_BYTES);
}

bool tpc_in_place_window_expect(tpc_partition *partition, uint32_t bytes, int64_t *position) {
    tpc_in_place_window *window = partition->in_place_window;
    if (!window || bytes < window->batch_bytes_min) return false;
    *position = window->expected_position > window->position ? window->expected_position : window->position;
    window->expected_position = *position + bytes;
    return true;
}

int tpc_in_place_window_append(tpc_plane *plane, tpc_partition *partition, tpc_in_place_batch *batch,
                               uint64_t *sequence) {
    tpc_in_place_window *window = partition->in_place_window;
    int64_t begin = window->position, end = begin + batch->bytes;
    bool chained = window->chained_sequence && window->chained_position == begin &&
                   tpc_journal_joined_sequence(plane->journal, PAYLOAD_BYTES_MAX) == window->chained_sequence;
    int64_t first = chained ? block_below(begin) : block_above(begin), last = block_below(end);
    uint32_t head = first > begin ? (uint32_t)(first - begin) : 0, edge = first < begin ? (uint32_t)(begin - first) : 0;
    uint32_t tail = (uint32_t)(end - last), bytes = (uint32_t)(last - first), staged_bytes = edge ? BLOCK_BYTES : 0;
    tpc_journal_in_place_header header = {.segment_base_offset = window->segment_base_offset,
                                          .position = begin,
                                          .batch_bytes = batch->bytes,
                                          .head_bytes = head,
                                          .tail_bytes = tail,
                                          .header_crc = tpc_crc32c(0, batch->batch, HEADER_BYTES)};
    uint8_t payload[PAYLOAD_BYTES_MAX], *staged = NULL;
    memcpy(payload, &header, sizeof header);
    memcpy(payload + sizeof header, batch->batch, head);
    memcpy(payload + sizeof header + head, batch->batch + batch->bytes - tail, tail);
    TPC_PARTITION_INVARIANT(partition, batch->base_offset == partition->log_end_offset);
    TPC_PARTITION_INVARIANT(partition, end <= window->reserved_position && end <= window->segment_bytes_max);
    TPC_PARTITION_INVARIANT(partition,
                            head + (bytes - edge) + tail == batch->bytes); /* entry and blocks have all of it */
    const uint8_t *rest = batch->batch + head + staged_bytes - edge;
    if (!batch->frame || (uintptr_t)rest % BLOCK_BYTES) {
        staged_bytes = bytes;
        window->expected_position = 0;
    }
    tpc_journal_in_place in_place = {.file = window->file,
                                     .offset = batch->base_offset,
                                     .next_offset = batch->next_offset,
                                     .position = first,
                                     .bytes = bytes,
                                     .staged_bytes = staged_bytes,
                                     .frame = batch->frame,
                                     .data = rest};
    int result = tpc_journal_append_in_place(plane->journal, &in_place, partition->topic_id, partition->index, payload,
                                             (uint32_t)sizeof header + head + tail, sequence, &staged);
    if (result < 0) return result;
    if (edge) {
        const tpc_tail_batch *newest = tpc_tail_newest(partition);
        TPC_PARTITION_INVARIANT(partition, newest && newest->next_offset == batch->base_offset);
        const tpc_slice *before = &newest->slice;
        TPC_PARTITION_INVARIANT(partition, before->length >= edge);
        memcpy(staged, before->data + before->length - edge, edge);
    }
    if (staged_bytes) memcpy(staged + edge, batch->batch + head, staged_bytes - edge);
    batch->first_block = (uint32_t)(first / BLOCK_BYTES);
    batch->blocks = bytes / BLOCK_BYTES;
    window->chained_sequence = *sequence;
    window->chained_position = end;
    return 0;
}

void tpc_in_place_window_follow(tpc_partition *partition, const tpc_in_place_batch *batch) {
    if (in_segment(partition->in_place_window, batch))
        partition->in_place_window->position += batch->bytes;
    else
        tpc_in_place_window_close(partition);
}
