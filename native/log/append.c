/*
 * Appends: from a validated batch to the journal and the tail, and what becomes of them.
 *
 * An append moves log_end_offset and the producer's state at once, so that the next one in the same turn follows it. It
 * leaves a tpc_undo_record behind. When the journal says durable, partitions move (commit.c) and the records go, oldest first.
 * When the journal fails, they are undone, newest first, which brings every end and every producer back to the durable
 * watermark; what was undone is remembered as a cut per partition, because its bytes may be on the disk all the same. Their
 * offsets are given out again, so behind its cut each partition that is led here begins a new leader epoch: no offset of an
 * epoch ever has two records. A replicated partition has no role any more; its next leader begins an epoch.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "journal_format.h"
#include "plane.h"
#include "wire.h"

enum { AT_LEADER_EPOCH = 12 };      /* in a stored batch: native/bytes/batch.c */
enum { EPOCH_PER_TRANSACTION = 2 }; /* transaction.version */

/* ---- doing ---- */

static int stamp(const tpc_partition *partition, const tpc_append_batch *batch, tpc_batch_header *header) {
    int result = 0;
    if (batch->is_stamped) return 0;
    if (batch->stamp_time) {
        result = tpc_batch_stamp_append_time(batch->batch, batch->bytes, partition->log_end_offset,
                                             partition->leader_epoch, batch->now_ms);
        header->max_timestamp = batch->now_ms;
    } else {
        if (batch->set_max_timestamp) {
            result = tpc_batch_set_max_timestamp(batch->batch, batch->bytes, batch->max_timestamp);
            header->max_timestamp = batch->max_timestamp;
        }
        tpc_batch_stamp(batch->batch, partition->log_end_offset, partition->leader_epoch);
    }
    return result;
}

static void undo_link(tpc_plane *plane, tpc_partition *partition, tpc_undo_record *undo) {
    TPC_HOLDS(!plane->undo_first == !plane->undo_last && !plane->undo_first == !plane->undo_count);
    TPC_PARTITION_INVARIANT(partition, !plane->undo_last || plane->undo_last->sequence <= undo->sequence);
    TPC_PARTITION_INVARIANT(partition, undo->base_offset >= partition->durable_offset);
    undo->previous = plane->undo_last;
    undo->next = NULL;
    *(plane->undo_last ? &plane->undo_last->next : &plane->undo_first) = undo;
    plane->undo_last = undo;
    plane->undo_count++;
    partition->appends_undurable++;
    partition->undo_newest = undo;
}

static void undo_free(tpc_plane *plane, tpc_undo_record *undo) {
    if (undo->producer) tpc_pool_give(&plane->producer_states, undo->producer);
    tpc_pool_give(&plane->undo_records, undo);
}

/* Memory for what it takes to undo an append: with the producer as it is now, if there is one. */
static tpc_undo_record *undo_take(tpc_plane *plane, const tpc_partition *partition, const tpc_batch_header *header) {
    tpc_undo_record *undo = tpc_pool_take(&plane->undo_records);
    if (!undo) return NULL;
    undo->producer = NULL;
    const tpc_producer_state *known =
        header->producer_id >= 0 ? tpc_producers_find(&partition->producers, header->producer_id) : NULL;
    if (!known) return undo;
    undo->producer = tpc_pool_take(&plane->producer_states);
    if (!undo->producer) {
        undo_free(plane, undo);
        return NULL;
    }
    *undo->producer = *known;
    return undo;
}

