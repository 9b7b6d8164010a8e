/* Staging and direct writes of one commit; see in_place.h. */
#include "in_place.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "invariant.h"
#include "io.h"
#include "recorder.h"

enum { BLOCK_BYTES = TPC_IN_PLACE_BLOCK_BYTES };

/* ---- files ---- */

tpc_in_place_file *tpc_in_place_file_new(int descriptor) {
    tpc_in_place_file *file = malloc(sizeof *file);
    int own = file ? (int)tpc_io.duplicate(descriptor) : -1;
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
    tpc_io.close(file->descriptor);
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
    if (!set && !pool->spare && !(pool->spare = calloc(1, sizeof *pool->spare))) return false;
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
    free(pool->spare);
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
 * it. Its segment is not rolled, removed or replaced before it is counted. See also native/journal/journal_policy.c,
 * tpc_broker/storage/segments/roll_guard.py, tpc_broker/storage/segments/segment_appender.py,
 * tpc_broker/storage/segments/segment_retention.py, tpc_broker/storage/recovery/in_place_replay.py. Held by
 * tests/engine/test_journal_policy.py, tests/engine/test_in_place.py, tests/engine/test_in_place_commits.py,
 * tests/operations/test_in_place_damage.py, tests/durability/test_crash_images.py (with mutants that must fail). */
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
