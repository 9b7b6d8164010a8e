/*
 * The journal's writer: group commit into whole blocks.
 *
 * Theory of operation. Commits stand in a queue from the oldest that is not durable to the open one, to which entries
 * are appended. Once per turn, while fewer than commits_in_flight_max are in flight, the oldest waiting commit is
 * sealed (it gets its place, the CRC of its predecessor, its own) and submitted; the open one too, so a lone append
 * waits for no one, and what arrives during a write shares the next. When a write has ended, all completions that came
 * with it are handled first, because the next commit takes along what they bring; then that one is submitted, and only
 * then what has become durable is answered: a call that carries both starts the disk before the first of many sends.
 * So the journal has its turn twice, in front of the connections' and behind them. A commit is closed early only when
 * it is full.
 *
 *   OPEN -> CLOSED -> [STRAIGHT -> PLACED ->] SUBMITTED -> WRITTEN -> gone (durable)
 *                      -> FAILED                        -> FAILED
 *
 * A commit with batches that are written once (straight.h) first writes these to their segments (STRAIGHT). It is sealed
 * and submitted when all of that is on the disk (PLACED), so that its entries prove it; younger commits wait so long.
 *
 * Durable is the contiguous prefix of WRITTEN. A result that is not the full length is a failure. From the first
 * failure nothing more is submitted or accepted. Commits older than the failed one may still become durable; when no
 * write is in flight any more, the failed commit and all younger ones are dropped, and the listener is told. Their
 * bytes may be on the disk all the same: the reopened journal continues after the last durable commit, with a new run
 * id, over the same blocks, and the plane's first entries then say what is cut.
 *
 * Places. Positions count blocks and never wrap; block = first of the region + position % region_blocks. A commit that
 * would reach over the region's end starts at its first block, and the blocks left out count as used. One block always
 * stays free, so that "all used" and "none used" differ on the disk.
 */
#include "journal.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "bytes.h"
#include "journal_format.h"
#include "recorder.h"
#include "straight.h"

#define BLOCK_BYTES TPC_JOURNAL_BLOCK_BYTES
#define COMMIT_BYTES_DEFAULT (1u << 20)
#define STRAIGHT_BYTES_DEFAULT (256u << 20)
#define BUFFERS_POOLED_DEFAULT 4u
#define BUFFERS_POOLED_MAX 64u
#define SHARED_ENTRY_BYTES_MAX 16384u

enum commit_state { COMMIT_OPEN, COMMIT_CLOSED, COMMIT_STRAIGHT, COMMIT_PLACED, COMMIT_SUBMITTED, COMMIT_WRITTEN, COMMIT_FAILED };

/* The two completions of a linked write and fdatasync are told apart by the low bit of the index. Straight writes follow. */
enum { PART_WRITE = 0, PART_FLUSH = 1, STRAIGHT_INDEX = 2 * TPC_JOURNAL_COMMITS_MAX };

typedef struct {
    uint8_t *data;           /* block-aligned */
    uint32_t capacity;       /* whole blocks */
    uint32_t bytes;          /* header and entries so far */
    uint32_t entries_count;
    uint32_t entry_newest;   /* where its header is; 0: there is none */
    uint32_t crc;            /* once sealed */
    int32_t error;
    uint8_t state;
    uint8_t completions_left;
    uint64_t position;       /* once sealed */
    uint64_t position_end;
    uint64_t record_tokens[2];
    int64_t submitted_ns;
    tpc_straight_set *straight; /* NULL: nothing of it is written straight */
} commit;

struct tpc_journal {
    tpc_ring *ring;
    tpc_journal_params params;
    tpc_journal_listener listener;
    commit commits[TPC_JOURNAL_COMMITS_MAX]; /* of sequence s: commits[s % TPC_JOURNAL_COMMITS_MAX] */
    uint64_t sequence_first;     /* oldest not durable */
    uint64_t sequence_submit;    /* oldest not submitted */
    uint64_t sequence_next;      /* one past the newest */
    uint64_t position_base;      /* a position at the region's first block; see tpc_journal_extend() */
    uint64_t position_recycled;  /* oldest that may not be overwritten */
    uint64_t position_sealed;    /* after the youngest sealed commit */
    uint32_t crc_sealed;
    tpc_journal_place durable;
    uint64_t watched;            /* highest sequence somebody in Python waits for */
    uint64_t reported;
    uint32_t in_flight;          /* with the one whose straight writes are under way */
    uint32_t straight_in_flight; /* 0 or 1 */
    tpc_straight_pool straight_pool;
    uint64_t straight_bytes, straight_bytes_durable, straight_bytes_at_place, straight_bytes_recycled;
    uint32_t mutants;
    int32_t error;               /* != 0 from the first failure to the reopen */
    bool failure_told;
    bool space_told;
    bool durable_untold;         /* from the completion to the turn */
    uint32_t pooled_count;
    uint8_t *pooled[BUFFERS_POOLED_MAX];
    tpc_journal_statistics statistics;
};

