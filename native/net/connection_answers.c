/*
 * Answers: each connection's ring of them in the order of its requests, the memory that they take, and what gives them.
 *
 * Answers may come in any order. What is not an answer (the frames of a link) takes a place of its own behind them. How they
 * leave is for connection_send.c, connection_send_file.c, connection_tls.c and, those of streams, link.c.
 */
#include "connection_state.h"
#include "latency.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_FIELD_BYTES = 4, ANSWERS_KEPT = 64 };

/* ------------------------------------------------------------------------------------------------ the ring of answers */

static int grow_answers(connection *it) {
    uint32_t capacity = it->answers_capacity ? it->answers_capacity * 2 : ANSWERS_FIRST;
    answer *answers = calloc(capacity, sizeof *answers);
    if (answers == NULL) return -ENOMEM;
    for (int64_t at = it->first_sequence; at < it->next_sequence; at++)
        answers[(uint64_t)at & (capacity - 1)] = *answer_at(it, at);
    free(it->answers);
    it->answers = answers;
    it->answers_capacity = capacity;
    return 0;
}

int answers_reserve_place(connection *it, const tpc_request *request, uint32_t request_bytes) {
    if (it->next_sequence - it->first_sequence == it->answers_capacity) {
        int result = grow_answers(it);
        if (result < 0) return result;
    }
    *answer_at(it, it->next_sequence) = (answer){.state = ANSWER_WAITING,
                                                 .request_bytes = request_bytes,
                                                 .received_ns = request->received_ns,
                                                 .api_key = request->api_key,
                                                 .api_version = request->api_version};
    it->next_sequence++;
    it->requests_unanswered++;
    it->held_bytes += request_bytes;
    it->owner->statistics.requests_unanswered++;
    return 0;
}

answer *answers_last_place(const connection *it) { return answer_at(it, it->next_sequence - 1); }

void answers_return_place(connection *it) {
    it->next_sequence--;
    it->requests_unanswered--;
    it->held_bytes -= answer_at(it, it->next_sequence)->request_bytes;
    it->owner->statistics.requests_unanswered--;
}

static tpc_frame *take_chunk(tpc_connections *connections) {
    if (connections->chunks_count > 0) return connections->chunks[--connections->chunks_count];
    tpc_frame *chunk = tpc_frame_new_forced(connections->budget, ANSWER_CHUNK_BYTES);
    if (chunk != NULL) chunk->length = 0;
    return chunk;
}

static void return_chunk(connection *it) {
    tpc_connections *connections = it->owner;
    tpc_frame *chunk = it->chunk;
    it->chunk = NULL;
    if (chunk == NULL) return;
    if (chunk->references == 1 && connections->chunks_count < ANSWER_CHUNKS_KEPT) {
        chunk->length = 0;
        connections->chunks[connections->chunks_count++] = chunk;
    } else {
        tpc_frame_release(chunk);
    }
}

static void release_slices(const tpc_slice *slices, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) tpc_frame_release(slices[i].frame);
}

static void release_answer(connection *it, answer *gone) {
    release_slices(answer_slices(gone), gone->count);
    free(gone->slices);
    it->held_bytes -= gone->bytes;
    it->unsent_bytes -= gone->bytes;
    it->owner->statistics.answer_bytes_unsent -= gone->bytes;
    it->owner->answers_held_bytes -= (int64_t)gone->memory_bytes;
    *gone = (answer){0};
}

void answers_skip_none(connection *it) {
    while (it->first_sequence < it->next_sequence && answer_at(it, it->first_sequence)->state == ANSWER_NONE)
        it->first_sequence++;
    if (it->first_sequence < it->next_sequence) return;
    return_chunk(it);
    if (it->answers_capacity > ANSWERS_KEPT) {
        free(it->answers);
        it->answers = NULL;
        it->answers_capacity = 0;
    }
}

void answers_forget(connection *it) {
    for (int64_t at = it->first_sequence; at < it->next_sequence; at++) {
        answer *gone = answer_at(it, at);
        if (gone->state == ANSWER_READY) release_answer(it, gone);
    }
    it->owner->statistics.requests_unanswered -= it->requests_unanswered;
    it->requests_unanswered = 0;
    it->held_bytes = 0;
    free(it->answers);
    it->answers = NULL;
    it->answers_capacity = 0;
    it->first_sequence = it->next_sequence;
    return_chunk(it);
    node_remove(&it->by_send);
}

