/*
 * Answers to bytes: one send at a time per connection.
 *
 * Answers at the head that are ready leave together, up to SEND_SLICES_MAX slices in one sendmsg. A send may take less than
 * all: the head remembers the slice and the byte where the next one begins. Others send in other ways: what holds files
 * (connection_send_file.c), over TLS (connection_tls.c), and what has no socket but the link that carries it.
 *
 * Zero copy (SEND_ZC 6.0, SENDMSG_ZC 6.1): the kernel keeps reading the pages until a second completion, the notification,
 * which may come long after the connection is gone. So a send holds references of its own, and only the notification
 * gives them back. Sockets that cannot do it (Unix sockets, no memory for pinning) say so, and are sent to with a copy.
 * Over loopback the kernel copies all the same, and the notification comes on top (docs/decisions/2026-11-21-connections.md).
 */
#include "connection_state.h"
#include "io.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

bool send_is_flushed(const connection *it) {
    if (it->sending != NULL) return false;
    if (it->first_sequence == it->next_sequence) return true;
    if (it->close_when == TPC_CLOSE_AFTER_TAKEN) return false;
    return answer_at(it, it->first_sequence)->state == ANSWER_WAITING;
}

/* Adds bytes to a send; false: it is full. What lies behind the last piece makes that longer. */
static bool add_piece(sending *to, const tpc_slice *slice, uint32_t offset) {
    const uint8_t *data = slice->data + offset;
    uint32_t bytes = slice->length - offset;
    struct iovec *last = to->count ? &to->vector[to->count - 1] : NULL;
    if (last != NULL && to->frames[to->count - 1] == slice->frame &&
        (uint8_t *)last->iov_base + last->iov_len == data) {
        last->iov_len += bytes;
    } else {
        if (to->count == SEND_SLICES_MAX) return false;
        to->frames[to->count] = tpc_frame_retain(slice->frame);
        to->vector[to->count++] = (struct iovec){.iov_base = (void *)data, .iov_len = bytes};
    }
    to->bytes += bytes;
    return true;
}

static bool gather_answer(connection *it, sending *to, int64_t sequence) {
    answer *from = answer_at(it, sequence);
    tpc_slice *slices = answer_slices(from);
    bool head = sequence == it->first_sequence;
    uint32_t offset = head ? it->head_offset : 0;
    for (uint32_t i = head ? it->head_slice : 0; i < from->count; i++, offset = 0)
        if (!add_piece(to, &slices[i], offset)) return false;
    return true;
}

static void gather(connection *it, sending *to) {
    for (int64_t at = it->first_sequence; at < it->next_sequence; at++) {
        uint8_t state = answer_at(it, at)->state;
        if (state == ANSWER_WAITING || answer_at(it, at)->holds_files ||
            (state == ANSWER_READY && !gather_answer(it, to, at)))
            break;
    }
}

/* Both ends have the same address, or the peer's is 127/8: what is sent goes over loopback. */
static bool is_local(int descriptor) {
    struct sockaddr_storage ours = {0}, theirs = {0};
    socklen_t ours_bytes = sizeof ours;
    if (getsockname(descriptor, (struct sockaddr *)&ours, &ours_bytes) < 0) return true;
    if (tpc_io.peer(descriptor, &theirs, sizeof theirs) < 0) return true;
    if (theirs.ss_family == AF_INET) {
        uint32_t our_address = ntohl(((struct sockaddr_in *)&ours)->sin_addr.s_addr);
        uint32_t their_address = ntohl(((struct sockaddr_in *)&theirs)->sin_addr.s_addr);
        return our_address == their_address || their_address >> 24 == IN_LOOPBACKNET;
    }
    if (theirs.ss_family == AF_INET6)
        return IN6_ARE_ADDR_EQUAL(&((struct sockaddr_in6 *)&ours)->sin6_addr,
                                  &((struct sockaddr_in6 *)&theirs)->sin6_addr);
    return true;
}

static bool wants_zero_copy(connection *it, const sending *to) {
    const tpc_connections *connections = it->owner;
    uint64_t bytes_min = connections->limits.zero_copy_bytes_min;
    if (bytes_min == 0 || to->bytes < bytes_min) return false;
    if (!it->zero_copy_asked && !connections->limits.zero_copy_local) it->zero_copy_refused |= is_local(it->descriptor);
    it->zero_copy_asked = true;
    if (it->zero_copy_refused) return false;
    return tpc_ring_has(connections->ring, to->count == 1 ? TPC_FEATURE_SEND_ZC : TPC_FEATURE_SENDMSG_ZC);
}

