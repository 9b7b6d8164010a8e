/* The links of a core: their frames, streams, and the calls under way. link.h says how they work. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "link_state.h"

enum {
    LENGTH_BYTES = 4,
    FRAME_HEADER_BYTES = LENGTH_BYTES + TPC_LINK_HEADER_BYTES,
    HELLO_FRAME_BYTES = FRAME_HEADER_BYTES + TPC_LINK_HELLO_BYTES,
    COPIED_BYTES_MAX = 200, /* of a frame: they lie behind its header, and leave in one piece */
    FEW_SLICES = 8,
    SHARE_BYTES = 64 << 20,
    DATAGRAMS_LEVEL = 2,
    SUBJECTS_LEVEL = 3,
    DATAGRAMS_UNSENT_BYTES_MAX = 1 << 20
};

_Static_assert(FRAME_HEADER_BYTES + LENGTH_BYTES + COPIED_BYTES_MAX <= ANSWER_ROOM_BYTES_MIN, "room for a small frame");

/* Requests go one way on a link, answers the other; nothing but a HELLO before its other end has said who it is. */
static bool may_say(const link *it, uint8_t kind) {
    return it->is_up && (kind == TPC_LINK_CLOSE || it->dialled == (kind != TPC_LINK_ANSWER));
}

static void release_all(const tpc_slice *slices, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) tpc_frame_release(slices[i].frame);
}

/* ---- frames out ---- */

/* Header, perhaps the length of a request, and what follows. The references are consumed. 0 or -errno: the link closes, and is
 * gone already if nobody holds its connection. */
static int push(link *it, tpc_link_frame *frame, bool with_length, const tpc_slice *slices, uint32_t count) {
    tpc_connections *connections = it->owner->connections;
    tpc_slice few[FEW_SLICES + 1], *all = count <= FEW_SLICES ? few : malloc((count + 1) * sizeof *all);
    uint32_t room_bytes, head_bytes = FRAME_HEADER_BYTES, bytes = 0;
    tpc_frame *chunk;
    TPC_INVARIANT(may_say(it, frame->kind), "a frame of kind %u to core %u, dialled %d", frame->kind, it->core,
                  it->dialled);
    TPC_HOLDS(count > 0 || !with_length);
    for (uint32_t i = 0; i < count; i++) bytes += slices[i].length;
    TPC_HOLDS(bytes <= INT32_MAX);
    uint8_t *room = all ? tpc_answer_room(connections, connection_id(it->connection), &room_bytes, &chunk) : NULL;
    if (!room) {
        release_all(slices, count);
        if (!all) connection_begin_close(it->connection, TPC_CLOSE_BUDGET, ENOMEM); /* else it has closed already */
        if (all != few) free(all);
        return -ENOMEM;
    }
    TPC_HOLDS(room_bytes >= ANSWER_ROOM_BYTES_MIN);
    frame->payload_bytes = bytes + (with_length ? LENGTH_BYTES : 0);
    tpc_link_frame_header(frame, room);
    if (with_length) {
        uint32_t length = __builtin_bswap32(bytes);
        memcpy(room + head_bytes, &length, sizeof length);
        head_bytes += LENGTH_BYTES;
    }
    bool copied = bytes <= COPIED_BYTES_MAX;
    for (uint32_t i = 0; i < count && copied; i++) copied = !slices[i].frame->holds_file;
    for (uint32_t i = 0; i < count && copied; i++) {
        memcpy(room + head_bytes, slices[i].data, slices[i].length);
        head_bytes += slices[i].length;
    }
    TPC_HOLDS(!copied || head_bytes == FRAME_HEADER_BYTES + frame->payload_bytes);
    all[0] = tpc_answer_take(chunk, head_bytes);
    if (copied)
        release_all(slices, count);
    else
        memcpy(all + 1, slices, count * sizeof *slices);
    int result = answers_push(it->connection, all, copied ? 1 : count + 1, !with_length);
    if (all != few) free(all);
    return result;
}

static int push_control(link *it, uint8_t kind, uint64_t stream, uint32_t sequence, uint16_t detail) {
    tpc_link_frame frame = {.kind = kind, .stream = stream, .sequence = sequence, .detail = detail};
    return push(it, &frame, false, NULL, 0);
}

