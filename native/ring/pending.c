/*
 * Produce answers that wait for the journal.
 *
 * A pending answer knows, per partition, the commit that carries its append. It stands in the list of the highest commit
 * that is not durable yet, and leaves when that one is durable, when the journal fails, when its partitions are withdrawn,
 * or when its deadline passes. Answers keep their request, since names and ids are sent back from its frame.
 */
#include <stdlib.h>
#include <string.h>

#include "partition.h"

enum { ERROR_NOT_LEADER_OR_FOLLOWER = 6, ERROR_REQUEST_TIMED_OUT = 7, ERROR_KAFKA_STORAGE_ERROR = 56 };

tpc_pending *tpc_pending_new(tpc_request *request, int32_t parts_count) {
    size_t results_bytes = (size_t)parts_count * sizeof(tpc_produce_result);
    tpc_pending *pending = calloc(1, sizeof *pending + results_bytes + (size_t)parts_count * sizeof(tpc_pending_wait));
    if (!pending)
        return NULL;
    pending->request = request;
    pending->parts_count = parts_count;
    pending->waits = (tpc_pending_wait *)((uint8_t *)pending->results + results_bytes);
    return pending;
}

void tpc_pending_free(tpc_pending *pending) {
    for (int32_t i = 0; i < pending->parts_count; i++)
        free((void *)pending->results[i].record_errors);
    free(pending->endpoints);
    free(pending);
}

static void send_answer(tpc_plane *plane, tpc_pending *pending) {
    tpc_request *request = pending->request;
    int64_t bytes = tpc_produce_encode(request->api_version, request->correlation_id, 0, pending->results,
                                       pending->parts_count, pending->endpoints, pending->endpoints_count, NULL, 0);
    tpc_frame *frame = bytes > 4 ? tpc_frame_new_forced(plane->budget, (uint32_t)bytes) : NULL;
    if (!frame) {
        tpc_connection_close(plane->connections, request->connection, TPC_CLOSE_IO_ERROR, TPC_CLOSE_NOW);
        tpc_request_release(request);
        return;
    }
    tpc_produce_encode(request->api_version, request->correlation_id, 0, pending->results, pending->parts_count,
                       pending->endpoints, pending->endpoints_count, frame->data, (size_t)bytes);
    tpc_slice answer = {.frame = frame, .data = frame->data + 4, .length = (uint32_t)bytes - 4}; /* length is put there */
    tpc_request_answer_slices(plane->connections, request, &answer, 1);
}

/* Takes the pending. */
static void finish(tpc_plane *plane, tpc_pending *pending) {
    for (int32_t i = 0; i < pending->parts_count; i++)
        plane->statistics.partition_errors += pending->results[i].error_code != 0;
    send_answer(plane, pending);
    tpc_pending_free(pending);
}

static void set_wait_sequence(tpc_pending *pending, uint64_t durable_sequence) {
    pending->wait_sequence = 0;
    for (int32_t i = 0; i < pending->parts_count; i++)
        if (pending->waits[i].sequence > durable_sequence && pending->waits[i].sequence > pending->wait_sequence)
            pending->wait_sequence = pending->waits[i].sequence;
}

static void link(tpc_plane *plane, tpc_pending *pending) {
    tpc_pending **list = &plane->pending[pending->wait_sequence % TPC_PENDING_LISTS];
    pending->next = *list;
    *list = pending;
}

void tpc_pending_begin(tpc_plane *plane, tpc_pending *pending) {
    set_wait_sequence(pending, tpc_journal_durable_sequence(plane->journal));
    if (!pending->wait_sequence) {
        finish(plane, pending);
        return;
    }
    link(plane, pending);
    plane->statistics.produces_pending++;
    if (pending->deadline_ns < plane->pending_deadline_ns)
        plane->pending_deadline_ns = pending->deadline_ns;
}

/* Unlinks those for which `chosen` says so, as a list in the order in which they came. */
static tpc_pending *unlink_chosen(tpc_plane *plane, uint32_t list, bool (*chosen)(const tpc_pending *, uint64_t),
                                  uint64_t argument) {
    tpc_pending *taken = NULL;
    for (tpc_pending **at = &plane->pending[list]; *at;) {
        tpc_pending *pending = *at;
        if (!chosen(pending, argument)) {
            at = &pending->next;
            continue;
        }
        *at = pending->next;
        pending->next = taken;
        taken = pending;
        plane->statistics.produces_pending--;
    }
    return taken;
}

