/* The journal's writer: seals commits, hands them to the kernel, and follows them until they are durable or have failed. */
#include "journal_state.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "io.h"
#include "recorder.h"

/* The two completions of a linked write and fdatasync are told apart by the low bit of the index. In-place writes follow. */
enum { PACE_COUNTED_NS_MIN = 1000000 }; /* shorter ones are no longer than the commit itself */
enum { PART_WRITE = 0, PART_FLUSH = 1, IN_PLACE_INDEX = 2 * TPC_JOURNAL_COMMITS_MAX };

/* ---- sealing and submission ---- */

static void seal(tpc_journal *journal, uint64_t sequence) {
    commit *sealed = journal_commit_of(journal, sequence);
    uint32_t blocks = journal_blocks_of(sealed->bytes);
    JOURNAL_INVARIANT(journal, sequence == journal->sequence_submit); /* each names the one before it */
    JOURNAL_INVARIANT(journal, sealed->bytes >= sizeof(tpc_journal_commit_header));
    JOURNAL_INVARIANT(journal, blocks * BLOCK_BYTES <= sealed->capacity);
    memset(sealed->data + sealed->bytes, 0, blocks * BLOCK_BYTES - sealed->bytes);
    tpc_journal_commit_header header = {.magic = TPC_JOURNAL_MAGIC,
                                        .format_version = TPC_JOURNAL_FORMAT_VERSION,
                                        .run_id = journal->params.run_id,
                                        .sequence = sequence,
                                        .durable_sequence = journal->sequence_first - 1,
                                        .submitted_ms = (uint64_t)tpc_io.wall_ms(),
                                        .previous_crc = journal->crc_sealed,
                                        .commit_bytes = sealed->bytes,
                                        .entries_count = sealed->entries_count};
    memcpy(header.journal_id, journal->params.journal_id, sizeof header.journal_id);
    memcpy(sealed->data, &header, sizeof header);
    sealed->crc = tpc_crc32c(0, sealed->data, sealed->bytes);
    memcpy(sealed->data + offsetof(tpc_journal_commit_header, crc), &sealed->crc, sizeof sealed->crc);
    sealed->position = journal_commit_position(journal, journal->position_sealed, blocks);
    sealed->position_end = sealed->position + blocks;
    journal->position_sealed = sealed->position_end;
    journal->crc_sealed = sealed->crc;
}

static uint64_t user_data_of(uint64_t sequence, uint32_t part) {
    return tpc_user_data(TPC_KIND_JOURNAL, (uint32_t)sequence,
                         (uint32_t)(sequence % TPC_JOURNAL_COMMITS_MAX) * 2 + part);
}

/* What the kernel is about to be given: whole, aligned, where a reader looks for it, over nothing that counts. */
static void verify_sealed(const tpc_journal *journal, const commit *sealed) {
    uint64_t blocks = sealed->position_end - sealed->position;
    JOURNAL_INVARIANT(journal, (uintptr_t)sealed->data % BLOCK_BYTES == 0);
    JOURNAL_INVARIANT(journal, blocks == journal_blocks_of(sealed->bytes));
    JOURNAL_INVARIANT(journal, sealed->position >= journal->durable.position);
    JOURNAL_INVARIANT(journal, sealed->position_end < journal->position_recycled + journal->params.region_blocks);
    JOURNAL_INVARIANT(journal, journal_block_at(journal, sealed->position) + blocks <=
                                   TPC_JOURNAL_REGION_BLOCK_FIRST + journal->params.region_blocks);
}

static void record_submission(tpc_journal *journal, commit *written, uint32_t length, bool dsync) {
    uint32_t flags = dsync ? TPC_DISK_RECORD_DSYNC : 0;
    int64_t offset = (int64_t)(journal_block_at(journal, written->position) * BLOCK_BYTES);
    written->record_tokens[PART_WRITE] =
        tpc_disk_record_write(journal->params.descriptor, written->data, length, offset, flags);
    if (written->completions_left == 2)
        written->record_tokens[PART_FLUSH] =
            tpc_disk_record_flush(journal->params.descriptor, TPC_DISK_RECORD_DATA_ONLY | TPC_DISK_RECORD_LINKED);
}

