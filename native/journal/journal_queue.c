/* The journal's queue: commits to which entries are appended, one after the other, and the room that they find. */
#include "journal_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHARED_ENTRY_BYTES_MAX 16384u

/* ---- buffers ---- */

static uint8_t *buffer_take(tpc_journal *journal, uint32_t capacity) {
    TPC_HOLDS(capacity && capacity % BLOCK_BYTES == 0); /* for O_DIRECT, as its address is */
    if (capacity == journal_blocks_of(journal->params.commit_bytes_max) * BLOCK_BYTES && journal->pooled_count)
        return journal->pooled[--journal->pooled_count];
    void *data = NULL;
    return posix_memalign(&data, BLOCK_BYTES, capacity) == 0 ? data : NULL;
}

static void buffer_give(tpc_journal *journal, uint8_t *data, uint32_t capacity) {
    bool standard = capacity == journal_blocks_of(journal->params.commit_bytes_max) * BLOCK_BYTES;
    if (standard && journal->pooled_count < journal->params.buffers_pooled_max)
        journal->pooled[journal->pooled_count++] = data;
    else
        free(data);
}

void journal_drop_data(tpc_journal *journal, commit *done) {
    TPC_HOLDS(done->data); /* each is dropped once */
    buffer_give(journal, done->data, done->capacity);
    done->data = NULL;
    if (!done->in_place) return;
    tpc_in_place_clear(&journal->in_place_pool, done->in_place);
    free(done->in_place);
    done->in_place = NULL;
}

/* ---- its end ---- */

static bool position_free(const tpc_journal *journal, uint64_t position_end) {
    return position_end < journal->position_recycled + journal->params.region_blocks;
}

/* The end of the queue as an append would see it; a copy serves to try appends without doing them. */
typedef struct {
    uint64_t position;   /* where the open commit would be placed at the earliest */
    uint32_t open_bytes; /* 0: no commit is open */
    uint32_t open_capacity;
    uint32_t commits_count;
} queue_end;

static queue_end queue_end_of(const tpc_journal *journal) {
    queue_end end = {.position = journal->position_sealed,
                     .commits_count = (uint32_t)(journal->sequence_next - journal->sequence_first)};
    for (uint64_t sequence = journal->sequence_submit; sequence < journal->sequence_next; sequence++) {
        const commit *queued = journal_commit_of(journal, sequence);
        if (queued->state == TPC_COMMIT_OPEN) {
            end.open_bytes = queued->bytes;
            end.open_capacity = queued->capacity;
        } else {
            uint32_t blocks = journal_blocks_of(queued->bytes);
            end.position = journal_commit_position(journal, end.position, blocks) + blocks;
        }
    }
    return end;
}

uint64_t journal_blocks_used(const tpc_journal *journal) {
    queue_end end = queue_end_of(journal);
    uint64_t used = end.position + journal_blocks_of(end.open_bytes) - journal->position_recycled;
    JOURNAL_INVARIANT(journal, used < journal->params.region_blocks); /* one always stays free */
    return used;
}

/* Rule: A block with acknowledged bytes is not written again before a checkpoint covers it. See also
 * tpc_broker/storage/recovery/checkpoint.py. Held by tests/durability/test_crash_images.py. */