static void prepare(const connection *it, sending *to, struct io_uring_sqe *sqe) {
    to->message = (struct msghdr){.msg_iov = to->vector, .msg_iovlen = to->count};
    if (to->count == 1 && to->zero_copy)
        io_uring_prep_send_zc(sqe, it->descriptor, to->vector[0].iov_base, to->vector[0].iov_len, MSG_NOSIGNAL, 0);
    else if (to->count == 1)
        io_uring_prep_send(sqe, it->descriptor, to->vector[0].iov_base, to->vector[0].iov_len, MSG_NOSIGNAL);
    else if (to->zero_copy)
        io_uring_prep_sendmsg_zc(sqe, it->descriptor, &to->message, MSG_NOSIGNAL);
    else
        io_uring_prep_sendmsg(sqe, it->descriptor, &to->message, MSG_NOSIGNAL);
}

bool send_attend(connection *it) {
    if (it->state == CONNECTION_CLOSING || it->sending != NULL) return true;
    if (it->carrier != NULL) {
        bool any = links_send_answers(it);
        return !any || !it->paused; /* what it has left may let it go on */
    }
    answers_skip_none(it);
    if (it->tls != NULL) return tls_send(it);
    if (it->first_sequence == it->next_sequence || answer_at(it, it->first_sequence)->state != ANSWER_READY)
        return true;
    if (answer_at(it, it->first_sequence)->holds_files) return send_with_files(it);
    sending *to = send_take(it->owner);
    if (to == NULL) return false;
    gather(it, to);
    struct io_uring_sqe *sqe = send_entry(it, to);
    if (sqe == NULL) return false;
    to->zero_copy = wants_zero_copy(it, to);
    prepare(it, to, sqe);
    send_begun(it, to, SENDING_BYTES);
    it->owner->statistics.sends++;
    it->owner->statistics.sends_zero_copy += to->zero_copy;
    return true;
}

static void sent(connection *it, const sending *by, uint64_t bytes) {
    it->owner->statistics.sends_partial += bytes < by->bytes;
    answers_progressed(it, bytes);
    bool more = it->first_sequence < it->next_sequence && answer_at(it, it->first_sequence)->state == ANSWER_READY;
    if (more || it->paused || it->state == CONNECTION_FLUSHING) connection_needs_attention(it);
}

static void send_failed(connection *it, const sending *by, int error) {
    bool refused = by->zero_copy && (error == EOPNOTSUPP || error == ENOMEM || error == ENOBUFS || error == EINVAL);
    if (refused) it->zero_copy_refused = true;
    if (refused || error == EAGAIN || error == EINTR)
        connection_needs_attention(it);
    else
        send_broke(it, error);
}

static void completed(connection *it, sending *by, int32_t result) {
    if (by->kind == SENDING_POLL)
        connection_needs_attention(it); /* an error of the socket shows when it is sent to */
    else if (by->kind == SENDING_READ)
        send_stretch_read(it, by, result);
    else if (result >= 0 && by->kind == SENDING_SEALED)
        tls_sent(it, by, (uint64_t)result);
    else if (result >= 0)
        sent(it, by, (uint64_t)result);
    else
        send_failed(it, by, -result);
}

void send_on_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    tpc_connections *connections = context;
    sending *by = connections->sendings[(uint32_t)user_data];
    assert((by->generation & 0xffffffu) == tpc_user_data_generation(user_data));
    if (flags & IORING_CQE_F_NOTIF) {
        send_return(connections, by);
        return;
    }
    connection *it = by->connection;
    by->connection = NULL;
    it->sending = NULL;
    node_remove(&it->by_send);
    /* The kernel has done with the bytes: when nothing is left to be sent, their chunk can be kept for the next answers. */
    if (by->kind == SENDING_BYTES && !(flags & IORING_CQE_F_MORE)) send_release_frames(by);
    if (it->state != CONNECTION_CLOSING) completed(it, by, result);
    if (!(flags & IORING_CQE_F_MORE)) send_return(connections, by);
    connection_let_go(it);
}