/* See journal.c. */
static void pace(tpc_journal *journal, uint32_t blocks) {
    if (!journal->space_wanted_ns || journal->stopped) return;
    int64_t now_ns = tpc_ring_now_ns(journal->ring);
    uint64_t used = journal_blocks_used(journal), region = journal->params.region_blocks;
    int64_t pause_ns =
        tpc_journal_pace_ns(blocks, used < region ? region - used : 0, now_ns - journal->space_wanted_ns);
    JOURNAL_INVARIANT(journal, pause_ns >= 0 && pause_ns <= TPC_JOURNAL_PACE_NS_MAX);
    journal->paced_until_ns = now_ns + pause_ns;
    journal->statistics.commits_paced += pause_ns > PACE_COUNTED_NS_MIN;
}

/* Rule: Nothing acknowledged is lost by loss of power. See also tpc_broker/storage/recovery/checkpoint.py. Held by
 * tests/engine/test_flushed_writes.py, tests/durability/test_power_loss.py, tests/durability/test_crash_images.py,
 * tests/cluster/test_disks.py (of one node, a majority and all). */
/* 0, or -EAGAIN when the submission queue cannot take it now. */
static int submit(tpc_journal *journal, uint64_t sequence) {
    bool linked =
        journal->params.mode == TPC_JOURNAL_BUFFERED_FDATASYNC && !journal_has_mutant(journal, TPC_MUTANT_NO_DSYNC);
    bool dsync =
        journal->params.mode != TPC_JOURNAL_BUFFERED_FDATASYNC && !journal_has_mutant(journal, TPC_MUTANT_NO_DSYNC);
    if (tpc_ring_reserve(journal->ring, linked ? 2 : 1) < 0) return -EAGAIN;
    struct io_uring_sqe *write = tpc_ring_sqe(journal->ring, user_data_of(sequence, PART_WRITE));
    if (!write) return -EAGAIN;
    JOURNAL_INVARIANT(journal, !journal->error); /* behind a failure nothing counts until it is told */
    JOURNAL_INVARIANT(journal,
                      journal->in_flight - journal->in_place_in_flight < journal->params.commits_in_flight_max);
    seal(journal, sequence);
    commit *written = journal_commit_of(journal, sequence);
    verify_sealed(journal, written);
    JOURNAL_INVARIANT(journal, !written->in_place || written->state == TPC_COMMIT_PROVEN ||
                                   journal_has_mutant(journal, TPC_MUTANT_IN_PLACE_EARLY));
    uint32_t length = journal_blocks_of(written->bytes) * BLOCK_BYTES;
    io_uring_prep_write(write, journal->params.descriptor, written->data, length,
                        journal_block_at(journal, written->position) * BLOCK_BYTES);
    write->user_data = user_data_of(sequence, PART_WRITE);
    write->rw_flags = dsync ? RWF_DSYNC : 0;
    written->completions_left = 1;
    if (linked) {
        write->flags |= IOSQE_IO_LINK;
        struct io_uring_sqe *flush = tpc_ring_sqe(journal->ring, user_data_of(sequence, PART_FLUSH));
        JOURNAL_INVARIANT(journal, flush); /* there is room for both: a write alone would count without it */
        io_uring_prep_fsync(flush, journal->params.descriptor, IORING_FSYNC_DATASYNC);
        flush->user_data = user_data_of(sequence, PART_FLUSH);
        written->completions_left = 2;
    }
    if (written->state == TPC_COMMIT_IN_PLACE)
        written->state = TPC_COMMIT_SUBMITTED; /* a mutant's */
    else
        journal_commit_moves(written, TPC_COMMIT_SUBMIT);
    written->submitted_ns = tpc_ring_now_ns(journal->ring);
    journal->in_flight++;
    journal->sequence_submit = sequence + 1;
    journal->statistics.bytes_written += length;
    pace(journal, length / BLOCK_BYTES);
    if (__builtin_expect(tpc_recorder_on, 0)) record_submission(journal, written, length, dsync);
    return 0;
}

