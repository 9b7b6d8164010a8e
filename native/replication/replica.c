/*
 * What a replicated partition does besides: a leader tells Python what it has appended, a follower gives up what its
 * leader does not have (what it is sent: replica_append.c). Who leads, what is committed, Python knows (51_replica.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fetch.h"
#include "steady_state.h"
#include "journal_format.h"

/* ---- a leader's appends ---- */

int tpc_partition_refuse(tpc_plane *plane, uint64_t handle, int16_t error_code, int all_acks) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    partition->refusal = error_code;
    partition->refuses_all_acks = all_acks != 0;
    return 0;
}

bool tpc_replica_takes_nothing(const tpc_partition *partition) {
    return tpc_steady_is_full(partition) || (partition->refuses_all_acks && partition->refusal);
}

int16_t tpc_replica_refusal(const tpc_partition *partition, int16_t acks) {
    if (tpc_steady_is_full(partition)) return TPC_ERROR_NOT_ENOUGH_REPLICAS;
    return acks == TPC_ACKS_ALL || partition->refuses_all_acks ? partition->refusal : TPC_ERROR_NONE;
}

/* Python is told once for all that come before it looks, unless C carries the group. */
static void appended(tpc_plane *plane, tpc_partition *partition, uint32_t bytes) {
    TPC_PARTITION_INVARIANT(partition, partition->is_replicated && partition->role == TPC_ROLE_LEADER);
    TPC_PARTITION_INVARIANT(partition, partition->told_offset < partition->log_end_offset);
    if (partition->is_appended || tpc_steady_appended(plane, partition, bytes)) return;
    TPC_HOLDS((plane->appended_first == NULL) == (plane->appended_last == NULL));
    if (!plane->appended_first) tpc_ring_push_event(plane->ring, TPC_EVENT_APPENDED, 0, 0, 0, NULL);
    partition->is_appended = true;
    partition->appended_next = NULL;
    *(plane->appended_last ? &plane->appended_last->appended_next : &plane->appended_first) = partition;
    plane->appended_last = partition;
}

static void forget_appended(tpc_plane *plane, tpc_partition *partition) {
    if (!partition->is_appended) return;
    tpc_partition *before = NULL;
    TPC_HOLDS(plane->appended_first && plane->appended_last);
    for (tpc_partition *at = plane->appended_first; at != partition; at = at->appended_next) before = at;
    *(before ? &before->appended_next : &plane->appended_first) = partition->appended_next;
    if (plane->appended_last == partition) plane->appended_last = before;
    partition->is_appended = false;
}

/* Of what was not taken nothing has been evicted (tail.c). */
uint32_t tpc_plane_take_appended(tpc_plane *plane, tpc_appended_range *ranges, uint32_t ranges_max) {
    uint32_t count = 0;
    while (plane->appended_first && count < ranges_max) {
        tpc_partition *partition = plane->appended_first;
        plane->appended_first = partition->appended_next;
        if (!plane->appended_first) plane->appended_last = NULL;
        partition->is_appended = false;
        const tpc_tail_batch *newest = tpc_tail_newest(partition);
        TPC_PARTITION_INVARIANT(partition, partition->told_offset < partition->log_end_offset);
        TPC_PARTITION_INVARIANT(partition, partition->is_replicated && partition->role == TPC_ROLE_LEADER);
        TPC_PARTITION_INVARIANT(partition, steady_is_pythons(partition));
        TPC_PARTITION_INVARIANT(partition, newest && newest->next_offset == partition->log_end_offset);
        ranges[count++] = (tpc_appended_range){.handle = partition->handle,
                                               .base_offset = partition->told_offset,
                                               .next_offset = partition->log_end_offset,
                                               .sequence = newest->sequence,
                                               .leader_epoch = partition->leader_epoch};
        partition->told_offset = partition->log_end_offset;
    }
    return count;
}

/* ---- cuts ---- */

