/*
 * The newest batches of each partition, in memory: readers are served from here, and write-behind takes from here.
 *
 * Of a partition's batches, oldest first: those written behind (clean, cache only), those durable in the journal (dirty),
 * those not durable yet. Only clean ones are evicted, in the order in which they became clean over all partitions, while
 * the clean bytes of the plane are above its budget. So what is not in a segment yet is always readable, and so is what a
 * leader of a replicated partition has appended until Python has taken it.
 *
 * Small batches are copied into chunks of their partition, one behind the other, so that their requests' memory can be used
 * for the next requests at once, while it is in the processor's cache, and what is written behind lies in a row. A chunk is
 * a frame with a reference for each of its runs, and one of the partition as long as it is the newest. Chunks grow while
 * a partition fills them, so that one with little traffic keeps little.
 *
 * The tail's entries are runs: small batches that lie in a row and stand in the same commit of the journal share one, so that
 * its index is not as large as what it finds. A run becomes durable as a whole, and is evicted as a whole; readers, what was
 * written behind of it and undone appends find their place in it by walking over the batches' lengths, which RUN_BYTES_MAX
 * keeps short.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plane.h"
#include "wire.h"

#define TAIL_CAPACITY_MIN 4u
#define CLEAN_CAPACITY_MIN 256u
#define CAPACITY_WORTH_KEEPING 64u
#define COPIED_BATCH_BYTES_MAX 4096u
#define CHUNK_BYTES_MIN 4096u
#define CHUNK_BYTES_MAX 131072u
#define RUN_BYTES_MAX 16384u
#define CACHED_RUNS_MAX (1u << 20) /* their list is copied when it grows: 36 MB at most */
#define EVICTED_AT_ONCE_BYTES (64 << 20)
#define PASSED_MAX 64u                 /* runs that replicas lack, at once: the rest next time */
#define IN_PLACE_BYTES_MORE (28 << 20) /* hardly anything of such batches is left to be written */

/* In a stored batch: native/bytes/batch.c. */
enum { AT_LENGTH = 8, AT_LAST_OFFSET_DELTA = 23, LENGTH_OVERHEAD_BYTES = 12 };

static tpc_tail_batch *tail_at(const tpc_partition *partition, uint32_t position) {
    TPC_PARTITION_INVARIANT(partition, position < partition->tail_count);
    return &partition->tail[(partition->tail_head + position) & (partition->tail_capacity - 1)];
}

bool tpc_tail_copies(uint32_t bytes) { return bytes <= COPIED_BATCH_BYTES_MAX; }

static uint32_t batch_bytes(const uint8_t *batch) { return wire_u32(batch + AT_LENGTH) + LENGTH_OVERHEAD_BYTES; }

static int64_t batch_end(const uint8_t *batch) {
    return (int64_t)(wire_u64(batch) + wire_u32(batch + AT_LAST_OFFSET_DELTA) + 1);
}

/* The byte of a run where the batch that holds the offset begins; its ends for offsets beyond it. */
static uint32_t position_in_run(const tpc_tail_batch *run, int64_t offset) {
    uint32_t place = 0;
    if (offset <= run->base_offset) return 0;
    if (offset >= run->next_offset) return run->slice.length;
    while (batch_end(run->slice.data + place) <= offset) place += batch_bytes(run->slice.data + place);
    TPC_HOLDS(place < run->slice.length); /* its batches reach to where it ends */
    return place;
}

static tpc_frame *take_chunk(tpc_plane *plane, uint32_t capacity) {
    if (capacity >= CHUNK_BYTES_MAX && plane->spare_chunks_count) {
        tpc_frame *spare = plane->spare_chunks[--plane->spare_chunks_count];
        TPC_HOLDS(spare->references == 1); /* nobody reads what it is about to be filled over */
        return spare;
    }
    return tpc_frame_new_forced(plane->budget, capacity < CHUNK_BYTES_MAX ? capacity : CHUNK_BYTES_MAX);
}

/* Gives up the reference of a run. A chunk of full size that nobody else looks at is the next to be filled: memory that was
 * touched before, where the allocator would give it back to the kernel and the next one would cost its page faults. */
static void release_run(tpc_plane *plane, tpc_frame *frame) {
    bool spare = frame->references == 1 && frame->capacity == CHUNK_BYTES_MAX && !frame->holds_file;
    if (spare && plane->spare_chunks_count < TPC_SPARE_CHUNKS_MAX)
        plane->spare_chunks[plane->spare_chunks_count++] = frame;
    else
        tpc_frame_release(frame);
}

