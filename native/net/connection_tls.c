/*
 * TLS on client connections: between the socket and the framing on one side, between the answers and the socket on the other.
 *
 * What is received is ciphertext, read where it lies; what is decrypted goes straight into the frame of a large request, else
 * into one scratch buffer of the core, where it is parsed as plain bytes would be. Paused or starved: what is left of the record that
 * was decrypted last waits in the connection's `plain`, and ciphertext behind it in the connection's backlog. Bytes that OpenSSL has decrypted
 * raise no event, so going on begins with them.
 *
 * What is sent is gathered from the answers that are ready into full records, encrypted into one frame, and sent from there.
 * The answers stay, and are charged, until that frame has left. Files are read into memory first: no sendfile, no zero copy.
 *
 * Rule: Nothing is parsed before the handshake is whole and, where clients are asked for certificates, Python has said who it
 * is. Held by tests/engine/test_tls.py.
 *
 * A handshake costs up to a millisecond, and a thousand clients may come at once: a turn spends HANDSHAKE_NS_PER_TURN on them,
 * and who comes later waits for the next turn, with what it has sent in its backlog.
 */
#include "io.h"
#include "connection_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ring_state.h"

enum {
    SEAL_BYTES_MAX = 15 *
        TLS_RECORD_BYTES,                /* of plaintext in one frame; with what encryption adds, less than 256 KiB */
    SEAL_BYTES_SHORT = TLS_RECORD_BYTES, /* while answers hold much memory */
    LAST_WORDS_BYTES_MAX = 8192,
};
static const int64_t HANDSHAKE_NS_PER_TURN = 1000000;

typedef struct tls_filter {
    tpc_tls_context *context;
    tpc_tls_session *session; /* NULL until a byte has come: who says nothing costs nothing */
    bool is_up;               /* the handshake is whole */
    bool is_named;            /* and it is known who it is */
    bool waits_for_turn;
    tpc_frame *sealed; /* being sent: [sealed_position, length) */
    uint32_t sealed_position;
    uint32_t sealed_answers_bytes; /* what it says of the answers */
    connection *owner;
    node by_handshake;
    node handshaking;
} tls_filter;

/* ------------------------------------------------------------------------------------------------ its life */

static void leave_handshakes(tls_filter *tls) {
    node_remove(&tls->by_handshake);
    if (!node_linked(&tls->handshaking)) return;
    node_remove(&tls->handshaking);
    tls->owner->owner->handshaking_count--;
}

static tls_filter *make_filter(connection *it) {
    tpc_connections *connections = it->owner;
    if (connections->tls_scratch == NULL) connections->tls_scratch = malloc(2 * TLS_RECORD_BYTES);
    tls_filter *tls = connections->tls_scratch != NULL ? calloc(1, sizeof *tls) : NULL;
    if (tls == NULL) return NULL;
    tls->owner = it;
    node_init(&tls->by_handshake);
    node_init(&tls->handshaking);
    return tls;
}

int tls_open(connection *it, tpc_tls_context *context) {
    tls_filter *tls = make_filter(it);
    if (tls == NULL) return -ENOMEM;
    tls->context = tpc_tls_context_keep(context);
    node_to_tail(&it->owner->by_handshake, &tls->by_handshake);
    it->tls = tls;
    return 0;
}

int tls_adopt(connection *it, tpc_tls_session *session, const uint8_t *unread, size_t unread_bytes) {
    tls_filter *tls = make_filter(it);
    if (tls == NULL) return -ENOMEM;
    if (unread_bytes > 0) {
        it->backlog = tpc_frame_new_forced(it->owner->budget, (uint32_t)unread_bytes);
        if (it->backlog == NULL) {
            free(tls);
            return -ENOMEM;
        }
        memcpy(it->backlog->data, unread, unread_bytes);
        it->backlog->length = (uint32_t)unread_bytes;
        it->backlog_position = 0;
    }
    tls->session = session;
    tls->is_up = tls->is_named = true;
    it->tls = tls;
    return 0;
}

