/* What a follower appends: batches of its leader that continue its log, whether Python brings them or C (steady.h). */
#include <errno.h>
#include <string.h>

#include "steady_state.h"

/* Whether valid batches are what comes next in the log. */
static bool follow(const tpc_partition *partition, const uint8_t *batches, uint32_t bytes) {
    int64_t end_offset = partition->log_end_offset;
    int32_t epoch = 0;
    for (uint32_t position = 0; position < bytes;) {
        tpc_batch_header header;
        tpc_batch_header_read(batches + position, bytes - position, &header);
        if (header.base_offset != end_offset || header.partition_leader_epoch < epoch ||
            header.partition_leader_epoch > partition->leader_epoch)
            return false;
        end_offset += (int64_t)header.last_offset_delta + 1;
        epoch = header.partition_leader_epoch;
        position += (uint32_t)header.batch_bytes;
    }
    return true;
}

static int append_batches(tpc_plane *plane, tpc_partition *partition, tpc_frame *frame, uint8_t *batches,
                          uint32_t bytes, tpc_append_result *result) {
    int64_t base_offset = partition->log_end_offset;
    int error = 0;
    for (uint32_t position = 0; position < bytes && error == 0;) {
        tpc_batch_header header;
        tpc_batch_header_read(batches + position, bytes - position, &header);
        TPC_PARTITION_INVARIANT(partition, header.base_offset == partition->log_end_offset); /* follow() */
        TPC_PARTITION_INVARIANT(partition, header.partition_leader_epoch <= partition->leader_epoch);
        TPC_HOLDS((uint32_t)header.batch_bytes <= bytes - position);
        tpc_control_marker marker;
        tpc_append_batch batch = {.frame = frame,
                                  .batch = batches + position,
                                  .bytes = (uint32_t)header.batch_bytes,
                                  .is_stamped = true,
                                  .now_ms = tpc_plane_now_ms(plane),
                                  .marker = tpc_append_marker(batches + position, &header, &marker)};
        error = tpc_append_batch_to(plane, partition, &batch, &header, result);
        position += batch.bytes;
    }
    if (error == 0) result->base_offset = base_offset;
    return error;
}

int tpc_partition_append_replica(tpc_plane *plane, uint64_t handle, int32_t term, const uint8_t *batches,
                                 uint32_t bytes, tpc_append_result *result) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (partition->role != TPC_ROLE_FOLLOWER) return -EPERM;
    if (term != partition->leader_epoch) return -ESTALE;
    TPC_PARTITION_INVARIANT(partition, steady_is_pythons(partition));
    uint32_t count = 0;
    *result = (tpc_append_result){.base_offset = partition->log_end_offset, .append_ms = -1};
    result->error_code = tpc_append_check_batches(batches, bytes, &count);
    if (result->error_code) return 0;
    if (!follow(partition, batches, bytes)) return -EINVAL;
    if (partition->bytes_admitted < bytes) return -ENOSPC;
    int error = tpc_append_fits_journal(plane, batches, bytes, count);
    if (error < 0) return error;
    tpc_frame *frame = tpc_frame_new_forced(plane->budget, bytes);
    if (!frame) return -ENOMEM;
    memcpy(frame->data, batches, bytes);
    error = append_batches(plane, partition, frame, frame->data, bytes, result);
    tpc_frame_release(frame);
    return error;
}

/* As follow(), of the term that the partition is armed in alone; *keeps: a batch of it is not copied. */
static bool continues(const tpc_partition *partition, const uint8_t *batches, uint32_t bytes, bool *keeps) {
    *keeps = false;
    for (uint32_t position = 0; position < bytes;) {
        tpc_batch_header header;
        tpc_batch_header_read(batches + position, bytes - position, &header);
        if (header.partition_leader_epoch != partition->leader_epoch) return false;
        if (!tpc_tail_copies((uint32_t)header.batch_bytes)) *keeps = true;
        position += (uint32_t)header.batch_bytes;
    }
    return follow(partition, batches, bytes);
}

int tpc_replica_append_steady(tpc_plane *plane, tpc_partition *partition, tpc_frame *frame, uint8_t *batches,
                              uint32_t bytes) {
    uint32_t count = 0;
    bool keeps;
    tpc_append_result result;
    TPC_PARTITION_INVARIANT(partition, !steady_is_pythons(partition));
    if (partition->role != TPC_ROLE_FOLLOWER) return -EPERM;
    if (tpc_append_check_batches(batches, bytes, &count) != TPC_ERROR_NONE) return -EBADMSG;
    if (!continues(partition, batches, bytes, &keeps)) return -EBADMSG;
    if (partition->bytes_admitted < bytes) return -ENOSPC;
    int error = tpc_append_fits_journal(plane, batches, bytes, count);
    if (error < 0) return error;
    tpc_frame *own = NULL;
    if (!frame && keeps) {
        own = frame = tpc_frame_new_forced(plane->budget, bytes);
        if (!own) return -ENOMEM;
        batches = memcpy(own->data, batches, bytes);
    }
    error = append_batches(plane, partition, frame, batches, bytes, &result);
    tpc_frame_release(own);
    return error;
}

bool tpc_replica_has_room(tpc_plane *plane, const tpc_partition *partition, uint32_t bytes) {
    return partition->bytes_admitted >= bytes && tpc_journal_would_fit(plane->journal, &bytes, 1) != -EAGAIN;
}