/* Remembers an append; takes the memory. */
static void undo_keep(tpc_plane *plane, tpc_partition *partition, tpc_undo_record *undo, const tpc_tail_batch *batch,
                      int64_t producer_id, int32_t leader_epoch) {
    tpc_undo_record *newest = partition->undo_newest;
    if (newest && producer_id < 0 && newest->producer_id < 0 && newest->sequence == batch->sequence &&
        newest->next_offset == batch->base_offset && newest->leader_epoch == leader_epoch) {
        TPC_PARTITION_INVARIANT(partition, newest->handle == partition->handle && partition->appends_undurable);
        newest->next_offset = batch->next_offset;
        newest->bytes += batch->slice.length;
        newest->appends++;
        undo_free(plane, undo);
        return;
    }
    undo->handle = partition->handle;
    memcpy(undo->topic_id, partition->topic_id, sizeof undo->topic_id);
    undo->index = partition->index;
    undo->leader_epoch = leader_epoch;
    undo->base_offset = batch->base_offset;
    undo->next_offset = batch->next_offset;
    undo->bytes = batch->slice.length;
    undo->sequence = batch->sequence;
    undo->appends = 1;
    undo->producer_id = producer_id;
    undo_link(plane, partition, undo);
}

/* Silent producers are forgotten before the table would grow: so it is bounded by those that write within the expiry. */
static int reserve_producer(tpc_plane *plane, tpc_partition *partition, const tpc_batch_header *header) {
    if (tpc_producers_full(&partition->producers) && plane->params.producer_expiry_ms > 0)
        tpc_partition_expire_producers(plane, partition->handle);
    if (plane->producers_max && plane->producers_count >= plane->producers_max &&
        !tpc_producers_find(&partition->producers, header->producer_id))
        tpc_plane_make_room_for_producer(plane);
    return tpc_producers_reserve(&partition->producers, header);
}

static int reserve(tpc_plane *plane, tpc_partition *partition, const tpc_append_batch *batch,
                   const tpc_batch_header *header) {
    if (partition->bytes_admitted < batch->bytes) return -ENOSPC;
    int result = tpc_tail_reserve(plane, partition, batch->bytes);
    if (result == 0 && header->producer_id >= 0) result = reserve_producer(plane, partition, header);
    return result;
}

static void use_room(tpc_plane *plane, tpc_partition *partition, uint32_t bytes) {
    if (partition->bytes_admitted == INT64_MAX) return;
    partition->bytes_admitted -= bytes;
    TPC_PARTITION_INVARIANT(partition, partition->bytes_admitted >= 0);
    if (partition->bytes_admitted >= partition->room_low_bytes) return;
    if (!tpc_ring_push_event(plane->ring, TPC_EVENT_ROOM_LOW, partition->handle, partition->bytes_admitted, 0, NULL))
        partition->room_low_bytes = 0;
}

/* What is about to be journalled: its bytes say what the log says of them. */
static void verify_stamped(const tpc_partition *partition, const tpc_append_batch *batch, const tpc_tail_batch *kept) {
    int32_t epoch = (int32_t)wire_u32(batch->batch + AT_LEADER_EPOCH);
    TPC_PARTITION_INVARIANT(partition, (int64_t)wire_u64(batch->batch) == kept->base_offset);
    TPC_PARTITION_INVARIANT(partition, kept->base_offset < kept->next_offset);
    TPC_PARTITION_INVARIANT(partition,
                            batch->is_stamped ? epoch <= partition->leader_epoch : epoch == partition->leader_epoch);
}

/* What the batch, which the log ends with now, makes of its producer. */
static void take_producer(tpc_plane *plane, tpc_partition *partition, const tpc_append_batch *batch,
                          const tpc_batch_header *header, int64_t base_offset) {
    tpc_producers_accept(&partition->producers, header, batch->marker, base_offset, tpc_plane_monotonic_ms(plane));
    if (batch->marker && batch->marker->kind == TPC_CONTROL_ABORT) tpc_aborted_bound(plane, partition);
}

