/*
 * From sockets to the framing (connection_framing.c), past the TLS of those that have it.
 *
 * Two ways to receive. From kernel 6.0: multishot receive into a ring of buffers that all connections share; a buffer is
 * copied out and given back inside its completion, so an idle connection owns no memory for receiving. Before: a poll, then
 * recv(2) without waiting into one scratch buffer of the core, or straight into an unfinished large request. One system call
 * more, and no memory either.
 *
 * A connection of large requests is received from in two steps instead of multishot: the beginning of a request into a shared
 * buffer, and the rest, in which nothing else can be, straight into its frame. That spares a copy and dozens of completions.
 * As long as the kernel receives into a frame it has a reference to it. Under TLS no frame can take what comes, and a
 * multishot receive would bring record by record, for as long as there are any, before anything is written or answered: such a
 * connection is received from as before 6.0, in larger pieces.
 *
 * Once a connection is `paused` or `starved` the receive is cancelled, and what comes until the cancel takes hold is parked in
 * `backlog`, at most what the shared buffers hold. A poll is simply not armed again.
 */
#include "connection_state.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "bytes.h"
#include "io.h"

/* ------------------------------------------------------------------------------------------------ shared buffers */

static void give_back_buffer(tpc_connections *connections, uint32_t buffer) {
    uint32_t bytes = connections->limits.receive_buffer_bytes;
    int mask = io_uring_buf_ring_mask(connections->limits.receive_buffers_count);
    io_uring_buf_ring_add(connections->buffer_ring, connections->buffers + (size_t)buffer * bytes, bytes,
                          (unsigned short)buffer, mask, 0);
    io_uring_buf_ring_advance(connections->buffer_ring, 1);
}

static void unmap_buffers(tpc_connections *connections) {
    size_t bytes = (size_t)connections->limits.receive_buffers_count * connections->limits.receive_buffer_bytes;
    if (connections->buffer_ring != NULL) munmap(connections->buffer_ring, connections->buffer_ring_bytes);
    if (connections->buffers != NULL) munmap(connections->buffers, bytes);
    connections->buffer_ring = NULL;
    connections->buffers = NULL;
}

static void *map_bytes(size_t bytes) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* liburing 2.3 registers a ring of buffers but does not make its memory. */
static int register_buffers(tpc_connections *connections) {
    uint32_t count = connections->limits.receive_buffers_count;
    connections->buffer_ring_bytes = count * sizeof(struct io_uring_buf);
    connections->buffer_ring = map_bytes(connections->buffer_ring_bytes);
    connections->buffers = map_bytes((size_t)count * connections->limits.receive_buffer_bytes);
    if (connections->buffer_ring == NULL || connections->buffers == NULL) return -ENOMEM;
    io_uring_buf_ring_init(connections->buffer_ring);
    struct io_uring_buf_reg registration = {
        .ring_addr = (uintptr_t)connections->buffer_ring,
        .ring_entries = count,
        .bgid = TPC_BUFFER_GROUP_CONNECTIONS,
    };
    int result = io_uring_register_buf_ring(tpc_ring_raw(connections->ring), &registration, 0);
    if (result < 0) return result;
    for (uint32_t i = 0; i < count; i++) give_back_buffer(connections, i);
    return 0;
}

static size_t scratch_bytes(const tpc_connections *connections) {
    return connections->multishot ? CIPHERTEXT_BYTES : SCRATCH_BYTES;
}

static bool has_scratch(tpc_connections *connections) {
    if (connections->scratch == NULL) connections->scratch = malloc(scratch_bytes(connections));
    return connections->scratch != NULL;
}

int receive_start(tpc_connections *connections) {
    uint32_t count = connections->limits.receive_buffers_count;
    if (count == 0 || count > 32768 || (count & (count - 1)) != 0) return -EINVAL;
    connections->multishot = tpc_ring_has(connections->ring, TPC_FEATURE_MULTISHOT_RECEIVE) &&
                             tpc_ring_has(connections->ring, TPC_FEATURE_BUFFER_RING) &&
                             register_buffers(connections) == 0;
    if (connections->multishot) return 0;
    unmap_buffers(connections);
    return has_scratch(connections) ? 0 : -ENOMEM;
}

void receive_stop(tpc_connections *connections) {
    if (connections->multishot)
        io_uring_unregister_buf_ring(tpc_ring_raw(connections->ring), TPC_BUFFER_GROUP_CONNECTIONS);
    unmap_buffers(connections);
    free(connections->scratch);
    connections->scratch = NULL;
}