static commit *commit_of(const tpc_journal *journal, uint64_t sequence) {
    return (commit *)&journal->commits[sequence % TPC_JOURNAL_COMMITS_MAX];
}

static uint32_t blocks_of(uint32_t bytes) { return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES; }

/* Where a commit of so many blocks starts when everything before ends at `position`. */
static uint64_t place_commit(const tpc_journal *journal, uint64_t position, uint64_t blocks) {
    uint64_t left = journal->params.region_blocks - (position - journal->position_base) % journal->params.region_blocks;
    return blocks <= left ? position : position + left;
}

static uint64_t block_at(const tpc_journal *journal, uint64_t position) {
    return TPC_JOURNAL_REGION_BLOCK_FIRST + (position - journal->position_base) % journal->params.region_blocks;
}

static bool position_free(const tpc_journal *journal, uint64_t position_end) {
    return position_end < journal->position_recycled + journal->params.region_blocks;
}

/* ---- buffers ---- */

static uint8_t *buffer_take(tpc_journal *journal, uint32_t capacity) {
    if (capacity == blocks_of(journal->params.commit_bytes_max) * BLOCK_BYTES && journal->pooled_count)
        return journal->pooled[--journal->pooled_count];
    void *data = NULL;
    return posix_memalign(&data, BLOCK_BYTES, capacity) == 0 ? data : NULL;
}

static void buffer_give(tpc_journal *journal, uint8_t *data, uint32_t capacity) {
    bool standard = capacity == blocks_of(journal->params.commit_bytes_max) * BLOCK_BYTES;
    if (standard && journal->pooled_count < journal->params.buffers_pooled_max)
        journal->pooled[journal->pooled_count++] = data;
    else
        free(data);
}

/* ---- appending ---- */

/* The end of the queue as an append would see it; a copy serves to try appends without doing them. */
typedef struct {
    uint64_t position;       /* where the open commit would be placed at the earliest */
    uint32_t open_bytes;     /* 0: no commit is open */
    uint32_t open_capacity;
    uint32_t commits_count;
} queue_end;

static queue_end queue_end_of(const tpc_journal *journal) {
    queue_end end = {.position = journal->position_sealed,
                     .commits_count = (uint32_t)(journal->sequence_next - journal->sequence_first)};
    for (uint64_t sequence = journal->sequence_submit; sequence < journal->sequence_next; sequence++) {
        const commit *queued = commit_of(journal, sequence);
        if (queued->state == COMMIT_OPEN) {
            end.open_bytes = queued->bytes;
            end.open_capacity = queued->capacity;
        } else {
            uint32_t blocks = blocks_of(queued->bytes);
            end.position = place_commit(journal, end.position, blocks) + blocks;
        }
    }
    return end;
}

/* Adds an entry to the end: 0, 1 when the open commit has to be closed first, or the append's error. */
static int queue_end_grow(const tpc_journal *journal, queue_end *end, uint32_t payload_bytes) {
    uint32_t entry_bytes = (uint32_t)sizeof(tpc_journal_entry_header) + payload_bytes;
    uint64_t alone = sizeof(tpc_journal_commit_header) + (uint64_t)entry_bytes;
    if (payload_bytes > TPC_JOURNAL_ENTRY_BYTES_MAX || blocks_of((uint32_t)alone) >= journal->params.region_blocks)
        return -EMSGSIZE;
    int closes = 0;
    uint64_t grown = (uint64_t)tpc_journal_aligned_bytes(end->open_bytes) + entry_bytes;
    if (end->open_bytes && grown > end->open_capacity) {
        uint32_t blocks = blocks_of(end->open_bytes);
        end->position = place_commit(journal, end->position, blocks) + blocks;
        end->open_bytes = 0;
        closes = 1;
    }
    if (end->open_bytes && blocks_of((uint32_t)grown) == blocks_of(end->open_bytes)) { /* it has the place already */
        end->open_bytes = (uint32_t)grown;
        return 0;
    }
    if (!end->open_bytes) {
        if (++end->commits_count > TPC_JOURNAL_COMMITS_MAX)
            return -EAGAIN;
        grown = alone;
        uint32_t capacity = (uint32_t)(alone > journal->params.commit_bytes_max ? alone : journal->params.commit_bytes_max);
        end->open_capacity = blocks_of(capacity) * BLOCK_BYTES;
    }
    uint32_t blocks = blocks_of((uint32_t)grown);
    if (!position_free(journal, place_commit(journal, end->position, blocks) + blocks))
        return -EAGAIN;
    end->open_bytes = (uint32_t)grown;
    return closes;
}