int tpc_append_batch_to(tpc_plane *plane, tpc_partition *partition, const tpc_append_batch *batch,
                        tpc_batch_header *header, tpc_append_result *result) {
    int error = reserve(plane, partition, batch, header);
    if (error < 0) return error;
    tpc_undo_record *undo = undo_take(plane, partition, header);
    if (!undo) return -ENOMEM;
    tpc_tail_batch kept = {.slice = {.frame = batch->frame, .data = batch->batch, .length = batch->bytes},
                           .base_offset = partition->log_end_offset,
                           .next_offset = partition->log_end_offset + header->last_offset_delta + 1};
    error = stamp(partition, batch, header);
    if (error == 0) verify_stamped(partition, batch, &kept);
    tpc_in_place_batch placed = {.base_offset = kept.base_offset,
                                 .next_offset = kept.next_offset,
                                 .frame = batch->frame,
                                 .batch = batch->batch,
                                 .bytes = batch->bytes};
    bool in_place = partition->in_place_window && error == 0 && tpc_in_place_window_takes(plane, partition, &placed);
    if (in_place)
        error = tpc_in_place_window_append(plane, partition, &placed, &kept.sequence);
    else if (error == 0)
        error = tpc_journal_append(plane->journal, TPC_JOURNAL_APPEND, partition->topic_id, partition->index,
                                   kept.base_offset, kept.next_offset, batch->batch, batch->bytes, &kept.sequence);
    if (error < 0) {
        undo_free(plane, undo);
        if (!batch->is_stamped) tpc_batch_stamp(batch->batch, 0, -1); /* as the client sent it, for another try */
        return error;
    }
    TPC_PARTITION_INVARIANT(partition, kept.sequence > tpc_journal_durable_sequence(plane->journal));
    TPC_PARTITION_INVARIANT(partition, batch->is_stamped || partition->leader_epoch > partition->spent_epoch);
    kept.in_place_block = placed.first_block;
    kept.in_place_blocks = placed.blocks;
    tpc_tail_add(plane, partition, &kept);
    if (partition->in_place_window) tpc_in_place_window_follow(partition, &placed);
    undo_keep(plane, partition, undo, &kept, header->producer_id,
              batch->is_stamped ? header->partition_leader_epoch : partition->leader_epoch);
    partition->log_end_offset = kept.next_offset;
    TPC_PARTITION_INVARIANT(partition, tpc_tail_newest(partition)->sequence == kept.sequence);
    if (header->producer_id >= 0) take_producer(plane, partition, batch, header, kept.base_offset);
    use_room(plane, partition, batch->bytes);
    tpc_partition_verify(partition);
    if (partition->is_replicated && partition->role == TPC_ROLE_LEADER)
        plane->replication->appended(plane, partition, batch->bytes);
    plane->statistics.appends++;
    plane->statistics.append_bytes += batch->bytes;
    partition->use.appends++;
    partition->use.append_bytes += batch->bytes;
    *result = (tpc_append_result){.base_offset = kept.base_offset,
                                  .next_offset = kept.next_offset,
                                  .append_ms = batch->stamp_time ? batch->now_ms : -1,
                                  .sequence = kept.sequence,
                                  .leader_epoch = partition->leader_epoch};
    return 0;
}

/* ---- the broker's own appends ---- */

int tpc_append_check_batches(const uint8_t *batches, uint32_t bytes, uint32_t *count) {
    for (uint32_t position = 0; position < bytes; ++*count) {
        tpc_batch_header header;
        if (tpc_batch_header_read(batches + position, bytes - position, &header) < 0 || header.last_offset_delta < 0)
            return TPC_ERROR_CORRUPT_MESSAGE;
        uint32_t covered = (uint32_t)header.batch_bytes - 21;
        if (tpc_crc32c(0, batches + position + 21, covered) != header.crc) return TPC_ERROR_CORRUPT_MESSAGE;
        position += (uint32_t)header.batch_bytes;
    }
    return *count ? TPC_ERROR_NONE : TPC_ERROR_INVALID_RECORD;
}

int tpc_append_fits_journal(const tpc_plane *plane, const uint8_t *batches, uint32_t bytes, uint32_t count) {
    uint32_t few[16], *lengths = count <= 16 ? few : malloc(count * sizeof *lengths);
    if (!lengths) return -ENOMEM;
    uint32_t filled = 0;
    for (uint32_t position = 0; position < bytes; position += lengths[filled++]) {
        tpc_batch_header header;
        tpc_batch_header_read(batches + position, bytes - position, &header);
        lengths[filled] = (uint32_t)header.batch_bytes;
    }
    TPC_HOLDS(filled == count); /* it was counted in the same bytes */
    int result = tpc_journal_would_fit(plane->journal, lengths, filled);
    if (lengths != few) free(lengths);
    return result;
}

