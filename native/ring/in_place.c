/* Windows of partitions, and staging and direct writes of one commit; see in_place.h. */
#include "in_place.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "grants.h"
#include "journal_format.h"
#include "plane.h"
#include "recorder.h"

enum { BLOCK_BYTES = TPC_IN_PLACE_BLOCK_BYTES, PAYLOAD_BYTES_MAX = 32 + 2 * BLOCK_BYTES, HEADER_BYTES = 61 };

/* ---- files ---- */

tpc_in_place_file *tpc_in_place_file_new(int descriptor) {
    tpc_in_place_file *file = malloc(sizeof *file);
    int own = file ? fcntl(descriptor, F_DUPFD_CLOEXEC, 0) : -1;
    if (own < 0) {
        free(file);
        return NULL;
    }
    *file = (tpc_in_place_file){.references = 1, .descriptor = own};
    return file;
}

void tpc_in_place_file_release(tpc_in_place_file *file) {
    TPC_HOLDS(file->references > 0);
    if (--file->references > 0) return;
    close(file->descriptor);
    free(file);
}

/* ---- staging ---- */

static bool has_chunk(tpc_in_place_pool *pool) {
    if (pool->free_count) return true;
    void *chunk = NULL;
    if (pool->chunks_count == TPC_IN_PLACE_CHUNKS_MAX ||
        posix_memalign(&chunk, TPC_IN_PLACE_BLOCK_BYTES, TPC_IN_PLACE_CHUNK_BYTES) != 0)
        return false;
    pool->chunks_count++;
    pool->free[pool->free_count++] = chunk;
    return true;
}

static bool chunk_has(const tpc_in_place_set *set, uint32_t bytes) {
    return set->chunks_count && TPC_IN_PLACE_CHUNK_BYTES - set->chunk_used >= bytes;
}

bool tpc_in_place_reserve(tpc_in_place_pool *pool, tpc_in_place_set *set, uint32_t bytes) {
    if (bytes > TPC_IN_PLACE_CHUNK_BYTES || (set && set->writes_count + 2 > TPC_IN_PLACE_WRITES_MAX)) return false;
    return (set && chunk_has(set, bytes)) || has_chunk(pool);
}

void tpc_in_place_add(tpc_in_place_set *set, tpc_in_place_file *file, int64_t position, tpc_frame *frame,
                      const uint8_t *data, uint32_t bytes) {
    TPC_HOLDS(file->references > 0);
    TPC_HOLDS(bytes && bytes % BLOCK_BYTES == 0 && position >= 0 && position % BLOCK_BYTES == 0);
    TPC_HOLDS((uintptr_t)data % BLOCK_BYTES == 0);
    TPC_HOLDS(set->writes_count < TPC_IN_PLACE_WRITES_MAX && !set->groups_count); /* and nothing was submitted */
    file->references++;
    set->writes[set->writes_count++] =
        (tpc_in_place_write){file, frame ? tpc_frame_retain(frame) : NULL, data, position, bytes};
    set->bytes += bytes;
}

uint8_t *tpc_in_place_stage(tpc_in_place_pool *pool, tpc_in_place_set *set, tpc_in_place_file *file, int64_t position,
                            uint32_t bytes) {
    if (!chunk_has(set, bytes)) {
        TPC_HOLDS(pool->free_count && set->chunks_count < TPC_IN_PLACE_CHUNKS_MAX); /* reserve came before */
        set->chunks[set->chunks_count++] = pool->free[--pool->free_count];
        set->chunk_used = 0;
    }
    uint8_t *data = set->chunks[set->chunks_count - 1] + set->chunk_used;
    set->chunk_used += bytes;
    TPC_HOLDS(set->chunk_used <= TPC_IN_PLACE_CHUNK_BYTES);
    tpc_in_place_add(set, file, position, NULL, data, bytes);
    return data;
}

void tpc_in_place_clear(tpc_in_place_pool *pool, tpc_in_place_set *set) {
    TPC_HOLDS(!set->groups_left); /* the kernel reads none of it */
    for (uint32_t i = 0; i < set->writes_count; i++) {
        tpc_in_place_file_release(set->writes[i].file);
        tpc_frame_release(set->writes[i].frame);
    }
    for (uint32_t i = 0; i < set->chunks_count; i++) {
        if (pool->free_count < TPC_IN_PLACE_CHUNKS_KEPT) {
            pool->free[pool->free_count++] = set->chunks[i];
        } else {
            free(set->chunks[i]);
            pool->chunks_count--;
        }
    }
    TPC_HOLDS(pool->free_count <= pool->chunks_count);
    set->writes_count = set->chunks_count = 0;
}

void tpc_in_place_pool_free(tpc_in_place_pool *pool) {
    TPC_HOLDS(pool->free_count == pool->chunks_count); /* every commit has given back what it had */
    while (pool->free_count) free(pool->free[--pool->free_count]);
}

/* ---- writing ---- */

