/*
 * Produce answers that wait for the journal.
 *
 * A pending answer is encoded at once, as it will be when all goes well, among the bytes that its connection sends next
 * (tpc_answer_room); so nothing of its request is kept. It knows, per partition, the commit that carries its append, and
 * where in the answer to say that it failed. It stands in the list of the highest commit that is not durable yet, and
 * leaves when that one is durable, when the journal fails, when its partitions are withdrawn, or when its deadline passes.
 */
#include <stdlib.h>
#include <string.h>

#include "plane.h"

tpc_pending *tpc_pending_new(tpc_plane *plane, const tpc_request *request, int32_t parts_count) {
    tpc_pending *pending = parts_count <= 1 ? tpc_pool_take(&plane->pendings)
                                            : malloc(sizeof *pending + (size_t)parts_count * sizeof pending->waits[0]);
    if (!pending) return NULL;
    *pending = (tpc_pending){.connection = request->connection,
                             .request_sequence = request->sequence,
                             .parts_count = parts_count,
                             .api_version = request->api_version};
    for (int32_t i = 0; i < parts_count; i++) pending->waits[i] = (tpc_pending_wait){0};
    return pending;
}

void tpc_pending_free(tpc_plane *plane, tpc_pending *pending) {
    if (pending->parts_count <= 1)
        tpc_pool_give(&plane->pendings, pending);
    else
        free(pending);
}

/* Takes the pending. What it says went well is durable; the waits of what failed are over. */
static void finish(tpc_plane *plane, tpc_pending *pending) {
    uint64_t durable_sequence = tpc_journal_durable_sequence(plane->journal);
    for (int32_t i = 0; i < pending->parts_count; i++)
        TPC_INVARIANT(pending->waits[i].sequence <= durable_sequence,
                      "an answer to a Produce waits for commit %llu, and %llu is durable",
                      (unsigned long long)pending->waits[i].sequence, (unsigned long long)durable_sequence);
    plane->statistics.partition_errors += (uint64_t)pending->errors_count;
    tpc_answer_framed(plane->connections, pending->connection, pending->request_sequence, &pending->answer, 1);
    tpc_pending_free(plane, pending);
}

/* 0, or negative: the answer cannot be had, and the connection is closed if it is not gone already. */
static int encode(tpc_plane *plane, tpc_pending *pending, const tpc_request *request,
                  const tpc_node_endpoint *endpoints, int32_t endpoints_count) {
    tpc_produce_scratch *scratch = &plane->scratch;
    uint32_t room_bytes;
    tpc_frame *frame;
    uint8_t *room = tpc_answer_room(plane->connections, pending->connection, &room_bytes, &frame);
    if (!room) return -1;
    int64_t bytes =
        tpc_produce_encode(request->api_version, request->correlation_id, 0, scratch->results, pending->parts_count,
                           endpoints, endpoints_count, room, room_bytes, scratch->places);
    if (bytes > 0 && bytes <= room_bytes) {
        pending->answer = tpc_answer_take(frame, (uint32_t)bytes);
    } else {
        frame = bytes > 0 ? tpc_frame_new_forced(plane->budget, (uint32_t)bytes) : NULL;
        if (!frame) {
            tpc_connection_close(plane->connections, pending->connection, TPC_CLOSE_IO_ERROR, TPC_CLOSE_NOW);
            return -1;
        }
        tpc_produce_encode(request->api_version, request->correlation_id, 0, scratch->results, pending->parts_count,
                           endpoints, endpoints_count, frame->data, (size_t)bytes, scratch->places);
        pending->answer = (tpc_slice){.frame = frame, .data = frame->data, .length = (uint32_t)bytes};
    }
    for (int32_t i = 0; i < pending->parts_count; i++) {
        pending->waits[i].place = scratch->places[i];
        pending->errors_count += scratch->results[i].error_code != 0;
    }
    return 0;
}

