/*
 * Produce answers that wait for their records.
 *
 * A pending answer is encoded at once, as it will be when all goes well, among the bytes that its connection sends next
 * (tpc_answer_room); so nothing of its request is kept. It waits for an offset of each partition that took records
 * (commit.c), knows where in the answer to say that this one failed, and leaves when all of its waits are over: by the
 * offsets being reached, by records that are lost, by a role that ends, or by its deadline.
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

/* Takes the pending. What it says went well has come as far as its request asked. */
static void finish(tpc_plane *plane, tpc_pending *pending) {
    TPC_INVARIANT(pending->waits_left == 0, "an answer to a Produce is given with %d waits left", pending->waits_left);
    TPC_INVARIANT(pending->errors_count <= pending->parts_count, "%d errors in an answer of %d parts",
                  pending->errors_count, pending->parts_count);
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
    int32_t throttle_ms = (int32_t)request->throttle_ms;
    int64_t bytes =
        tpc_produce_encode(request->api_version, request->correlation_id, throttle_ms, scratch->results,
                           pending->parts_count, endpoints, endpoints_count, room, room_bytes, scratch->places);
    if (bytes > 0 && bytes <= room_bytes) {
        pending->answer = tpc_answer_take(frame, (uint32_t)bytes);
    } else {
        frame = bytes > 0 ? tpc_frame_new_forced(plane->budget, (uint32_t)bytes) : NULL;
        if (!frame) {
            tpc_connection_close(plane->connections, pending->connection, TPC_CLOSE_IO_ERROR, TPC_CLOSE_NOW);
            return -1;
        }
        int64_t again = tpc_produce_encode(request->api_version, request->correlation_id, throttle_ms, scratch->results,
                                           pending->parts_count, endpoints, endpoints_count, frame->data, (size_t)bytes,
                                           scratch->places);
        TPC_INVARIANT(again == bytes, "an answer of %lld bytes has %lld", (long long)bytes, (long long)again);
        pending->answer = (tpc_slice){.frame = frame, .data = frame->data, .length = (uint32_t)bytes};
    }
    for (int32_t i = 0; i < pending->parts_count; i++) {
        pending->waits[i].place = scratch->places[i];
        pending->errors_count += scratch->results[i].error_code != 0;
    }
    return 0;
}

/* ---- waiting ---- */

static void link(tpc_plane *plane, tpc_pending *pending) {
    TPC_HOLDS(!plane->pending_first == !plane->pending_last);
    pending->previous = plane->pending_last;
    pending->next = NULL;
    *(plane->pending_last ? &plane->pending_last->next : &plane->pending_first) = pending;
    plane->pending_last = pending;
    plane->statistics.produces_pending++;
    if (pending->deadline_ns < plane->pending_deadline_ns) plane->pending_deadline_ns = pending->deadline_ns;
}

static void unlink_and_finish(tpc_plane *plane, tpc_pending *pending) {
    TPC_HOLDS(plane->statistics.produces_pending > 0);
    TPC_HOLDS((pending->previous ? pending->previous->next : plane->pending_first) == pending);
    TPC_HOLDS((pending->next ? pending->next->previous : plane->pending_last) == pending);
    *(pending->previous ? &pending->previous->next : &plane->pending_first) = pending->next;
    *(pending->next ? &pending->next->previous : &plane->pending_last) = pending->previous;
    plane->statistics.produces_pending--;
    finish(plane, pending);
}

/* The answer to a partition, which said that all went well until now. */
static void fail_part(tpc_pending *pending, const tpc_pending_wait *wait, int16_t error_code) {
    bool keeps_offset = error_code == TPC_ERROR_REQUEST_TIMED_OUT;
    TPC_HOLDS(error_code && (uint64_t)wait->place + sizeof error_code <= pending->answer.length);
    tpc_produce_answer_fail(pending->api_version, (uint8_t *)pending->answer.data, wait->place, error_code,
                            keeps_offset);
    pending->errors_count++;
}

static void wait_over(tpc_plane *plane, tpc_commit_wait *wait, int16_t error_code) {
    const tpc_pending_wait *of = (const tpc_pending_wait *)wait;
    tpc_pending *pending = of->pending;
    TPC_PARTITION_INVARIANT(of->partition, !wait->partition && pending->waits_left > 0); /* over once, in no list */
    if (!error_code && of->end_offset > tpc_partition_reached(of->partition, (enum tpc_wait_level)wait->level))
        error_code = tpc_produce_doubted(plane, of->partition, -1, of->end_offset);
    if (error_code) {
        fail_part(pending, of, error_code);
        tpc_produce_refused(plane, pending->connection, of->partition, error_code);
    }
    if (--pending->waits_left == 0) unlink_and_finish(plane, pending);
}

void tpc_pending_begin(tpc_plane *plane, tpc_pending *pending, const tpc_request *request, enum tpc_wait_level level,
                       const tpc_node_endpoint *endpoints, int32_t endpoints_count) {
    if (encode(plane, pending, request, endpoints, endpoints_count) < 0) {
        tpc_answer_none(plane->connections, pending->connection, pending->request_sequence); /* counted as void */
        tpc_pending_free(plane, pending);
        return;
    }
    for (int32_t i = 0; i < pending->parts_count; i++) {
        tpc_pending_wait *wait = &pending->waits[i];
        if (!wait->partition || wait->end_offset <= tpc_partition_reached(wait->partition, level)) continue;
        wait->pending = pending;
        tpc_commit_wait_begin(wait->partition, &wait->wait, level, wait->end_offset, wait_over);
        pending->waits_left++;
    }
    if (pending->waits_left)
        link(plane, pending);
    else
        finish(plane, pending);
}

/* ---- the deadline ---- */

static void time_out(tpc_plane *plane, tpc_pending *pending) {
    for (int32_t i = 0; i < pending->parts_count; i++) {
        tpc_pending_wait *wait = &pending->waits[i];
        if (!wait->wait.partition) continue;
        tpc_commit_wait_end(&wait->wait);
        fail_part(pending, wait, TPC_ERROR_REQUEST_TIMED_OUT);
        pending->waits_left--;
    }
    plane->statistics.produces_timed_out++;
    unlink_and_finish(plane, pending);
}

int64_t tpc_pending_turn(void *context, int64_t now_ns) {
    tpc_plane *plane = context;
    if (now_ns < plane->pending_deadline_ns) return plane->pending_deadline_ns;
    plane->pending_deadline_ns = INT64_MAX;
    bool answered = false;
    for (tpc_pending *pending = plane->pending_first, *next; pending; pending = next) {
        next = pending->next;
        if (pending->deadline_ns <= now_ns) {
            time_out(plane, pending);
            answered = true;
        } else if (pending->deadline_ns < plane->pending_deadline_ns) {
            plane->pending_deadline_ns = pending->deadline_ns;
        }
    }
    return answered ? now_ns : plane->pending_deadline_ns; /* the connections' own hook has run before this one */
}

void tpc_pending_forget(tpc_plane *plane) {
    for (tpc_pending *pending = plane->pending_first, *next; pending; pending = next) {
        next = pending->next;
        for (int32_t i = 0; i < pending->parts_count; i++) tpc_commit_wait_end(&pending->waits[i].wait);
        tpc_frame_release(pending->answer.frame);
        tpc_pending_free(plane, pending);
    }
    plane->pending_first = plane->pending_last = NULL;
}