static int push_hello(link *it) {
    uint32_t room_bytes;
    tpc_frame *chunk;
    TPC_HOLDS(!it->is_up && it->connection->next_sequence == 0); /* the first that is said */
    uint8_t *room = tpc_answer_room(it->owner->connections, connection_id(it->connection), &room_bytes, &chunk);
    if (!room) return -ENOMEM;
    tpc_link_hello(it->owner->core, it->owner->life, room);
    tpc_slice hello = tpc_answer_take(chunk, HELLO_FRAME_BYTES);
    return answers_push(it->connection, &hello, 1, true);
}

/* ---- streams ---- */

/* All calls of a client are over, and so is its stream. */
static void fail_calls(link *it, link_stream *stream, enum tpc_link_outcome first_outcome) {
    links *owner = it->owner;
    enum tpc_link_outcome outcome = first_outcome;
    tpc_link_call *call = stream->first;
    TPC_HOLDS(it->dialled && !stream->connection);
    TPC_HOLDS(!call || owner->listener.done);
    link_end_stream(it, stream);
    for (tpc_link_call *next; call; call = next, outcome = TPC_LINK_LOST) {
        next = call->next;
        owner->statistics.failed++;
        owner->listener.done(owner->listener.context, call, outcome, NULL);
    }
}

static void give_back(connection *stream, uint64_t bytes) {
    link *carrier = stream->carrier;
    bool is_idle = !stream->requests_unanswered && !stream->backlog && !stream->deferred && !stream->partial;
    if (bytes > stream->carried_bytes || is_idle) bytes = stream->carried_bytes;
    TPC_HOLDS(stream->carried_bytes <= carrier->held_bytes);
    stream->carried_bytes -= bytes;
    carrier->held_bytes -= bytes;
    if (carrier->connection->paused && carrier->held_bytes <= carrier->owner->share_bytes / 2)
        connection_needs_attention(carrier->connection);
}

bool links_send_answers(connection *it) {
    answer taken;
    bool any = false;
    TPC_HOLDS(it->carrier && !it->carrier->dialled);
    while (it->state != CONNECTION_CLOSING && answers_take(it, &taken)) {
        tpc_link_frame frame = {
            .kind = TPC_LINK_ANSWER, .stream = it->client, .sequence = (uint32_t)it->first_sequence - 1};
        TPC_HOLDS(it->first_sequence > 0);
        give_back(it, taken.request_bytes);
        push(it->carrier, &frame, false, answer_slices(&taken), taken.count);
        free(taken.slices);
        any = true;
    }
    return any;
}

/* `named`: NULL, or taken. */
static connection *open_stream(link *it, const tpc_link_frame *frame, tpc_frame *named) {
    connection *made = connection_make(it->owner->connections, -1, frame->detail, &request_sink);
    if (!made) {
        tpc_frame_release(named);
        return NULL;
    }
    made->named = named;
    identity_begin(made);
    made->carrier = it;
    TPC_HOLDS(!it->dialled && it->is_up && frame->stream);
    made->client = frame->stream;
    made->client_core = it->core;
    if (connection_announce(made) < 0) return NULL;
    it->owner->connections->links_connections++;
    connections_counted(it->owner->connections);
    it->owner->statistics.streams++;
    return made;
}

/* ---- frames in ---- */

/* A large request stays in the frame that it came in, if its stream can take it now. Whether it did. */
static bool take_in_its_frame(connection *stream, const tpc_link_frame *said, tpc_frame *frame) {
    uint32_t length;
    if (said->payload_bytes < LARGE_REQUEST_BYTES_MIN || !receive_takes_frames(stream)) return false;
    memcpy(&length, said->payload, sizeof length);
    length = __builtin_bswap32(length);
    if (length != said->payload_bytes - LENGTH_BYTES || length > stream->owner->limits.request_bytes_max) return false;
    TPC_HOLDS(said->payload > frame->data && said->payload + LENGTH_BYTES - frame->data <= UINT8_MAX);
    TPC_HOLDS(said->payload + said->payload_bytes <= frame->data + frame->length);
    stream->lead = (uint8_t)(said->payload + LENGTH_BYTES - frame->data);
    stream->sink->take_frame(stream, tpc_frame_retain(frame));
    return true;
}