/* As submit(), for what the commit writes in place. */
static int submit_in_place(tpc_journal *journal, uint64_t sequence) {
    commit *placed = journal_commit_of(journal, sequence);
    JOURNAL_INVARIANT(journal, !journal->error && sequence == journal->sequence_submit);
    JOURNAL_INVARIANT(journal, placed->in_place && placed->in_place->writes_count);
    uint32_t index = IN_PLACE_INDEX + (uint32_t)(sequence % TPC_JOURNAL_COMMITS_MAX) * TPC_IN_PLACE_WRITES_MAX;
    if (placed->state != TPC_COMMIT_IN_PLACE) {
        journal_commit_moves(placed, TPC_COMMIT_ASK_IN_PLACE);
        journal->in_flight++;
        journal->in_place_in_flight++;
    }
    int result =
        tpc_in_place_submit(journal->ring, placed->in_place, tpc_user_data(TPC_KIND_JOURNAL, (uint32_t)sequence, index),
                            !journal_has_mutant(journal, TPC_MUTANT_IN_PLACE_NO_DSYNC));
    if (result == 0) journal->statistics.in_place_bytes_written += placed->in_place->bytes;
    return result;
}

/* ---- what comes next ---- */

static bool asked_whole(const commit *placed) {
    return placed->in_place->groups_count && placed->in_place->groups_submitted == placed->in_place->groups_count;
}

static enum tpc_journal_action next_action(const tpc_journal *journal) {
    tpc_journal_view view = {.commits_in_flight = journal->in_flight - journal->in_place_in_flight,
                             .commits_in_flight_max = journal->params.commits_in_flight_max,
                             .in_place_in_flight = journal->in_place_in_flight,
                             .is_waiting = journal->sequence_submit < journal->sequence_next,
                             .is_paced = tpc_ring_now_ns(journal->ring) < journal->paced_until_ns,
                             .has_failed = journal->error != 0,
                             .failure_told = journal->failure_told,
                             .in_place_early = journal_has_mutant(journal, TPC_MUTANT_IN_PLACE_EARLY)};
    if (view.is_waiting) {
        const commit *next = journal_commit_of(journal, journal->sequence_submit);
        view.state = next->state;
        view.has_in_place = next->in_place != NULL;
        view.in_place_asked = view.has_in_place && asked_whole(next);
    }
    return (enum tpc_journal_action)tpc_journal_next_action(&view);
}

static bool is_write(enum tpc_journal_action action) {
    return action == TPC_JOURNAL_WRITE_IN_PLACE || action == TPC_JOURNAL_WRITE_COMMIT;
}

/* 0, or -EAGAIN. */
static int write_next(tpc_journal *journal, enum tpc_journal_action action) {
    return (action == TPC_JOURNAL_WRITE_IN_PLACE ? submit_in_place : submit)(journal, journal->sequence_submit);
}

/* ---- telling ---- */

/* A checkpoint takes as long as the disk wants, and clients write on: three quarters of the bound are for that. */
enum { IN_PLACE_ASKED_PART = 4 };

static void tell_space(tpc_journal *journal) {
    if (journal->space_told) return;
    uint64_t used = journal_blocks_used(journal);
    if (used >= journal->params.space_event_blocks && !journal->space_wanted_ns)
        journal->space_wanted_ns = tpc_ring_now_ns(journal->ring);
    if (used < journal->params.space_event_blocks && !journal->space_refused &&
        journal->in_place_bytes - journal->in_place_bytes_recycled <
            journal->params.in_place_bytes_max / IN_PLACE_ASKED_PART)
        return;
    journal->space_told = true;
    tpc_ring_push_event(journal->ring, TPC_EVENT_JOURNAL_SPACE, 0, (int64_t)used,
                        (int64_t)journal->params.region_blocks, NULL);
}