const tpc_control_marker *tpc_append_marker(const uint8_t *batch, tpc_batch_header *header,
                                            tpc_control_marker *marker) {
    if (!(header->attributes & TPC_BATCH_IS_CONTROL)) return NULL;
    if (tpc_control_read(batch, header, marker)) return marker;
    header->producer_id = -1;
    return NULL;
}

int tpc_plane_append(tpc_plane *plane, uint64_t handle, const uint8_t *batches, uint32_t bytes,
                     tpc_append_result *result) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (partition->role != TPC_ROLE_LEADER) return -EPERM;
    uint32_t count = 0;
    *result = (tpc_append_result){.base_offset = partition->log_end_offset, .append_ms = -1};
    result->error_code = tpc_append_check_batches(batches, bytes, &count);
    if (!result->error_code) result->error_code = plane->replication->refusal(partition, TPC_ACKS_ALL);
    if (result->error_code) return 0;
    if (partition->bytes_admitted < bytes) return -ENOSPC;
    int error = tpc_append_fits_journal(plane, batches, bytes, count);
    if (error < 0) return error;
    tpc_frame *frame = tpc_frame_new_forced(plane->budget, bytes);
    if (!frame) return -ENOMEM;
    memcpy(frame->data, batches, bytes);
    int64_t base_offset = partition->log_end_offset;
    for (uint32_t position = 0; position < bytes && error == 0;) {
        tpc_batch_header header;
        tpc_batch_header_read(frame->data + position, bytes - position, &header);
        tpc_control_marker marker;
        tpc_append_batch batch = {.frame = frame,
                                  .batch = frame->data + position,
                                  .bytes = (uint32_t)header.batch_bytes,
                                  .stamp_time = (partition->flags & TPC_PARTITION_LOG_APPEND_TIME) != 0,
                                  .now_ms = tpc_plane_now_ms(plane),
                                  .marker = tpc_append_marker(frame->data + position, &header, &marker)};
        error = tpc_append_batch_to(plane, partition, &batch, &header, result);
        position += batch.bytes;
    }
    tpc_frame_release(frame);
    TPC_PARTITION_INVARIANT(partition, error || result->next_offset == partition->log_end_offset);
    if (error == 0) result->base_offset = base_offset;
    return error;
}

/* Rule: A marker is taken of no coordinator that another one has followed, and of no epoch of the producer that is over: from
 * version 2 on each transaction has an epoch of its own. Where none is open it may be the last one again. Held by
 * tests/engine/test_plane_transactions.py. */
static int16_t judge_marker(const tpc_partition *partition, int64_t producer_id, int16_t producer_epoch,
                            int32_t coordinator_epoch, int16_t transaction_version) {
    const tpc_producer_state *known = tpc_producers_find(&partition->producers, producer_id);
    if (!known) return TPC_ERROR_NONE;
    if (coordinator_epoch < known->coordinator_epoch) return TPC_ERROR_TRANSACTION_COORDINATOR_FENCED;
    if (producer_epoch < known->producer_epoch) return TPC_ERROR_INVALID_PRODUCER_EPOCH;
    bool is_of_open = transaction_version >= EPOCH_PER_TRANSACTION && known->transaction;
    return is_of_open && producer_epoch == known->producer_epoch ? TPC_ERROR_INVALID_PRODUCER_EPOCH : TPC_ERROR_NONE;
}