/* ------------------------------------------------------------------------------------------------ room for answers */

/*
 * What answers may keep in memory until their readers take it. Each may have a part of the room that is left, so that it
 * shrinks with those that nobody reads, and what is sure as long as there is twice the share. Above that no Fetch is taken.
 */
static int64_t answers_share(const tpc_connections *connections) {
    return connections->budget->bytes_max / ANSWERS_SHARE;
}

bool answers_have_room(const tpc_connections *connections) {
    return connections->answers_held_bytes < 2 * answers_share(connections);
}

int64_t tpc_answers_allowance(const tpc_connections *connections) {
    int64_t room_bytes = answers_share(connections) - connections->answers_held_bytes;
    return room_bytes / ANSWERS_SHARE > ANSWER_BYTES_SURE ? room_bytes / ANSWERS_SHARE : ANSWER_BYTES_SURE;
}

/* Rule: An answer is charged before it is made. A Fetch waits until what is before it on its connection has nearly
 * left. Why: docs/decisions/2026-11-22-answers-are-charged-first.md. See also native/net/connection_requests.c,
 * native/requests/fetch.c, tpc_broker/broker/handlers/fetch.py. Held by tests/engine/test_fetch_memory.py. */
int64_t tpc_answers_reserve(tpc_connections *connections, int64_t bytes) {
    int64_t allowed_bytes = tpc_answers_allowance(connections);
    if (!answers_have_room(connections)) return -ENOBUFS;
    if (bytes > allowed_bytes) bytes = allowed_bytes;
    connections->answers_held_bytes += bytes;
    return bytes;
}

void tpc_answers_unreserve(tpc_connections *connections, int64_t bytes) { connections->answers_held_bytes -= bytes; }

/* ------------------------------------------------------------------------------------------------ answering */

/* The place of an answer that may be given now. 0, -ENOTCONN, -EALREADY, -EINVAL. */
static int find_waiting(tpc_connections *connections, uint64_t id, int64_t sequence, connection **it, answer **place) {
    *it = connection_find(connections, id);
    if (*it == NULL || (*it)->state == CONNECTION_CLOSING) {
        connections->statistics.answers_void++;
        return -ENOTCONN;
    }
    if (sequence < 0 || sequence >= (*it)->next_sequence) return -EINVAL;
    if (sequence < (*it)->first_sequence) return -EALREADY;
    *place = answer_at(*it, sequence);
    return (*place)->state == ANSWER_WAITING ? 0 : -EALREADY;
}

static uint64_t memory_bytes_of(answer *of) {
    uint64_t bytes = of->bytes;
    for (uint32_t i = 0; of->holds_files && i < of->count; i++)
        if (answer_slices(of)[i].frame->holds_file) bytes -= answer_slices(of)[i].length;
    return bytes;
}

static void answered(connection *it, answer *place, int64_t sequence, uint8_t state, uint64_t bytes) {
    tpc_connections *connections = it->owner;
    latency_note(it, place, bytes);
    if (place->fetch_quota != NULL) quota_fetched(it, place, bytes);
    place->state = state;
    place->bytes = bytes;
    place->memory_bytes = memory_bytes_of(place);
    connections->answers_held_bytes += (int64_t)place->memory_bytes;
    it->requests_unanswered--;
    it->held_bytes += bytes;
    it->held_bytes -= place->request_bytes;
    it->unsent_bytes += bytes;
    connections->statistics.requests_unanswered--;
    connections->statistics.answer_bytes_unsent += bytes;
    if (state == ANSWER_READY)
        connections->statistics.answers++;
    else
        connections->statistics.answers_none++;
    bool at_head = sequence == it->first_sequence;
    if (at_head && state == ANSWER_NONE && it->carrier == NULL) answers_skip_none(it);
    if (at_head || it->paused) connection_needs_attention(it);
}

static void put_length(uint8_t *at, uint64_t bytes) {
    uint32_t raw = __builtin_bswap32((uint32_t)bytes);
    memcpy(at, &raw, sizeof raw);
}

static int give_up(connection *it, int error) {
    connection_begin_close(it, TPC_CLOSE_BUDGET, error);
    return -error;
}