void tpc_tail_free_spare(tpc_plane *plane) {
    while (plane->spare_chunks_count) tpc_frame_release(plane->spare_chunks[--plane->spare_chunks_count]);
}

static int reserve_chunk(tpc_plane *plane, tpc_partition *partition, uint32_t bytes) {
    const tpc_frame *full = partition->chunk;
    if (full && full->capacity - full->length >= bytes) return 0;
    tpc_frame *chunk = take_chunk(plane, full ? full->capacity * 2 : CHUNK_BYTES_MIN);
    if (!chunk) return -ENOMEM;
    TPC_HOLDS(chunk->capacity >= bytes);
    chunk->length = 0;
    tpc_frame_release(partition->chunk);
    partition->chunk = chunk;
    return 0;
}

/* A chunk that no batch is left of is not kept for the next one, which may never come. */
static void drop_empty_chunk(tpc_partition *partition) {
    if (!partition->chunk || partition->chunk->references > 1) return;
    tpc_frame_release(partition->chunk);
    partition->chunk = NULL;
}

int tpc_tail_reserve(tpc_plane *plane, tpc_partition *partition, uint32_t bytes) {
    int result = tpc_tail_copies(bytes) ? reserve_chunk(plane, partition, bytes) : 0;
    if (result < 0 || partition->tail_count < partition->tail_capacity) return result;
    uint32_t capacity = partition->tail_capacity ? partition->tail_capacity * 2 : TAIL_CAPACITY_MIN;
    tpc_tail_batch *grown = malloc(capacity * sizeof *grown);
    if (!grown) return -ENOMEM;
    for (uint32_t i = 0; i < partition->tail_count; i++) grown[i] = *tail_at(partition, i);
    free(partition->tail);
    partition->tail = grown;
    partition->tail_capacity = capacity;
    partition->tail_head = 0;
    return 0;
}

/* Whether a small batch makes the newest run longer: it will lie behind it, and the same commit carries both. */
static bool extends_run(const tpc_partition *partition, const tpc_tail_batch *newest, const tpc_tail_batch *batch) {
    const tpc_frame *chunk = partition->chunk;
    return newest->sequence == batch->sequence && newest->slice.frame == chunk &&
           newest->slice.data + newest->slice.length == chunk->data + chunk->length &&
           newest->next_offset == batch->base_offset && newest->slice.length + batch->slice.length <= RUN_BYTES_MAX;
}

void tpc_tail_add(tpc_plane *plane, tpc_partition *partition, const tpc_tail_batch *batch) {
    uint32_t bytes = batch->slice.length;
    tpc_tail_batch *newest = partition->tail_count ? tail_at(partition, partition->tail_count - 1) : NULL;
    TPC_PARTITION_INVARIANT(partition, batch->base_offset == partition->log_end_offset);
    TPC_PARTITION_INVARIANT(partition, !newest || newest->next_offset == batch->base_offset);
    TPC_PARTITION_INVARIANT(partition, !newest || newest->sequence <= batch->sequence);
    TPC_PARTITION_INVARIANT(partition, partition->tail_count < partition->tail_capacity); /* reserve came before */
    partition->tail_bytes += bytes;
    partition->unwritten_bytes += bytes;
    if (batch->in_place_blocks) partition->in_place_end_offset = batch->next_offset;
    plane->statistics.tail_bytes += bytes;
    if (tpc_tail_copies(bytes)) {
        tpc_frame *chunk = partition->chunk;
        bool extends = newest && extends_run(partition, newest, batch);
        TPC_PARTITION_INVARIANT(partition, chunk->capacity - chunk->length >= bytes);
        uint8_t *at = memcpy(chunk->data + chunk->length, batch->slice.data, bytes);
        chunk->length += bytes;
        if (extends) {
            newest->slice.length += bytes;
            newest->next_offset = batch->next_offset;
            return;
        }
        newest = tail_at(partition, partition->tail_count++);
        *newest = *batch;
        newest->slice = tpc_slice_of(chunk, at, bytes);
    } else {
        newest = tail_at(partition, partition->tail_count++);
        *newest = *batch;
        tpc_frame_retain(batch->slice.frame);
    }
    plane->statistics.tail_runs++;
}