/* The open commit, when an entry fits into the blocks that it has: then it needs no other place, and nothing is to be tried. */
static commit *commit_with_room(const tpc_journal *journal, uint32_t payload_bytes) {
    if (journal->sequence_submit == journal->sequence_next)
        return NULL;
    commit *newest = commit_of(journal, journal->sequence_next - 1);
    uint64_t grown = (uint64_t)tpc_journal_aligned_bytes(newest->bytes) + sizeof(tpc_journal_entry_header) + payload_bytes;
    return newest->state == COMMIT_OPEN && grown <= (uint64_t)blocks_of(newest->bytes) * BLOCK_BYTES ? newest : NULL;
}

int tpc_journal_would_fit(const tpc_journal *journal, const uint32_t *payload_bytes, uint32_t count) {
    if (journal->error)
        return -EIO;
    if (count == 1 && commit_with_room(journal, payload_bytes[0]))
        return 0;
    queue_end end = queue_end_of(journal);
    for (uint32_t i = 0; i < count; i++) {
        int result = queue_end_grow(journal, &end, payload_bytes[i]);
        if (result < 0)
            return result;
    }
    return 0;
}

static int open_commit(tpc_journal *journal, uint32_t capacity) {
    uint8_t *data = buffer_take(journal, capacity);
    if (!data)
        return -ENOMEM;
    *commit_of(journal, journal->sequence_next) = (commit){
        .data = data, .capacity = capacity, .bytes = sizeof(tpc_journal_commit_header), .state = COMMIT_OPEN};
    journal->sequence_next++;
    return 0;
}

/* The open commit grows by blocks, or is closed and another one opened. */
static int make_room(tpc_journal *journal, uint32_t payload_bytes) {
    queue_end end = queue_end_of(journal);
    bool was_open = end.open_bytes != 0;
    int result = queue_end_grow(journal, &end, payload_bytes);
    if (result < 0) {
        journal->statistics.refused_full += result == -EAGAIN;
        return result;
    }
    if (result == 1)
        commit_of(journal, journal->sequence_next - 1)->state = COMMIT_CLOSED;
    return result == 1 || !was_open ? open_commit(journal, end.open_capacity) : 0;
}

static void put_entry(commit *open, const tpc_journal_entry_header *entry, const uint8_t *payload) {
    uint32_t aligned = tpc_journal_aligned_bytes(open->bytes);
    uint8_t *at = open->data + aligned;
    memset(open->data + open->bytes, 0, TPC_JOURNAL_ENTRY_ALIGNMENT); /* what is too much of it the entry covers */
    memcpy(at, entry, sizeof *entry);
    uint32_t payload_bytes = entry->entry_bytes - (uint32_t)sizeof *entry;
    if (payload_bytes)
        memcpy(at + sizeof *entry, payload, payload_bytes);
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
    memcpy(open->data + open->bytes, payload, payload_bytes);
    newest->entry_bytes += payload_bytes;
    newest->argument = entry->argument;
    open->bytes += payload_bytes;
    return true;
}

int tpc_journal_append(tpc_journal *journal, int32_t kind, const uint8_t *topic_id, int32_t partition, int64_t offset,
                       int64_t argument, const uint8_t *payload, uint32_t payload_bytes, uint64_t *sequence) {
    if (journal->error)
        return -EIO;
    commit *open = commit_with_room(journal, payload_bytes);
    if (!open) {
        int result = make_room(journal, payload_bytes);
        if (result < 0)
            return result;
        open = commit_of(journal, journal->sequence_next - 1);
    }
    tpc_journal_entry_header entry = {.entry_bytes = (uint32_t)sizeof entry + payload_bytes, .kind = (uint8_t)kind,
                                      .partition = partition, .offset = offset, .argument = argument};
    memcpy(entry.topic_id, topic_id, sizeof entry.topic_id);
    uint32_t bytes_before = open->bytes;
    if (!extend_entry(open, &entry, payload))
        put_entry(open, &entry, payload);
    journal->statistics.entries_appended++;
    journal->statistics.bytes_appended += open->bytes - bytes_before;
    *sequence = journal->sequence_next - 1;
    return 0;
}

/* ---- written once ---- */