/* Writes that follow each other in a file become one, in the order in which they were added. */
static void make_groups(tpc_in_place_set *set) {
    bool taken[TPC_IN_PLACE_WRITES_MAX] = {false};
    uint32_t parts_count = 0;
    for (uint32_t first = 0; first < set->writes_count; first++) {
        if (taken[first]) continue;
        const tpc_in_place_write *begin = &set->writes[first];
        uint32_t parts_first = parts_count;
        int64_t bytes = 0;
        for (uint32_t i = first; i < set->writes_count; i++) {
            const tpc_in_place_write *one = &set->writes[i];
            if (taken[i] || one->file != begin->file || one->position != begin->position + bytes) continue;
            taken[i] = true;
            set->parts[parts_count++] = (struct iovec){(void *)one->data, one->bytes};
            bytes += one->bytes;
        }
        typeof(set->groups[0]) *group = &set->groups[set->groups_count++];
        group->write = first;
        group->parts_first = parts_first;
        group->parts_count = parts_count - parts_first;
        group->bytes = bytes;
    }
    TPC_HOLDS(parts_count == set->writes_count); /* each is in one group */
    set->groups_left = set->groups_count;
}

static void record_submission(tpc_in_place_set *set, uint32_t number, bool dsync) {
    const tpc_in_place_write *first = &set->writes[set->groups[number].write];
    const struct iovec *parts = &set->parts[set->groups[number].parts_first];
    void *bases[TPC_IN_PLACE_WRITES_MAX];
    size_t lengths[TPC_IN_PLACE_WRITES_MAX];
    for (uint32_t i = 0; i < set->groups[number].parts_count; i++) {
        bases[i] = parts[i].iov_base;
        lengths[i] = parts[i].iov_len;
    }
    set->groups[number].record_token =
        tpc_disk_record_writev(first->file->descriptor, bases, lengths, set->groups[number].parts_count,
                               first->position, dsync ? TPC_DISK_RECORD_DSYNC : 0);
}

/* Rule: A batch written in place is on the disk before its journal entry is written. Recovery checks every byte of
 * it. Its segment is not rolled, removed or replaced before it is counted. See also native/ring/journal_policy.c,
 * tpc_broker/storage/roll_guard.py, tpc_broker/storage/segment_appender.py, tpc_broker/storage/segment_retention.py,
 * tpc_broker/storage/in_place_replay.py. Held by tests/runtime/test_journal_policy.py,
 * tests/runtime/test_in_place.py, tests/runtime/test_in_place_damage.py, tests/durability/test_crash_images.py (with
 * mutants that must fail). */
int tpc_in_place_submit(tpc_ring *ring, tpc_in_place_set *set, uint64_t user_data, bool dsync) {
    if (!set->groups_count) make_groups(set);
    for (; set->groups_submitted < set->groups_count; set->groups_submitted++) {
        uint32_t number = set->groups_submitted;
        struct io_uring_sqe *write = tpc_ring_sqe(ring, user_data + number);
        if (!write) return -EAGAIN;
        const tpc_in_place_write *first = &set->writes[set->groups[number].write];
        io_uring_prep_writev(write, first->file->descriptor, &set->parts[set->groups[number].parts_first],
                             set->groups[number].parts_count, (uint64_t)first->position);
        write->user_data = user_data + number;
        write->rw_flags = dsync ? RWF_DSYNC : 0;
        if (__builtin_expect(tpc_recorder_on, 0)) record_submission(set, number, dsync);
    }
    return 0;
}

bool tpc_in_place_completed(tpc_in_place_set *set, uint32_t group, int32_t result) {
    TPC_HOLDS(group < set->groups_submitted && set->groups_left > 0);
    if (__builtin_expect(tpc_recorder_on, 0)) tpc_disk_record_completed(set->groups[group].record_token, result);
    if (result != set->groups[group].bytes && !set->error) set->error = result < 0 ? -result : EIO;
    return --set->groups_left == 0;
}

bool tpc_in_place_abandon(tpc_in_place_set *set) {
    uint32_t left = set->groups_count - set->groups_submitted;
    if (!left) return false;
    TPC_HOLDS(left <= set->groups_left);
    set->error = set->error ? set->error : ECANCELED;
    set->groups_submitted = set->groups_count;
    set->groups_left -= left;
    return set->groups_left == 0;
}

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

/* ---- requests ---- */

/* Rule: What comes from whoever may not write, or of whom that is not known, does not say where others' batches will lie. Held by
 * tests/runtime/test_grants_in_place.py. */
bool tpc_produce_alignment(tpc_plane *plane, const uint8_t *bytes, size_t have, uint32_t subject, uint32_t *residue) {
    tpc_request_header header;
    tpc_produce_part part;
    if (tpc_request_header_decode(bytes, have, &header) < 0 || header.api_key != TPC_API_PRODUCE) return false;
    const uint8_t *body = bytes + header.body_position;
    if (tpc_produce_peek(body, have - (uint32_t)header.body_position, header.api_version, &part) < 0) return false;
    tpc_partition *partition = tpc_produce_partition_of(plane, &part, header.api_version);
    int64_t position;
    if (!partition) return false;
    if (tpc_grants_count(plane) && tpc_grants_ask(plane, partition, subject, TPC_RIGHT_WRITE) != TPC_GRANT_ALLOWED)
        return false;
    if (!tpc_in_place_window_expect(partition, (uint32_t)part.records_bytes, &position)) return false;
    *residue = (uint32_t)(position - (part.records - bytes)) % TPC_IN_PLACE_BLOCK_BYTES;
    return true;
}
