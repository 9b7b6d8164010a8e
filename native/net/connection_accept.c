/*
 * Listeners, and who comes to them: multishot accept (5.19), else one accept at a time; what happens when descriptors or room
 * run out.
 *
 * Above `connections_max`, and of one address above `connections_per_ip_max`, connections are accepted and closed at once:
 * the peer learns it now, and the kernel's queue does not fill with clients that time out. Without descriptors (EMFILE,
 * ENFILE) or memory even that is impossible; accepting rests for `accept_retry_ms`, the kernel's queue holds who comes, and
 * one event per attempt says so.
 */
#include "connection_state.h"
#include "io.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static uint64_t accept_user_data(tpc_connections *connections, const listener *it) {
    return tpc_user_data(TPC_KIND_ACCEPT, it->generation, (uint32_t)(it - connections->listeners));
}

static bool arm(tpc_connections *connections, listener *it) {
    struct io_uring_sqe *sqe = tpc_ring_sqe(connections->ring, accept_user_data(connections, it));
    if (sqe == NULL) return false;
    /* Accepted sockets stay blocking: io_uring answers EAGAIN for non-blocking ones instead of waiting. */
    if (tpc_ring_has(connections->ring, TPC_FEATURE_MULTISHOT_ACCEPT))
        io_uring_prep_multishot_accept(sqe, it->descriptor, NULL, NULL, SOCK_CLOEXEC);
    else
        io_uring_prep_accept(sqe, it->descriptor, NULL, NULL, SOCK_CLOEXEC);
    it->armed = true;
    it->retry_ns = INT64_MAX;
    connections->statistics.operations++;
    return true;
}

static bool cancel(tpc_connections *connections, listener *it) {
    struct io_uring_sqe *sqe = tpc_ring_sqe(connections->ring, tpc_user_data(TPC_KIND_NONE, 0, 0));
    if (sqe == NULL) return false;
    io_uring_prep_rw(IORING_OP_ASYNC_CANCEL, sqe, -1, NULL, 0, 0);
    sqe->addr = accept_user_data(connections, it);
    it->cancelled = true;
    return true;
}

int tpc_connections_listen(tpc_connections *connections, int descriptor) {
    if (connections->listeners_count == LISTENERS_MAX) return -ENOSPC;
    int one = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a Unix socket has none, and needs none */
    listener *it = &connections->listeners[connections->listeners_count];
    *it = (listener){.descriptor = descriptor, .retry_ns = 0};
    return (int)connections->listeners_count++;
}

void tpc_connections_stop_accepting(tpc_connections *connections) { connections->accepting = false; }

/* The instant at which a listener wants to try again. Runs every turn, over a handful of listeners. */
int64_t accept_turn(tpc_connections *connections, int64_t now_ns) {
    int64_t until_ns = INT64_MAX;
    for (uint32_t i = 0; i < connections->listeners_count; i++) {
        listener *it = &connections->listeners[i];
        if (!connections->accepting) {
            if (it->armed && !it->cancelled && !cancel(connections, it)) until_ns = now_ns;
        } else if (!it->armed && !it->stopped && it->retry_ns <= now_ns) {
            if (!arm(connections, it)) until_ns = now_ns;
        }
        if (connections->accepting && it->retry_ns < until_ns) until_ns = it->retry_ns;
    }
    return until_ns;
}

/* One that came to that listener. -EUSERS: its address has as many as it may have; -EDQUOT: as many new ones as its quota
 * gives. */
static int open_connection(tpc_connections *connections, int descriptor, uint16_t listener, uint64_t *id) {
    peer_address peer;
    bool has_peer = peer_address_of(descriptor, &peer);
    if (has_peer && peer_counts_of(&connections->peers, &peer) >= connections->limits.connections_per_ip_max)
        return -EUSERS;
    if (has_peer && !quota_admits(connections, listener, &peer)) return -EDQUOT;
    if (has_peer && !peer_counts_add(&connections->peers, &peer)) return -ENOMEM;
    connection *it = connection_make(connections, descriptor, listener, &request_sink);
    if (it == NULL) {
        if (has_peer) peer_counts_remove(&connections->peers, &peer);
        return -ENOMEM;
    }
    it->has_peer = has_peer;
    if (has_peer) it->peer = peer;
    identity_begin(it);
    tpc_tls_context *context = connections->listener_tls[listener];
    int result = context != NULL ? tls_open(it, context) : 0;
    if (result < 0)
        connection_withdraw(it);
    else
        result = connection_announce(it);
    if (result == 0 && id != NULL) *id = connection_id(it);
    return result;
}

int tpc_connections_adopt(tpc_connections *connections, int descriptor, uint32_t listener, uint64_t *id) {
    if (listener >= LISTENERS_MAX) return -EINVAL;
    if (connections_of_clients(connections) >= connections->limits.connections_max) return -EMFILE;
    return open_connection(connections, descriptor, (uint16_t)listener, id);
}

static void accepted(tpc_connections *connections, const listener *it, int descriptor) {
    uint16_t number = (uint16_t)(it - connections->listeners);
    int result = -EMFILE;
    if (connections->accepting && connections_of_clients(connections) < connections->limits.connections_max)
        result = open_connection(connections, descriptor, number, NULL);
    if (result == 0) return;
    if (connections->accepting) {
        connections->statistics.refused += result != -EDQUOT; /* a quota counts those itself */
        if (result == -EUSERS) connections->statistics.refused_per_ip++;
        connections->listeners[number].ended.refused++;
    }
    tpc_io.close(descriptor);
}

static void failed(tpc_connections *connections, listener *it, int error) {
    uint32_t index = (uint32_t)(it - connections->listeners);
    if (error == ECANCELED && !connections->accepting) return;
    if (error == EBADF || error == EINVAL || error == ENOTSOCK || error == EOPNOTSUPP)
        it->stopped = true;
    else if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS)
        it->retry_ns = tpc_ring_now_ns(connections->ring) + connections->limits.accept_retry_ms * (int64_t)1000000;
    else
        return; /* the peer was gone before it was accepted, and the like: on to the next */
    connections->statistics.accept_failures++;
    tpc_ring_push_event(connections->ring, TPC_EVENT_ACCEPT_FAILED, index, 0, error, NULL);
}

void accept_on_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    tpc_connections *connections = context;
    listener *it = &connections->listeners[(uint32_t)user_data];
    if (!(flags & IORING_CQE_F_MORE)) {
        it->armed = false;
        it->cancelled = false;
        it->retry_ns = 0;
        connections->statistics.operations--;
    }
    if (result >= 0)
        accepted(connections, it, result);
    else
        failed(connections, it, -result);
}
