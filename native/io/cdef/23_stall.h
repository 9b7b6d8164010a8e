/*
 * The watch over the time that Python takes between two waits (native/io/stall.c), with the sign of life that another process
 * reads.
 */

/* Turns in which Python took longer than `threshold_ns` are counted; 0 switches the count off. */
void tpc_ring_stall_threshold(tpc_ring *ring, int64_t threshold_ns);
/* For a thread of its own (cffi lets the others run): returns 1 as soon as Python has taken `after_ns` in the turn under way, once
 * per turn; -ECANCELED after tpc_ring_stall_stop(). Looks every half of that while Python works, or every 20 ms. */
int tpc_ring_wait_stalled(tpc_ring *ring, int64_t after_ns);
void tpc_ring_stall_stop(tpc_ring *ring);
/* From now on 1 is added to the eventfd(2) `fd`, which must not block, at waits and serves, at most once per interval: so it
 * counts only while turns end, or the steps of a long one do. -1: no longer. */
void tpc_ring_beat_on(tpc_ring *ring, int fd, int64_t interval_ns);