static void release_batch(tpc_plane *plane, tpc_partition *partition, tpc_tail_batch *batch) {
    TPC_PARTITION_INVARIANT(partition, batch->slice.frame->references > 0 && plane->statistics.tail_runs > 0);
    TPC_PARTITION_INVARIANT(partition, partition->tail_bytes >= batch->slice.length);
    TPC_PARTITION_INVARIANT(partition, plane->statistics.tail_bytes >= partition->tail_bytes);
    partition->tail_bytes -= batch->slice.length;
    plane->statistics.tail_bytes -= batch->slice.length;
    plane->statistics.tail_runs--;
    release_run(plane, batch->slice.frame);
}

static int64_t in_place_end(const tpc_partition *partition) {
    for (uint32_t position = partition->tail_count; position > partition->tail_clean; position--) {
        const tpc_tail_batch *batch = tail_at(partition, position - 1);
        if (batch->in_place_blocks) return batch->next_offset;
    }
    return -1;
}

static void cut_runs(tpc_plane *plane, tpc_partition *partition, int64_t offset) {
    while (partition->tail_count) {
        tpc_tail_batch *newest = tail_at(partition, partition->tail_count - 1);
        if (newest->base_offset < offset) {
            uint32_t kept_bytes = position_in_run(newest, offset), gone_bytes = newest->slice.length - kept_bytes;
            TPC_PARTITION_INVARIANT(partition, partition->unwritten_bytes >= gone_bytes);
            TPC_PARTITION_INVARIANT(partition, !gone_bytes || /* no batch is cut in two */
                                                   (int64_t)wire_u64(newest->slice.data + kept_bytes) == offset);
            partition->tail_bytes -= gone_bytes;
            partition->unwritten_bytes -= gone_bytes;
            plane->statistics.tail_bytes -= gone_bytes;
            newest->slice.length = kept_bytes;
            newest->next_offset = newest->next_offset < offset ? newest->next_offset : offset;
            return;
        }
        TPC_PARTITION_INVARIANT(partition, partition->tail_clean < partition->tail_count); /* segments lack it */
        TPC_PARTITION_INVARIANT(partition, partition->unwritten_bytes >= newest->slice.length);
        partition->unwritten_bytes -= newest->slice.length;
        release_batch(plane, partition, newest);
        partition->tail_count--;
    }
}

void tpc_tail_cut(tpc_plane *plane, tpc_partition *partition, int64_t offset) {
    cut_runs(plane, partition, offset);
    if (partition->in_place_end_offset > offset) partition->in_place_end_offset = in_place_end(partition);
}

static void count_clean(tpc_plane *plane, int64_t bytes) {
    plane->statistics.tail_clean_bytes += bytes;
    plane->budget->bytes_cached += bytes;
    TPC_HOLDS(plane->statistics.tail_clean_bytes >= 0 && plane->budget->bytes_cached >= 0);
}

static void pop_oldest_clean(tpc_plane *plane, tpc_partition *partition) {
    tpc_tail_batch *oldest = tail_at(partition, 0);
    TPC_PARTITION_INVARIANT(partition, partition->tail_clean > 0);
    TPC_PARTITION_INVARIANT(partition,
                            oldest->next_offset <= partition->written_offset); /* else nobody could read it */
    count_clean(plane, -(int64_t)oldest->slice.length);
    partition->tail_clean--;
    release_batch(plane, partition, oldest);
    partition->tail_head = (partition->tail_head + 1) & (partition->tail_capacity - 1);
    if (--partition->tail_count == 0) drop_empty_chunk(partition);
    if (partition->tail_count == 0 && partition->tail_capacity > CAPACITY_WORTH_KEEPING) {
        free(partition->tail);
        partition->tail = NULL;
        partition->tail_capacity = partition->tail_head = 0;
    }
}

/* ---- reading ---- */