static bool waits_at_most(const tpc_pending *pending, uint64_t sequence) { return pending->wait_sequence <= sequence; }
static bool waits_at_least(const tpc_pending *pending, uint64_t sequence) { return pending->wait_sequence >= sequence; }
static bool is_late(const tpc_pending *pending, uint64_t now_ns) { return (uint64_t)pending->deadline_ns <= now_ns; }

static bool waits_for(const tpc_pending *pending, uint64_t handle) {
    for (int32_t i = 0; i < pending->parts_count; i++)
        if (pending->waits[i].handle == handle && pending->waits[i].sequence)
            return true;
    return false;
}

void tpc_pending_durable(tpc_plane *plane, uint64_t sequence_from, uint64_t sequence_upto) {
    uint64_t lists = sequence_upto - sequence_from + 1;
    if (lists > TPC_PENDING_LISTS)
        lists = TPC_PENDING_LISTS;
    for (uint64_t i = 0; i < lists; i++) {
        uint32_t list = (uint32_t)((sequence_from + i) % TPC_PENDING_LISTS);
        for (tpc_pending *pending = unlink_chosen(plane, list, waits_at_most, sequence_upto), *next; pending; pending = next) {
            next = pending->next;
            finish(plane, pending);
        }
    }
}

/* Gives every partition still waiting for a commit from `sequence` on this error. */
static void fail_waits(tpc_pending *pending, uint64_t sequence, int16_t error_code, bool keep_offset) {
    for (int32_t i = 0; i < pending->parts_count; i++) {
        if (!pending->waits[i].sequence || pending->waits[i].sequence < sequence)
            continue;
        pending->results[i].error_code = error_code;
        pending->waits[i].sequence = 0;
        if (keep_offset)
            continue;
        pending->results[i].base_offset = pending->results[i].log_append_time_ms = -1;
        pending->results[i].log_start_offset = -1;
    }
}

void tpc_pending_failed(tpc_plane *plane, uint64_t first_failed_sequence) {
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++)
        for (tpc_pending *pending = unlink_chosen(plane, list, waits_at_least, first_failed_sequence), *next; pending;
             pending = next) {
            next = pending->next;
            fail_waits(pending, first_failed_sequence, ERROR_KAFKA_STORAGE_ERROR, false);
            finish(plane, pending);
        }
}

void tpc_pending_withdraw(tpc_plane *plane, uint64_t handle) {
    uint64_t durable_sequence = tpc_journal_durable_sequence(plane->journal);
    tpc_pending *taken[TPC_PENDING_LISTS];
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++)
        taken[list] = unlink_chosen(plane, list, waits_for, handle);
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++)
        for (tpc_pending *pending = taken[list], *next; pending; pending = next) {
            next = pending->next;
            for (int32_t i = 0; i < pending->parts_count; i++) {
                tpc_pending_wait *wait = &pending->waits[i];
                if (wait->handle != handle || wait->sequence <= durable_sequence)
                    continue;
                wait->sequence = 0;
                pending->results[i].error_code = ERROR_NOT_LEADER_OR_FOLLOWER;
                pending->results[i].base_offset = pending->results[i].log_append_time_ms = -1;
                pending->results[i].log_start_offset = -1;
            }
            tpc_pending_begin(plane, pending);
        }
}

int64_t tpc_pending_turn(void *context, int64_t now_ns) {
    tpc_plane *plane = context;
    if (now_ns < plane->pending_deadline_ns)
        return plane->pending_deadline_ns;
    plane->pending_deadline_ns = INT64_MAX;
    uint64_t durable_sequence = tpc_journal_durable_sequence(plane->journal);
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++) {
        for (tpc_pending *pending = unlink_chosen(plane, list, is_late, (uint64_t)now_ns), *next; pending; pending = next) {
            next = pending->next;
            fail_waits(pending, durable_sequence + 1, ERROR_REQUEST_TIMED_OUT, true);
            plane->statistics.produces_timed_out++;
            finish(plane, pending);
        }
        for (const tpc_pending *pending = plane->pending[list]; pending; pending = pending->next)
            if (pending->deadline_ns < plane->pending_deadline_ns)
                plane->pending_deadline_ns = pending->deadline_ns;
    }
    return plane->pending_deadline_ns;
}

void tpc_pending_forget(tpc_plane *plane) {
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++)
        for (tpc_pending *pending = plane->pending[list], *next; pending; pending = next) {
            next = pending->next;
            tpc_request_release(pending->request);
            tpc_pending_free(pending);
        }
}