static bool may_be_of_a_stream(const link *it, const tpc_link_frame *said) {
    return !it->dialled && said->stream && (uint32_t)said->stream < TPC_LINK_PLACES_MAX;
}

/* Where requests are taken: the client's connection at this end. */
static connection *taker_of(const link *it, const link_stream *stream) {
    TPC_HOLDS(!it->dialled && !stream->first);
    TPC_HOLDS(stream->connection && stream->connection->carrier == it);
    TPC_HOLDS(stream->connection->client == stream->client);
    return stream->connection;
}

/* The one whose client had this client's place: it may have something left to do. */
static void end_one_before(link *it, uint64_t client) {
    link_stream *place = link_find_slot(it, client);
    connection *before = place ? place->connection : NULL;
    if (!before) return;
    link_end_stream(it, place);
    receive_end_of_file(before);
}

/* NULL: no memory. */
static link_stream *place_stream(link *it, const tpc_link_frame *said, tpc_frame *named) {
    connection *made = open_stream(it, said, named);
    link_stream *place = made ? link_begin_stream(it, said->stream) : NULL;
    if (!place && made) connection_begin_close(made, TPC_CLOSE_BUDGET, ENOMEM);
    if (place) place->connection = made;
    return place;
}

/* One that was not opened: its client is closed. */
static void refuse_stream(link *it, const tpc_link_frame *said) {
    it->owner->statistics.refused++;
    push_control(it, TPC_LINK_CLOSE, said->stream, 0, TPC_CLOSE_AUTHENTICATION);
}

/* Rule: What a core does for another core's client it does by the rights of the subject that the other has named before
 * the first request. Where rights are asked for, or at a listener that asks for authentication, a stream without one is
 * refused, and so is one that is named twice. See also native/net/connection_identity.c. Held by
 * tests/engine/test_link_subjects.py. */
static bool take_subject(link *it, const tpc_link_frame *said) {
    tpc_link_subject_names names;
    if (!may_be_of_a_stream(it, said)) return false;
    const link_stream *opened = link_find_stream(it, said->stream);
    if (opened) {
        it->owner->statistics.refused++;
        connection_begin_close(taker_of(it, opened), TPC_CLOSE_AUTHENTICATION, 0);
        return true;
    }
    end_one_before(it, said->stream);
    if (tpc_link_subject_decode(said->payload, said->payload_bytes, &names) < 0) {
        refuse_stream(it, said);
        return true;
    }
    tpc_frame *named = tpc_frame_new_forced(it->owner->connections->budget, said->payload_bytes);
    if (!named) return false;
    memcpy(named->data, said->payload, said->payload_bytes);
    return place_stream(it, said, named) != NULL;
}

/* Rule: Requests that are forwarded keep the order of their client's connection. The end of a link that takes
 * answers never stops receiving. Why: docs/decisions/2026-11-22-links-between-cores.md. See also
 * native/requests/forward.c. Held by tests/engine/test_links.py, tests/engine/test_links_fetch.py. */
/* False: the other end does not keep to the protocol. `frame`: NULL when the bytes are only lent. */
static bool take_request(link *it, const tpc_link_frame *said, tpc_frame *frame) {
    if (!may_be_of_a_stream(it, said)) return false;
    link_stream *place = link_find_stream(it, said->stream);
    if (!place) {
        end_one_before(it, said->stream);
        if (said->sequence) return true; /* this end has closed it, and the other will hear of that */
        if (identity_is_required(it->owner->connections, said->detail)) {
            refuse_stream(it, said);
            return true;
        }
        place = place_stream(it, said, NULL);
        if (!place) return false;
    }
    connection *stream = taker_of(it, place);
    if (said->sequence != stream->carried) return false;
    stream->carried++;
    stream->carried_bytes += said->payload_bytes;
    it->held_bytes += said->payload_bytes;
    it->owner->statistics.served++;
    it->owner->statistics.served_bytes += said->payload_bytes;
    connection_hold(stream);
    if (!frame || !take_in_its_frame(stream, said, frame))
        receive_feed(stream, (uint8_t *)said->payload, said->payload_bytes);
    connection_let_go(stream);
    return true;
}