/* close_notify, or the alert that says what was wrong, if the socket takes it at once. */
static void say_last_words(connection *it) {
    tls_filter *tls = it->tls;
    tpc_tls_set_output(tls->session, NULL, 0);
    tpc_tls_end(tls->session);
    uint8_t words[LAST_WORDS_BYTES_MAX]; /* not the scratch: whoever parses that may close another connection */
    size_t bytes = tpc_tls_spilled(tls->session);
    if (bytes == 0 || bytes > sizeof words) return;
    tpc_tls_take_spilled(tls->session, words);
    struct iovec vector = {.iov_base = words, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    tpc_io.send(it->descriptor, &message, false); /* a courtesy */
}

/* The kernel's last word on a connection comes behind what others have sent, and a crowd's handshakes that gave way to each
 * other would hold as much memory meanwhile as if none had: so it is given back at once. */
void tls_closing(connection *it) {
    tls_filter *tls = it->tls;
    leave_handshakes(tls);
    if (tls->session == NULL) return;
    if (it->sending == NULL && tls->sealed == NULL) say_last_words(it);
    if (tls->is_up) return;
    tpc_tls_session_free(tls->session);
    tls->session = NULL;
}

void tls_free(connection *it) {
    tls_filter *tls = it->tls;
    if (tls == NULL) return;
    it->tls = NULL;
    leave_handshakes(tls);
    tpc_frame_release(tls->sealed);
    tpc_tls_session_free(tls->session);
    tpc_tls_context_free(tls->context);
    free(tls);
}

static void failed(connection *it) { connection_begin_close(it, TPC_CLOSE_TLS, tpc_tls_error(it->tls->session)); }

/* ------------------------------------------------------------------------------------------------ the handshake */

/* A session takes tens of KiB while hands are shaken, outside of the budget: so there is a number of them at most. */
static void begin_session(connection *it) {
    tls_filter *tls = it->tls;
    tpc_connections *connections = it->owner;
    if (connections->handshaking_count >= connections->limits.handshakes_max &&
        node_linked(&connections->handshaking)) {
        connection *oldest = NODE_OWNER(connections->handshaking.next, tls_filter, handshaking)->owner;
        connection_begin_close(oldest, TPC_CLOSE_BUDGET, ENOMEM);
    }
    tls->session = tpc_tls_session_new(tls->context);
    if (tls->session == NULL) return;
    node_to_tail(&connections->handshaking, &tls->handshaking);
    connections->handshaking_count++;
}

/* One step with the bytes that came, which may be the first. */
static int shake_hands(connection *it, const uint8_t *data, size_t bytes) {
    tls_filter *tls = it->tls;
    int64_t begin_ns = tpc_monotonic_ns();
    int result = TLS_FAILED;
    if (tls->session == NULL) begin_session(it);
    if (tls->session != NULL) {
        tpc_tls_feed(tls->session, data, bytes);
        result = tpc_tls_handshake(tls->session);
    }
    it->owner->handshakes_ns += tpc_monotonic_ns() - begin_ns;
    return result;
}

/* What that step has come to. */
static void settle(connection *it, int result) {
    tls_filter *tls = it->tls;
    tpc_connections *connections = it->owner;
    if (result == TLS_WANTS_MORE) return;
    if (result != 1) {
        if (tls->session != NULL)
            failed(it);
        else
            connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
        return;
    }
    tls->is_up = true;
    tls->is_named = !tpc_tls_context_asks_client(tls->context);
    leave_handshakes(tls);
    connections->statistics.handshakes++;
    if (!tls->is_named &&
        tpc_ring_push_event(connections->ring, TPC_EVENT_SECURED, connection_id(it), it->listener, 0, NULL) < 0)
        connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
}

int64_t tls_turn(tpc_connections *connections, int64_t now_ns) {
    int64_t allowed_ns = connections->limits.handshake_ms_max * (int64_t)1000000;
    connections->handshakes_ns = 0;
    while (node_linked(&connections->by_handshake)) {
        connection *it = NODE_OWNER(connections->by_handshake.next, tls_filter, by_handshake)->owner;
        if (it->opened_ns + allowed_ns > now_ns) return it->opened_ns + allowed_ns;
        connection_begin_close(it, TPC_CLOSE_HANDSHAKE_DEADLINE, 0);
    }
    return INT64_MAX;
}

bool tls_waits_for_turn(const connection *it) { return it->tls->waits_for_turn; }

bool tls_waits(const connection *it) {
    const tls_filter *tls = it->tls;
    return tls != NULL && (tls->waits_for_turn || (tls->is_up && !tls->is_named));
}

int tpc_connection_peer_name(tpc_connections *connections, uint64_t id, int where, char *into, uint32_t room) {
    connection *it = connection_find(connections, id);
    if (it == NULL || it->tls == NULL || !it->tls->is_up || it->state == CONNECTION_CLOSING) return -ENOTCONN;
    return tpc_tls_peer_name(it->tls->session, where, into, room);
}

int tpc_connection_named(tpc_connections *connections, uint64_t id) {
    connection *it = connection_find(connections, id);
    if (it == NULL || it->tls == NULL || !it->tls->is_up || it->state == CONNECTION_CLOSING) return -ENOTCONN;
    it->tls->is_named = true;
    connection_needs_attention(it);
    return 0;
}

int tpc_connections_secure(tpc_connections *connections, uint32_t listener, tpc_tls_context *context) {
    if (listener >= LISTENERS_MAX) return -EINVAL;
    tpc_tls_context_keep(context);
    tpc_tls_context_free(connections->listener_tls[listener]);
    connections->listener_tls[listener] = context;
    return 0;
}

void tls_stop(tpc_connections *connections) {
    for (uint32_t i = 0; i < LISTENERS_MAX; i++) tpc_tls_context_free(connections->listener_tls[i]);
    free(connections->tls_scratch);
}

/* ------------------------------------------------------------------------------------------------ receiving */

static bool may_read(const connection *it) {
    const tls_filter *tls = it->tls;
    return it->state == CONNECTION_OPEN && !it->paused && !it->starved && tls->is_up && tls->is_named;
}

/* Bytes of one record as they came: what cannot be parsed now is kept. */
static void take_plain(connection *it, uint8_t *data, size_t bytes) {
    size_t taken = framing_parse(it, data, bytes);
    if (taken == bytes || it->state != CONNECTION_OPEN || !identity_has_room(it, (int64_t)(bytes - taken))) return;
    it->plain = tpc_frame_new_forced(it->owner->budget, (uint32_t)(bytes - taken));
    it->plain_position = 0;
    if (it->plain != NULL)
        memcpy(it->plain->data, data + taken, bytes - taken);
    else
        connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
}

/* Decrypts one record. Whether there may be more. */
static bool read_record(connection *it) {
    tls_filter *tls = it->tls;
    uint8_t *into = framing_room(it, TLS_RECORD_BYTES);
    if (it->starved) return false;
    bool is_direct = into != NULL;
    int bytes = tpc_tls_read(tls->session, is_direct ? into : it->owner->tls_scratch, TLS_RECORD_BYTES);
    if (bytes == TLS_FAILED)
        failed(it);
    else if (bytes == TLS_ENDED)
        connection_end_of_file(it);
    else if (bytes > 0 && is_direct)
        framing_arrived(it, (size_t)bytes);
    else if (bytes > 0)
        take_plain(it, it->owner->tls_scratch, (size_t)bytes);
    return bytes > 0 && may_read(it);
}

/* How many of these bytes of ciphertext were taken. */
size_t tls_take(connection *it, const uint8_t *data, size_t bytes) {
    tls_filter *tls = it->tls;
    bool has_waited = tls->waits_for_turn;
    tls->waits_for_turn = !tls->is_up && it->owner->handshakes_ns >= HANDSHAKE_NS_PER_TURN;
    if (tls->waits_for_turn) {
        it->owner->statistics.handshakes_put_off += !has_waited;
        connection_needs_attention(it);
        return 0;
    }
    if (tls->is_up)
        tpc_tls_feed(tls->session, data, bytes);
    else
        settle(it, shake_hands(it, data, bytes));
    if (tls->session == NULL) return 0;
    while (may_read(it) && (tpc_tls_unread(tls->session) > 0 || tpc_tls_pending(tls->session) > 0))
        if (!read_record(it)) break;
    size_t left = tpc_tls_unread(tls->session);
    tpc_tls_feed(tls->session, NULL, 0);
    if (tpc_tls_spilled(tls->session) > 0) connection_needs_attention(it);
    return bytes - left;
}

void tls_take_kept(connection *it) {
    tpc_frame *plain = it->plain;
    if (plain != NULL) {
        it->plain = NULL;
        it->plain_position +=
            (uint32_t)framing_parse(it, plain->data + it->plain_position, plain->length - it->plain_position);
        if (it->plain_position < plain->length && it->state == CONNECTION_OPEN) {
            it->plain = plain;
            return;
        }
        tpc_frame_release(plain);
    }
    if (may_read(it)) tls_take(it, NULL, 0);
}

bool tls_keeps_bytes(const connection *it) {
    const tls_filter *tls = it->tls;
    return tls != NULL && (it->plain != NULL || (tls->session != NULL && tpc_tls_pending(tls->session) > 0));
}

/* ------------------------------------------------------------------------------------------------ sending */

/* A place among the answers that are ready. */
typedef struct {
    const connection *connection;
    int64_t sequence;
    uint32_t slice;
    uint32_t offset;
} place;

static place first_place(const connection *it) {
    return (place){it, it->first_sequence, it->head_slice, it->head_offset};
}

/* The bytes from there on that lie together; NULL: what follows is not ready, or is in a file. */
static const uint8_t *piece_at(place *at, size_t *bytes) {
    const connection *it = at->connection;
    while (at->sequence < it->next_sequence) {
        answer *from = answer_at(it, at->sequence);
        if (from->state == ANSWER_WAITING) return NULL;
        if (from->state == ANSWER_READY && at->slice < from->count) {
            const tpc_slice *slice = &answer_slices(from)[at->slice];
            if (slice->frame->holds_file) return NULL;
            *bytes = slice->length - at->offset;
            if (*bytes > 0) return slice->data + at->offset;
            at->slice++;
        } else {
            at->sequence++;
            at->slice = 0;
        }
        at->offset = 0;
    }
    return NULL;
}

static uint32_t ready_bytes(const connection *it, uint32_t bytes_max) {
    place at = first_place(it);
    uint32_t sum = 0;
    for (size_t bytes; sum < bytes_max && piece_at(&at, &bytes) != NULL; at.offset += (uint32_t)bytes)
        sum += bytes < bytes_max - sum ? (uint32_t)bytes : bytes_max - sum;
    return sum;
}

/* Encrypts the first `bytes` that are ready: small pieces are joined, so that all records but the last are full. */
static int encrypt(connection *it, uint32_t bytes) {
    tpc_tls_session *session = it->tls->session;
    uint8_t *joined = it->owner->tls_scratch;
    place at = first_place(it);
    size_t joined_bytes = 0;
    int result = 0;
    for (uint32_t done = 0; done < bytes && result == 0;) {
        size_t count;
        const uint8_t *piece = piece_at(&at, &count);
        if (count > bytes - done) count = bytes - done;
        if (joined_bytes == 0 && count >= TLS_RECORD_BYTES) {
            count -= count % TLS_RECORD_BYTES;
            result = tpc_tls_write(session, piece, count);
        } else {
            if (count > TLS_RECORD_BYTES - joined_bytes) count = TLS_RECORD_BYTES - joined_bytes;
            memcpy(joined + joined_bytes, piece, count);
            joined_bytes += count;
            if (joined_bytes == TLS_RECORD_BYTES || done + count == bytes) {
                result = tpc_tls_write(session, joined, joined_bytes);
                joined_bytes = 0;
            }
        }
        at.offset += (uint32_t)count;
        done += (uint32_t)count;
    }
    return result;
}

/* Makes the next frame of what is ready. False: there is none, for want of something to send or because it is closed now. */
static bool seal(connection *it) {
    tls_filter *tls = it->tls;
    uint32_t spilled = (uint32_t)tpc_tls_spilled(tls->session);
    uint32_t bytes =
        spilled > 0 ? 0 : ready_bytes(it, answers_have_room(it->owner) ? SEAL_BYTES_MAX : SEAL_BYTES_SHORT);
    if (spilled == 0 && bytes == 0) return false;
    uint32_t room = spilled + bytes + (bytes / TLS_RECORD_BYTES + 2) * TLS_OVERHEAD_BYTES_MAX;
    tpc_frame *frame = tpc_frame_new_forced(it->owner->budget, room);
    if (frame == NULL) {
        connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
        return false;
    }
    if (spilled > 0) {
        tpc_tls_take_spilled(tls->session, frame->data);
        frame->length = spilled;
    } else {
        tpc_tls_set_output(tls->session, frame->data, frame->capacity);
        int result = encrypt(it, bytes);
        frame->length = (uint32_t)tpc_tls_output_bytes(tls->session);
        tpc_tls_set_output(tls->session, NULL, 0);
        if (result < 0) {
            tpc_frame_release(frame);
            failed(it);
            return false;
        }
    }
    tls->sealed = frame;
    tls->sealed_position = 0;
    tls->sealed_answers_bytes = bytes;
    return true;
}

/* The stretch of a file that is next, if it is. */
static const tpc_slice *next_file(const connection *it) {
    place at = first_place(it);
    size_t bytes;
    if (piece_at(&at, &bytes) != NULL || at.sequence != it->first_sequence || at.sequence == it->next_sequence)
        return NULL;
    answer *head = answer_at(it, at.sequence);
    return head->state == ANSWER_READY ? &answer_slices(head)[at.slice] : NULL;
}

static bool send_sealed(connection *it) {
    tls_filter *tls = it->tls;
    sending *to = send_take(it->owner);
    if (to == NULL) return false;
    to->frames[0] = tpc_frame_retain(tls->sealed);
    to->count = 1;
    to->bytes = tls->sealed->length - tls->sealed_position;
    to->zero_copy = false;
    struct io_uring_sqe *sqe = send_entry(it, to);
    if (sqe == NULL) return false;
    io_uring_prep_send(sqe, it->descriptor, tls->sealed->data + tls->sealed_position, to->bytes, MSG_NOSIGNAL);
    send_begun(it, to, SENDING_SEALED);
    it->owner->statistics.sends++;
    return true;
}

bool tls_send(connection *it) {
    tls_filter *tls = it->tls;
    if (tls->session == NULL) return true;
    if (tls->sealed == NULL && !seal(it)) {
        const tpc_slice *slice = it->state != CONNECTION_CLOSING ? next_file(it) : NULL;
        return slice == NULL || send_read_stretch(it, slice);
    }
    return send_sealed(it);
}

void tls_sent(connection *it, const sending *by, uint64_t bytes) {
    tls_filter *tls = it->tls;
    it->owner->statistics.sends_partial += bytes < by->bytes;
    tls->sealed_position += (uint32_t)bytes;
    if (tls->sealed_position == tls->sealed->length) {
        tpc_frame_release(tls->sealed);
        tls->sealed = NULL;
        if (tls->sealed_answers_bytes > 0) answers_progressed(it, tls->sealed_answers_bytes);
    }
    bool is_more = tls->sealed != NULL || tpc_tls_spilled(tls->session) > 0 || it->first_sequence < it->next_sequence;
    if (is_more || it->paused || it->state == CONNECTION_FLUSHING) connection_needs_attention(it);
}
