/*
 * What sending has in the kernel: sends, polls for room in a socket, reads of stretches of files. At most one per connection
 * at a time, kept for the next one when it has ended.
 */
#include "connection_state.h"

#include <errno.h>
#include <stdlib.h>

static sending *make_sending(tpc_connections *connections) {
    sending **sendings = realloc(connections->sendings, (connections->sendings_count + 1) * sizeof(sending *));
    if (sendings == NULL) return NULL;
    connections->sendings = sendings;
    sending *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->index = connections->sendings_count;
    sendings[connections->sendings_count++] = made;
    return made;
}

sending *send_take(tpc_connections *connections) {
    sending *taken = connections->sendings_free;
    if (taken == NULL) return make_sending(connections);
    connections->sendings_free = taken->next_free;
    return taken;
}

void send_release_frames(sending *it) {
    for (uint32_t i = 0; i < it->count; i++) tpc_frame_release(it->frames[i]);
    it->count = 0;
}

void send_return(tpc_connections *connections, sending *it) {
    send_release_frames(it);
    if (it->in_kernel) connections->statistics.sends_in_kernel--;
    it->in_kernel = false;
    it->bytes = 0;
    it->generation++;
    it->next_free = connections->sendings_free;
    connections->sendings_free = it;
}

struct io_uring_sqe *send_entry(const connection *it, sending *to) {
    struct io_uring_sqe *sqe = tpc_ring_sqe(it->owner->ring, tpc_user_data(TPC_KIND_SEND, to->generation, to->index));
    if (sqe == NULL) send_return(it->owner, to);
    return sqe;
}

void send_begun(connection *it, sending *to, enum sending_kind kind) {
    tpc_connections *connections = it->owner;
    to->kind = (uint8_t)kind;
    to->in_kernel = true;
    to->connection = it;
    it->sending = to;
    it->send_progress_ns = tpc_ring_now_ns(connections->ring);
    node_to_tail(&connections->by_send, &it->by_send);
    connections->statistics.sends_in_kernel++;
    connection_hold(it);
}

void send_broke(connection *it, int error) {
    bool reset = error == EPIPE || error == ECONNRESET || error == ETIMEDOUT || error == ENOTCONN;
    connection_begin_close(it, reset ? TPC_CLOSE_RESET : TPC_CLOSE_IO_ERROR, error);
}
