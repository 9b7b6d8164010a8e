/*
 * In-place writes: large batches that a commit writes directly to their position in a segment, past the page cache.
 *
 * Theory of operation. Python opens an *in-place window* to C: the active segment of a partition, a descriptor for direct writes,
 * and where in the file the log ends. From then on the place of each batch follows from the lengths of those before it.
 * The whole blocks of a large batch are written from where the batch lies, if it lies there as it will in the file (modulo a
 * block: the frame of a request is placed so when its beginning has come, by what will probably be written before); else they
 * are copied to aligned memory (*staging*) that belongs to the open commit. The batch's journal entry carries, in place of the
 * batch, the place and what does not fill whole blocks. When the commit's turn comes its writes are made with O_DIRECT and
 * RWF_DSYNC, one for each stretch of a file; when all of that is on the disk the commit's blocks follow as always. So an entry
 * in the chain proves that the bytes that it names are on the disk.
 *
 *   file     | block | block | block | block | block |
 *   batch        <--------------------------->           begins and ends anywhere
 *   written          |=======|=======|=======|           once, and no byte of another commit with it
 *   entry        <-->                        <-->        head and tail, < 4 KiB each, lie in the journal
 *
 * Batches of one commit that follow each other share blocks: the later one brings the earlier one's tail along, in a block
 * of staging. Blocks that in-place writes leave out are Python's, which writes them behind from memory as it does with
 * everything else; no block is ever written by both.
 *
 * An in-place window ends when the next batch would not go into the same segment, when the journal fails (the places of what was
 * undone are given anew later), and when Python closes it. Writes that are under way keep the file open.
 */
#ifndef TPC_IN_PLACE_H
#define TPC_IN_PLACE_H

#include <sys/uio.h>

#include "facts.h"
#include "frame.h"
#include "ring.h"

enum {
    TPC_IN_PLACE_BLOCK_BYTES = TPC_BLOCK_BYTES,
    TPC_IN_PLACE_CHUNK_BYTES = 4 << 20,
    TPC_IN_PLACE_CHUNKS_MAX = 12, /* of staging, in all */
    TPC_IN_PLACE_CHUNKS_KEPT = 6,
    TPC_IN_PLACE_WRITES_MAX = 256 /* of one commit: two for each batch at most */
};

typedef struct tpc_in_place_file {
    uint32_t references;
    int descriptor;
} tpc_in_place_file;

typedef struct {
    tpc_in_place_file *file;
    tpc_frame *frame;    /* whose bytes these are; NULL: they are staged */
    const uint8_t *data; /* at the beginning of a block of memory */
    int64_t position;
    uint32_t bytes; /* whole blocks */
} tpc_in_place_write;

/* What one commit writes in place. */
typedef struct {
    tpc_in_place_write writes[TPC_IN_PLACE_WRITES_MAX];
    struct iovec parts[TPC_IN_PLACE_WRITES_MAX]; /* the writes, by group */
    struct {
        uint32_t write, parts_first, parts_count;
        int64_t bytes;
        uint64_t record_token;
    } groups[TPC_IN_PLACE_WRITES_MAX]; /* one after the other in one file */
    uint8_t *chunks[TPC_IN_PLACE_CHUNKS_MAX];
    uint32_t writes_count, groups_count, groups_submitted, groups_left, chunks_count, chunk_used;
    uint64_t bytes;
    int32_t error;
} tpc_in_place_set;

/* Staging that no commit uses; chunks_count: those that exist, used or not. `spare`: for the next commit that has none. */
typedef struct {
    tpc_in_place_set *spare;
    uint8_t *free[TPC_IN_PLACE_CHUNKS_MAX];
    uint32_t free_count, chunks_count;
} tpc_in_place_pool;

/* ---- what a commit of the journal writes in place ---- */

/* Whether another batch of which at most so many bytes are staged surely finds room in a set, or (NULL) in a new one. */
bool tpc_in_place_reserve(tpc_in_place_pool *pool, tpc_in_place_set *set, uint32_t bytes);
/* Room for the bytes of a write, to be filled in at once. After tpc_in_place_reserve(). */
uint8_t *tpc_in_place_stage(tpc_in_place_pool *pool, tpc_in_place_set *set, tpc_in_place_file *file, int64_t position,
                            uint32_t bytes);
/* A write of bytes from where they lie. The frame is retained; they must not change any more. */
void tpc_in_place_add(tpc_in_place_set *set, tpc_in_place_file *file, int64_t position, tpc_frame *frame,
                      const uint8_t *data, uint32_t bytes);
/* 0, or -EAGAIN when the submission queue took only some: again. Completions carry user_data + number of the group. */
int tpc_in_place_submit(tpc_ring *ring, tpc_in_place_set *set, uint64_t user_data, bool dsync);
/* True when it was the last one; set->error says whether all went well. */
bool tpc_in_place_completed(tpc_in_place_set *set, uint32_t group, int32_t result);
/* Leaves what was not submitted. True when nothing is under way. */
bool tpc_in_place_abandon(tpc_in_place_set *set);
/* Gives staging and files back. Nothing may be under way. */
void tpc_in_place_clear(tpc_in_place_pool *pool, tpc_in_place_set *set);
void tpc_in_place_pool_free(tpc_in_place_pool *pool);

tpc_in_place_file *tpc_in_place_file_new(int descriptor);
void tpc_in_place_file_release(tpc_in_place_file *file);

#endif