static void tell_durable(tpc_journal *journal) {
    if (!journal->durable_untold) return;
    journal->durable_untold = false;
    uint64_t durable = journal->durable.sequence - 1;
    JOURNAL_INVARIANT(journal, durable < journal->sequence_submit);
    JOURNAL_INVARIANT(journal, durable >= journal->reported);
    if (journal->listener.durable) journal->listener.durable(journal->listener.context, durable);
    if (journal->reported < journal->watched && journal->reported < durable) {
        journal->reported = durable;
        tpc_ring_push_event(journal->ring, TPC_EVENT_JOURNAL_DURABLE, 0, (int64_t)durable, 0, NULL);
    }
}

/* ---- completions ---- */

static void retire(tpc_journal *journal, commit *done) {
    bool early = journal_has_mutant(journal, TPC_MUTANT_IN_PLACE_EARLY);
    JOURNAL_INVARIANT(journal, done == journal_commit_of(journal, journal->sequence_first));
    JOURNAL_INVARIANT(journal, done->state == TPC_COMMIT_WRITTEN && !done->error && !done->completions_left);
    JOURNAL_INVARIANT(journal, !done->in_place || (!done->in_place->groups_left && (!done->in_place->error || early)));
    JOURNAL_INVARIANT(journal, done->position >= journal->durable.position); /* behind the one that it names */
    JOURNAL_INVARIANT(journal, done->position_end <= journal->position_sealed);
    journal->durable = (tpc_journal_cursor){.sequence = ++journal->sequence_first,
                                            .block = journal_block_at(journal, done->position_end),
                                            .position = done->position_end,
                                            .previous_crc = done->crc};
    journal->statistics.commits_durable++;
    journal->in_place_bytes_durable += done->in_place ? done->in_place->bytes : 0;
    journal_drop_data(journal, done);
}

/* Everything from the oldest commit on is void; the chain goes on after the last durable one. */
static void drop_failed(tpc_journal *journal) {
    uint64_t first_failed = journal->sequence_first;
    JOURNAL_INVARIANT(journal, journal->in_flight == 0); /* the kernel reads none of the buffers */
    JOURNAL_INVARIANT(journal, journal->error && !journal->failure_told);
    JOURNAL_INVARIANT(journal, !journal->durable_untold); /* what is not dropped was answered before */
    for (uint64_t sequence = first_failed; sequence < journal->sequence_next; sequence++) {
        commit *dropped = journal_commit_of(journal, sequence);
        journal_drop_data(journal, dropped);
        journal->statistics.commits_failed++;
    }
    journal->in_place_bytes = journal->in_place_bytes_durable;
    journal->sequence_submit = journal->sequence_next = journal->sequence_first;
    journal->position_sealed = journal->durable.position;
    journal->crc_sealed = journal->durable.previous_crc;
    journal->failure_told = true;
    journal_verify(journal);
    journal->watched = journal->watched < first_failed ? journal->watched : first_failed - 1;
    if (journal->listener.failed) journal->listener.failed(journal->listener.context, first_failed, journal->error);
    tpc_ring_push_event(journal->ring, TPC_EVENT_JOURNAL_FAILED, 0, (int64_t)first_failed, journal->error, NULL);
}

/* Rule: Only the contiguous durable prefix is acknowledged. A short write is a failure. After a failure offsets and
 * sequence numbers go back. See also native/log/append.c. Held by tests/engine/test_journal.py,
 * tests/engine/test_journal_order.py, tests/engine/test_plane_produce.py. */
static void advance(tpc_journal *journal) {
    bool advanced = false;
    while (journal->sequence_first < journal->sequence_submit) {
        commit *oldest = journal_commit_of(journal, journal->sequence_first);
        if (oldest->state != TPC_COMMIT_WRITTEN || (oldest->in_place && oldest->in_place->groups_left)) /* a mutant's */
            break;
        retire(journal, oldest);
        advanced = true;
    }
    journal->durable_untold |= advanced;
    if (journal->error) tell_durable(journal);
    enum tpc_journal_action action = next_action(journal);
    if (action == TPC_JOURNAL_DROP_FAILED) drop_failed(journal);
    if (is_write(action) && journal_commit_of(journal, journal->sequence_submit)->in_place &&
        write_next(journal, action) == 0)
        tpc_ring_submit(journal->ring); /* it is large: what other completions bring would not make it cheaper */
}

