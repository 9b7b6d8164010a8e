/*
 * Kafka's framing: whole frames of a client's connection to requests, and which of them wait.
 *
 * A request that lies whole in what was received is first shown to the borrowed handler, which may take it without anything
 * being allocated for it. Any other comes in a frame of its own, and goes to the hot handler or to Python.
 *
 * A Fetch whose turn has not come stops its connection: nothing is made for who does not read. Whether a connection is served
 * at all is asked here, for every way that a request may take (connection_identity.c).
 */
#include "connection_state.h"

#include <errno.h>
#include <stdlib.h>

#include "bytes.h"

void tpc_request_set_subject(tpc_request *request, uint32_t subject) { request->subject = subject; }

void tpc_request_release(tpc_request *request) {
    tpc_frame_release(request->frame);
    tpc_frame_release(request->decoded);
    free(request);
}

/* Decodes the header of a whole request. 0, or a negative number: nobody can answer this. */
static int read_request(const connection *it, tpc_frame *frame, uint8_t *bytes, uint32_t length, tpc_request *out) {
    tpc_request_header header = {.api_key = -1, .client_id_bytes = -1}; /* a token has none */
    int result = it->stage == TPC_STAGE_TOKEN ? 0 : tpc_request_header_decode(bytes, length, &header);
    if (result == -ENOSYS) { /* an unknown API: whoever takes it says so, or closes; nobody can read more of it */
        header.client_id = NULL;
        header.client_id_bytes = -1;
        header.body_position = (int32_t)length;
        header.flexible = 0;
        result = 0;
    }
    *out = (tpc_request){
        .connection = connection_id(it),
        .sequence = it->next_sequence,
        .frame = frame,
        .body = bytes + header.body_position,
        .client_id = header.client_id,
        .received_ns = tpc_ring_now_ns(it->owner->ring),
        .body_bytes = length - (uint32_t)header.body_position,
        .client_id_bytes = header.client_id_bytes,
        .correlation_id = header.correlation_id,
        .api_key = header.api_key,
        .api_version = header.api_version,
        .flexible = header.flexible,
        .listener = it->listener,
        .subject = it->subject,
        .header_bytes = (uint32_t)header.body_position,
    };
    return result;
}

static tpc_request *make_request(connection *it, tpc_frame *frame) {
    tpc_request read;
    int result = read_request(it, frame, frame->data + it->lead, frame->length - it->lead, &read);
    tpc_request *request = result < 0 ? NULL : malloc(sizeof *request);
    if (request == NULL) {
        tpc_frame_release(frame);
        connection_begin_close(it, result < 0 ? TPC_CLOSE_HEADER_MALFORMED : TPC_CLOSE_BUDGET, result < 0 ? 0 : ENOMEM);
        return NULL;
    }
    *request = read;
    return request;
}

void tpc_request_enters_python(tpc_connections *connections, tpc_request *request) {
    connection *it = connection_find(connections, request->connection);
    request->in_python = 1;
    if (it != NULL) it->requests_in_python++;
}

void tpc_request_leaves_python(tpc_connections *connections, tpc_request *request) {
    if (!request->in_python) return;
    request->in_python = 0;
    connection *it = connection_find(connections, request->connection);
    if (it != NULL) it->requests_in_python--;
}

/* ------------------------------------------------------------------------------------------------ answering */

int tpc_request_answer_bytes(tpc_connections *connections, tpc_request *request, const uint8_t *data, size_t length) {
    tpc_request_leaves_python(connections, request);
    int result = tpc_answer_bytes(connections, request->connection, request->sequence, data, length);
    tpc_request_release(request);
    return result;
}

int tpc_request_answer_slices(tpc_connections *connections, tpc_request *request, const tpc_slice *slices,
                              uint32_t count) {
    tpc_request_leaves_python(connections, request);
    int result = tpc_answer_slices(connections, request->connection, request->sequence, slices, count);
    tpc_request_release(request);
    return result;
}

int tpc_request_answer_none(tpc_connections *connections, tpc_request *request) {
    tpc_request_leaves_python(connections, request);
    int result = tpc_answer_none(connections, request->connection, request->sequence);
    tpc_request_release(request);
    return result;
}

/* ------------------------------------------------------------------------------------------------ taking */