int tpc_plane_append_marker(tpc_plane *plane, uint64_t handle, int64_t producer_id, int16_t producer_epoch,
                            int32_t coordinator_epoch, int commits, int16_t transaction_version,
                            tpc_append_result *result) {
    const tpc_partition *partition = tpc_partition_of(plane, handle);
    tpc_control_marker marker = {commits ? TPC_CONTROL_COMMIT : TPC_CONTROL_ABORT, coordinator_epoch};
    uint8_t batch[TPC_CONTROL_BATCH_BYTES];
    if (!partition) return -ENOENT;
    if (partition->role != TPC_ROLE_LEADER) return -EPERM;
    if (producer_id < 0 || producer_epoch < 0) return -EINVAL;
    if (partition->producers_stale) return -EAGAIN;
    *result = (tpc_append_result){.base_offset = partition->log_end_offset, .append_ms = -1};
    result->error_code = judge_marker(partition, producer_id, producer_epoch, coordinator_epoch, transaction_version);
    if (result->error_code) return 0;
    tpc_control_build(batch, &marker, producer_id, producer_epoch, tpc_plane_now_ms(plane));
    return tpc_plane_append(plane, handle, batch, sizeof batch, result);
}

/* ---- their fate ---- */

static void undo_unlink(tpc_plane *plane, tpc_undo_record *undo) {
    TPC_HOLDS(plane->undo_count > 0);
    TPC_HOLDS((undo->previous ? undo->previous->next : plane->undo_first) == undo);
    TPC_HOLDS((undo->next ? undo->next->previous : plane->undo_last) == undo);
    *(undo->previous ? &undo->previous->next : &plane->undo_first) = undo->next;
    *(undo->next ? &undo->next->previous : &plane->undo_last) = undo->previous;
    plane->undo_count--;
    undo_free(plane, undo);
}

static void partition_forgets(tpc_partition *partition, const tpc_undo_record *undo) {
    TPC_PARTITION_INVARIANT(partition, partition->appends_undurable > 0);
    partition->appends_undurable--;
    if (partition->undo_newest == undo) partition->undo_newest = NULL;
}

static void forget_truncations(tpc_plane *plane, uint64_t durable_sequence) {
    for (tpc_truncation **at = &plane->truncations; *at;) {
        tpc_truncation *one = *at;
        if (one->sequence > durable_sequence) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        free(one);
    }
}

static void forget_adoptions(tpc_plane *plane, uint64_t durable_sequence) {
    for (tpc_adoption **at = &plane->adoptions; *at;) {
        tpc_adoption *one = *at;
        if (one->sequence > durable_sequence) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        free(one);
    }
}

/* Rule: Readers see only what is durable, also with durability=relaxed. See also native/log/commit.c,
 * tpc_broker/broker/partition.py. Held by tests/engine/test_plane_produce.py. */
void tpc_append_durable(void *context, uint64_t sequence) {
    tpc_plane *plane = context;
    TPC_HOLDS(sequence <= tpc_journal_durable_sequence(plane->journal));
    while (plane->undo_first && plane->undo_first->sequence <= sequence) {
        tpc_undo_record *oldest = plane->undo_first;
        tpc_partition *partition = tpc_partition_of(plane, oldest->handle);
        if (partition) {
            TPC_PARTITION_INVARIANT(partition, oldest->base_offset == partition->durable_offset);
            TPC_PARTITION_INVARIANT(partition, oldest->next_offset <= partition->log_end_offset);
            partition_forgets(partition, oldest);
            tpc_partition_durable(plane, partition, oldest->next_offset, oldest->bytes);
        }
        undo_unlink(plane, oldest);
    }
    if (plane->cuts_sequence && plane->cuts_sequence <= sequence) plane->cuts_count = 0, plane->cuts_sequence = 0;
    if (plane->truncations) forget_truncations(plane, sequence);
    if (plane->adoptions) forget_adoptions(plane, sequence);
    tpc_plane_publish_advanced(plane);
}

static tpc_partition_cut *find_cut(tpc_plane *plane, const uint8_t topic_id[16], int32_t partition) {
    for (uint32_t i = 0; i < plane->cuts_count; i++) {
        tpc_partition_cut *cut = &plane->cuts[i];
        if (cut->partition == partition && memcmp(cut->topic_id, topic_id, sizeof cut->topic_id) == 0) return cut;
    }
    return NULL;
}