/* Position of the batch that holds the offset; tail_count when none does. */
static uint32_t tail_search(const tpc_partition *partition, int64_t offset) {
    uint32_t low = 0, high = partition->tail_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tail_at(partition, middle)->next_offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t tail_offset(const tpc_partition *partition) {
    return partition->tail_count ? tail_at(partition, 0)->base_offset : partition->log_end_offset;
}

const tpc_tail_batch *tpc_tail_find(const tpc_partition *partition, int64_t offset) {
    uint32_t position = tail_search(partition, offset);
    return position < partition->tail_count && offset >= tail_offset(partition) ? tail_at(partition, position) : NULL;
}

bool tpc_tail_begins_at(const tpc_partition *partition, int64_t offset) {
    const tpc_tail_batch *run = tpc_tail_find(partition, offset);
    return !run || (int64_t)wire_u64(run->slice.data + position_in_run(run, offset)) == offset;
}

void tpc_tail_each(const tpc_partition *partition, int64_t offset,
                   void (*look)(void *context, const uint8_t *batch, uint32_t bytes), void *context) {
    for (uint32_t at = tail_search(partition, offset); at < partition->tail_count; at++) {
        const tpc_slice *run = &tail_at(partition, at)->slice;
        uint32_t place = position_in_run(tail_at(partition, at), offset);
        for (; place < run->length; place += batch_bytes(run->data + place))
            look(context, run->data + place, batch_bytes(run->data + place));
    }
}

/* How many bytes of a run, from a place in it on, are whole batches below `upto_offset` in at most `bytes_max`; with
 * `min_one` the first batch is taken whatever its size. */
static uint32_t fitting_bytes(const tpc_tail_batch *run, uint32_t from, int64_t bytes_max, int64_t upto_offset,
                              bool min_one) {
    uint32_t length = run->slice.length;
    if (run->next_offset <= upto_offset && length - from <= bytes_max) return length - from;
    uint32_t place = from;
    while (place < length) {
        const uint8_t *batch = run->slice.data + place;
        bool fits = place + batch_bytes(batch) - from <= bytes_max || (min_one && place == from);
        if (batch_end(batch) > upto_offset || !fits) break;
        place += batch_bytes(batch);
    }
    return place - from;
}

int tpc_tail_measure(const tpc_partition *partition, int64_t offset, int64_t bytes_max, int64_t upto_offset,
                     bool min_one, uint32_t runs_max, tpc_tail_stretch *stretch) {
    *stretch = (tpc_tail_stretch){0};
    if (offset < tail_offset(partition)) return -ERANGE;
    stretch->first = tail_search(partition, offset);
    for (uint32_t at = stretch->first; at < partition->tail_count && stretch->count < runs_max; at++) {
        const tpc_tail_batch *run = tail_at(partition, at);
        uint32_t from = stretch->count ? 0 : position_in_run(run, offset);
        uint32_t fitting =
            fitting_bytes(run, from, bytes_max - (int64_t)stretch->bytes, upto_offset, min_one && !stretch->count);
        if (!fitting) break;
        if (!stretch->count) stretch->skipped_bytes = from;
        stretch->count++;
        stretch->bytes += fitting;
        stretch->next_offset = run->next_offset;
        if (from + fitting == run->slice.length) continue;
        stretch->next_offset = (int64_t)wire_u64(run->slice.data + from + fitting);
        break;
    }
    TPC_PARTITION_INVARIANT(partition, !stretch->count == !stretch->bytes);
    TPC_PARTITION_INVARIANT(partition, !stretch->count || stretch->next_offset > offset);
    TPC_PARTITION_INVARIANT(partition,
                            !stretch->count || stretch->next_offset <= upto_offset); /* no reader sees more */
    return 0;
}

tpc_slice tpc_tail_piece(const tpc_partition *partition, const tpc_tail_stretch *stretch, uint32_t place,
                         uint64_t left_bytes) {
    const tpc_slice *run = &tail_at(partition, stretch->first + place)->slice;
    TPC_PARTITION_INVARIANT(partition, place < stretch->count && left_bytes > 0);
    uint32_t skipped = place ? 0 : stretch->skipped_bytes, length = run->length - skipped;
    return (tpc_slice){.frame = run->frame,
                       .data = run->data + skipped,
                       .length = length < left_bytes ? length : (uint32_t)left_bytes};
}

static int take_slices(tpc_partition *partition, int64_t offset, int64_t bytes_max, int64_t upto_offset, bool min_one,
                       tpc_slice *slices, uint32_t slices_max) {
    tpc_tail_stretch stretch;
    int result = tpc_tail_measure(partition, offset, bytes_max, upto_offset, min_one, slices_max, &stretch);
    if (result < 0) return result;
    uint64_t left_bytes = stretch.bytes;
    for (uint32_t i = 0; i < stretch.count; i++) {
        slices[i] = tpc_tail_piece(partition, &stretch, i, left_bytes);
        tpc_frame_retain(slices[i].frame);
        left_bytes -= slices[i].length;
    }
    TPC_PARTITION_INVARIANT(partition, left_bytes == 0); /* the pieces are what was measured */
    return (int)stretch.count;
}

int tpc_partition_read(tpc_plane *plane, uint64_t handle, int64_t offset, int64_t bytes_max, int64_t upto_offset,
                       int min_one, tpc_slice *slices, uint32_t slices_max) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    plane->statistics.reads++;
    if (upto_offset > partition->high_watermark) upto_offset = partition->high_watermark;
    int result = take_slices(partition, offset, bytes_max, upto_offset, min_one, slices, slices_max);
    plane->statistics.reads_below_tail += result < 0;
    return result;
}

