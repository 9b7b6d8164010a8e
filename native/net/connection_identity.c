/*
 * Who a connection is: what it may do before that is known, and for how long it is known.
 *
 * Theory of operation. A connection of a listener that asks for authentication begins in a stage in which it has no subject.
 * C then hands Python the requests that authentication consists of, one at a time, and ends the connection at any other.
 * Such a *stranger* has little: the size of its requests, the time until it must be let in, and the memory of all strangers
 * together have bounds of their own, so that who never says who it is cannot take what those need who have said it. When the
 * memory is used up those strangers go that hold most of it.
 *
 * Python lets a connection in, by the number of its subject, and may give it a deadline. Past that, all that is taken of it
 * is what renews the deadline, as in KIP-368. A deadline that passes while it is muted is put off by as long as that took.
 *
 * Where rights are asked for, nobody is served without a subject: what comes before Python has named one waits, unparsed. A
 * stream of a link has the subject of the client at the core that it came to, which tells the owner before the first request.
 *
 * `is_watched` is all that a connection costs of which nothing of this is to be asked: one branch for each request.
 */
#include "connection_state.h"

#include <errno.h>
#include <string.h>

#include "bytes.h"

enum { SPARE_PART = 16 };

static bool is_stranger(const connection *it) { return it->stage != TPC_STAGE_SERVES; }

static bool is_unnamed(const connection *it) {
    return it->subject == 0 && (it->named != NULL || it->owner->requires_subject);
}

static bool is_over(const connection *it) {
    return it->session_deadline_ns != 0 && tpc_ring_now_ns(it->owner->ring) >= it->session_deadline_ns;
}

static void watch(connection *it) {
    it->is_watched = is_stranger(it) || it->session_deadline_ns != 0 || is_unnamed(it);
}

/* ---- what it may do ---- */

/* Rule: C serves nobody by itself who has not been let in, or whose session is over: not in place, not from a frame, not by
 * a prepared answer, not over a link. See also native/net/connection_requests.c, native/net/link.c. Held by
 * tests/engine/test_nobody_is_served.py. */
bool identity_may_be_served(const connection *it) { return !is_stranger(it) && !is_unnamed(it) && !is_over(it); }

bool identity_must_wait(const connection *it) {
    if (is_stranger(it)) return it->next_sequence != it->first_sequence;
    return is_unnamed(it);
}

int identity_refusal(const connection *it, int16_t api_key) {
    bool renews = api_key == TPC_API_SASL_HANDSHAKE || api_key == TPC_API_SASL_AUTHENTICATE;
    switch (it->stage) {
    case TPC_STAGE_SERVES:
        return !renews && is_over(it) ? TPC_CLOSE_SESSION_OVER : TPC_CLOSE_NONE;
    case TPC_STAGE_TOKEN:
        return TPC_CLOSE_NONE; /* it was not read as a request */
    default:
        return renews || api_key == TPC_API_API_VERSIONS ? TPC_CLOSE_NONE : TPC_CLOSE_UNAUTHENTICATED;
    }
}

/* What was left of its session when it was muted is left now: it could not have renewed it. */
void identity_unmuted(connection *it, int64_t since_ns) {
    if (is_over(it)) it->session_deadline_ns += tpc_ring_now_ns(it->owner->ring) - since_ns;
}

/* ---- strangers ---- */

void identity_begin(connection *it) {
    if (it->descriptor >= 0) it->stage = it->owner->listener_stages[it->listener];
    if (is_stranger(it)) node_to_tail(&it->owner->strangers, &it->by_opening);
    watch(it);
}

static int64_t held_by(const connection *it) {
    int64_t partial = it->partial != NULL ? it->partial->capacity : 0;
    int64_t backlog = it->backlog != NULL ? it->backlog->capacity : 0;
    int64_t plain = it->plain != NULL ? it->plain->capacity : 0;
    return partial + backlog + plain + (int64_t)it->held_bytes;
}

static void count_again(connection *it) {
    int64_t held = is_stranger(it) && it->state != CONNECTION_CLOSING ? held_by(it) : 0;
    it->owner->strangers_bytes += held - it->stranger_bytes;
    it->stranger_bytes = held;
}

void identity_count(connection *it) {
    if (is_stranger(it)) count_again(it);
}

/* Of all, counted anew, since answers that have left are seen only here. */
static int64_t most_held(tpc_connections *connections) {
    int64_t most = 0;
    for (node *at = connections->strangers.next; at != &connections->strangers; at = at->next) {
        connection *it = NODE_OWNER(at, connection, by_opening);
        count_again(it);
        if (it->stranger_bytes > most) most = it->stranger_bytes;
    }
    return most;
}

/* Those that hold at least half as much as the one that holds most, the oldest first, until there is room for more than is
 * wanted: so that looking at all of them is for many requests and not for one. */
static void close_largest(tpc_connections *connections, const connection *spared, int64_t most, int64_t more) {
    int64_t bytes_max = (int64_t)connections->limits.strangers_bytes_max;
    int64_t wanted = bytes_max - bytes_max / SPARE_PART - more;
    for (node *at = connections->strangers.next, *next; at != &connections->strangers; at = next) {
        connection *it = NODE_OWNER(at, connection, by_opening);
        next = at->next;
        if (connections->strangers_bytes <= wanted) return;
        if (it != spared && it->stranger_bytes >= most / 2) connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
    }
}