static void in_place_ended(tpc_journal *journal, commit *placed) {
    JOURNAL_INVARIANT(journal, journal->in_place_in_flight > 0 && journal->in_flight > 0);
    JOURNAL_INVARIANT(journal, !placed->in_place->groups_left);
    journal->in_flight--;
    journal->in_place_in_flight--;
    int32_t error = placed->in_place->error;
    if (placed->state == TPC_COMMIT_IN_PLACE) /* else it is a mutant's */
        journal_commit_moves(placed, error ? TPC_COMMIT_FAIL : TPC_COMMIT_IN_PLACE_ENDED);
    if (error && !journal->error) journal->error = error;
    advance(journal);
}

static void in_place_completion(tpc_journal *journal, uint32_t index, int32_t result) {
    commit *placed = &journal->commits[index / TPC_IN_PLACE_WRITES_MAX];
    if (placed->in_place && tpc_in_place_completed(placed->in_place, index % TPC_IN_PLACE_WRITES_MAX, result))
        in_place_ended(journal, placed);
}

void journal_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    (void)flags;
    tpc_journal *journal = context;
    uint32_t index = (uint32_t)user_data;
    if (index >= IN_PLACE_INDEX) {
        in_place_completion(journal, index - IN_PLACE_INDEX, result);
        return;
    }
    commit *written = &journal->commits[index / 2];
    if (written->state != TPC_COMMIT_SUBMITTED || !written->completions_left) return;
    bool whole = index % 2 == PART_FLUSH ? result == 0
                                         : (int64_t)result == (int64_t)journal_blocks_of(written->bytes) * BLOCK_BYTES;
    if (__builtin_expect(tpc_recorder_on, 0)) tpc_disk_record_completed(written->record_tokens[index % 2], result);
    if (!whole && !written->error) written->error = result < 0 ? -result : EIO;
    if (--written->completions_left) return;
    JOURNAL_INVARIANT(journal, journal->in_flight > journal->in_place_in_flight);
    journal->in_flight--;
    journal->statistics.commit_spans[tpc_span_of(tpc_ring_now_ns(journal->ring) - written->submitted_ns)]++;
    journal_commit_moves(written, written->error ? TPC_COMMIT_FAIL : TPC_COMMIT_WRITE_ENDED);
    if (written->error && !journal->error) journal->error = written->error;
    advance(journal);
}

/* ---- a turn ---- */

/* In-place writes that the kernel did not take before the journal failed are not asked for any more. */
static void abandon_in_place(tpc_journal *journal) {
    commit *placed = journal_commit_of(journal, journal->sequence_submit);
    JOURNAL_INVARIANT(journal, journal->error && placed->state == TPC_COMMIT_IN_PLACE);
    if (tpc_in_place_abandon(placed->in_place)) in_place_ended(journal, placed);
}

int64_t journal_turn(void *context, int64_t now_ns) {
    tpc_journal *journal = context;
    enum tpc_journal_action action;
    bool taken = true;
    bool moved = journal->durable_untold; /* else it is as it was looked at last */
    for (; taken && is_write(action = next_action(journal)); moved = true) taken = write_next(journal, action) == 0;
    if (moved) journal_verify(journal);
    tell_durable(journal);
    if (!taken) return now_ns; /* the kernel took nothing: again at once */
    if (next_action(journal) == TPC_JOURNAL_ABANDON_IN_PLACE) abandon_in_place(journal);
    if (journal_has_mutant(journal, TPC_MUTANT_EARLY_ACKNOWLEDGE) && journal->listener.durable)
        journal->listener.durable(journal->listener.context, journal->sequence_submit - 1);
    tell_space(journal);
    bool is_paced = now_ns < journal->paced_until_ns && journal->sequence_submit < journal->sequence_next;
    return is_paced ? journal->paced_until_ns : INT64_MAX;
}