/* Adds an entry to the end: 0, 1 when the open commit has to be closed first, or the append's error. */
static int queue_end_grow(const tpc_journal *journal, queue_end *end, uint32_t payload_bytes) {
    uint32_t entry_bytes = (uint32_t)sizeof(tpc_journal_entry_header) + payload_bytes;
    uint64_t alone = sizeof(tpc_journal_commit_header) + (uint64_t)entry_bytes;
    if (payload_bytes > TPC_JOURNAL_ENTRY_BYTES_MAX ||
        2ull * journal_blocks_of((uint32_t)alone) > journal->params.region_blocks_max)
        return -EMSGSIZE; /* see need_of() */
    int closes = 0;
    uint64_t grown = (uint64_t)tpc_journal_aligned_bytes(end->open_bytes) + entry_bytes;
    if (end->open_bytes && grown > end->open_capacity) {
        uint32_t blocks = journal_blocks_of(end->open_bytes);
        end->position = journal_commit_position(journal, end->position, blocks) + blocks;
        end->open_bytes = 0;
        closes = 1;
    }
    if (end->open_bytes &&
        journal_blocks_of((uint32_t)grown) == journal_blocks_of(end->open_bytes)) { /* it has the place already */
        end->open_bytes = (uint32_t)grown;
        return 0;
    }
    if (!end->open_bytes) {
        if (++end->commits_count > TPC_JOURNAL_COMMITS_MAX) return -EAGAIN;
        grown = alone;
        uint32_t capacity =
            (uint32_t)(alone > journal->params.commit_bytes_max ? alone : journal->params.commit_bytes_max);
        end->open_capacity = journal_blocks_of(capacity) * BLOCK_BYTES;
    }
    uint32_t blocks = journal_blocks_of((uint32_t)grown);
    if (!position_free(journal, journal_commit_position(journal, end->position, blocks) + blocks)) return -EAGAIN;
    end->open_bytes = (uint32_t)grown;
    return closes;
}

typedef struct {
    uint64_t blocks, commits;
} need;

/* Of entries of these lengths in commits of their own. Blocks: of the shortest region that takes them wherever the next commit
 * begins, once everything else is recycled. One of them may find the region's end too near; what is left out there is shorter. */
static need need_of(const tpc_journal *journal, const uint32_t *payload_bytes, uint32_t count) {
    need all = {0};
    uint64_t open_bytes = 0, blocks = 0, blocks_largest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t entry_bytes = sizeof(tpc_journal_entry_header) + (uint64_t)payload_bytes[i];
        uint64_t grown = tpc_journal_aligned_bytes((uint32_t)open_bytes) + entry_bytes;
        if (!open_bytes || grown > journal->params.commit_bytes_max) {
            grown = sizeof(tpc_journal_commit_header) + entry_bytes;
            all.blocks += blocks;
            all.commits++;
        }
        open_bytes = grown;
        blocks = journal_blocks_of((uint32_t)open_bytes);
        blocks_largest = blocks > blocks_largest ? blocks : blocks_largest;
    }
    all.blocks += blocks + blocks_largest;
    return all;
}

static bool can_never_fit(const tpc_journal *journal, need all) {
    return all.blocks > journal->params.region_blocks_max || all.commits > TPC_JOURNAL_COMMITS_MAX;
}

/* Entries that found no place, at such an end: whoever recycles blocks or makes the region longer is told at the next turn. */
static void refuse(tpc_journal *journal, const queue_end *end, const uint32_t *payload_bytes, uint32_t count) {
    if (end->commits_count > TPC_JOURNAL_COMMITS_MAX) return;
    uint64_t needed = need_of(journal, payload_bytes, count).blocks;
    bool is_short = needed > journal->params.region_blocks && needed > journal->blocks_wanted;
    if (is_short) journal->blocks_wanted = needed;
    if (is_short || (!journal->space_refused && journal->position_sealed > journal->position_recycled))
        journal->space_told = false;
    journal->space_refused = true;
}

/* ---- appending ---- */

/* The open commit, when an entry fits into the blocks that it has: then it needs no other place, and nothing is to be tried. */
static commit *commit_with_room(const tpc_journal *journal, uint32_t payload_bytes) {
    if (journal->sequence_submit == journal->sequence_next) return NULL;
    commit *newest = journal_commit_of(journal, journal->sequence_next - 1);
    uint64_t grown =
        (uint64_t)tpc_journal_aligned_bytes(newest->bytes) + sizeof(tpc_journal_entry_header) + payload_bytes;
    return newest->state == TPC_COMMIT_OPEN && grown <= (uint64_t)journal_blocks_of(newest->bytes) * BLOCK_BYTES
               ? newest
               : NULL;
}