static bool take_answer(link *it, const tpc_link_frame *said, tpc_frame *frame) {
    links *owner = it->owner;
    link_stream *stream = it->dialled ? link_find_stream(it, said->stream) : NULL;
    if (!stream) return it->dialled; /* its client has gone */
    tpc_link_call *call = stream->first;
    if (!owner->listener.done) return true;
    if (!call || call->sequence != said->sequence) return false;
    TPC_HOLDS(call->next ? call->next->sequence == call->sequence + 1 : stream->last == call);
    TPC_HOLDS(owner->statistics.answered < owner->statistics.forwarded);
    stream->first = call->next;
    if (!stream->first) stream->last = NULL;
    tpc_slice bytes = {.frame = frame, .data = said->payload, .length = said->payload_bytes};
    owner->statistics.answered++;
    owner->listener.done(owner->listener.context, call, said->payload_bytes ? TPC_LINK_ANSWERED : TPC_LINK_NO_ANSWER,
                         &bytes);
    return true;
}

static bool is_of_the_client(uint16_t reason) {
    return (reason >= TPC_CLOSE_FRAME_TOO_LARGE && reason <= TPC_CLOSE_HEADER_MALFORMED) ||
           reason == TPC_CLOSE_REQUEST_INVALID || reason == TPC_CLOSE_AUTHENTICATION;
}

/* Rule: What came whole before its client went is carried out, if it may be: producers with acks=0 send and go. At the owner it may
 * still wait for Python to hear for whom it is. See also tpc_broker/broker/dispatch.py. Held by
 * tests/engine/test_link_subjects.py, tests/broker/test_dispatch.py. */
static void take_close(link *it, const tpc_link_frame *said) {
    link_stream *stream = link_find_stream(it, said->stream);
    if (!stream) return;
    if (it->dialled)
        fail_calls(it, stream, is_of_the_client(said->detail) ? TPC_LINK_REFUSED : TPC_LINK_LOST);
    else
        receive_end_of_file(taker_of(it, stream));
}

static void take_release(link *it, const tpc_link_frame *said) {
    link_stream *stream = it->dialled ? NULL : link_find_stream(it, said->stream);
    if (!stream) return;
    connection *taker = taker_of(it, stream);
    if (said->sequence + 1 > taker->released) taker->released = said->sequence + 1;
    if (it->owner->listener.release) it->owner->listener.release(it->owner->listener.context, connection_id(taker));
}

static bool take_hello(link *it, const tpc_link_frame *said) {
    if (it->is_up || said->core >= LINK_CORES_MAX || (it->dialled && said->core != it->core)) return false;
    it->core = said->core;
    it->life = said->life;
    it->feature_level =
        said->feature_level < TPC_LINK_FEATURE_LEVEL ? said->feature_level : (uint16_t)TPC_LINK_FEATURE_LEVEL;
    TPC_HOLDS(!it->dialled || it->owner->dialled[it->core] == it);
    it->is_up = true;
    it->owner->statistics.links_up++;
    return tpc_ring_push_event(it->owner->connections->ring, TPC_EVENT_LINK, it->core, 1, it->dialled, NULL) == 0;
}

static bool take(link *it, const tpc_link_frame *said, tpc_frame *frame) {
    if (said->kind == TPC_LINK_HELLO) return take_hello(it, said);
    if (!it->is_up) return false;
    switch (said->kind) {
    case TPC_LINK_FORWARD_PRODUCE:
    case TPC_LINK_FORWARD_FETCH:
        return take_request(it, said, frame);
    case TPC_LINK_SUBJECT:
        return take_subject(it, said);
    case TPC_LINK_ANSWER:
        return take_answer(it, said, frame);
    case TPC_LINK_RELEASE:
        take_release(it, said);
        return true;
    case TPC_LINK_CLOSE:
        take_close(it, said);
        return true;
    case TPC_LINK_FORWARD_DATAGRAM:
        if (it->owner->take_datagram)
            it->owner->take_datagram(it->owner->datagram_context, said->payload, said->payload_bytes);
        return !it->dialled;
    default:
        return said->kind >= TPC_LINK_KINDS_END;
    }
}

static void take_frame_bytes(connection *it, const uint8_t *bytes, uint32_t length, tpc_frame *frame) {
    tpc_link_frame said;
    TPC_HOLDS(it->link->connection == it && it->link->owner == it->owner->links);
    framing_note_size(it, length);
    if (tpc_link_frame_decode(bytes, length, &said) < 0 || !take(it->link, &said, frame))
        connection_begin_close(it, TPC_CLOSE_REQUEST_INVALID, EPROTO);
}