int tpc_partition_read_log(tpc_plane *plane, uint64_t handle, int64_t offset, int64_t bytes_max, int64_t upto_offset,
                           tpc_slice *slices, uint32_t slices_max) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    return take_slices(partition, offset, bytes_max, upto_offset, true, slices, slices_max);
}

void tpc_slices_release(tpc_slice *slices, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        tpc_frame_release(slices[i].frame);
        slices[i].frame = NULL;
    }
}

/* ---- write-behind ---- */

static void dirty_link(tpc_plane *plane, tpc_partition *partition) {
    if (partition->dirty) return;
    TPC_PARTITION_INVARIANT(partition, !plane->dirty_first == !plane->dirty_last);
    partition->dirty_since_ns = tpc_ring_now_ns(plane->ring);
    partition->dirty = true;
    partition->dirty_next = NULL;
    partition->dirty_previous = plane->dirty_last;
    *(plane->dirty_last ? &plane->dirty_last->dirty_next : &plane->dirty_first) = partition;
    plane->dirty_last = partition;
    plane->dirty_count++;
}

static void dirty_unlink(tpc_plane *plane, tpc_partition *partition) {
    if (!partition->dirty) return;
    const tpc_partition *before = partition->dirty_previous, *after = partition->dirty_next;
    TPC_PARTITION_INVARIANT(partition, plane->dirty_count > 0);
    TPC_PARTITION_INVARIANT(partition, (before ? before->dirty_next : plane->dirty_first) == partition);
    TPC_PARTITION_INVARIANT(partition, (after ? after->dirty_previous : plane->dirty_last) == partition);
    partition->dirty = false;
    *(partition->dirty_previous ? &partition->dirty_previous->dirty_next : &plane->dirty_first) = partition->dirty_next;
    *(partition->dirty_next ? &partition->dirty_next->dirty_previous : &plane->dirty_last) = partition->dirty_previous;
    partition->dirty_previous = partition->dirty_next = NULL;
    plane->dirty_count--;
}

static void tell_due(tpc_plane *plane, const tpc_partition *partition) {
    if (tpc_ring_push_event(plane->ring, TPC_EVENT_WRITE_BEHIND_DUE, partition->handle, partition->dirty_bytes,
                            plane->dirty_bytes, NULL) == 0)
        tpc_plane_watch_due(plane, INT64_MAX, INT64_MAX);
}

static void became_durable(tpc_plane *plane, tpc_partition *partition, int64_t bytes) {
    partition->dirty_bytes += bytes;
    plane->dirty_bytes += bytes;
    TPC_PARTITION_INVARIANT(partition, partition->dirty_bytes <= partition->unwritten_bytes);
    TPC_PARTITION_INVARIANT(partition, partition->dirty_bytes <= plane->dirty_bytes);
    dirty_link(plane, partition);
    if (partition->dirty_bytes >= plane->due_bytes_min || plane->dirty_bytes > plane->due_bytes_max)
        tell_due(plane, partition);
}

void tpc_plane_watch_due(tpc_plane *plane, int64_t bytes_min, int64_t bytes_max) {
    plane->due_bytes_min = bytes_min;
    plane->due_bytes_max = bytes_max;
}

uint32_t tpc_plane_dirty(const tpc_plane *plane, uint64_t *handles, uint32_t handles_max) {
    uint32_t count = 0;
    for (const tpc_partition *partition = plane->dirty_first; partition && count < handles_max;
         partition = partition->dirty_next)
        handles[count++] = partition->handle;
    return count;
}