/* The open commit when an entry with such a payload would join it; else NULL. */
static commit *commit_joined(const tpc_journal *journal, uint32_t payload_bytes) {
    queue_end end = queue_end_of(journal);
    if (!end.open_bytes || queue_end_grow(journal, &end, payload_bytes) != 0)
        return NULL;
    return commit_of(journal, journal->sequence_next - 1);
}

uint64_t tpc_journal_joined_sequence(const tpc_journal *journal, uint32_t payload_bytes) {
    return commit_joined(journal, payload_bytes) ? journal->sequence_next - 1 : 0;
}

bool tpc_journal_straight_ready(tpc_journal *journal, uint32_t payload_bytes_max, uint32_t bytes) {
    if (journal->error || journal->params.mode != TPC_JOURNAL_DIRECT_DSYNC ||
        journal->straight_bytes - journal->straight_bytes_recycled + bytes > journal->params.straight_bytes_max)
        return false;
    const commit *joined = commit_joined(journal, 0);
    if (joined && !tpc_straight_reserve(&journal->straight_pool, joined->straight, bytes))
        return false;
    return commit_joined(journal, payload_bytes_max) || tpc_straight_reserve(&journal->straight_pool, NULL, bytes);
}

int tpc_journal_append_straight(tpc_journal *journal, const tpc_journal_straight *straight, const uint8_t *topic_id,
                                int32_t partition, const uint8_t *payload, uint32_t payload_bytes, uint64_t *sequence,
                                uint8_t **staged) {
    int result = tpc_journal_append(journal, TPC_JOURNAL_STRAIGHT, topic_id, partition, straight->offset,
                                    straight->next_offset, payload, payload_bytes, sequence);
    if (result < 0)
        return result;
    commit *open = commit_of(journal, *sequence);
    if (!open->straight && !(open->straight = calloc(1, sizeof *open->straight)))
        abort(); /* the entry cannot be taken back, and would name bytes that nobody writes */
    uint32_t staged_bytes = straight->staged_bytes, left_bytes = straight->bytes - staged_bytes;
    if (staged_bytes)
        *staged = tpc_straight_stage(&journal->straight_pool, open->straight, straight->file, straight->position, staged_bytes);
    if (left_bytes)
        tpc_straight_add(open->straight, straight->file, straight->position + staged_bytes, straight->frame, straight->data,
                         left_bytes);
    journal->statistics.straight_bytes_staged += staged_bytes;
    journal->straight_bytes += straight->bytes;
    return 0;
}

/* ---- sealing and submission ---- */

static uint64_t wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void seal(tpc_journal *journal, uint64_t sequence) {
    commit *sealed = commit_of(journal, sequence);
    uint32_t blocks = blocks_of(sealed->bytes);
    memset(sealed->data + sealed->bytes, 0, blocks * BLOCK_BYTES - sealed->bytes);
    tpc_journal_commit_header header = {
        .magic = TPC_JOURNAL_MAGIC, .format_version = TPC_JOURNAL_FORMAT_VERSION,
        .run_id = journal->params.run_id, .sequence = sequence, .durable_sequence = journal->sequence_first - 1,
        .submitted_ms = wall_ms(), .previous_crc = journal->crc_sealed, .commit_bytes = sealed->bytes,
        .entries_count = sealed->entries_count};
    memcpy(header.journal_id, journal->params.journal_id, sizeof header.journal_id);
    memcpy(sealed->data, &header, sizeof header);
    sealed->crc = tpc_crc32c(0, sealed->data, sealed->bytes);
    memcpy(sealed->data + offsetof(tpc_journal_commit_header, crc), &sealed->crc, sizeof sealed->crc);
    sealed->position = place_commit(journal, journal->position_sealed, blocks);
    sealed->position_end = sealed->position + blocks;
    journal->position_sealed = sealed->position_end;
    journal->crc_sealed = sealed->crc;
}

static uint64_t user_data_of(uint64_t sequence, uint32_t part) {
    return tpc_user_data(TPC_KIND_JOURNAL, (uint32_t)sequence, (uint32_t)(sequence % TPC_JOURNAL_COMMITS_MAX) * 2 + part);
}

static bool mutant(const tpc_journal *journal, uint32_t which) {
#ifdef TPC_MUTANTS
    return (journal->mutants & which) != 0;
#else
    (void)journal, (void)which;
    return false;
#endif
}

static void record_submission(tpc_journal *journal, commit *written, uint32_t length, bool dsync) {
    uint32_t flags = (dsync ? TPC_DISK_RECORD_DSYNC : 0) |
                     (journal->params.mode == TPC_JOURNAL_DIRECT_DSYNC ? TPC_DISK_RECORD_DIRECT : 0);
    int64_t offset = (int64_t)(block_at(journal, written->position) * BLOCK_BYTES);
    written->record_tokens[PART_WRITE] =
        tpc_disk_record_write(journal->params.descriptor, written->data, length, offset, flags);
    if (written->completions_left == 2)
        written->record_tokens[PART_FLUSH] = tpc_disk_record_flush(journal->params.descriptor, TPC_DISK_RECORD_DATA_ONLY);
}