/* 0, or why nothing is taken. */
static int refusal(const tpc_journal *journal) { return journal->stopped ? -ESHUTDOWN : journal->error ? -EIO : 0; }

int tpc_journal_would_fit(tpc_journal *journal, const uint32_t *payload_bytes, uint32_t count) {
    if (refusal(journal) < 0) return refusal(journal);
    if (count == 1 && commit_with_room(journal, payload_bytes[0])) return 0;
    queue_end end = queue_end_of(journal);
    for (uint32_t i = 0; i < count; i++) {
        int result = queue_end_grow(journal, &end, payload_bytes[i]);
        if (result == -EAGAIN && can_never_fit(journal, need_of(journal, payload_bytes, count))) {
            if (i > 0) return -EMSGSIZE;
            count = 1; /* they go in one by one */
        }
        if (result == -EAGAIN) refuse(journal, &end, payload_bytes, count);
        if (result < 0) return result;
    }
    return 0;
}

int journal_open_commit(tpc_journal *journal, uint32_t capacity) {
    uint8_t *data = buffer_take(journal, capacity);
    if (!data) return -ENOMEM;
    const commit *last = journal_commit_of(journal, journal->sequence_next);
    JOURNAL_INVARIANT(journal, !last->data && !last->in_place); /* the one that had this place is gone */
    *journal_commit_of(journal, journal->sequence_next) = (commit){
        .data = data, .capacity = capacity, .bytes = sizeof(tpc_journal_commit_header), .state = TPC_COMMIT_OPEN};
    journal->sequence_next++;
    return 0;
}

/* The open commit grows by blocks, or is closed and another one opened. */
static int make_room(tpc_journal *journal, uint32_t payload_bytes) {
    queue_end end = queue_end_of(journal);
    bool was_open = end.open_bytes != 0;
    int result = queue_end_grow(journal, &end, payload_bytes);
    if (result < 0) {
        if (result == -EAGAIN) refuse(journal, &end, &payload_bytes, 1);
        journal->statistics.refused_full += result == -EAGAIN;
        return result;
    }
    if (result == 1) journal_commit_moves(journal_commit_of(journal, journal->sequence_next - 1), TPC_COMMIT_CLOSE);
    return result == 1 || !was_open ? journal_open_commit(journal, end.open_capacity) : 0;
}

static void put_entry(commit *open, const tpc_journal_entry_header *entry, const uint8_t *payload) {
    uint32_t aligned = tpc_journal_aligned_bytes(open->bytes);
    TPC_HOLDS(entry->entry_bytes >= sizeof *entry);
    TPC_HOLDS((uint64_t)aligned + entry->entry_bytes <= open->capacity);
    uint8_t *at = open->data + aligned;
    memset(open->data + open->bytes, 0, TPC_JOURNAL_ENTRY_ALIGNMENT); /* what is too much of it the entry covers */
    memcpy(at, entry, sizeof *entry);
    uint32_t payload_bytes = entry->entry_bytes - (uint32_t)sizeof *entry;
    if (payload_bytes) memcpy(at + sizeof *entry, payload, payload_bytes);
    open->entry_newest = aligned;
    open->bytes = aligned + entry->entry_bytes;
    open->entries_count++;
}

/* Small batches of a partition that follow each other with no other entry between them share one: a header of 48 bytes is much
 * for a batch of 170, and what a connection sends in one go is mostly for one partition. Whether the newest entry took it. */
static bool extend_entry(commit *open, const tpc_journal_entry_header *entry, const uint8_t *payload) {
    tpc_journal_entry_header *newest = (tpc_journal_entry_header *)(open->data + open->entry_newest);
    if (!open->entry_newest || entry->kind != TPC_JOURNAL_APPEND || newest->kind != TPC_JOURNAL_APPEND ||
        newest->argument != entry->offset || newest->partition != entry->partition ||
        newest->entry_bytes + entry->entry_bytes > SHARED_ENTRY_BYTES_MAX ||
        memcmp(newest->topic_id, entry->topic_id, sizeof entry->topic_id) != 0)
        return false;
    uint32_t payload_bytes = entry->entry_bytes - (uint32_t)sizeof *entry;
    TPC_HOLDS(open->entry_newest + newest->entry_bytes == open->bytes); /* nothing is behind it */
    TPC_HOLDS((uint64_t)open->bytes + payload_bytes <= open->capacity);
    memcpy(open->data + open->bytes, payload, payload_bytes);
    newest->entry_bytes += payload_bytes;
    newest->argument = entry->argument;
    open->bytes += payload_bytes;
    return true;
}