int tpc_plane_is_unwritten_below(const tpc_plane *plane, uint64_t sequence) {
    for (const tpc_partition *partition = plane->dirty_first; partition; partition = partition->dirty_next)
        if (tail_at(partition, partition->tail_clean)->sequence < sequence) return 1;
    return 0;
}

uint32_t tpc_plane_dirty_due(const tpc_plane *plane, int64_t bytes_min, int64_t age_ns_min, int64_t bytes_max,
                             uint64_t *handles, uint32_t handles_max) {
    int64_t since_ns = tpc_ring_now_ns(plane->ring) - age_ns_min, left_bytes = plane->dirty_bytes;
    uint32_t count = 0;
    for (const tpc_partition *partition = plane->dirty_first; partition && count < handles_max;
         partition = partition->dirty_next) {
        if (partition->dirty_bytes < bytes_min && partition->dirty_since_ns > since_ns && left_bytes <= bytes_max)
            continue;
        left_bytes -= partition->dirty_bytes;
        handles[count++] = partition->handle;
    }
    return count;
}

const tpc_tail_batch *tpc_tail_newest(const tpc_partition *partition) {
    return partition->tail_count ? tail_at(partition, partition->tail_count - 1) : NULL;
}

/* Whether the later of two batches, both written in place, brought the block that the earlier one ends in. */
static bool shares_block(const tpc_tail_batch *earlier, const tpc_tail_batch *later) {
    return later->in_place_blocks && earlier->in_place_block + earlier->in_place_blocks == later->in_place_block;
}

int tpc_partition_write_behind_take(tpc_plane *plane, uint64_t handle, int64_t bytes_max, tpc_tail_batch *batches,
                                    uint32_t batches_max) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    uint32_t count = 0;
    int64_t bytes = 0;
    for (uint32_t position = partition->tail_clean; position < partition->tail_count && count < batches_max;
         position++) {
        const tpc_tail_batch *run = tail_at(partition, position);
        uint32_t written_bytes = position_in_run(run, partition->written_offset);
        uint32_t left_bytes = run->slice.length - written_bytes;
        if (run->next_offset > partition->durable_offset) break;
        int64_t bytes_more = bytes + left_bytes;
        bool fits = bytes_more <= (run->in_place_blocks ? bytes_max + IN_PLACE_BYTES_MORE : bytes_max);
        if (count && !fits && !shares_block(&batches[count - 1], run)) break;
        bytes += left_bytes;
        batches[count] = *run;
        if (written_bytes) {
            batches[count].slice.data += written_bytes;
            batches[count].slice.length = left_bytes;
            batches[count].base_offset = partition->written_offset;
        }
        tpc_frame_retain(batches[count++].slice.frame);
    }
    TPC_PARTITION_INVARIANT(partition, !count || batches[0].base_offset == partition->written_offset); /* no gap */
    TPC_PARTITION_INVARIANT(partition, !count || batches[count - 1].next_offset <= partition->durable_offset);
    return (int)count;
}

static int clean_reserve(tpc_plane *plane, uint64_t more) {
    uint64_t count = plane->clean_tail - plane->clean_head;
    if (count + more <= plane->clean_capacity) return 0;
    uint32_t capacity = plane->clean_capacity ? plane->clean_capacity : CLEAN_CAPACITY_MIN;
    while (capacity < count + more) capacity *= 2;
    uint64_t *grown = malloc(capacity * sizeof *grown);
    if (!grown) return -ENOMEM;
    for (uint64_t i = 0; i < count; i++) grown[i] = plane->clean[(plane->clean_head + i) & (plane->clean_capacity - 1)];
    free(plane->clean);
    plane->clean = grown;
    plane->clean_capacity = capacity;
    plane->clean_head = 0;
    plane->clean_tail = count;
    return 0;
}

static uint64_t clean_runs(const tpc_plane *plane) { return plane->clean_tail - plane->clean_head; }

/* What is kept of batches that are in segments already, with what it costs to find them. */
static bool is_above(const tpc_plane *plane, int64_t bound) {
    uint64_t index_bytes = clean_runs(plane) * (sizeof(tpc_tail_batch) + sizeof(uint64_t));
    return plane->statistics.tail_clean_bytes + (int64_t)index_bytes > bound || clean_runs(plane) > CACHED_RUNS_MAX;
}

static bool is_above_bound(const tpc_plane *plane) { return is_above(plane, plane->params.tail_bytes_max); }