static bool fits(const tpc_connections *connections, int64_t more) {
    return connections->strangers_bytes + more <= (int64_t)connections->limits.strangers_bytes_max;
}

bool identity_has_room(connection *it, int64_t more) {
    tpc_connections *connections = it->owner;
    if (!is_stranger(it)) return true;
    while (!fits(connections, more)) {
        int64_t most = most_held(connections);
        if (fits(connections, more)) break;
        if (it->stranger_bytes + more >= most) {
            connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
            return false;
        }
        close_largest(connections, it, most, more);
    }
    return true;
}

static void leave_strangers(connection *it) {
    const tpc_connections *connections = it->owner;
    node_remove(&it->by_opening);
    count_again(it);
    assert(node_linked(&connections->strangers) || connections->strangers_bytes == 0);
}

void identity_closing(connection *it) {
    if (is_stranger(it)) leave_strangers(it);
}

void identity_free(connection *it) { tpc_frame_release(it->named); }

/* As with those that are idle, a turn closes a few. */
int64_t identity_turn(tpc_connections *connections, int64_t now_ns) {
    int64_t allowed_ns = connections->limits.authentication_ms_max * (int64_t)1000000;
    for (unsigned closed = 0; allowed_ns > 0 && node_linked(&connections->strangers); closed++) {
        connection *it = NODE_OWNER(connections->strangers.next, connection, by_opening);
        if (it->opened_ns + allowed_ns > now_ns) return it->opened_ns + allowed_ns;
        if (closed == CLOSES_PER_TURN_MAX) return now_ns;
        connection_begin_close(it, TPC_CLOSE_AUTHENTICATION_LATE, ETIMEDOUT);
    }
    return INT64_MAX;
}

int tpc_connections_listener_stage(tpc_connections *connections, uint32_t listener, int stage) {
    if (listener >= LISTENERS_MAX || stage < 0 || stage >= TPC_STAGES_COUNT) return -EINVAL;
    connections->listener_stages[listener] = (uint8_t)stage;
    return 0;
}

int tpc_connection_expect_tokens(tpc_connections *connections, uint64_t id, int on) {
    connection *it = connection_find(connections, id);
    if (it == NULL || it->state == CONNECTION_CLOSING || !is_stranger(it)) return -ENOTCONN;
    it->stage = on ? TPC_STAGE_TOKEN : TPC_STAGE_SASL;
    return 0;
}

/* ---- subjects ---- */

int tpc_connection_let_in(tpc_connections *connections, uint64_t id, uint32_t subject, int64_t session_deadline_ns,
                          const tpc_subject_names *names) {
    connection *it = connection_find(connections, id);
    uint8_t carried[TPC_LINK_SUBJECT_BYTES_MAX];
    uint32_t bytes =
        tpc_link_subject(names->principal, names->principal_bytes, names->host, names->host_bytes, carried);
    if (it == NULL || it->state == CONNECTION_CLOSING) return -ENOTCONN;
    if (subject == 0 || bytes == 0) return -EINVAL;
    tpc_frame *named = tpc_frame_new_forced(connections->budget, bytes);
    if (named == NULL) return -ENOMEM;
    memcpy(named->data, carried, bytes);
    tpc_frame_release(it->named);
    it->named = named;
    it->subject = subject;
    it->session_deadline_ns = session_deadline_ns;
    if (is_stranger(it)) {
        it->stage = TPC_STAGE_SERVES;
        leave_strangers(it);
    }
    watch(it);
    connection_needs_attention(it);
    return 0;
}

uint32_t tpc_connection_subject(tpc_connections *connections, uint64_t id) {
    const connection *it = connection_find(connections, id);
    return it != NULL ? it->subject : 0;
}

int tpc_connection_carried_subject(tpc_connections *connections, uint64_t id, tpc_subject_names *names) {
    const connection *it = connection_find(connections, id);
    tpc_link_subject_names said;
    if (it == NULL) return -ENOTCONN;
    if (it->carrier == NULL || it->named == NULL) return -ENODATA;
    int result = tpc_link_subject_decode(it->named->data, it->named->length, &said);
    assert(result == 0);
    (void)result;
    names->principal_bytes = said.principal_bytes;
    names->host_bytes = said.host_bytes;
    memcpy(names->principal, said.principal, said.principal_bytes);
    memcpy(names->host, said.host, said.host_bytes);
    return 0;
}

bool identity_is_required(const tpc_connections *connections, uint16_t listener) {
    return connections->requires_subject || listener >= LISTENERS_MAX ||
           connections->listener_stages[listener] != TPC_STAGE_SERVES;
}

void tpc_connections_require_subject(tpc_connections *connections, int on) {
    connections->requires_subject = on != 0;
    for (uint32_t i = 0; i < connections->slots_count; i++) {
        connection *it = connections->slots[i].connection;
        if (it == NULL || it->state == CONNECTION_CLOSING) continue;
        if (on && it->carrier != NULL && it->named == NULL) { /* its core sends the next one with a subject */
            connection_begin_close(it, TPC_CLOSE_LOCAL, 0);
            continue; /* it may be gone */
        }
        watch(it);
        connection_needs_attention(it);
    }
}
