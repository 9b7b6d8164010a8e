/*
 * The journal: group commit into whole blocks. Here is its life; queue, policy and writer have their files.
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
 *   OPEN -> CLOSED -> [IN_PLACE -> PROVEN ->] SUBMITTED -> WRITTEN -> gone (durable)
 *                      -> FAILED                         -> FAILED
 *
 * A commit with batches that are written in place (in_place.h) first writes these to their segments (IN_PLACE). It is sealed
 * and submitted when all of that is on the disk (PROVEN), so that its entries prove it; younger commits wait so long.
 *
 * Durable is the contiguous prefix of WRITTEN. A result that is not the full length is a failure. From the first
 * failure nothing more is submitted or accepted. Commits older than the failed one may still become durable; when no
 * write is in flight any more, the failed commit and all younger ones are dropped, and the listener is told. Their
 * bytes may be on the disk all the same: the reopened journal continues after the last durable commit, with a new run
 * id, over the same blocks, and the plane's first entries then say what is cut. Its first commit has one block, so that
 * it is certainly placed where the first failed one may lie: a longer one could be placed at the region's beginning, and
 * recovery, which looks behind the last commit first, would find the failed one there, whole and with the right number.
 *
 * Positions count blocks and never wrap; block = first of the region + position % region_blocks. A commit that
 * would reach over the region's end starts at its first block, and the blocks left out count as used. One block always
 * stays free, so that "all used" and "none used" differ on the disk.
 *
 * Pace. Blocks come back when a checkpoint ends, all at once, and how long one takes nobody knows before: the first one behind
 * the first writes of thousands of partitions takes seconds. Were the journal filled at full speed until then, nobody would be
 * answered for the rest. So from the moment on at which space is wanted, a commit is followed by a pause as long as its part of
 * the blocks that are left, of half the time for which space has been wanted: the checkpoint is taken to last half as long
 * again. What is left then falls with the square of time and never comes to nothing, and the pauses are shorter than the
 * commits themselves while there is plenty. A pause is short (TPC_JOURNAL_PACE_NS_MAX), so clients are answered slowly rather
 * than not at all; they are held back by not being answered, as by a slow disk. In-place writes are not paced.
 */
#include "journal_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COMMIT_BYTES_DEFAULT (1u << 20)
#define IN_PLACE_BYTES_DEFAULT (256u << 20)
#define BUFFERS_POOLED_DEFAULT 4u

static bool params_valid(const tpc_journal_params *params) {
    uint64_t region_end = TPC_JOURNAL_REGION_BLOCK_FIRST + params->region_blocks;
    return params->descriptor >= 0 && params->mode >= TPC_JOURNAL_DIRECT_DSYNC &&
           params->mode <= TPC_JOURNAL_BUFFERED_FDATASYNC && params->region_blocks >= 2 && params->sequence_next >= 1 &&
           params->block_next >= TPC_JOURNAL_REGION_BLOCK_FIRST && params->block_next <= region_end &&
           params->block_first >= TPC_JOURNAL_REGION_BLOCK_FIRST && params->block_first <= region_end &&
           params->commits_in_flight_max <= TPC_JOURNAL_COMMITS_MAX &&
           params->buffers_pooled_max <= BUFFERS_POOLED_MAX && params->commit_bytes_max <= TPC_JOURNAL_ENTRY_BYTES_MAX;
}

/* One that may still grow says so early: as long as it is small, checkpoints follow each other closely. */
static uint64_t space_event_blocks(const tpc_journal_params *params) {
    uint64_t eighths = params->region_blocks < params->region_blocks_max ? 1 : 3;
    return (params->region_blocks * eighths + 7) / 8;
}

void tpc_journal_want_space_at(tpc_journal *journal, uint64_t blocks) {
    bool may_grow = journal->params.region_blocks < journal->params.region_blocks_max;
    journal->params.space_event_blocks = blocks && !may_grow ? blocks : space_event_blocks(&journal->params);
}

static void set_defaults(tpc_journal_params *params) {
    if (!params->commits_in_flight_max) params->commits_in_flight_max = 1;
    if (!params->commit_bytes_max) params->commit_bytes_max = COMMIT_BYTES_DEFAULT;
    if (!params->buffers_pooled_max) params->buffers_pooled_max = BUFFERS_POOLED_DEFAULT;
    if (!params->in_place_bytes_max) params->in_place_bytes_max = IN_PLACE_BYTES_DEFAULT;
    if (params->region_blocks_max < params->region_blocks) params->region_blocks_max = params->region_blocks;
    if (!params->space_event_blocks) params->space_event_blocks = space_event_blocks(params);
}

int tpc_journal_open(tpc_ring *ring, const tpc_journal_params *params, tpc_journal **out) {
    if (!params_valid(params)) return -EINVAL;
    tpc_journal *journal = calloc(1, sizeof *journal);
    if (!journal) return -ENOMEM;
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
    journal->durable = (tpc_journal_cursor){.sequence = params->sequence_next,
                                            .block = journal_block_at(journal, journal->position_sealed),
                                            .position = journal->position_sealed,
                                            .previous_crc = params->previous_crc};
    int result = tpc_ring_handle(ring, TPC_KIND_JOURNAL, journal_completion, journal);
    if (result == 0) result = tpc_ring_add_turn_hook(ring, TPC_TURN_FIRST, journal_turn, journal);
    if (result == 0 && (result = tpc_ring_add_turn_hook(ring, TPC_TURN_LAST, journal_turn, journal)) < 0)
        tpc_ring_remove_turn_hook(ring, journal_turn, journal);
    if (result < 0) {
        free(journal);
        return result;
    }
    journal_verify(journal);
    *out = journal;
    return 0;
}

