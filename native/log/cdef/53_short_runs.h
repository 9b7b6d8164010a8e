/* Short runs of many partitions on their way to the segments: a call for each of them costs Python more than the copy. */
typedef struct {
    uint64_t handle;
    int64_t end_offset;
    int64_t bytes;          /* taken: 0: it is left to the way of one partition; done: how many more, or an error */
    int64_t bytes_admitted; /* done: how many more may be appended before segment space has to be reserved */
} tpc_short_run;

/*
 * Of each partition everything that is durable and not written behind, one behind the other in `out`, which has room for
 * run_bytes_max at least. Left is what has nothing, more than run_bytes_max, or batches that were written in place; what is gone
 * meanwhile, too. How many partitions were looked at: it ends where `out` is full. `batches` is room to work in, for at least
 * run_bytes_max divided by the bytes of a batch's header. In between the ring serves when it is time (tpc_ring_serve).
 */
uint32_t tpc_plane_short_runs_take(tpc_plane *plane, tpc_short_run *runs, uint32_t count, int64_t run_bytes_max,
                                   uint8_t *out, uint64_t out_bytes, tpc_tail_batch *batches, uint32_t batches_max);

/* The segments have each partition up to its end_offset; in between the ring serves as above. */
void tpc_plane_short_runs_done(tpc_plane *plane, tpc_short_run *runs, uint32_t count);
