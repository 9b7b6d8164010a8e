/*
 * The journal's inside, shared by journal_queue.c (commits that grow and wait), journal_policy.c (what is to be done next),
 * journal_writer.c (doing it: sealing, submission, completions) and journal.c (its life, and what Python asks).
 */
#ifndef TPC_JOURNAL_STATE_H
#define TPC_JOURNAL_STATE_H

#include "bytes.h"
#include "in_place.h"
#include "invariant.h"
#include "journal.h"
#include "journal_format.h"
#include "cdef/41_journal_policy.h"

#define BLOCK_BYTES TPC_JOURNAL_BLOCK_BYTES
#define BUFFERS_POOLED_MAX 64u

typedef struct {
    uint8_t *data;     /* block-aligned */
    uint32_t capacity; /* whole blocks */
    uint32_t bytes;    /* header and entries so far */
    uint32_t entries_count;
    uint32_t entry_newest; /* where its header is; 0: there is none */
    uint32_t crc;          /* once sealed */
    int32_t error;
    uint8_t state;
    uint8_t completions_left;
    uint64_t position; /* once sealed */
    uint64_t position_end;
    uint64_t record_tokens[2];
    int64_t submitted_ns;
    tpc_in_place_set *in_place; /* NULL: nothing of it is written in place */
} commit;

struct tpc_journal {
    tpc_ring *ring;
    tpc_journal_params params;
    tpc_journal_listener listener;
    commit commits[TPC_JOURNAL_COMMITS_MAX]; /* of sequence s: commits[s % TPC_JOURNAL_COMMITS_MAX] */
    uint64_t sequence_first;                 /* oldest not durable */
    uint64_t sequence_submit;                /* oldest not submitted */
    uint64_t sequence_next;                  /* one past the newest */
    uint64_t position_base;                  /* a position at the region's first block; see tpc_journal_extend() */
    uint64_t position_recycled;              /* oldest that may not be overwritten */
    uint64_t position_sealed;                /* after the youngest sealed commit */
    uint32_t crc_sealed;
    tpc_journal_cursor durable;
    uint64_t watched; /* highest sequence somebody in Python waits for */
    uint64_t reported;
    uint32_t in_flight;          /* with the one whose in-place writes are under way */
    uint32_t in_place_in_flight; /* 0 or 1 */
    tpc_in_place_pool in_place_pool;
    uint64_t in_place_bytes, in_place_bytes_durable, in_place_bytes_at_cursor, in_place_bytes_recycled;
    uint32_t mutants;
    int32_t error; /* != 0 from the first failure to the reopen */
    bool stopped;  /* nothing more is taken */
    bool failure_told;
    bool space_told;
    int64_t space_wanted_ns; /* since when more blocks are in use than there should be; 0: they are not */
    int64_t paced_until_ns;  /* no commit is submitted before */
    bool space_refused;      /* something waits for blocks since the last time some were recycled */
    uint64_t blocks_wanted;  /* the region's length that takes what was refused for sure; 0: it has that */
    bool durable_untold;     /* from the completion to the turn */
    uint32_t pooled_count;
    uint8_t *pooled[BUFFERS_POOLED_MAX];
    tpc_journal_statistics statistics;
};

/* Says where the journal stands. */
_Noreturn void journal_broken(const tpc_journal *journal, const char *condition, const char *file, int line)
    __attribute__((cold));
#define JOURNAL_INVARIANT(journal, condition) \
    (__builtin_expect(!(condition), 0) ? journal_broken((journal), #condition, __FILE__, __LINE__) : (void)0)

static inline commit *journal_commit_of(const tpc_journal *journal, uint64_t sequence) {
    JOURNAL_INVARIANT(journal, sequence - journal->sequence_first < TPC_JOURNAL_COMMITS_MAX); /* else another's place */
    return (commit *)&journal->commits[sequence % TPC_JOURNAL_COMMITS_MAX];
}

static inline uint32_t journal_blocks_of(uint32_t bytes) { return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES; }

/* Where a commit of so many blocks starts when everything before ends at `position`. */
static inline uint64_t journal_commit_position(const tpc_journal *journal, uint64_t position, uint64_t blocks) {
    uint64_t left = journal->params.region_blocks - (position - journal->position_base) % journal->params.region_blocks;
    return blocks <= left ? position : position + left;
}

static inline uint64_t journal_block_at(const tpc_journal *journal, uint64_t position) {
    JOURNAL_INVARIANT(journal, position >= journal->position_base);
    return TPC_JOURNAL_REGION_BLOCK_FIRST + (position - journal->position_base) % journal->params.region_blocks;
}

static inline bool journal_has_mutant(const tpc_journal *journal, uint32_t which) {
#ifdef TPC_MUTANTS
    return (journal->mutants & which) != 0;
#else
    (void)journal, (void)which;
    return false;
#endif
}

static inline void journal_commit_moves(commit *moved, enum tpc_commit_event event) {
    int state = tpc_commit_next_state(moved->state, event);
    TPC_INVARIANT(state >= 0, "a commit of the journal in state %u has no event %d", moved->state, (int)event);
    moved->state = (uint8_t)state;
}

/* journal_queue.c */
int journal_open_commit(tpc_journal *journal, uint32_t capacity);
void journal_drop_data(tpc_journal *journal, commit *done); /* its buffer, and what it held for in-place writes */
uint64_t journal_blocks_used(const tpc_journal *journal);
/* What holds whenever nobody is in the midst of changing it. Blocks from the recycled position on are not written again. */
void journal_verify(const tpc_journal *journal);

/* journal_writer.c */
int64_t journal_turn(void *journal, int64_t now_ns);
void journal_completion(void *journal, uint64_t user_data, int32_t result, uint32_t flags);

#endif