/* What a connection receives: how many bytes were taken. */
static size_t take(connection *it, uint8_t *data, size_t bytes) {
    return it->tls != NULL ? tls_take(it, data, bytes) : framing_parse(it, data, bytes);
}

/* ------------------------------------------------------------------------------------------------ parked bytes */

static void park(connection *it, const uint8_t *data, size_t bytes) {
    if (it->backlog == NULL) {
        it->backlog = tpc_frame_new_forced(it->owner->budget, (uint32_t)bytes);
        it->backlog_position = 0;
        if (it->backlog == NULL) goto no_memory;
        memcpy(it->backlog->data, data, bytes);
        return;
    }
    tpc_frame *joined =
        tpc_frame_new_forced(it->owner->budget, (uint32_t)(it->backlog->length - it->backlog_position + bytes));
    if (joined == NULL) goto no_memory;
    size_t kept = it->backlog->length - it->backlog_position;
    memcpy(joined->data, it->backlog->data + it->backlog_position, kept);
    memcpy(joined->data + kept, data, bytes);
    tpc_frame_release(it->backlog);
    it->backlog = joined;
    it->backlog_position = 0;
    return;
no_memory:
    connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
}

static void bytes_arrived(connection *it, uint8_t *data, size_t bytes) {
    it->received_bytes += bytes;
    it->owner->statistics.received_bytes += bytes;
    it->owner->statistics.receives++;
    connection_touch(it);
    size_t taken = it->backlog == NULL && !it->paused && !it->starved ? take(it, data, bytes) : 0;
    if (taken < bytes && it->state == CONNECTION_OPEN && identity_has_room(it, (int64_t)(bytes - taken)))
        park(it, data + taken, bytes - taken);
    identity_count(it);
}

void receive_feed(connection *it, uint8_t *data, size_t bytes) {
    connection_hold(it);
    if (it->state == CONNECTION_OPEN) bytes_arrived(it, data, bytes);
    connection_let_go(it);
}

bool receive_takes_frames(const connection *it) {
    return it->state == CONNECTION_OPEN && it->backlog == NULL && it->length_have == 0 && !it->paused && !it->starved &&
           !it->sink->is_full(it);
}

static void bytes_arrived_in_frame(connection *it, size_t bytes) {
    it->received_bytes += bytes;
    it->owner->statistics.received_bytes += bytes;
    it->owner->statistics.receives++;
    connection_touch(it);
    framing_arrived(it, bytes);
    identity_count(it);
}

/* The backlog is detached while it is parsed: a handler may close the connection, which frees what is attached. */
static void parse_backlog(connection *it) {
    tpc_frame *backlog = it->backlog;
    uint32_t position = it->backlog_position;
    if (it->tls != NULL) tls_take_kept(it);
    if (backlog == NULL || it->paused || it->starved || it->state != CONNECTION_OPEN) return;
    it->backlog = NULL;
    position += (uint32_t)take(it, backlog->data + position, backlog->length - position);
    if (position < backlog->length && it->state == CONNECTION_OPEN) {
        it->backlog = backlog;
        it->backlog_position = position;
    } else {
        tpc_frame_release(backlog);
    }
    identity_count(it);
}

/* The whole frame that its sink put aside, if there is one. */
static void take_deferred(connection *it) {
    tpc_frame *frame = it->deferred;
    if (frame == NULL) return;
    it->deferred = NULL;
    it->sink->take_frame(it, frame);
}

static bool may_go_on(connection *it) {
    if (it->paused && it->sink->may_resume(it)) it->paused = false;
    it->starved = false;                    /* if there is still no room, parsing says so again */
    return !it->paused && !it->muted_place; /* a muted one takes nothing up that it has put aside, either */
}

/* ------------------------------------------------------------------------------------------------ submissions */

static uint64_t receive_user_data(const connection *it) {
    return tpc_user_data(TPC_KIND_RECEIVE, it->generation, it->slot);
}

static bool goes_into_frame(const connection *it) {
    return it->tls == NULL && it->large_credit > 0 && it->partial != NULL &&
           it->partial->capacity == it->announced + it->lead &&
           it->announced - framing_have_bytes(it) >= INTO_FRAME_BYTES_MIN;
}

