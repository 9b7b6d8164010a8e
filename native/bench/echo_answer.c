/*
 * Echo answered inside the wait: what a request costs when no Python runs. Built by tpc_broker.bench.echo as a library of its
 * own that finds the ring's functions in the extension; no part of the broker.
 *
 * Connections are accepted by Python and handed over. One multishot receive each into a shared buffer ring; the answer is sent
 * out of the receive buffer, which is given back when the send completes. A connection ends with its first error.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../io/ring.h"

enum { BUFFERS = 1024, BUFFER_BYTES = 2048, GROUP = 1 };

typedef struct {
    tpc_ring *ring;
    struct io_uring_buf_ring *entries;
    char *data;
} echo;

static echo *only;

static void give_back(echo *at, uint16_t id) {
    io_uring_buf_ring_add(at->entries, at->data + (size_t)id * BUFFER_BYTES, BUFFER_BYTES, id,
                          io_uring_buf_ring_mask(BUFFERS), 0);
    io_uring_buf_ring_advance(at->entries, 1);
}

static void arm(echo *at, uint32_t fd) {
    struct io_uring_sqe *sqe = tpc_ring_sqe(at->ring, tpc_user_data(TPC_KIND_RECEIVE, 0, fd));
    io_uring_prep_recv(sqe, (int)fd, NULL, 0, 0);
    sqe->ioprio |= IORING_RECV_MULTISHOT;
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = GROUP;
}

static void on_receive(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    echo *at = context;
    uint32_t fd = (uint32_t)user_data;
    if (result > 0) {
        uint16_t id = (uint16_t)(flags >> IORING_CQE_BUFFER_SHIFT);
        struct io_uring_sqe *sqe = tpc_ring_sqe(at->ring, tpc_user_data(TPC_KIND_SEND, 0, id));
        io_uring_prep_send(sqe, (int)fd, at->data + (size_t)id * BUFFER_BYTES, (size_t)result, MSG_NOSIGNAL);
    }
    if (flags & IORING_CQE_F_MORE) return;
    if (result == -ENOBUFS || result > 0)
        arm(at, fd);
    else
        close((int)fd);
}

static void on_send(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    (void)result, (void)flags;
    give_back(context, (uint16_t)user_data);
}

int echo_answer_start(tpc_ring *ring) {
    only = calloc(1, sizeof *only);
    only->ring = ring;
    size_t entries_bytes = BUFFERS * sizeof(struct io_uring_buf);
    only->entries = mmap(NULL, entries_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    only->data = malloc((size_t)BUFFERS * BUFFER_BYTES);
    struct io_uring_buf_reg registration = {
        .ring_addr = (uintptr_t)only->entries, .ring_entries = BUFFERS, .bgid = GROUP};
    int result = io_uring_register_buf_ring(tpc_ring_raw(ring), &registration, 0);
    if (result < 0) return result;
    io_uring_buf_ring_init(only->entries);
    for (unsigned id = 0; id < BUFFERS; id++) give_back(only, (uint16_t)id);
    tpc_ring_handle(ring, TPC_KIND_RECEIVE, on_receive, only);
    return tpc_ring_handle(ring, TPC_KIND_SEND, on_send, only);
}

void echo_answer_connection(int fd) { arm(only, (uint32_t)fd); }