int tpc_journal_close(tpc_journal *journal) {
    if (journal->in_flight) return -EBUSY;
    for (uint64_t sequence = journal->sequence_first; sequence < journal->sequence_next; sequence++)
        journal_drop_data(journal, journal_commit_of(journal, sequence));
    tpc_in_place_pool_free(&journal->in_place_pool);
    while (journal->pooled_count) free(journal->pooled[--journal->pooled_count]);
    tpc_ring_handle(journal->ring, TPC_KIND_JOURNAL, NULL, NULL);
    tpc_ring_remove_turn_hook(journal->ring, journal_turn, journal);
    free(journal);
    return 0;
}

/* Rule: After a failure the journal's first commit is placed over the first one that failed. See also
 * native/journal/journal_writer.c. Held by tests/engine/test_journal.py. */
int tpc_journal_reopen(tpc_journal *journal, int32_t descriptor, int32_t mode, uint64_t run_id) {
    if (!journal->error || run_id == journal->params.run_id || descriptor < 0 || mode < TPC_JOURNAL_DIRECT_DSYNC ||
        mode > TPC_JOURNAL_BUFFERED_FDATASYNC)
        return -EINVAL;
    if (journal->stopped) return -ESHUTDOWN;
    if (journal->in_flight || !journal->failure_told) return -EBUSY;
    JOURNAL_INVARIANT(journal, journal->sequence_first == journal->sequence_next); /* what was void was dropped ... */
    JOURNAL_INVARIANT(journal, journal->position_sealed == journal->durable.position); /* ... with its blocks ... */
    JOURNAL_INVARIANT(journal, journal->crc_sealed == journal->durable.previous_crc);  /* ... and its chain */
    if (journal_open_commit(journal, BLOCK_BYTES) < 0) return -ENOMEM;
    journal->params.descriptor = descriptor;
    journal->params.mode = mode;
    journal->params.run_id = run_id;
    journal->error = 0;
    journal->failure_told = false;
    return 0;
}

int tpc_journal_recycle(tpc_journal *journal, uint64_t position) {
    if (position < journal->position_recycled || position > journal->durable.position) return -EINVAL;
    journal->position_recycled = position;
    JOURNAL_INVARIANT(journal, journal->in_place_bytes_recycled <= journal->in_place_bytes_at_cursor);
    journal->in_place_bytes_recycled = journal->in_place_bytes_at_cursor;
    journal->space_told = journal->space_refused = false;
    journal->space_wanted_ns = journal->paced_until_ns = 0;
    journal_verify(journal);
    return 0;
}

/*
 * Positions map to blocks from position_base on. A longer region keeps the mapping of everything in use only when that lies
 * in one lap and does not end exactly where the next lap would begin, so that is waited for.
 */
int tpc_journal_extend(tpc_journal *journal, uint64_t region_blocks) {
    uint64_t old = journal->params.region_blocks;
    if (region_blocks < old) return -EINVAL;
    uint64_t lap = journal->position_base + (journal->position_sealed - journal->position_base) / old * old;
    if (journal->position_recycled < lap || journal->position_sealed == lap) return -EAGAIN;
    journal->position_base = lap;
    journal->params.region_blocks = region_blocks;
    JOURNAL_INVARIANT(journal, journal->durable.block == journal_block_at(journal, journal->durable.position));
    journal->params.space_event_blocks = space_event_blocks(&journal->params);
    if (journal->blocks_wanted <= region_blocks) journal->blocks_wanted = 0;
    journal->space_told = journal->space_refused = false;
    journal->space_wanted_ns = journal->paced_until_ns = 0;
    return 0;
}

void tpc_journal_listen(tpc_journal *journal, tpc_journal_listener listener) { journal->listener = listener; }

int tpc_journal_health(const tpc_journal *journal) { return journal->error ? -EIO : 0; }

bool tpc_journal_is_writing(const tpc_journal *journal) {
    return journal->in_flight - journal->in_place_in_flight >= journal->params.commits_in_flight_max;
}

uint64_t tpc_journal_durable_sequence(const tpc_journal *journal) {
    return journal_has_mutant(journal, TPC_MUTANT_EARLY_ACKNOWLEDGE) ? journal->sequence_submit - 1
                                                                     : journal->sequence_first - 1;
}

void tpc_journal_stop(tpc_journal *journal) {
    journal->stopped = true;
    journal->paced_until_ns = 0;
}

int tpc_journal_settled(const tpc_journal *journal) {
    if (journal->error) return -EIO;
    return journal->sequence_first == journal->sequence_next && !journal->durable_untold;
}

void tpc_journal_watch(tpc_journal *journal, uint64_t sequence) {
    if (sequence > journal->watched) journal->watched = sequence;
}

void tpc_journal_durable_cursor(tpc_journal *journal, tpc_journal_cursor *place) {
    JOURNAL_INVARIANT(journal, journal->durable.position >= journal->position_recycled); /* a reader finds it there */
    JOURNAL_INVARIANT(journal, journal->durable.block == journal_block_at(journal, journal->durable.position));
    *place = journal->durable;
    place->is_end = journal->stopped && tpc_journal_settled(journal) == 1;
    journal->in_place_bytes_at_cursor = journal->in_place_bytes_durable;
}

void tpc_journal_get_statistics(const tpc_journal *journal, tpc_journal_statistics *statistics) {
    *statistics = journal->statistics;
    statistics->sequence_next = journal->sequence_next;
    statistics->durable_sequence = journal->sequence_first - 1;
    statistics->blocks_used = journal_blocks_used(journal);
    statistics->region_blocks = journal->params.region_blocks;
    statistics->blocks_wanted = journal->blocks_wanted;
    statistics->space_event_blocks = journal->params.space_event_blocks;
    statistics->space_refused = journal->space_refused;
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