static bool link_takes_bytes(connection *it, uint8_t *bytes, uint32_t length) {
    take_frame_bytes(it, bytes, length, NULL);
    return true;
}

static void link_takes_frame(connection *it, tpc_frame *frame) {
    connection_hold(it);
    take_frame_bytes(it, frame->data + it->lead, frame->length - it->lead, frame);
    tpc_frame_release(frame);
    connection_let_go(it);
}

static bool link_is_full(const connection *it) {
    bool is_full = it->link->held_bytes >= it->link->owner->share_bytes;
    it->link->owner->statistics.pauses += is_full;
    return is_full;
}

static bool link_may_resume(const connection *it) { return it->link->held_bytes <= it->link->owner->share_bytes / 2; }

/* As a client's request, which lies behind the frame's header and its own length. */
static bool link_aligns(connection *it, const uint8_t *data, size_t bytes, uint32_t *residue) {
    const tpc_connections *connections = it->owner;
    enum { BEFORE_BYTES = TPC_LINK_HEADER_BYTES + LENGTH_BYTES, PAGE_BYTES = 4096 };
    tpc_link_frame said;
    if (connections->alignment == NULL || bytes <= BEFORE_BYTES || data[1] != TPC_LINK_FORWARD_PRODUCE) return false;
    const link_stream *of =
        tpc_link_frame_decode(data, bytes, &said) < 0 ? NULL : link_find_stream(it->link, said.stream);
    uint32_t subject = of && of->connection ? of->connection->subject : 0;
    if (!connections->alignment(connections->alignment_context, data + BEFORE_BYTES, bytes - BEFORE_BYTES, subject,
                                residue))
        return false;
    *residue = (*residue + PAGE_BYTES - BEFORE_BYTES) % PAGE_BYTES;
    return true;
}

static const connection_sink link_sink = {.take_bytes = link_takes_bytes,
                                          .take_frame = link_takes_frame,
                                          .is_full = link_is_full,
                                          .may_resume = link_may_resume,
                                          .align = link_aligns,
                                          .is_forced = true};

/* ---- calls ---- */

static bool is_told(const link *it, const connection *from) {
    return from->named != NULL && it->feature_level >= SUBJECTS_LEVEL;
}

static bool may_be_told(const link *it, const connection *from) {
    return is_told(it, from) || !identity_is_required(from->owner, from->listener);
}

/* Before a stream's first request: for whom it is, when that is known. False: the link has closed. */
static bool tell_subject(link *it, const connection *from) {
    tpc_link_frame frame = {.kind = TPC_LINK_SUBJECT, .stream = connection_id(from), .detail = from->listener};
    if (!is_told(it, from)) return true;
    TPC_HOLDS(from->subject && !from->carrier);
    TPC_HOLDS(from->named->length > 0 && from->named->length <= TPC_LINK_SUBJECT_BYTES_MAX);
    const tpc_slice names = tpc_slice_of(from->named, from->named->data, from->named->length);
    return push(it, &frame, false, &names, 1) == 0;
}

int tpc_link_send(tpc_connections *connections, uint32_t core, uint64_t client, uint16_t listener, uint8_t kind,
                  const tpc_slice *slices, uint32_t count, tpc_link_call *call) {
    link *it = tpc_link_is_up(connections, core) ? connections->links->dialled[core] : NULL;
    connection *from = connection_find(connections, client);
    link_stream *stream = it && from ? link_find_stream(it, client) : NULL;
    if (!stream && it && from && from->state != CONNECTION_CLOSING) {
        stream = may_be_told(it, from) ? link_begin_stream(it, client) : NULL;
        if (stream && !tell_subject(it, from)) stream = NULL; /* it has closed, and the stream with it */
    }
    if (!stream || from->state == CONNECTION_CLOSING) {
        release_all(slices, count);
        if (connections->links) connections->links->statistics.failed++;
        return -ENOTCONN;
    }
    TPC_HOLDS(!from->carrier); /* what another core has sent stays here */
    TPC_HOLDS(kind == TPC_LINK_FORWARD_PRODUCE || kind == TPC_LINK_FORWARD_FETCH);
    TPC_HOLDS((stream->first == NULL) == (stream->last == NULL));
    TPC_HOLDS(!stream->last || stream->last->sequence + 1 == stream->sequence);
    from->forwards = true;
    call->next = NULL;
    call->sequence = stream->sequence++;
    *(stream->last ? &stream->last->next : &stream->first) = call;
    stream->last = call;
    links *owner = it->owner;
    owner->statistics.forwarded++;
    for (uint32_t i = 0; i < count; i++) owner->statistics.forwarded_bytes += slices[i].length;
    tpc_link_frame frame = {.kind = kind, .stream = client, .sequence = call->sequence, .detail = listener};
    push(it, &frame, true, slices, count); /* if not, the link has told of it */
    return 0;
}