/* 0, or -EAGAIN when the submission queue cannot take it now. */
static int submit(tpc_journal *journal, uint64_t sequence) {
    bool linked = journal->params.mode == TPC_JOURNAL_BUFFERED_FDATASYNC && !mutant(journal, TPC_MUTANT_NO_DSYNC);
    bool dsync = journal->params.mode != TPC_JOURNAL_BUFFERED_FDATASYNC && !mutant(journal, TPC_MUTANT_NO_DSYNC);
    if (tpc_ring_reserve(journal->ring, linked ? 2 : 1) < 0)
        return -EAGAIN;
    struct io_uring_sqe *write = tpc_ring_sqe(journal->ring, user_data_of(sequence, PART_WRITE));
    if (!write)
        return -EAGAIN;
    seal(journal, sequence);
    commit *written = commit_of(journal, sequence);
    uint32_t length = blocks_of(written->bytes) * BLOCK_BYTES;
    io_uring_prep_write(write, journal->params.descriptor, written->data, length,
                        block_at(journal, written->position) * BLOCK_BYTES);
    write->user_data = user_data_of(sequence, PART_WRITE);
    write->rw_flags = dsync ? RWF_DSYNC : 0;
    written->completions_left = 1;
    if (linked) {
        write->flags |= IOSQE_IO_LINK;
        struct io_uring_sqe *flush = tpc_ring_sqe(journal->ring, user_data_of(sequence, PART_FLUSH));
        io_uring_prep_fsync(flush, journal->params.descriptor, IORING_FSYNC_DATASYNC);
        flush->user_data = user_data_of(sequence, PART_FLUSH);
        written->completions_left = 2;
    }
    written->state = COMMIT_SUBMITTED;
    written->submitted_ns = tpc_ring_now_ns(journal->ring);
    journal->in_flight++;
    journal->sequence_submit = sequence + 1;
    journal->statistics.bytes_written += length;
    if (__builtin_expect(tpc_recorder_on, 0))
        record_submission(journal, written, length, dsync);
    return 0;
}

/* As submit(), for what the commit writes straight. */
static int submit_straight(tpc_journal *journal, uint64_t sequence) {
    commit *placed = commit_of(journal, sequence);
    uint32_t index = STRAIGHT_INDEX + (uint32_t)(sequence % TPC_JOURNAL_COMMITS_MAX) * TPC_STRAIGHT_WRITES_MAX;
    if (placed->state != COMMIT_STRAIGHT) {
        placed->state = COMMIT_STRAIGHT;
        journal->in_flight++;
        journal->straight_in_flight++;
    }
    int result = tpc_straight_submit(journal->ring, placed->straight, tpc_user_data(TPC_KIND_JOURNAL, (uint32_t)sequence, index),
                                     !mutant(journal, TPC_MUTANT_STRAIGHT_NO_DSYNC));
    if (result == 0)
        journal->statistics.straight_bytes_written += placed->straight->bytes;
    return result;
}

static bool submitted_whole(const commit *placed) {
    return placed->straight->groups_count && placed->straight->groups_submitted == placed->straight->groups_count;
}

static uint64_t blocks_used(const tpc_journal *journal) {
    queue_end end = queue_end_of(journal);
    return end.position + blocks_of(end.open_bytes) - journal->position_recycled;
}

static void tell_space(tpc_journal *journal) {
    if (journal->space_told)
        return;
    uint64_t used = blocks_used(journal);
    if (used < journal->params.space_event_blocks &&
        journal->straight_bytes - journal->straight_bytes_recycled < journal->params.straight_bytes_max / 2)
        return;
    journal->space_told = true;
    tpc_ring_push_event(journal->ring, TPC_EVENT_JOURNAL_SPACE, 0, (int64_t)used,
                        (int64_t)journal->params.region_blocks, NULL);
}

static void straight_ended(tpc_journal *journal, commit *placed);

/* Straight writes that the kernel did not take before the journal failed are not asked for any more. */
static void abandon_straight(tpc_journal *journal) {
    if (!journal->straight_in_flight || journal->sequence_submit == journal->sequence_next)
        return;
    commit *placed = commit_of(journal, journal->sequence_submit);
    if (placed->state == COMMIT_STRAIGHT && tpc_straight_abandon(placed->straight))
        straight_ended(journal, placed);
}

