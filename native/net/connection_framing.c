/*
 * Framing: bytes that came to frames, which go to the connection's sink: requests of a client, or what a link carries.
 *
 * One that lies whole in what was received is first shown to the sink where it lies, which may take it without anything
 * being allocated for it. Any other is received into its frame, whose length was checked against the limit. The frame grows
 * with what arrived, at most to double: what a client announces costs nothing, what it sends does. Twice its largest request
 * so far is allowed at once.
 *
 * A large request whose bytes will go to a disk as they lie has its frame where that can be: its first byte at an
 * address that somebody wishes, modulo a page, and `lead` bytes behind the frame's beginning.
 *
 * Back-pressure is decided here, at the border of two requests: above a bound of the connection (`paused`), or when the
 * budget is used up (`starved`, also inside a request), nothing more is parsed. What becomes of bytes that are not is for
 * who brought them.
 */
#include "connection_state.h"

#include <errno.h>
#include <string.h>

void framing_note_size(connection *it, uint32_t bytes) {
    if (bytes > it->largest_bytes) it->largest_bytes = bytes;
    if (bytes < LARGE_REQUEST_BYTES_MIN) {
        it->large_credit -= it->large_credit > 0;
        return;
    }
    it->large_credit = LARGE_REQUESTS_CREDIT;
    if (it->multishot_armed) connection_needs_attention(it);
}

void framing_pause(connection *it) {
    it->paused = true;
    it->owner->statistics.pauses++;
    connection_needs_attention(it);
}

static void assembly_progressed(connection *it) {
    it->assembly_progress_ns = tpc_ring_now_ns(it->owner->ring);
    node_to_tail(&it->owner->by_assembly, &it->by_assembly);
}

/* Its place among the starved, and its time, are those of the first refusal since it last got on. */
void framing_starve(connection *it) {
    tpc_connections *connections = it->owner;
    it->starved = true;
    if (connections->starved_at_bytes < tpc_budget_held(connections->budget))
        connections->starved_at_bytes = tpc_budget_held(connections->budget); /* from here on, less is news */
    if (connections->starved_at_answers < connections->answers_held_bytes)
        connections->starved_at_answers = connections->answers_held_bytes;
    connection_needs_attention(it);
    if (node_linked(&it->by_starvation)) return;
    it->owner->statistics.starvations++;
    it->starved_ns = tpc_ring_now_ns(it->owner->ring);
    node_to_tail(&it->owner->by_starvation, &it->by_starvation);
    node_remove(&it->by_assembly);
}

void framing_end_starvation(connection *it) {
    it->starved = false;
    if (!node_linked(&it->by_starvation)) return;
    node_remove(&it->by_starvation);
    if (it->partial != NULL) assembly_progressed(it);
}

/* A link's frame may hold a request, or an answer. */
static int64_t frame_bytes_max(const connection *it) {
    const tpc_connection_limits *limits = &it->owner->limits;
    if (it->stage != TPC_STAGE_SERVES && limits->authentication_bytes_max < limits->request_bytes_max)
        return limits->authentication_bytes_max;
    return it->sink->is_forced ? INT32_MAX : limits->request_bytes_max;
}

static int check_length(const connection *it, int64_t announced) {
    if (announced < 0) return TPC_CLOSE_FRAME_NEGATIVE;
    if (announced == 0) return TPC_CLOSE_FRAME_EMPTY;
    if (announced <= frame_bytes_max(it)) return TPC_CLOSE_NONE;
    return announced <= it->owner->limits.request_bytes_max ? TPC_CLOSE_STRANGER_TOO_LARGE : TPC_CLOSE_FRAME_TOO_LARGE;
}

/* The length field, which may come in pieces. How many bytes it took; `announced` is set when it is whole. */
static size_t take_length(connection *it, const uint8_t *data, size_t bytes) {
    size_t taken = sizeof it->length_field - it->length_have;
    if (taken > bytes) taken = bytes;
    memcpy(it->length_field + it->length_have, data, taken);
    it->length_have += (uint8_t)taken;
    if (it->length_have < sizeof it->length_field) return taken;
    uint32_t raw;
    memcpy(&raw, it->length_field, sizeof raw);
    int64_t announced = (int32_t)__builtin_bswap32(raw);
    int reason = check_length(it, announced);
    if (reason != TPC_CLOSE_NONE)
        connection_begin_close(it, reason, (int)announced);
    else
        it->announced = (uint32_t)announced;
    return taken;
}

/* The frame of a request of which these bytes are there; `lead` is set. */
static tpc_frame *first_frame(connection *it, uint32_t capacity, const uint8_t *data, size_t bytes) {
    tpc_connections *connections = it->owner;
    uint32_t residue;
    bool is_whole = capacity == it->announced && capacity >= LARGE_REQUEST_BYTES_MIN;
    it->lead = 0;
    if (!is_whole || it->sink->align == NULL || !it->sink->align(it, data, bytes, &residue))
        return tpc_frame_new(connections->budget, capacity);
    it->lead = residue % sizeof(uint64_t);
    return tpc_frame_new_at(connections->budget, capacity + it->lead, residue - it->lead);
}