static void add_cut(tpc_plane *plane, const tpc_partition_cut *cut) {
    TPC_HOLDS(cut->offset >= 0 && cut->partition >= 0);
    if (plane->cuts_count == plane->cuts_capacity) {
        uint32_t capacity = plane->cuts_capacity ? plane->cuts_capacity * 2 : 16;
        tpc_partition_cut *grown = realloc(plane->cuts, capacity * sizeof *grown);
        if (!grown) abort(); /* going on without the cut could bring failed records back */
        plane->cuts = grown;
        plane->cuts_capacity = capacity;
    }
    plane->cuts[plane->cuts_count++] = *cut;
}

static void remember_cut(tpc_plane *plane, const tpc_undo_record *undone) {
    tpc_partition_cut *cut = find_cut(plane, undone->topic_id, undone->index);
    if (cut) {
        cut->offset = cut->offset < undone->base_offset ? cut->offset : undone->base_offset;
        cut->last_epoch_kept =
            cut->last_epoch_kept > undone->leader_epoch ? cut->last_epoch_kept : undone->leader_epoch;
        return;
    }
    tpc_partition_cut made = {
        .offset = undone->base_offset, .partition = undone->index, .last_epoch_kept = undone->leader_epoch};
    memcpy(made.topic_id, undone->topic_id, sizeof made.topic_id);
    add_cut(plane, &made);
}

/* What memory has forgotten already: the journal has to be told again. One that waits is of an earlier failure, and ends
 * the log no earlier. */
static void remember_truncations(tpc_plane *plane) {
    for (tpc_truncation *at = plane->truncations, *next; at; at = next) {
        next = at->next;
        tpc_partition_cut *cut = find_cut(plane, at->cut.topic_id, at->cut.partition);
        if (cut)
            *cut = at->cut;
        else
            add_cut(plane, &at->cut);
        free(at);
    }
    plane->truncations = NULL;
}

static void undo(tpc_plane *plane, const tpc_undo_record *undone) {
    remember_cut(plane, undone);
    plane->statistics.appends_rolled_back += undone->appends;
    tpc_partition *partition = tpc_partition_of(plane, undone->handle);
    if (!partition) return;
    TPC_PARTITION_INVARIANT(partition, partition->log_end_offset == undone->next_offset);
    TPC_PARTITION_INVARIANT(partition, partition->commit_offset <= undone->base_offset);
    TPC_PARTITION_INVARIANT(partition, partition->durable_offset <= undone->base_offset);
    TPC_PARTITION_INVARIANT(partition, undone->sequence > tpc_journal_durable_sequence(plane->journal));
    tpc_tail_cut(plane, partition, undone->base_offset);
    partition->log_end_offset = undone->base_offset;
    const tpc_tail_batch *newest = tpc_tail_newest(partition);
    TPC_PARTITION_INVARIANT(partition, !newest || newest->next_offset == undone->base_offset);
    TPC_PARTITION_INVARIANT(partition, newest || partition->written_offset == undone->base_offset);
    TPC_PARTITION_INVARIANT(partition, partition->in_place_end_offset <= undone->base_offset);
    tpc_transactions_cut_aborted(&partition->producers.transactions, undone->base_offset);
    if (partition->spent_epoch < undone->leader_epoch) partition->spent_epoch = undone->leader_epoch;
    partition_forgets(partition, undone);
    if (partition->bytes_admitted != INT64_MAX) partition->bytes_admitted += undone->bytes;
    if (undone->producer_id >= 0) tpc_producers_undo(&partition->producers, undone->producer_id, undone->producer);
    tpc_partition_verify(partition);
    tpc_commit_waits_fail(plane, partition, undone->base_offset, TPC_ERROR_KAFKA_STORAGE_ERROR);
    /* Followers may have them: a leader that gave their offsets out again in its term would have two records at one place. */
    if (partition->is_replicated) tpc_partition_disarm(plane, undone->handle, false);
}