/* Whether what a commit writes straight still has to be asked for. */
static bool needs_straight(const commit *next) {
    return next->straight && (next->state <= COMMIT_CLOSED || (next->state == COMMIT_STRAIGHT && !submitted_whole(next)));
}

static bool may_submit(const tpc_journal *journal) {
    if (journal->error || journal->sequence_submit == journal->sequence_next)
        return false;
    const commit *next = commit_of(journal, journal->sequence_submit);
    if (needs_straight(next))
        return true;
    if (next->state == COMMIT_STRAIGHT && !mutant(journal, TPC_MUTANT_STRAIGHT_EARLY))
        return false;
    return journal->in_flight - journal->straight_in_flight < journal->params.commits_in_flight_max;
}

static int submit_next(tpc_journal *journal) {
    bool straight = needs_straight(commit_of(journal, journal->sequence_submit));
    return (straight ? submit_straight : submit)(journal, journal->sequence_submit);
}

static void tell_durable(tpc_journal *journal) {
    if (!journal->durable_untold)
        return;
    journal->durable_untold = false;
    uint64_t durable = journal->durable.sequence - 1;
    if (journal->listener.durable)
        journal->listener.durable(journal->listener.context, durable);
    if (journal->reported < journal->watched && journal->reported < durable) {
        journal->reported = durable;
        tpc_ring_push_event(journal->ring, TPC_EVENT_JOURNAL_DURABLE, 0, (int64_t)durable, 0, NULL);
    }
}

static int64_t journal_turn(void *context, int64_t now_ns) {
    tpc_journal *journal = context;
    bool taken = true;
    while (taken && may_submit(journal))
        taken = submit_next(journal) == 0;
    tell_durable(journal);
    if (!taken)
        return now_ns; /* the kernel took nothing: again at once */
    if (__builtin_expect(journal->error != 0, 0))
        abandon_straight(journal);
    if (mutant(journal, TPC_MUTANT_EARLY_ACKNOWLEDGE) && journal->listener.durable)
        journal->listener.durable(journal->listener.context, journal->sequence_submit - 1);
    tell_space(journal);
    return INT64_MAX;
}

/* ---- completions ---- */

static void drop_data(tpc_journal *journal, commit *done) {
    buffer_give(journal, done->data, done->capacity);
    done->data = NULL;
    if (!done->straight)
        return;
    tpc_straight_clear(&journal->straight_pool, done->straight);
    free(done->straight);
    done->straight = NULL;
}

static void retire(tpc_journal *journal, commit *done) {
    journal->durable = (tpc_journal_place){.sequence = ++journal->sequence_first,
                                           .block = block_at(journal, done->position_end),
                                           .position = done->position_end,
                                           .previous_crc = done->crc};
    journal->statistics.commits_durable++;
    journal->straight_bytes_durable += done->straight ? done->straight->bytes : 0;
    drop_data(journal, done);
}

/* Everything from the oldest commit on is void; the chain goes on after the last durable one. */
static void drop_failed(tpc_journal *journal) {
    uint64_t first_failed = journal->sequence_first;
    for (uint64_t sequence = first_failed; sequence < journal->sequence_next; sequence++) {
        commit *dropped = commit_of(journal, sequence);
        drop_data(journal, dropped);
        journal->statistics.commits_failed++;
    }
    journal->straight_bytes = journal->straight_bytes_durable;
    journal->sequence_submit = journal->sequence_next = journal->sequence_first;
    journal->position_sealed = journal->durable.position;
    journal->crc_sealed = journal->durable.previous_crc;
    journal->failure_told = true;
    journal->watched = journal->watched < first_failed ? journal->watched : first_failed - 1;
    if (journal->listener.failed)
        journal->listener.failed(journal->listener.context, first_failed, journal->error);
    tpc_ring_push_event(journal->ring, TPC_EVENT_JOURNAL_FAILED, 0, (int64_t)first_failed, journal->error, NULL);
}

static void advance(tpc_journal *journal) {
    bool advanced = false;
    while (journal->sequence_first < journal->sequence_submit) {
        commit *oldest = commit_of(journal, journal->sequence_first);
        if (oldest->state != COMMIT_WRITTEN || (oldest->straight && oldest->straight->groups_left)) /* a mutant's */
            break;
        retire(journal, oldest);
        advanced = true;
    }
    journal->durable_untold |= advanced;
    if (journal->error)
        tell_durable(journal);
    if (journal->error && !journal->in_flight && !journal->failure_told)
        drop_failed(journal);
    if (may_submit(journal) && commit_of(journal, journal->sequence_submit)->straight && submit_next(journal) == 0)
        tpc_ring_submit(journal->ring); /* it is large: what other completions bring would not make it cheaper */
}