int tpc_partition_truncate(tpc_plane *plane, uint64_t handle, int64_t offset, int32_t last_epoch_kept,
                           uint64_t *sequence) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (!partition->is_replicated || partition->role == TPC_ROLE_LEADER) return -EPERM;
    if (offset < partition->commit_offset || offset > partition->log_end_offset) return -EINVAL;
    if (!tpc_tail_begins_at(partition, offset)) return -EINVAL;
    if (partition->appends_undurable) return -EBUSY;
    TPC_PARTITION_INVARIANT(partition, steady_is_pythons(partition));
    tpc_truncation *truncation = malloc(sizeof *truncation);
    if (!truncation) return -ENOMEM;
    int error = tpc_journal_append(plane->journal, TPC_JOURNAL_CUT, partition->topic_id, partition->index, offset,
                                   last_epoch_kept, NULL, 0, sequence);
    if (error < 0) {
        free(truncation);
        return error;
    }
    TPC_PARTITION_INVARIANT(partition, *sequence > tpc_journal_durable_sequence(plane->journal));
    *truncation =
        (tpc_truncation){.next = plane->truncations,
                         .sequence = *sequence,
                         .cut = {.offset = offset, .partition = partition->index, .last_epoch_kept = last_epoch_kept}};
    memcpy(truncation->cut.topic_id, partition->topic_id, sizeof truncation->cut.topic_id);
    plane->truncations = truncation;
    int64_t unwritten_bytes = partition->unwritten_bytes;
    tpc_in_place_window_close(partition);
    tpc_windows_close_all(&plane->windows, partition);
    tpc_commit_waits_fail(plane, partition, offset, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
    tpc_tail_truncate(plane, partition, offset);
    partition->log_end_offset = partition->durable_offset = offset;
    if (!partition->producers_stale || partition->stale_from_offset > offset) partition->stale_from_offset = offset;
    partition->producers_stale = true;
    tpc_producers_cut(&partition->producers, offset);
    if (partition->written_offset > offset) partition->written_offset = offset;
    if (partition->aborted_from_offset > offset) partition->aborted_from_offset = offset;
    if (partition->bytes_admitted != INT64_MAX)
        partition->bytes_admitted += unwritten_bytes - partition->unwritten_bytes;
    const tpc_tail_batch *newest = tpc_tail_newest(partition);
    TPC_PARTITION_INVARIANT(partition, !newest || newest->next_offset == offset);
    tpc_partition_verify(partition);
    return 0;
}

typedef struct {
    tpc_partition *partition;
    int64_t now_ms;
    int error;
} producers_of_tail;

static void add_producer(void *context, const uint8_t *batch, uint32_t bytes) {
    producers_of_tail *of = context;
    tpc_producers *producers = &of->partition->producers;
    tpc_batch_header header;
    tpc_control_marker marker;
    tpc_batch_header_read(batch, bytes, &header);
    const tpc_control_marker *ends = tpc_append_marker(batch, &header, &marker);
    if (header.producer_id < 0 || of->error) return;
    of->error = tpc_producers_reserve(producers, &header);
    if (of->error == 0) tpc_producers_accept(producers, &header, ends, header.base_offset, of->now_ms);
}

int tpc_partition_reset_producers(tpc_plane *plane, uint64_t handle, const uint8_t *encoded, uint32_t bytes) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (partition->appends_undurable) return -EBUSY;
    tpc_aborted_keep(plane, partition);
    int result = tpc_partition_load_producers(plane, handle, encoded, bytes, false);
    producers_of_tail of = {.partition = partition, .now_ms = tpc_plane_monotonic_ms(plane)};
    if (result < 0) return result;
    tpc_tail_each(partition, partition->written_offset, add_producer, &of);
    if (of.error < 0) return of.error;
    partition->producers_stale = false;
    tpc_aborted_bound(plane, partition);
    tpc_transactions_settle(&partition->producers.transactions, partition->high_watermark);
    tpc_partition_verify(partition);
    tpc_plane_publish_looks_changed(plane, partition);
    return 0;
}

const tpc_plane_replication tpc_replication = {.appended = appended,
                                               .durable = tpc_steady_durable,
                                               .forget_appended = forget_appended,
                                               .stop = tpc_steady_stop,
                                               .forget = tpc_steady_forget,
                                               .refusal = tpc_replica_refusal,
                                               .is_lacked = tpc_steady_is_lacked};