int tpc_journal_append(tpc_journal *journal, int32_t kind, const uint8_t *topic_id, int32_t partition, int64_t offset,
                       int64_t argument, const uint8_t *payload, uint32_t payload_bytes, uint64_t *sequence) {
    if (refusal(journal) < 0) return refusal(journal);
    commit *open = commit_with_room(journal, payload_bytes);
    if (!open) {
        int result = make_room(journal, payload_bytes);
        if (result < 0) return result;
        open = journal_commit_of(journal, journal->sequence_next - 1);
    }
    JOURNAL_INVARIANT(journal, open->state == TPC_COMMIT_OPEN); /* else its checksum is made, or about to be */
    tpc_journal_entry_header entry = {.entry_bytes = (uint32_t)sizeof entry + payload_bytes,
                                      .kind = (uint8_t)kind,
                                      .partition = partition,
                                      .offset = offset,
                                      .argument = argument};
    memcpy(entry.topic_id, topic_id, sizeof entry.topic_id);
    uint32_t bytes_before = open->bytes;
    if (!extend_entry(open, &entry, payload)) put_entry(open, &entry, payload);
    journal->statistics.entries_appended++;
    journal->statistics.bytes_appended += open->bytes - bytes_before;
    *sequence = journal->sequence_next - 1;
    return 0;
}

/* ---- in-place writes ---- */

/* The open commit when an entry with such a payload would join it; else NULL. */
static commit *commit_joined(const tpc_journal *journal, uint32_t payload_bytes) {
    queue_end end = queue_end_of(journal);
    if (!end.open_bytes || queue_end_grow(journal, &end, payload_bytes) != 0) return NULL;
    return journal_commit_of(journal, journal->sequence_next - 1);
}

uint64_t tpc_journal_joined_sequence(const tpc_journal *journal, uint32_t payload_bytes) {
    return commit_joined(journal, payload_bytes) ? journal->sequence_next - 1 : 0;
}

bool tpc_journal_in_place_ready(tpc_journal *journal, uint32_t payload_bytes_max, uint32_t bytes) {
    if (refusal(journal) < 0 || journal->params.mode != TPC_JOURNAL_DIRECT_DSYNC ||
        journal->in_place_bytes - journal->in_place_bytes_recycled + bytes > journal->params.in_place_bytes_max)
        return false;
    JOURNAL_INVARIANT(journal, journal->in_place_bytes >= journal->in_place_bytes_recycled);
    const commit *joined = commit_joined(journal, 0);
    if (joined && !tpc_in_place_reserve(&journal->in_place_pool, joined->in_place, bytes)) return false;
    return commit_joined(journal, payload_bytes_max) || tpc_in_place_reserve(&journal->in_place_pool, NULL, bytes);
}