static void straight_ended(tpc_journal *journal, commit *placed) {
    journal->in_flight--;
    journal->straight_in_flight--;
    int32_t error = placed->straight->error;
    if (placed->state == COMMIT_STRAIGHT) /* else it is a mutant's */
        placed->state = error ? COMMIT_FAILED : COMMIT_PLACED;
    if (error && !journal->error)
        journal->error = error;
    advance(journal);
}

static void straight_completion(tpc_journal *journal, uint32_t index, int32_t result) {
    commit *placed = &journal->commits[index / TPC_STRAIGHT_WRITES_MAX];
    if (placed->straight && tpc_straight_completed(placed->straight, index % TPC_STRAIGHT_WRITES_MAX, result))
        straight_ended(journal, placed);
}

static void journal_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    (void)flags;
    tpc_journal *journal = context;
    uint32_t index = (uint32_t)user_data;
    if (index >= STRAIGHT_INDEX) {
        straight_completion(journal, index - STRAIGHT_INDEX, result);
        return;
    }
    commit *written = &journal->commits[index / 2];
    if (written->state != COMMIT_SUBMITTED || !written->completions_left)
        return;
    bool whole = index % 2 == PART_FLUSH ? result == 0 : (int64_t)result == (int64_t)blocks_of(written->bytes) * BLOCK_BYTES;
    if (__builtin_expect(tpc_recorder_on, 0))
        tpc_disk_record_completed(written->record_tokens[index % 2], result);
    if (!whole && !written->error)
        written->error = result < 0 ? -result : EIO;
    if (--written->completions_left)
        return;
    journal->in_flight--;
    journal->statistics.commit_spans[tpc_span_of(tpc_ring_now_ns(journal->ring) - written->submitted_ns)]++;
    written->state = written->error ? COMMIT_FAILED : COMMIT_WRITTEN;
    if (written->error && !journal->error)
        journal->error = written->error;
    advance(journal);
}

/* ---- life ---- */

static bool params_valid(const tpc_journal_params *params) {
    uint64_t region_end = TPC_JOURNAL_REGION_BLOCK_FIRST + params->region_blocks;
    return params->descriptor >= 0 && params->mode >= TPC_JOURNAL_DIRECT_DSYNC &&
           params->mode <= TPC_JOURNAL_BUFFERED_FDATASYNC && params->region_blocks >= 2 && params->sequence_next >= 1 &&
           params->block_next >= TPC_JOURNAL_REGION_BLOCK_FIRST && params->block_next <= region_end &&
           params->block_first >= TPC_JOURNAL_REGION_BLOCK_FIRST && params->block_first <= region_end &&
           params->commits_in_flight_max <= TPC_JOURNAL_COMMITS_MAX && params->buffers_pooled_max <= BUFFERS_POOLED_MAX &&
           params->commit_bytes_max <= TPC_JOURNAL_ENTRY_BYTES_MAX;
}

static void set_defaults(tpc_journal_params *params) {
    if (!params->commits_in_flight_max)
        params->commits_in_flight_max = 1;
    if (!params->commit_bytes_max)
        params->commit_bytes_max = COMMIT_BYTES_DEFAULT;
    if (!params->buffers_pooled_max)
        params->buffers_pooled_max = BUFFERS_POOLED_DEFAULT;
    if (!params->straight_bytes_max)
        params->straight_bytes_max = STRAIGHT_BYTES_DEFAULT;
    if (!params->space_event_blocks)
        params->space_event_blocks = (params->region_blocks * 3 + 7) / 8;
}

int tpc_journal_open(tpc_ring *ring, const tpc_journal_params *params, tpc_journal **out) {
    if (!params_valid(params))
        return -EINVAL;
    tpc_journal *journal = calloc(1, sizeof *journal);
    if (!journal)
        return -ENOMEM;
    journal->ring = ring;
    journal->params = *params;
    set_defaults(&journal->params);
    journal->sequence_first = journal->sequence_submit = journal->sequence_next = params->sequence_next;
    journal->reported = params->sequence_next - 1;
    uint64_t first = (params->block_first - TPC_JOURNAL_REGION_BLOCK_FIRST) % params->region_blocks;
    uint64_t next = (params->block_next - TPC_JOURNAL_REGION_BLOCK_FIRST) % params->region_blocks;
    journal->position_recycled = first;
    journal->position_sealed = next >= first ? next : next + params->region_blocks;
    journal->crc_sealed = params->previous_crc;
    journal->durable = (tpc_journal_place){.sequence = params->sequence_next,
                                           .block = block_at(journal, journal->position_sealed),
                                           .position = journal->position_sealed,
                                           .previous_crc = params->previous_crc};
    int result = tpc_ring_handle(ring, TPC_KIND_JOURNAL, journal_completion, journal);
    if (result == 0)
        result = tpc_ring_add_turn_hook(ring, TPC_TURN_FIRST, journal_turn, journal);
    if (result == 0 && (result = tpc_ring_add_turn_hook(ring, TPC_TURN_LAST, journal_turn, journal)) < 0)
        tpc_ring_remove_turn_hook(ring, journal_turn, journal);
    if (result < 0) {
        free(journal);
        return result;
    }
    *out = journal;
    return 0;
}