static uint64_t oldest_clean(const tpc_plane *plane) {
    return plane->clean[plane->clean_head & (plane->clean_capacity - 1)];
}

/* Of the run that became clean first: whether a replica has not been sent it yet. */
static bool is_lacked(const tpc_plane *plane) {
    const tpc_partition *partition = tpc_partition_of(plane, oldest_clean(plane));
    return partition && partition->tail_clean &&
           plane->replication->is_lacked(plane, partition, tail_at(partition, 0)->next_offset);
}

static bool begins_untold(const tpc_partition *partition) {
    return partition->is_appended && tail_at(partition, 0)->next_offset > partition->told_offset;
}

/* Of the run that became clean first: whether Python has not taken it yet, which reads it when it does (replica.c). */
static bool is_untold(const tpc_plane *plane) {
    const tpc_partition *partition = tpc_partition_of(plane, oldest_clean(plane));
    return partition && partition->tail_clean && begins_untold(partition);
}

/* Makes one that may be evicted the first. False: there is none, or it has not been found yet. */
static bool pass(tpc_plane *plane, bool (*stays)(const tpc_plane *plane)) {
    if (!clean_runs(plane)) return false;
    for (uint32_t passed = 0; stays(plane); passed++) {
        if (passed == PASSED_MAX || passed == clean_runs(plane)) return false;
        uint64_t handle = oldest_clean(plane);
        plane->clean_head++; /* the list says whose turn it is: of a partition always its oldest run */
        plane->clean[plane->clean_tail++ & (plane->clean_capacity - 1)] = handle;
    }
    return true;
}

static bool is_untold_or_lacked(const tpc_plane *plane) { return is_untold(plane) || is_lacked(plane); }

/* Runs that replicas lack stay, within a bound of their own. */
static bool pass_lacked(tpc_plane *plane) {
    return pass(plane, is_above(plane, plane->tail_bytes_behind_max) ? is_untold : is_untold_or_lacked);
}

void tpc_tail_note_read(const tpc_plane *plane, tpc_partition *partition, int64_t offset) {
    partition->read_offset = offset;
    partition->read_bytes_left = plane->params.unread_bytes_max;
}

/* What goes before its reader has come to it is what a larger cache would have been for. */
static void count_evicted(tpc_plane *plane, tpc_partition *partition, int64_t bytes, int64_t end_offset) {
    plane->statistics.tail_evicted_bytes += (uint64_t)bytes;
    if (end_offset <= partition->read_offset) return;
    int64_t lacking_bytes = bytes < partition->read_bytes_left ? bytes : partition->read_bytes_left;
    partition->read_bytes_left -= lacking_bytes;
    plane->statistics.tail_lacking_bytes += (uint64_t)lacking_bytes;
}

/* Rule: What is kept of records that are in segments already has a strict bound, follows the memory that is there,
 * and never keeps requests out. Why: docs/decisions/2026-11-22-a-cache-of-what-was-written.md. See also
 * native/io/frame.c, tpc_broker/engine/cache_bound.py. Held by tests/engine/test_cache_bound.py,
 * tests/integration/test_late_readers.py. */
/* The run that became clean first, of those that may go. False: there is none, or it has not been found yet. */
static bool evict_one(tpc_plane *plane) {
    if (!pass(plane, is_untold)) return false;
    uint64_t handle = plane->clean[plane->clean_head++ & (plane->clean_capacity - 1)];
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition || !partition->tail_clean) /* withdrawn or cut: its batches went at once, the tokens go now */
        return true;
    int64_t clean_bytes = plane->statistics.tail_clean_bytes, end_offset = tail_at(partition, 0)->next_offset;
    pop_oldest_clean(plane, partition);
    count_evicted(plane, partition, clean_bytes - plane->statistics.tail_clean_bytes, end_offset);
    return true;
}

int tpc_plane_evict(tpc_plane *plane, int64_t bytes) {
    int64_t until_bytes = plane->statistics.tail_clean_bytes - bytes;
    while (is_above_bound(plane) && pass_lacked(plane)) {
        if (plane->statistics.tail_clean_bytes <= until_bytes) return true;
        evict_one(plane);
    }
    return false;
}