int tpc_journal_append_in_place(tpc_journal *journal, const tpc_journal_in_place *in_place, const uint8_t *topic_id,
                                int32_t partition, const uint8_t *payload, uint32_t payload_bytes, uint64_t *sequence,
                                uint8_t **staged) {
    JOURNAL_INVARIANT(journal, in_place->offset < in_place->next_offset);
    JOURNAL_INVARIANT(journal, in_place->staged_bytes <= in_place->bytes);
    int result = tpc_journal_append(journal, TPC_JOURNAL_IN_PLACE, topic_id, partition, in_place->offset,
                                    in_place->next_offset, payload, payload_bytes, sequence);
    if (result < 0) return result;
    commit *open = journal_commit_of(journal, *sequence);
    if (!open->in_place) { /* the entry cannot be taken back, and would name bytes that nobody writes */
        JOURNAL_INVARIANT(journal, journal->in_place_pool.spare); /* tpc_journal_in_place_ready() came before */
        open->in_place = journal->in_place_pool.spare;
        journal->in_place_pool.spare = NULL;
    }
    uint32_t staged_bytes = in_place->staged_bytes, left_bytes = in_place->bytes - staged_bytes;
    if (staged_bytes)
        *staged = tpc_in_place_stage(&journal->in_place_pool, open->in_place, in_place->file, in_place->position,
                                     staged_bytes);
    if (left_bytes)
        tpc_in_place_add(open->in_place, in_place->file, in_place->position + staged_bytes, in_place->frame,
                         in_place->data, left_bytes);
    journal->statistics.in_place_bytes_staged += staged_bytes;
    journal->in_place_bytes += in_place->bytes;
    return 0;
}

/* ---- what holds ---- */

void journal_broken(const tpc_journal *journal, const char *condition, const char *file, int line) {
    tpc_invariant_broken(condition, file, line,
                         "journal: commits from %llu not durable, from %llu not submitted, %llu next, %u in flight; "
                         "positions recycled %llu, durable %llu, sealed %llu of %llu blocks; error %d",
                         (unsigned long long)journal->sequence_first, (unsigned long long)journal->sequence_submit,
                         (unsigned long long)journal->sequence_next, journal->in_flight,
                         (unsigned long long)journal->position_recycled, (unsigned long long)journal->durable.position,
                         (unsigned long long)journal->position_sealed,
                         (unsigned long long)journal->params.region_blocks, journal->error);
}

void journal_verify(const tpc_journal *journal) {
    JOURNAL_INVARIANT(journal, journal->sequence_first <= journal->sequence_submit);
    JOURNAL_INVARIANT(journal, journal->sequence_submit <= journal->sequence_next);
    JOURNAL_INVARIANT(journal, journal->sequence_next - journal->sequence_first <= TPC_JOURNAL_COMMITS_MAX);
    JOURNAL_INVARIANT(journal, journal->durable.sequence == journal->sequence_first);
    JOURNAL_INVARIANT(journal, journal->position_recycled <= journal->durable.position);
    JOURNAL_INVARIANT(journal, journal->durable.position <= journal->position_sealed);
    JOURNAL_INVARIANT(journal, journal->position_sealed < journal->position_recycled + journal->params.region_blocks);
    JOURNAL_INVARIANT(journal, journal->position_base <= journal->position_recycled);
    JOURNAL_INVARIANT(journal, journal->in_place_in_flight <= journal->in_flight);
    JOURNAL_INVARIANT(journal,
                      journal->in_place_in_flight <= 1 || journal_has_mutant(journal, TPC_MUTANT_IN_PLACE_EARLY));
    JOURNAL_INVARIANT(journal, journal->in_flight - journal->in_place_in_flight <=
                                   journal->sequence_submit - journal->sequence_first);
    JOURNAL_INVARIANT(journal,
                      journal->in_flight - journal->in_place_in_flight <= journal->params.commits_in_flight_max);
    JOURNAL_INVARIANT(journal, journal->reported < journal->sequence_first); /* no other was ever told as durable */
    JOURNAL_INVARIANT(journal, !journal->failure_told || journal->error);
    JOURNAL_INVARIANT(journal, journal->pooled_count <= journal->params.buffers_pooled_max);
    JOURNAL_INVARIANT(journal, journal->sequence_next - journal->sequence_submit < 2 || /* only the newest grows */
                                   journal_commit_of(journal, journal->sequence_submit)->state != TPC_COMMIT_OPEN);
    JOURNAL_INVARIANT(journal, journal->in_place_bytes_recycled <= journal->in_place_bytes_durable);
    JOURNAL_INVARIANT(journal, journal->in_place_bytes_durable <= journal->in_place_bytes);
}