/* Who is trusted gets all that it announced. */
static int make_whole_room(connection *it, const uint8_t *data, size_t bytes) {
    uint32_t residue;
    it->lead = 0;
    if (it->announced >= LARGE_REQUEST_BYTES_MIN && it->sink->align(it, data, bytes, &residue)) {
        it->lead = residue % sizeof(uint64_t);
        it->partial = tpc_frame_new_at(it->owner->budget, it->announced + it->lead, residue - it->lead);
    }
    if (it->partial == NULL) {
        it->lead = 0;
        it->partial = tpc_frame_new_forced(it->owner->budget, it->announced);
    }
    if (it->partial == NULL) {
        connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
        return -ENOMEM;
    }
    it->partial->length = it->lead;
    return 0;
}

/* Room for the next bytes of the unfinished request: never more than it announced; see the top of the file. */
static int make_room(connection *it, const uint8_t *data, size_t bytes) {
    uint64_t needed = framing_have_bytes(it) + (uint64_t)bytes;
    if (it->partial != NULL && needed + it->lead <= it->partial->capacity) return 0;
    if (it->sink->is_forced) return make_whole_room(it, data, bytes);
    uint64_t capacity = needed == it->announced ? needed : needed * 2;
    if (capacity < FRAME_FIRST_BYTES) capacity = FRAME_FIRST_BYTES;
    if (capacity < 2ull * it->largest_bytes) capacity = 2ull * it->largest_bytes;
    if (capacity > it->announced) capacity = it->announced;
    if (!identity_has_room(it, (int64_t)capacity - (it->partial != NULL ? it->partial->capacity : 0))) return -ENOBUFS;
    if (it->partial != NULL) return tpc_frame_resize(&it->partial, (uint32_t)capacity + it->lead);
    it->partial = first_frame(it, (uint32_t)capacity, data, bytes);
    if (it->partial == NULL) return -ENOBUFS;
    it->partial->length = it->lead;
    return 0;
}

void framing_arrived(connection *it, size_t bytes) {
    it->partial->length += (uint32_t)bytes;
    it->owner->statistics.assembling_bytes += bytes;
    if (framing_have_bytes(it) < it->announced) {
        if (!node_linked(&it->by_starvation) && !it->sink->is_forced) assembly_progressed(it);
        return;
    }
    tpc_frame *frame = it->partial;
    it->partial = NULL;
    it->length_have = 0;
    it->owner->statistics.assembling_bytes -= it->announced;
    node_remove(&it->by_assembly);
    framing_note_size(it, it->announced);
    it->sink->take_frame(it, frame);
}

/* The length of the request that begins and ends in these bytes; 0: there is none, or one to be looked at more closely. */
static uint32_t whole_request(const connection *it, const uint8_t *data, size_t bytes) {
    if (it->length_have > 0 || bytes < sizeof it->length_field) return 0;
    uint32_t raw;
    memcpy(&raw, data, sizeof raw);
    uint32_t length = __builtin_bswap32(raw);
    return length <= bytes - sizeof raw && length <= frame_bytes_max(it) ? length : 0;
}

size_t framing_parse(connection *it, uint8_t *data, size_t bytes) {
    size_t position = 0;
    while (position < bytes && it->state == CONNECTION_OPEN) {
        if (it->length_have == 0 && it->sink->is_full(it)) {
            framing_pause(it);
            break;
        }
        uint32_t whole = whole_request(it, data + position, bytes - position);
        if (whole > 0 && it->sink->take_bytes(it, data + position + sizeof it->length_field, whole)) {
            position += sizeof it->length_field + whole;
            continue;
        }
        if (it->length_have < sizeof it->length_field) {
            position += take_length(it, data + position, bytes - position);
            continue;
        }
        size_t missing = it->announced - framing_have_bytes(it);
        size_t taken = missing < bytes - position ? missing : bytes - position;
        if (make_room(it, data + position, taken) < 0) {
            if (it->state == CONNECTION_OPEN) framing_starve(it);
            break;
        }
        memcpy(it->partial->data + it->partial->length, data + position, taken);
        position += taken;
        framing_arrived(it, taken);
    }
    return position;
}

uint8_t *framing_room(connection *it, uint32_t bytes) {
    if (it->partial == NULL || it->announced - framing_have_bytes(it) < bytes) return NULL;
    if (make_room(it, NULL, bytes) == 0) return it->partial->data + it->partial->length;
    if (it->state == CONNECTION_OPEN) framing_starve(it);
    return NULL;
}