int tpc_journal_close(tpc_journal *journal) {
    if (journal->in_flight)
        return -EBUSY;
    for (uint64_t sequence = journal->sequence_first; sequence < journal->sequence_next; sequence++)
        drop_data(journal, commit_of(journal, sequence));
    tpc_straight_pool_free(&journal->straight_pool);
    while (journal->pooled_count)
        free(journal->pooled[--journal->pooled_count]);
    tpc_ring_handle(journal->ring, TPC_KIND_JOURNAL, NULL, NULL);
    tpc_ring_remove_turn_hook(journal->ring, journal_turn, journal);
    free(journal);
    return 0;
}

int tpc_journal_reopen(tpc_journal *journal, int32_t descriptor, int32_t mode, uint64_t run_id) {
    if (!journal->error || run_id == journal->params.run_id || descriptor < 0 || mode < TPC_JOURNAL_DIRECT_DSYNC ||
        mode > TPC_JOURNAL_BUFFERED_FDATASYNC)
        return -EINVAL;
    if (journal->in_flight || !journal->failure_told)
        return -EBUSY;
    journal->params.descriptor = descriptor;
    journal->params.mode = mode;
    journal->params.run_id = run_id;
    journal->error = 0;
    journal->failure_told = false;
    return 0;
}

int tpc_journal_recycle(tpc_journal *journal, uint64_t position) {
    if (position < journal->position_recycled || position > journal->durable.position)
        return -EINVAL;
    journal->position_recycled = position;
    journal->straight_bytes_recycled = journal->straight_bytes_at_place;
    journal->space_told = false;
    return 0;
}

/*
 * Positions map to blocks from position_base on. A longer region keeps the mapping of everything in use only when that lies
 * in one lap and does not end exactly where the next lap would begin, so that is waited for.
 */
int tpc_journal_extend(tpc_journal *journal, uint64_t region_blocks) {
    uint64_t old = journal->params.region_blocks;
    if (region_blocks < old)
        return -EINVAL;
    uint64_t lap = journal->position_base + (journal->position_sealed - journal->position_base) / old * old;
    if (journal->position_recycled < lap || journal->position_sealed == lap)
        return -EAGAIN;
    journal->position_base = lap;
    journal->params.region_blocks = region_blocks;
    journal->params.space_event_blocks = (region_blocks * 3 + 7) / 8;
    return 0;
}

void tpc_journal_listen(tpc_journal *journal, tpc_journal_listener listener) { journal->listener = listener; }

int tpc_journal_health(const tpc_journal *journal) { return journal->error ? -EIO : 0; }

uint64_t tpc_journal_durable_sequence(const tpc_journal *journal) { return journal->sequence_first - 1; }

void tpc_journal_watch(tpc_journal *journal, uint64_t sequence) {
    if (sequence > journal->watched)
        journal->watched = sequence;
}

void tpc_journal_durable_place(tpc_journal *journal, tpc_journal_place *place) {
    *place = journal->durable;
    journal->straight_bytes_at_place = journal->straight_bytes_durable;
}

void tpc_journal_get_statistics(const tpc_journal *journal, tpc_journal_statistics *statistics) {
    *statistics = journal->statistics;
    statistics->sequence_next = journal->sequence_next;
    statistics->durable_sequence = journal->sequence_first - 1;
    statistics->blocks_used = blocks_used(journal);
    statistics->region_blocks = journal->params.region_blocks;
    statistics->commits_in_flight = journal->in_flight;
    statistics->commits_waiting = (uint32_t)(journal->sequence_next - journal->sequence_submit);
    statistics->error = journal->error;
    statistics->mode = (uint32_t)journal->params.mode;
}

int tpc_journal_set_mutants(tpc_journal *journal, uint32_t mutants) {
#ifdef TPC_MUTANTS
    journal->mutants = mutants;
    return 0;
#else
    (void)journal, (void)mutants;
    return -ENOTSUP;
#endif
}