void tpc_link_release(tpc_connections *connections, uint32_t core, uint64_t client, const tpc_link_call *call) {
    if (tpc_link_is_up(connections, core))
        push_control(connections->links->dialled[core], TPC_LINK_RELEASE, client, call->sequence, 0);
}

int tpc_link_send_datagram(tpc_connections *connections, uint32_t core, const tpc_slice *slice) {
    link *it = tpc_link_is_up(connections, core) ? connections->links->dialled[core] : NULL;
    int result = !it || it->feature_level < DATAGRAMS_LEVEL                                  ? -ENOTCONN
                 : it->connection->unsent_bytes + slice->length > DATAGRAMS_UNSENT_BYTES_MAX ? -ENOBUFS
                                                                                             : 0;
    if (result < 0) {
        tpc_frame_release(slice->frame);
        return result;
    }
    tpc_link_frame frame = {.kind = TPC_LINK_FORWARD_DATAGRAM};
    return push(it, &frame, false, slice, 1);
}

void tpc_links_on_datagram(tpc_connections *connections,
                           void (*take)(void *context, const uint8_t *bytes, uint32_t count), void *context) {
    if (!connections->links) return;
    connections->links->take_datagram = take;
    connections->links->datagram_context = context;
}

int tpc_link_is_up(const tpc_connections *connections, uint32_t core) {
    const links *all = connections->links;
    return all && core < LINK_CORES_MAX && all->dialled[core] && all->dialled[core]->is_up;
}

bool tpc_connection_is_stream(tpc_connections *connections, uint64_t id) {
    const connection *it = connection_find(connections, id);
    return it != NULL && it->carrier != NULL;
}

bool tpc_connection_is_released(tpc_connections *connections, uint64_t id, int64_t sequence) {
    const connection *it = connection_find(connections, id);
    return it != NULL && it->carrier != NULL && sequence < it->released;
}

/* ---- life ---- */

int tpc_links_open(tpc_connections *connections, uint32_t core, uint64_t life) {
    links *made = connections->links ? connections->links : calloc(1, sizeof *made);
    if (!made) return -ENOMEM;
    made->connections = connections;
    made->core = core;
    made->life = life;
    if (!made->share_bytes) made->share_bytes = SHARE_BYTES;
    connections->links = made;
    return 0;
}

void tpc_links_listen(tpc_connections *connections, tpc_link_listener listener) {
    links *all = connections->links;
    if (!all) return;
    all->listener = listener;
    for (link *it = listener.done ? NULL : all->first; it; it = it->next) /* nobody is left to be told */
        for (uint32_t page = 0; page < it->pages_capacity; page++)
            for (uint32_t i = 0; i < LINK_PAGE_STREAMS && it->pages[page]; i++)
                it->pages[page]->streams[i].first = it->pages[page]->streams[i].last = NULL;
}

void tpc_links_set_share(tpc_connections *connections, uint64_t bytes_max) {
    if (connections->links) connections->links->share_bytes = bytes_max;
}

int tpc_link_adopt(tpc_connections *connections, int descriptor, uint32_t core, int dialled) {
    links *owner = connections->links;
    if (!owner || core >= LINK_CORES_MAX) return -EINVAL;
    if (dialled && owner->dialled[core]) return -EEXIST;
    link *it = calloc(1, sizeof *it);
    connection *made = it ? connection_make(connections, descriptor, 0, &link_sink) : NULL;
    if (!made) {
        free(it);
        return -ENOMEM;
    }
    *it = (link){.owner = owner, .connection = made, .core = core, .dialled = dialled, .next = owner->first};
    made->link = it;
    owner->first = it;
    connections->links_connections++;
    connections_counted(connections);
    if (dialled) owner->dialled[core] = it;
    push_hello(it);
    return 0;
}

