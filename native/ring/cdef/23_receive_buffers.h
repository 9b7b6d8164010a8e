/*
 * Buffers that the kernel picks for multishot receives awaited by Python (native/ring/receive_buffers.c), and the watch over
 * the time that Python takes between two waits (native/ring/stall.c).
 */
typedef struct tpc_receive_buffers tpc_receive_buffers;

/* `count` (a power of two, <= 32768) buffers of `size` bytes as group `group`. -EOPNOTSUPP: no buffer rings (before 5.19). */
int tpc_receive_buffers_new(tpc_ring *ring, uint16_t group, uint32_t count, uint32_t size, tpc_receive_buffers **buffers);
/* After the ring was closed, which drained the receives. */
void tpc_receive_buffers_free(tpc_receive_buffers *buffers);

/* Each event: a: bytes (0: end of stream), pointer: the data, valid until the next tpc_ring_wait(), which gives the buffer back.
 * Without TPC_MORE in b the receive has ended: error, end of stream, or -ENOBUFS (submit again in the next turn).
 * -EOPNOTSUPP before 6.0. One set of buffers per ring. */
int64_t tpc_operation_receive_multishot(tpc_ring *ring, uint64_t token, int fd, tpc_receive_buffers *buffers);

/* Turns in which Python took longer than `threshold_ns` are counted; 0 switches the count off. */
void tpc_ring_stall_threshold(tpc_ring *ring, int64_t threshold_ns);
/* For a thread of its own (cffi lets the others run): returns 1 as soon as the turn under way is over the threshold, once per
 * turn; -ECANCELED after tpc_ring_stall_stop(). Looks every half threshold while Python works. */
int tpc_ring_wait_stalled(tpc_ring *ring);
void tpc_ring_stall_stop(tpc_ring *ring);
/* The memory that the data pointers of events point into. */
void *tpc_receive_buffers_memory(tpc_receive_buffers *buffers);