/* Rule: No offset of a leader epoch ever has two records. After a failure each partition that was cut begins a new
 * epoch before any append. Why: docs/decisions/2026-11-23-four-offsets.md. See also
 * tpc_broker/storage/upkeep/journal_upkeep.py. Held by tests/engine/test_trouble.py,
 * tests/engine/test_plane_produce.py, tests/engine/test_replicated_partitions.py, tests/engine/test_lost_cuts.py. */
void tpc_append_failed(void *context, uint64_t first_failed_sequence, int error) {
    (void)first_failed_sequence, (void)error;
    tpc_plane *plane = context;
    tpc_in_place_windows_close_all(plane);
    while (plane->undo_last) {
        undo(plane, plane->undo_last);
        undo_unlink(plane, plane->undo_last);
    }
    TPC_HOLDS(!plane->undo_first && !plane->undo_count);
    remember_truncations(plane);
    plane->cuts_sequence = 0;
}

static int journal_adoption(tpc_plane *plane, tpc_adoption *adoption) {
    return tpc_journal_append(plane->journal, TPC_JOURNAL_ADOPTED, adoption->topic_id, adoption->partition, 0,
                              adoption->moves, adoption->payload, adoption->bytes, &adoption->sequence);
}

int tpc_plane_adopt(tpc_plane *plane, const uint8_t topic_id[16], int32_t partition, int32_t moves,
                    const uint8_t *payload, uint32_t payload_bytes, uint64_t *sequence) {
    tpc_adoption *adoption = malloc(sizeof *adoption + payload_bytes);
    if (!adoption) return -ENOMEM;
    *adoption =
        (tpc_adoption){.next = plane->adoptions, .partition = partition, .moves = moves, .bytes = payload_bytes};
    memcpy(adoption->topic_id, topic_id, sizeof adoption->topic_id);
    memcpy(adoption->payload, payload, payload_bytes);
    int error = journal_adoption(plane, adoption);
    if (error < 0) {
        free(adoption);
        return error;
    }
    *sequence = adoption->sequence;
    plane->adoptions = adoption;
    return 0;
}

/* Cannot be refused for lack of space: both are smaller than the smallest append, whose place they take, and
 * truncations and adoptions take their own. */
static int journal_cut(tpc_plane *plane, const tpc_partition_cut *cut, uint64_t *sequence) {
    int result = tpc_journal_append(plane->journal, TPC_JOURNAL_CUT, cut->topic_id, cut->partition, cut->offset,
                                    cut->last_epoch_kept, NULL, 0, sequence);
    tpc_partition *partition = tpc_partition_identified(plane, cut->topic_id, cut->partition);
    if (result < 0 || !partition || partition->role != TPC_ROLE_LEADER) return result;
    TPC_PARTITION_INVARIANT(partition, partition->log_end_offset == cut->offset);
    result = tpc_journal_append(plane->journal, TPC_JOURNAL_EPOCH, cut->topic_id, cut->partition, cut->offset,
                                partition->leader_epoch + 1, NULL, 0, sequence);
    if (result == 0) partition->leader_epoch++;
    return result;
}

int tpc_plane_reopen_journal(tpc_plane *plane, int32_t descriptor, int32_t mode, uint64_t run_id, uint64_t *sequence) {
    int result = tpc_journal_reopen(plane->journal, descriptor, mode, run_id);
    if (result < 0) return result;
    *sequence = tpc_journal_durable_sequence(plane->journal) + 1; /* its first commit, with cuts or without */
    for (uint32_t i = 0; i < plane->cuts_count; i++) {
        result = journal_cut(plane, &plane->cuts[i], sequence);
        if (result < 0) return result;
    }
    for (tpc_adoption *at = plane->adoptions; at; at = at->next) {
        result = journal_adoption(plane, at); /* behind the cuts: nothing in front of it counts */
        if (result < 0) return result;
        *sequence = at->sequence;
    }
    plane->cuts_sequence = plane->cuts_count || plane->adoptions ? *sequence : 0;
    tpc_journal_watch(plane->journal, *sequence);
    return 0;
}

uint64_t tpc_plane_cuts_sequence(const tpc_plane *plane) { return plane->cuts_sequence; }