static void prepare_into_frame(connection *it, struct io_uring_sqe *sqe) {
    uint32_t missing = it->announced - framing_have_bytes(it);
    it->receiving = tpc_frame_retain(it->partial);
    io_uring_prep_recv(sqe, it->descriptor, it->partial->data + it->partial->length,
                       missing < INTO_FRAME_BYTES_MAX ? missing : INTO_FRAME_BYTES_MAX, 0);
}

static void prepare_into_buffers(connection *it, struct io_uring_sqe *sqe) {
    it->multishot_armed = it->large_credit == 0;
    if (it->multishot_armed)
        io_uring_prep_recv_multishot(sqe, it->descriptor, NULL, 0, 0);
    else
        io_uring_prep_recv(sqe, it->descriptor, NULL, it->owner->limits.receive_buffer_bytes, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = TPC_BUFFER_GROUP_CONNECTIONS;
}

/* Whether it is polled, and received from then. */
static bool is_polled(const connection *it) {
    return !it->owner->multishot || (it->tls != NULL && it->large_credit > 0 && has_scratch(it->owner));
}

static bool arm(connection *it) {
    struct io_uring_sqe *sqe = tpc_ring_sqe(it->owner->ring, receive_user_data(it));
    if (sqe == NULL) return false;
    it->multishot_armed = false;
    it->poll_armed = is_polled(it);
    if (it->poll_armed)
        io_uring_prep_poll_add(sqe, it->descriptor, POLLIN);
    else if (goes_into_frame(it))
        prepare_into_frame(it, sqe);
    else
        prepare_into_buffers(it, sqe);
    sqe->user_data = receive_user_data(it);
    it->receive_armed = true;
    it->receive_cancelled = false;
    connection_hold(it);
    return true;
}

static bool cancel(connection *it) {
    if (!it->receive_armed || it->receive_cancelled) return true;
    struct io_uring_sqe *sqe = tpc_ring_sqe(it->owner->ring, tpc_user_data(TPC_KIND_NONE, 0, 0));
    if (sqe == NULL) return false;
    io_uring_prep_rw(IORING_OP_ASYNC_CANCEL, sqe, -1, NULL, 0, 0);
    sqe->addr = receive_user_data(it);
    it->receive_cancelled = true;
    return true;
}

/* Nothing more comes from it, and nothing of it waits to be taken. */
static bool has_left(const connection *it) {
    return it->end_of_file && it->backlog == NULL && it->deferred == NULL && !tls_keeps_bytes(it);
}

/* A close costs some 20 us with what follows it, and a thousand clients may leave, or be killed, in the same moment: a turn
 * closes a few of their connections, and who stays gets answers in between. */
static bool close_left(connection *it) {
    if (it->owner->left_closed == CLOSES_PER_TURN_MAX) return false;
    it->owner->left_closed++;
    connection_begin_close(it, it->reset_error ? TPC_CLOSE_RESET : TPC_CLOSE_PEER, it->reset_error);
    return true;
}

bool receive_attend(connection *it) {
    if (it->state == CONNECTION_CLOSING) return true;
    if (it->reset_error) return close_left(it);
    if (it->state == CONNECTION_FLUSHING) return cancel(it);
    if (has_left(it)) return close_left(it);
    if (!may_go_on(it)) return cancel(it);
    take_deferred(it);
    if (it->deferred == NULL) parse_backlog(it);
    if (it->state != CONNECTION_OPEN) return true;
    if (tls_waits(it)) return cancel(it) && !tls_waits_for_turn(it);
    if (!it->starved) framing_end_starvation(it);
    if (it->paused || it->starved) return cancel(it);
    if (it->end_of_file) return close_left(it);
    if (it->receive_armed && it->multishot_armed && it->large_credit > 0) return cancel(it);
    return it->receive_armed || it->carrier != NULL || arm(it);
}

void receive_forget(connection *it) {
    it->owner->statistics.assembling_bytes -= framing_have_bytes(it);
    if (it->receiving != NULL && !it->receiving_forgotten) {
        it->receiving_forgotten = true;
        it->owner->frames_leaving++;
    }
    tpc_frame_release(it->partial);
    tpc_frame_release(it->backlog);
    tpc_frame_release(it->plain);
    tpc_frame_release(it->deferred);
    it->partial = it->backlog = it->plain = it->deferred = NULL;
    node_remove(&it->by_assembly);
    node_remove(&it->by_starvation);
    it->starved = it->paused = false;
    if (it->state == CONNECTION_CLOSING) cancel(it); /* the shut-down of the socket ends it as well */
}

/* ------------------------------------------------------------------------------------------------ completions */

static void ended(connection *it, int error) {
    if (error == EAGAIN || error == EINTR || error == ECANCELED || error == ENOBUFS) {
        connection_needs_attention(it);
        return;
    }
    if (error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == ENOTCONN) {
        it->reset_error = error;
        connection_needs_attention(it);
        return;
    }
    connection_begin_close(it, TPC_CLOSE_IO_ERROR, error);
}

/* What has come and will not be taken. The kernel resets a connection that is closed over it, and what was sent and has not arrived
 * is lost; what comes later does the same, unless it is late enough. */
void receive_discard(connection *it) {
    uint8_t waste[DISCARD_BYTES];
    for (int i = 0; it->carrier == NULL && i < DISCARDS_MAX; i++)
        if (tpc_io.receive(it->descriptor, waste, sizeof waste) <= 0) return;
}

void receive_end_of_file(connection *it) {
    connection_end_of_file(it);
    if (it->carrier != NULL && has_left(it)) connection_begin_close(it, TPC_CLOSE_PEER, 0);
}

/* Receives without waiting, large requests straight into their frame. Whether there may be more. */
static bool receive_once(connection *it) {
    uint8_t *into = it->owner->scratch;
    size_t room = scratch_bytes(it->owner);
    size_t frame_room = it->partial != NULL ? it->partial->capacity - it->partial->length : 0;
    bool direct = it->tls == NULL && frame_room >= SCRATCH_BYTES; /* it grows with what has come, never for what may */
    if (direct) {
        into = it->partial->data + it->partial->length;
        room = frame_room;
    }
    int64_t received = tpc_io.receive(it->descriptor, into, room);
    if (received < 0) {
        ended(it, (int)-received);
        return false;
    }
    if (received == 0) {
        receive_end_of_file(it);
        return false;
    }
    if (!direct) {
        bytes_arrived(it, into, (size_t)received);
    } else {
        bytes_arrived_in_frame(it, (size_t)received);
    }
    return (size_t)received == room && it->state == CONNECTION_OPEN && !it->paused && !it->starved;
}

static void on_readable(connection *it, int32_t result) {
    if (result < 0) {
        ended(it, -result);
        return;
    }
    if (!it->paused && !it->starved)
        for (int i = 0; i < RECEIVES_PER_POLL_MAX && receive_once(it); i++) {
        }
    connection_needs_attention(it);
}

static void on_received(connection *it, int32_t result, uint32_t flags) {
    tpc_connections *connections = it->owner;
    if (result > 0) {
        uint32_t buffer = flags >> IORING_CQE_BUFFER_SHIFT;
        bytes_arrived(it, connections->buffers + (size_t)buffer * connections->limits.receive_buffer_bytes,
                      (size_t)result);
    } else if (result == 0) {
        receive_end_of_file(it);
    } else {
        if (result == -ENOBUFS) connections->statistics.receive_buffers_short++;
        ended(it, -result);
    }
}

/* The receive that prepare_into_frame() began has ended. */
static void on_received_into_frame(connection *it, int32_t result) {
    if (result > 0)
        bytes_arrived_in_frame(it, (size_t)result);
    else if (result == 0)
        receive_end_of_file(it);
    else
        ended(it, -result);
}

void receive_on_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    tpc_connections *connections = context;
    connection *it = connection_of_completion(connections, user_data);
    bool last = !(flags & IORING_CQE_F_MORE);
    if (last) it->receive_armed = it->receive_cancelled = false;
    connection_hold(it);
    bool into_frame = it->receiving != NULL;
    connections->frames_leaving -= it->receiving_forgotten;
    it->receiving_forgotten = false;
    tpc_frame_release(it->receiving);
    it->receiving = NULL;
    if (it->state == CONNECTION_OPEN) {
        if (into_frame)
            on_received_into_frame(it, result);
        else if (it->poll_armed)
            on_readable(it, result);
        else
            on_received(it, result, flags);
    }
    if (flags & IORING_CQE_F_BUFFER) give_back_buffer(connections, flags >> IORING_CQE_BUFFER_SHIFT);
    if (last) {
        connection_needs_attention(it);
        connection_let_go(it);
    }
    connection_let_go(it);
}