/* A whole request where it was received: whether the borrowed handler took it. If not, nothing has changed. */
static bool deliver_in_place(connection *it, uint8_t *bytes, uint32_t length) {
    tpc_connections *connections = it->owner;
    tpc_request request;
    if (connections->borrowed == NULL || it->requests_in_python > 0 || !connection_may_be_served(it)) return false;
    if (read_request(it, NULL, bytes, length, &request) < 0 || quota_counts(it, &request) ||
        answers_reserve_place(it, &request, length) < 0)
        return false;
    if (!connections->borrowed(connections->borrowed_context, &request)) {
        it->left_reason = request.fallback_reason;
        answers_return_place(it);
        return false;
    }
    framing_note_size(it, length);
    it->requests++;
    connections->statistics.requests++;
    connections->statistics.requests_hot++;
    return true;
}

int tpc_request_to_python(tpc_connections *connections, tpc_request *request) {
    connection *it = connection_find(connections, request->connection);
    if (it == NULL || it->state == CONNECTION_CLOSING) {
        tpc_request_release(request);
        return -ENOTCONN;
    }
    if (tpc_ring_push_event(connections->ring, TPC_EVENT_REQUEST, request->connection, request->sequence,
                            request->frame->length, request) == 0) {
        request->in_python = 1;
        it->requests_in_python++;
        return 0;
    }
    tpc_request_release(request);
    connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
    return -ENOBUFS;
}

/* ------------------------------------------------------------------------------------------------ which wait */

/* An answer to a Fetch may be large, so it is made when what stands before it has been answered and has nearly left. */
static bool may_fetch(const connection *it) {
    return it->requests_unanswered == 0 && it->unsent_bytes <= FETCH_AHEAD_BYTES;
}

static bool above_bounds(const connection *it) {
    const tpc_connection_limits *limits = &it->owner->limits;
    int64_t taken = it->next_sequence - it->first_sequence;
    return it->deferred != NULL || it->muted_place || connection_must_wait(it) ||
           taken >= limits->pipelined_requests_max || it->held_bytes >= limits->receive_share_bytes;
}

static bool below_low_marks(const connection *it) {
    const tpc_connection_limits *limits = &it->owner->limits;
    int64_t taken = it->next_sequence - it->first_sequence;
    bool waits = it->muted_place || (it->deferred != NULL && !may_fetch(it)) || connection_must_wait(it);
    return !waits && taken <= limits->pipelined_requests_max / 2 && it->held_bytes <= limits->receive_share_bytes / 2;
}

/* Whether a whole Fetch has to wait; then it has been put aside. */
static bool defer(connection *it, const tpc_request *request) {
    if (request->api_key != TPC_API_FETCH || (may_fetch(it) && answers_have_room(it->owner))) return false;
    it->deferred = request->frame;
    if (may_fetch(it))
        framing_starve(it);
    else
        framing_pause(it);
    return true;
}

/* Takes the frame. The connection may be closing afterwards. A Produce that was left where it lay is not shown to the hot handler,
 * which would read it once more and find the same: its reason goes with it to Python. */
static void deliver(connection *it, tpc_frame *frame) {
    tpc_connections *connections = it->owner;
    tpc_request *request = make_request(it, frame);
    if (request == NULL) return;
    int refusal = connection_refusal(it, request->api_key);
    if (refusal != TPC_CLOSE_NONE) {
        tpc_request_release(request);
        connection_begin_close(it, refusal, 0);
        return;
    }
    request->fallback_reason = it->left_reason;
    it->left_reason = 0;
    if (defer(it, request)) {
        free(request);
        return;
    }
    uint32_t bytes = frame->length;
    if (answers_reserve_place(it, request, bytes) < 0) goto no_memory;
    it->requests++;
    connections->statistics.requests++;
    quota_take(it, request, bytes, answers_last_place(it));
    int64_t began_ns = quota_time_begins(it);
    if (connections->hot != NULL && it->requests_in_python == 0 && !request->fallback_reason &&
        connection_may_be_served(it) && connections->hot(connections->hot_context, request)) {
        connections->statistics.requests_hot++;
        quota_time_ends(it, began_ns);
        return;
    }
    if (tpc_ring_push_event(connections->ring, TPC_EVENT_REQUEST, request->connection, request->sequence, bytes,
                            request) == 0) {
        request->in_python = 1;
        it->requests_in_python++;
        return;
    }
no_memory:
    tpc_request_release(request);
    connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
}

static bool align_request(connection *it, const uint8_t *data, size_t bytes, uint32_t *residue) {
    const tpc_connections *connections = it->owner;
    return connections->alignment != NULL && connection_may_be_served(it) &&
           connections->alignment(connections->alignment_context, data, bytes, it->subject, residue);
}

const connection_sink request_sink = {.take_bytes = deliver_in_place,
                                      .take_frame = deliver,
                                      .is_full = above_bounds,
                                      .may_resume = below_low_marks,
                                      .align = align_request};