int tpc_answer_bytes(tpc_connections *connections, uint64_t id, int64_t sequence, const uint8_t *data, size_t length) {
    connection *it;
    answer *place;
    int result = find_waiting(connections, id, sequence, &it, &place);
    if (result < 0) return result;
    if (length > INT32_MAX) return give_up(it, EMSGSIZE);
    tpc_frame *frame = tpc_frame_new_forced(connections->budget, (uint32_t)(LENGTH_FIELD_BYTES + length));
    if (frame == NULL) return give_up(it, ENOMEM);
    put_length(frame->data, length);
    memcpy(frame->data + LENGTH_FIELD_BYTES, data, length);
    place->single = (tpc_slice){.frame = frame, .data = frame->data, .length = frame->length};
    place->count = 1;
    answered(it, place, sequence, ANSWER_READY, frame->length);
    return 0;
}

/* Copies what has no frame behind the length field into `copied`, and lists the pieces; how many there are. */
static uint32_t list_pieces(const tpc_slice *slices, uint32_t count, tpc_frame *copied, tpc_slice *pieces) {
    uint32_t listed = 1;
    uint8_t *end = copied->data + LENGTH_FIELD_BYTES;
    pieces[0] = (tpc_slice){.frame = copied, .data = copied->data, .length = LENGTH_FIELD_BYTES};
    for (uint32_t i = 0; i < count; i++) {
        tpc_slice *last = &pieces[listed - 1];
        if (slices[i].frame != NULL) {
            if (slices[i].length == 0)
                tpc_frame_release(slices[i].frame);
            else
                pieces[listed++] = slices[i];
            continue;
        }
        if (slices[i].length == 0) continue;
        memcpy(end, slices[i].data, slices[i].length);
        if (last->frame == copied)
            last->length += slices[i].length;
        else
            pieces[listed++] = (tpc_slice){.frame = tpc_frame_retain(copied), .data = end, .length = slices[i].length};
        end += slices[i].length;
    }
    return listed;
}

static int place_slices(connection *it, answer *place, const tpc_slice *slices, uint32_t count, uint64_t *bytes) {
    uint64_t copied_bytes = 0, all_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        all_bytes += slices[i].length;
        if (slices[i].frame == NULL) copied_bytes += slices[i].length;
    }
    if (all_bytes > INT32_MAX) return -EMSGSIZE;
    tpc_frame *copied = tpc_frame_new_forced(it->owner->budget, (uint32_t)(LENGTH_FIELD_BYTES + copied_bytes));
    tpc_slice *pieces = malloc((count + 1) * sizeof *pieces);
    if (copied == NULL || pieces == NULL) {
        tpc_frame_release(copied);
        free(pieces);
        return -ENOMEM;
    }
    put_length(copied->data, all_bytes);
    place->count = list_pieces(slices, count, copied, pieces);
    place->slices = pieces;
    if (place->count == 1) {
        place->single = pieces[0];
        place->slices = NULL;
        free(pieces);
    }
    *bytes = all_bytes + LENGTH_FIELD_BYTES;
    return 0;
}

int tpc_answer_slices(tpc_connections *connections, uint64_t id, int64_t sequence, const tpc_slice *slices,
                      uint32_t count) {
    connection *it = NULL;
    answer *place;
    uint64_t bytes;
    int result = find_waiting(connections, id, sequence, &it, &place);
    if (result < 0) {
        release_slices(slices, count);
        return result;
    }
    result = place_slices(it, place, slices, count, &bytes);
    if (result < 0) {
        release_slices(slices, count);
        return give_up(it, -result);
    }
    answered(it, place, sequence, ANSWER_READY, bytes);
    return 0;
}

/* What a connection sends of several slices; `place` is waiting. 0 or -ENOMEM. */
static int place_framed(answer *place, const tpc_slice *slices, uint32_t count, uint64_t *bytes) {
    place->slices = malloc(count * sizeof *slices);
    if (place->slices == NULL) return -ENOMEM;
    memcpy(place->slices, slices, count * sizeof *slices);
    for (uint32_t i = 0; i < count; i++) {
        *bytes += slices[i].length;
        place->holds_files |= slices[i].frame->holds_file;
    }
    return 0;
}

