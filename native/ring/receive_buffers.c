/*
 * One provided-buffer ring for the multishot receives that Python awaits (mailboxes, control pipes, streams).
 *
 * A buffer is lent to Python with the event that carries its data and given back at the start of a turn in which no
 * event is left to be handed over: Python copies what it needs while it handles the events of a wait.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ring_state.h"
#include "cdef/21_operations.h"
#include "cdef/23_receive_buffers.h"

struct tpc_receive_buffers {
    struct io_uring_buf_ring *entries;
    uint8_t *data;
    uint16_t *lent; /* buffer ids that Python looks at */
    uint32_t lent_count;
    uint32_t count;
    uint32_t size;
    uint16_t group;
};

static size_t entries_bytes(uint32_t count) { return count * sizeof(struct io_uring_buf); }

static void *map_pages(size_t bytes) {
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void tpc_receive_buffers_free(tpc_receive_buffers *buffers) {
    if (!buffers) return;
    if (buffers->entries) munmap(buffers->entries, entries_bytes(buffers->count));
    if (buffers->data) munmap(buffers->data, (size_t)buffers->count * buffers->size);
    free(buffers->lent);
    free(buffers);
}

static void give_back(tpc_receive_buffers *buffers, uint16_t id, int place) {
    io_uring_buf_ring_add(buffers->entries, buffers->data + (size_t)id * buffers->size, buffers->size, id,
                          io_uring_buf_ring_mask(buffers->count), place);
}

int tpc_receive_buffers_new(tpc_ring *ring, uint16_t group, uint32_t count, uint32_t size, tpc_receive_buffers **out) {
    if (!tpc_ring_has(ring, TPC_FEATURE_BUFFER_RING)) return -EOPNOTSUPP;
    if (ring->receive_buffers) return -EBUSY;
    if (count == 0 || count > 32768 || (count & (count - 1)) || size == 0) return -EINVAL;
    tpc_receive_buffers *buffers = calloc(1, sizeof *buffers);
    if (!buffers) return -ENOMEM;
    buffers->count = count;
    buffers->size = size;
    buffers->group = group;
    buffers->entries = map_pages(entries_bytes(count));
    buffers->data = map_pages((size_t)count * size);
    buffers->lent = calloc(count, sizeof *buffers->lent);
    int result = -ENOMEM;
    if (!buffers->entries || !buffers->data || !buffers->lent) goto fail;
    struct io_uring_buf_reg registration = {
        .ring_addr = (uintptr_t)buffers->entries, .ring_entries = count, .bgid = group};
    result = io_uring_register_buf_ring(&ring->uring, &registration, 0);
    if (result < 0) goto fail;
    io_uring_buf_ring_init(buffers->entries);
    for (uint32_t id = 0; id < count; id++) give_back(buffers, (uint16_t)id, (int)id);
    io_uring_buf_ring_advance(buffers->entries, (int)count);
    ring->receive_buffers = buffers;
    *out = buffers;
    return 0;
fail:
    tpc_receive_buffers_free(buffers);
    return result;
}

void *tpc_receive_buffers_take(tpc_ring *ring, uint32_t completion_flags) {
    tpc_receive_buffers *buffers = ring->receive_buffers;
    uint16_t id = (uint16_t)(completion_flags >> IORING_CQE_BUFFER_SHIFT);
    buffers->lent[buffers->lent_count++] = id; /* never more than there are: each is lent once */
    return buffers->data + (size_t)id * buffers->size;
}

void tpc_receive_buffers_turn(tpc_ring *ring) {
    tpc_receive_buffers *buffers = ring->receive_buffers;
    if (!buffers || !buffers->lent_count || tpc_ring_events_pending(ring)) return;
    for (uint32_t i = 0; i < buffers->lent_count; i++) give_back(buffers, buffers->lent[i], (int)i);
    io_uring_buf_ring_advance(buffers->entries, (int)buffers->lent_count);
    buffers->lent_count = 0;
}

int64_t tpc_operation_receive_multishot(tpc_ring *ring, uint64_t token, int fd, tpc_receive_buffers *buffers) {
    if (!tpc_ring_has(ring, TPC_FEATURE_MULTISHOT_RECEIVE)) return -EOPNOTSUPP;
    struct io_uring_sqe *sqe;
    int64_t id;
    int result = tpc_operation_begin(ring, token, NULL, &sqe, &id);
    if (result < 0) return result;
    io_uring_prep_rw(IORING_OP_RECV, sqe, fd, NULL, 0, 0);
    sqe->ioprio |= IORING_RECV_MULTISHOT;
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = buffers->group;
    return id;
}

void *tpc_receive_buffers_memory(tpc_receive_buffers *buffers) { return buffers->data; }
