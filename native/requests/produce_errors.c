/*
 * Refusals: how they are remembered, for what comes behind them, and what one of single records says in the answer to a
 * Produce. Who has made the answer frees `record_errors`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plane.h"

void tpc_produce_refused(tpc_plane *plane, uint64_t connection, tpc_partition *partition, int16_t error_code) {
    bool is_tried_again = error_code == TPC_ERROR_NOT_LEADER_OR_FOLLOWER ||
                          error_code == TPC_ERROR_NOT_ENOUGH_REPLICAS || error_code == TPC_ERROR_KAFKA_STORAGE_ERROR;
    if (!is_tried_again) return;
    if (connection) tpc_connection_note_refusal(plane->connections, connection, error_code);
    if (!partition) return;
    partition->refused_ns = tpc_ring_now_ns(plane->ring);
    partition->refused_with = error_code;
}

int16_t tpc_produce_doubted(tpc_plane *plane, const tpc_partition *partition, int64_t base_offset,
                            int64_t next_offset) {
    uint64_t count = ++plane->statistics.answers_doubted;
    if ((count & (count - 1)) == 0) /* a client tries again and again */
        fprintf(
            stderr,
            "%s-%d in leader epoch %d: refused, instead of acknowledged at [%lld, %lld), where it is not; %llu before; "
            "log_start_offset %lld, commit_offset %lld, log_end_offset %lld, %s\n",
            (const char *)partition->topic_name, partition->index, partition->leader_epoch, (long long)base_offset,
            (long long)next_offset, (unsigned long long)count - 1, (long long)partition->log_start_offset,
            (long long)partition->commit_offset, (long long)partition->log_end_offset,
            partition->producers_stale ? "its producers are those of before a cut" : "its log was not cut lately");
    return TPC_ERROR_KAFKA_STORAGE_ERROR;
}

void tpc_produce_tell_bad_records(const tpc_batch_report *report, tpc_produce_result *result) {
    static const char message[] = "One or more records have been rejected";
    TPC_HOLDS(result->error_code && !result->record_errors);
    int32_t count =
        report->bad_records_count < TPC_BATCH_BAD_RECORDS_MAX ? report->bad_records_count : TPC_BATCH_BAD_RECORDS_MAX;
    tpc_record_error *errors = count > 0 ? calloc((size_t)count, sizeof *errors) : NULL;
    if (!errors) return;
    const char *reason = tpc_batch_reason_text(report->reason);
    TPC_HOLDS(reason && report->reason);
    for (int32_t i = 0; i < count; i++)
        errors[i] = (tpc_record_error){.message = (const uint8_t *)reason,
                                       .message_bytes = (int32_t)strlen(reason),
                                       .batch_index = report->bad_records[i]};
    result->record_errors = errors;
    result->record_errors_count = count;
    result->error_message = (const uint8_t *)message;
    result->error_message_bytes = (int32_t)sizeof message - 1;
}

/* A compacted topic's refusal names the records (KIP-467) and, as the log was asked, tells where it starts. */
void tpc_produce_tell_keyless(const tpc_produce_verdict *verdict, const tpc_partition *partition,
                              tpc_produce_result *result) {
    static const char reason[] = "A record of a compacted topic needs a key";
    static const char message[] = "One or more records have been rejected";
    TPC_HOLDS(verdict->keyless_count > 0 && result->error_code);
    result->error_message = (const uint8_t *)message;
    result->error_message_bytes = (int32_t)sizeof message - 1;
    result->log_start_offset = partition ? partition->log_start_offset : -1;
    tpc_record_error *errors = calloc((size_t)verdict->keyless_count, sizeof *errors);
    if (!errors) return;
    for (int32_t i = 0; i < verdict->keyless_count; i++)
        errors[i] = (tpc_record_error){.message = (const uint8_t *)reason,
                                       .message_bytes = (int32_t)sizeof reason - 1,
                                       .batch_index = verdict->keyless[i]};
    result->record_errors = errors;
    result->record_errors_count = verdict->keyless_count;
}

/* What its clients sent while it was not led here was refused elsewhere. One that is new lacks nothing. */
static void leads(tpc_plane *plane, tpc_partition *partition) {
    if (partition->is_replicated || partition->producers.count)
        tpc_produce_refused(plane, 0, partition, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);
}

const tpc_plane_observer tpc_produce_observer = {.leads = leads};