int answers_push(connection *it, const tpc_slice *slices, uint32_t count, bool memory) {
    tpc_connections *connections = it->owner;
    bool is_room = it->next_sequence - it->first_sequence < it->answers_capacity || grow_answers(it) == 0;
    answer *place = is_room ? answer_at(it, it->next_sequence) : NULL;
    uint64_t bytes = count == 1 ? slices[0].length : 0;
    if (place != NULL) *place = (answer){.state = ANSWER_READY, .count = count};
    if (place == NULL || (count > 1 && place_framed(place, slices, count, &bytes) < 0)) {
        release_slices(slices, count);
        return give_up(it, ENOMEM);
    }
    if (count == 1) {
        place->single = slices[0];
        place->holds_files = slices[0].frame->holds_file;
    }
    place->bytes = bytes;
    place->memory_bytes = memory ? memory_bytes_of(place) : 0;
    connections->answers_held_bytes += (int64_t)place->memory_bytes;
    connections->statistics.answer_bytes_unsent += bytes;
    it->held_bytes += bytes;
    it->unsent_bytes += bytes;
    it->next_sequence++;
    connection_needs_attention(it);
    return 0;
}

bool answers_take(connection *it, answer *taken) {
    if (it->first_sequence == it->next_sequence) return false;
    answer *head = answer_at(it, it->first_sequence);
    if (head->state == ANSWER_WAITING) return false;
    *taken = *head;
    it->held_bytes -= head->bytes;
    it->unsent_bytes -= head->bytes;
    it->owner->statistics.answer_bytes_unsent -= head->bytes;
    it->owner->answers_held_bytes -= (int64_t)head->memory_bytes;
    *head = (answer){0};
    it->first_sequence++;
    if (it->first_sequence == it->next_sequence) answers_skip_none(it);
    return true;
}

int tpc_answer_framed(tpc_connections *connections, uint64_t id, int64_t sequence, const tpc_slice *slices,
                      uint32_t count) {
    connection *it = NULL;
    answer *place = NULL;
    uint64_t bytes = 0;
    int result = find_waiting(connections, id, sequence, &it, &place);
    if (result == 0 && count == 1) {
        place->single = slices[0];
        place->holds_files = slices[0].frame->holds_file;
        bytes = slices[0].length;
    } else if (result == 0 && place_framed(place, slices, count, &bytes) < 0) {
        result = give_up(it, ENOMEM);
    }
    if (result < 0) {
        release_slices(slices, count);
        return result;
    }
    place->count = count;
    answered(it, place, sequence, ANSWER_READY, bytes);
    return 0;
}

uint8_t *tpc_answer_room(tpc_connections *connections, uint64_t id, uint32_t *room_bytes, tpc_frame **chunk) {
    connection *it = connection_find(connections, id);
    if (it == NULL || it->state == CONNECTION_CLOSING) return NULL;
    tpc_frame *last = it->chunk;
    if (last != NULL && last->references == 1) last->length = 0;
    if (last == NULL || last->capacity - last->length < ANSWER_ROOM_BYTES_MIN) {
        it->chunk = take_chunk(connections);
        tpc_frame_release(last);
        if (it->chunk == NULL) {
            give_up(it, ENOMEM);
            return NULL;
        }
    }
    *chunk = it->chunk;
    *room_bytes = it->chunk->capacity - it->chunk->length;
    return it->chunk->data + it->chunk->length;
}

tpc_slice tpc_answer_take(tpc_frame *chunk, uint32_t bytes) {
    uint8_t *taken = chunk->data + chunk->length;
    chunk->length += bytes;
    return tpc_slice_of(chunk, taken, bytes);
}

int tpc_answer_none(tpc_connections *connections, uint64_t id, int64_t sequence) {
    connection *it;
    answer *place;
    int result = find_waiting(connections, id, sequence, &it, &place);
    if (result < 0) return result;
    answered(it, place, sequence, ANSWER_NONE, 0);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ what has left */

/* `bytes` of the head have left. */
static void advance(connection *it, uint64_t bytes) {
    while (bytes > 0) {
        answers_skip_none(it);
        assert(it->first_sequence < it->next_sequence);
        answer *head = answer_at(it, it->first_sequence);
        assert(head->state == ANSWER_READY);
        uint64_t left = answer_slices(head)[it->head_slice].length - it->head_offset;
        if (bytes < left) {
            it->head_offset += (uint32_t)bytes;
            return;
        }
        bytes -= left;
        it->head_offset = 0;
        if (++it->head_slice < head->count) continue;
        it->head_slice = 0;
        release_answer(it, head);
        it->first_sequence++;
    }
    answers_skip_none(it);
}

void answers_progressed(connection *it, uint64_t bytes) {
    it->sent_bytes += bytes;
    it->owner->statistics.sent_bytes += bytes;
    connection_touch(it);
    advance(it, bytes);
}