/* Memory is short. A run may keep a frame that is much larger than itself; as long as the oldest do, they go. */
void tpc_tail_reclaim(void *context, int64_t bytes) {
    tpc_plane *plane = context;
    int64_t held = tpc_budget_held(plane->budget), until = held - bytes, gained = 1, given = 0;
    while (held > until && gained >= given / 4) {
        int64_t clean_bytes = plane->statistics.tail_clean_bytes;
        if (!evict_one(plane)) return;
        gained = held - tpc_budget_held(plane->budget);
        given = clean_bytes - plane->statistics.tail_clean_bytes;
        held -= gained;
    }
}

int64_t tpc_partition_write_behind_done(tpc_plane *plane, uint64_t handle, int64_t upto_offset) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (upto_offset < partition->written_offset || upto_offset > partition->durable_offset) return -EINVAL;
    int result = clean_reserve(plane, partition->tail_count - partition->tail_clean);
    if (result < 0) return result;
    int64_t written_bytes = 0;
    while (partition->tail_clean < partition->tail_count && partition->written_offset < upto_offset) {
        const tpc_tail_batch *run = tail_at(partition, partition->tail_clean);
        uint32_t place = position_in_run(run, upto_offset);
        int64_t bytes = (int64_t)place - position_in_run(run, partition->written_offset);
        written_bytes += bytes;
        partition->dirty_bytes -= bytes;
        plane->dirty_bytes -= bytes;
        if (place < run->slice.length) { /* it stays dirty until the rest of it is written, too */
            if (place) partition->written_offset = (int64_t)wire_u64(run->slice.data + place);
            break;
        }
        partition->tail_clean++;
        partition->written_offset = run->next_offset;
        count_clean(plane, run->slice.length);
        plane->clean[plane->clean_tail++ & (plane->clean_capacity - 1)] = handle;
    }
    partition->unwritten_bytes -= written_bytes;
    TPC_PARTITION_INVARIANT(partition, partition->written_offset <= upto_offset);
    TPC_PARTITION_INVARIANT(partition, clean_runs(plane) <= plane->clean_capacity);
    TPC_PARTITION_INVARIANT(partition, plane->dirty_bytes >= partition->dirty_bytes);
    dirty_unlink(plane, partition);
    if (partition->dirty_bytes > 0) dirty_link(plane, partition);
    tpc_partition_verify(partition);
    tpc_plane_evict(plane, EVICTED_AT_ONCE_BYTES);
    return written_bytes;
}

void tpc_tail_truncate(tpc_plane *plane, tpc_partition *partition, int64_t offset) {
    if (offset < partition->written_offset) { /* what stays is in segments */
        tpc_tail_drop(plane, partition);
        partition->in_place_end_offset = -1;
        return;
    }
    tpc_tail_cut(plane, partition, offset);
    plane->dirty_bytes += partition->unwritten_bytes - partition->dirty_bytes;
    partition->dirty_bytes = partition->unwritten_bytes;
    if (!partition->dirty_bytes) dirty_unlink(plane, partition);
}

/* Rule: When cleaned segments take the place of others, memory below their end goes: it has aborted records that the lists
 * of aborted transactions may soon say nothing of. Held by tests/engine/test_segment_swaps.py. */
void tpc_tail_drop_clean(tpc_plane *plane, tpc_partition *partition, int64_t upto_offset) {
    while (partition->tail_clean && tail_at(partition, 0)->base_offset < upto_offset && !begins_untold(partition))
        pop_oldest_clean(plane, partition);
    tpc_partition_verify(partition);
}

void tpc_tail_drop(tpc_plane *plane, tpc_partition *partition) {
    dirty_unlink(plane, partition);
    plane->dirty_bytes -= partition->dirty_bytes;
    partition->dirty_bytes = partition->unwritten_bytes = 0;
    for (uint32_t position = 0; position < partition->tail_count; position++) {
        tpc_tail_batch *batch = tail_at(partition, position);
        if (position < partition->tail_clean) count_clean(plane, -(int64_t)batch->slice.length);
        release_batch(plane, partition, batch);
    }
    TPC_PARTITION_INVARIANT(partition, !partition->tail_bytes && plane->dirty_bytes >= 0);
    tpc_frame_release(partition->chunk);
    partition->chunk = NULL;
    free(partition->tail);
    partition->tail = NULL;
    partition->tail_count = partition->tail_clean = partition->tail_capacity = 0;
}

const tpc_plane_observer tpc_tail_observer = {.partition_durable = became_durable, .withdrawn = tpc_tail_drop};