/* The answer to a partition, which said that all went well until now. */
static void fail_part(tpc_pending *pending, tpc_pending_wait *wait, int16_t error_code, bool keep_offset) {
    tpc_produce_answer_fail(pending->api_version, (uint8_t *)pending->answer.data, wait->place, error_code,
                            keep_offset);
    wait->sequence = 0;
    pending->errors_count++;
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

static void finish_or_wait(tpc_plane *plane, tpc_pending *pending) {
    set_wait_sequence(pending, tpc_journal_durable_sequence(plane->journal));
    if (!pending->wait_sequence) {
        finish(plane, pending);
        return;
    }
    link(plane, pending);
    plane->statistics.produces_pending++;
    if (pending->deadline_ns < plane->pending_deadline_ns) plane->pending_deadline_ns = pending->deadline_ns;
}

void tpc_pending_begin(tpc_plane *plane, tpc_pending *pending, const tpc_request *request,
                       const tpc_node_endpoint *endpoints, int32_t endpoints_count) {
    if (encode(plane, pending, request, endpoints, endpoints_count) < 0) {
        tpc_answer_none(plane->connections, pending->connection, pending->request_sequence); /* counted as void */
        tpc_pending_free(plane, pending);
        return;
    }
    finish_or_wait(plane, pending);
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
        if (pending->waits[i].handle == handle && pending->waits[i].sequence) return true;
    return false;
}

static void commits_durable(tpc_plane *plane, uint64_t sequence_from, uint64_t sequence_upto) {
    if (sequence_upto < sequence_from) return;
    uint64_t lists = sequence_upto - sequence_from + 1;
    if (lists > TPC_PENDING_LISTS) lists = TPC_PENDING_LISTS;
    for (uint64_t i = 0; i < lists; i++) {
        uint32_t list = (uint32_t)((sequence_from + i) % TPC_PENDING_LISTS);
        for (tpc_pending *pending = unlink_chosen(plane, list, waits_at_most, sequence_upto), *next; pending;
             pending = next) {
            next = pending->next;
            finish(plane, pending);
        }
    }
}

/* Gives every partition still waiting for a commit from `sequence` on this error. */
static void fail_waits(tpc_pending *pending, uint64_t sequence, int16_t error_code, bool keep_offset) {
    for (int32_t i = 0; i < pending->parts_count; i++)
        if (pending->waits[i].sequence && pending->waits[i].sequence >= sequence)
            fail_part(pending, &pending->waits[i], error_code, keep_offset);
}

static void commits_failed(tpc_plane *plane, uint64_t first_failed_sequence) {
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++)
        for (tpc_pending *pending = unlink_chosen(plane, list, waits_at_least, first_failed_sequence), *next; pending;
             pending = next) {
            next = pending->next;
            fail_waits(pending, first_failed_sequence, TPC_ERROR_KAFKA_STORAGE_ERROR, false);
            finish(plane, pending);
        }
}

static void disarmed(tpc_plane *plane, tpc_partition *partition) {
    uint64_t handle = partition->handle;
    uint64_t durable_sequence = tpc_journal_durable_sequence(plane->journal);
    tpc_pending *taken[TPC_PENDING_LISTS];
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++)
        taken[list] = unlink_chosen(plane, list, waits_for, handle);
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++)
        for (tpc_pending *pending = taken[list], *next; pending; pending = next) {
            next = pending->next;
            for (int32_t i = 0; i < pending->parts_count; i++) {
                tpc_pending_wait *wait = &pending->waits[i];
                if (wait->handle == handle && wait->sequence > durable_sequence)
                    fail_part(pending, wait, TPC_ERROR_NOT_LEADER_OR_FOLLOWER, false);
            }
            finish_or_wait(plane, pending);
        }
}

int64_t tpc_pending_turn(void *context, int64_t now_ns) {
    tpc_plane *plane = context;
    if (now_ns < plane->pending_deadline_ns) return plane->pending_deadline_ns;
    plane->pending_deadline_ns = INT64_MAX;
    uint64_t durable_sequence = tpc_journal_durable_sequence(plane->journal);
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++) {
        for (tpc_pending *pending = unlink_chosen(plane, list, is_late, (uint64_t)now_ns), *next; pending;
             pending = next) {
            next = pending->next;
            fail_waits(pending, durable_sequence + 1, TPC_ERROR_REQUEST_TIMED_OUT, true);
            plane->statistics.produces_timed_out++;
            finish(plane, pending);
        }
        for (const tpc_pending *pending = plane->pending[list]; pending; pending = pending->next)
            if (pending->deadline_ns < plane->pending_deadline_ns) plane->pending_deadline_ns = pending->deadline_ns;
    }
    return plane->pending_deadline_ns;
}

void tpc_pending_forget(tpc_plane *plane) {
    for (uint32_t list = 0; list < TPC_PENDING_LISTS; list++)
        for (tpc_pending *pending = plane->pending[list], *next; pending; pending = next) {
            next = pending->next;
            tpc_frame_release(pending->answer.frame);
            tpc_pending_free(plane, pending);
        }
}

const tpc_plane_observer tpc_pending_observer = {
    .commits_durable = commits_durable, .commits_failed = commits_failed, .disarmed = disarmed};
