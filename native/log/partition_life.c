/*
 * A partition's life: it is registered, has a role in one term after the other, and is withdrawn. What it has is given
 * up here (memory, windows, whoever waits), so this stands on all that has some of it: table, tail, commits, windows.
 */
#include "plane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- registered ---- */

static void set_settings(tpc_partition *partition, const tpc_partition_params *params) {
    partition->timestamp_before_ms_max = params->timestamp_before_ms_max;
    partition->timestamp_after_ms_max = params->timestamp_after_ms_max;
    partition->batch_bytes_max = params->batch_bytes_max;
    partition->segment_bytes_max = params->segment_bytes_max;
    partition->flags = params->flags;
}

static tpc_partition *partition_new(const tpc_partition_params *params) {
    tpc_partition *partition = calloc(1, sizeof *partition);
    uint8_t *name = malloc(params->topic_name_bytes + 1);
    if (!partition || !name) {
        free(partition), free(name);
        return NULL;
    }
    memcpy(name, params->topic_name, params->topic_name_bytes);
    name[params->topic_name_bytes] = 0;
    partition->topic_name = name;
    partition->topic_name_bytes = params->topic_name_bytes;
    partition->index = params->partition;
    memcpy(partition->topic_id, params->topic_id, sizeof partition->topic_id);
    partition->log_start_offset = params->log_start_offset;
    partition->log_end_offset = partition->durable_offset = params->log_end_offset;
    partition->written_offset = params->log_end_offset;
    partition->commit_offset = partition->high_watermark = params->high_watermark;
    partition->bytes_admitted = params->bytes_admitted;
    partition->aborted_from_offset = params->log_end_offset;
    partition->in_place_end_offset = -1;
    partition->leader_epoch = params->leader_epoch;
    partition->spent_epoch = partition->read_term = -1;
    set_settings(partition, params);
    return partition;
}

/* Nobody stands in its lists, and it in no list, any more. */
static void partition_free(tpc_partition *partition) {
    TPC_PARTITION_INVARIANT(partition, !partition->waits[TPC_WAIT_DURABLE].first);
    TPC_PARTITION_INVARIANT(partition, !partition->waits[TPC_WAIT_COMMITTED].first);
    TPC_PARTITION_INVARIANT(partition, !partition->fetch_waits && !partition->windows && !partition->steady);
    TPC_PARTITION_INVARIANT(partition, !partition->dirty && !partition->tail_count && !partition->chunk);
    tpc_in_place_window_close(partition);
    tpc_producers_free(&partition->producers);
    free(partition->topic_name);
    free(partition);
}

int tpc_partition_register(tpc_plane *plane, const tpc_partition_params *params, uint64_t *handle) {
    bool ordered = params->log_start_offset >= 0 && params->log_start_offset <= params->high_watermark &&
                   params->high_watermark <= params->log_end_offset;
    if (!ordered || params->partition < 0 || params->batch_bytes_max < 0) return -EINVAL;
    if (tpc_partition_named(plane, params->topic_name, params->topic_name_bytes, params->partition) ||
        tpc_partition_identified(plane, params->topic_id, params->partition))
        return -EEXIST;
    tpc_partition *partition = partition_new(params);
    if (!partition || tpc_partitions_enter(plane, partition) < 0) {
        if (partition) partition_free(partition);
        return -ENOMEM;
    }
    partition->producers.all_count = &plane->producers_count;
    tpc_partition_verify(partition);
    *handle = partition->handle;
    return 0;
}

int tpc_partition_update(tpc_plane *plane, uint64_t handle, const tpc_partition_params *params) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (params->batch_bytes_max < 0) return -EINVAL;
    set_settings(partition, params);
    tpc_partition_verify(partition);
    return 0;
}

int tpc_partition_set_log_start(tpc_plane *plane, uint64_t handle, int64_t log_start_offset) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (log_start_offset < partition->log_start_offset || log_start_offset > partition->high_watermark) return -EINVAL;
    partition->log_start_offset = log_start_offset;
    tpc_windows_close_below(&plane->windows, partition, log_start_offset);
    tpc_aborted_delete(plane, partition);
    tpc_partition_verify(partition);
    return 0;
}

/* ---- roles ---- */

/* Rule: A partition that is registered is not led yet: that is a step of its own, in a term that never falls. Held
 * by tests/engine/test_plane_roles.py. */
int tpc_partition_arm(tpc_plane *plane, uint64_t handle, int32_t role, int32_t term) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    bool known = role == TPC_ROLE_LEADER || (role == TPC_ROLE_FOLLOWER && partition->is_replicated);
    if (!known || term < partition->leader_epoch) return -EINVAL;
    if (role == TPC_ROLE_LEADER && term <= partition->spent_epoch) return -EINVAL;
    plane->replication->stop(plane, partition);
    if (role == TPC_ROLE_FOLLOWER) tpc_partition_disarm(plane, handle, false);
    if (partition->role != TPC_ROLE_LEADER) partition->told_offset = partition->log_end_offset;
    bool begins_to_lead = role == TPC_ROLE_LEADER && partition->role != TPC_ROLE_LEADER;
    if (begins_to_lead) tpc_plane_publish_leads(plane, partition);
    TPC_PARTITION_INVARIANT(partition, role == TPC_ROLE_LEADER || !partition->waits[TPC_WAIT_COMMITTED].first);
    partition->role = role;
    partition->leader_epoch = term;
    return 0;
}

int tpc_partition_disarm(tpc_plane *plane, uint64_t handle, int keep_waits) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    bool may_be_read = partition->role != TPC_ROLE_NONE;
    partition->role = TPC_ROLE_NONE;
    plane->replication->stop(plane, partition);
    tpc_in_place_window_close(partition);
    plane->replication->forget_appended(plane, partition);
    tpc_verifications_forget(&partition->producers.transactions);
    if (!keep_waits) tpc_commit_waits_fail(plane, partition, -1, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
    if (may_be_read) tpc_plane_publish_disarmed(plane, partition);
    return 0;
}

/* ---- withdrawn ---- */

/* Rule: Withdrawing a partition raises its generation and settles what is under way. See also native/log/partition.c,
 * native/log/plane.c. Held by tests/engine/test_plane_partitions.py. */
int tpc_partition_withdraw(tpc_plane *plane, uint64_t handle) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    TPC_PARTITION_INVARIANT(partition, partition->handle == handle);
    tpc_partitions_leave(plane, partition);
    plane->replication->forget(plane, partition);
    plane->replication->forget_appended(plane, partition);
    tpc_commit_waits_fail(plane, partition, -1, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
    tpc_plane_publish_withdrawn(plane, partition);
    tpc_aborted_release(plane, partition);
    TPC_PARTITION_INVARIANT(partition, !partition->is_appended);
    partition_free(partition);
    return 0;
}

void tpc_partitions_drop(tpc_plane *plane) {
    for (uint32_t slot = 0; slot < plane->slots_count; slot++) {
        tpc_partition *partition = plane->slots[slot].partition;
        if (!partition) continue;
        tpc_windows_close_all(&plane->windows, partition);
        tpc_tail_drop(plane, partition);
        plane->replication->forget(plane, partition);
        partition_free(partition);
        plane->slots[slot].partition = NULL;
    }
}