/* Those whose place is another's already, too. */
static void close_streams(link *it) {
    const tpc_connections *connections = it->owner->connections;
    for (uint32_t i = 0; i < connections->slots_count; i++) {
        connection *stream = connections->slots[i].connection;
        if (stream && stream->carrier == it) connection_begin_close(stream, TPC_CLOSE_PEER, 0);
    }
}

static void fail_page(link *it, link_page *page) {
    for (uint32_t i = 0; i < LINK_PAGE_STREAMS; i++)
        if (page->streams[i].client) fail_calls(it, &page->streams[i], TPC_LINK_LOST);
    TPC_HOLDS(page->used == 0);
}

static void link_closing(link *it) {
    TPC_HOLDS(!it->dialled || it->owner->dialled[it->core] == it);
    TPC_HOLDS(it->owner->statistics.links_up >= it->is_up);
    if (it->dialled) it->owner->dialled[it->core] = NULL;
    it->owner->statistics.links_up -= it->is_up;
    it->owner->statistics.lost++;
    if (!it->dialled) close_streams(it);
    for (uint32_t page = 0; page < it->pages_capacity && it->dialled; page++)
        if (it->pages[page]) fail_page(it, it->pages[page]);
}

static void stream_closing(connection *it) {
    link *carrier = it->carrier;
    link_stream *place = link_find_stream(carrier, it->client);
    TPC_HOLDS(it->carried_bytes <= carrier->held_bytes);
    TPC_HOLDS(it->owner->links->statistics.streams > 0);
    carrier->held_bytes -= it->carried_bytes;
    it->carried_bytes = 0;
    it->owner->links->statistics.streams--;
    if (place && place->connection == it) link_end_stream(carrier, place);
    if (carrier->connection->state == CONNECTION_CLOSING) return;
    if (carrier->connection->paused) connection_needs_attention(carrier->connection);
    push_control(carrier, TPC_LINK_CLOSE, it->client, 0, it->reason);
}

static void client_closing(connection *it) {
    for (link *at = it->owner->links->first, *next; at; at = next) {
        connection *held = at->connection; /* who hears of calls that failed sends over other links, which may close */
        connection_hold(held);
        link_stream *stream = at->dialled ? link_find_stream(at, connection_id(it)) : NULL;
        if (stream) {
            fail_calls(at, stream, TPC_LINK_LOST);
            if (held->state != CONNECTION_CLOSING)
                push_control(at, TPC_LINK_CLOSE, connection_id(it), 0, TPC_CLOSE_PEER);
        }
        next = at->next;
        connection_let_go(held);
    }
}

void links_connection_closing(connection *it) {
    if (it->link != NULL)
        link_closing(it->link);
    else if (it->carrier != NULL)
        stream_closing(it);
    else
        client_closing(it);
}

void links_connection_gone(connection *it) {
    links *owner = it->owner->links;
    link *gone = it->link;
    TPC_HOLDS(owner->connections->links_connections > 0);
    owner->connections->links_connections--;
    if (!gone) return;
    TPC_HOLDS(gone->held_bytes == 0); /* its streams closed with it */
    link **at = &owner->first;
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    tpc_ring_push_event(owner->connections->ring, TPC_EVENT_LINK, gone->core, 0, gone->dialled, NULL);
    for (uint32_t page = 0; page < gone->pages_capacity; page++) {
        if (gone->pages[page]) gone->owner->statistics.pages--;
        free(gone->pages[page]);
    }
    free(gone->pages);
    free(gone);
}

void links_free(tpc_connections *connections) {
    free(connections->links);
    connections->links = NULL;
}

void tpc_links_statistics(const tpc_connections *connections, tpc_link_statistics *statistics) {
    const links *all = connections->links;
    *statistics = all ? all->statistics : (tpc_link_statistics){0};
    for (const link *at = all ? all->first : NULL; at; at = at->next) statistics->held_bytes += at->held_bytes;
}
