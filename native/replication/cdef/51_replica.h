/*
 * A partition with replicas on other nodes. Python decides (tpc_broker/raft has the machine,
 * tpc_broker/engine/replication.py says how it is driven); here is what it is told, and what it tells: a leader's
 * appends, a follower's, what is committed, and cuts. A partition that is not replicated has one voter: what is durable
 * is committed.
 */

/* On: commit_offset stays where it is, and is moved by tpc_partition_commit() alone. Off: what is durable is committed, at once. */
int tpc_partition_set_replicated(tpc_plane *plane, uint64_t handle, int on);

/*
 * The log is committed up to an offset, so readers see it, and acks=all is answered. 1: moved; 0: it was there already.
 * -EPERM: not replicated, or no role; -ESTALE: armed in another term; -EINVAL: beyond what is durable here.
 */
int tpc_partition_commit(tpc_plane *plane, uint64_t handle, int32_t term, int64_t end_offset);

/*
 * While the error is not 0, appends that wait for the commit are refused with it, and nothing is done: too few replicas are in
 * touch. With `all_acks` the others, too: too much waits for a quorum. What was appended before goes on waiting.
 */
int tpc_partition_refuse(tpc_plane *plane, uint64_t handle, int16_t error_code, int all_acks);

/* What a leader has appended, in one term: whole batches that follow each other. */
typedef struct {
    uint64_t handle;
    int64_t base_offset;
    int64_t next_offset;
    uint64_t sequence; /* the commit of the journal that carries the last of them */
    int32_t leader_epoch;
    uint32_t reserved;
} tpc_appended_range;

/*
 * What leaders of replicated partitions have appended since they were taken last, one range for each; how many. After it
 * TPC_EVENT_APPENDED comes with the next append. What a partition has appended in a role that ended is not among them.
 */
uint32_t tpc_plane_take_appended(tpc_plane *plane, tpc_appended_range *ranges, uint32_t ranges_max);

/*
 * A follower's append: whole batches that carry their offsets and leader epochs, journalled as any. 0 with *result
 * (error_code: CORRUPT_MESSAGE, nothing was done). -EPERM: not a follower; -ESTALE: armed in another term; -EINVAL: they do
 * not follow the log's end, or have an epoch above the term or one that falls; -EAGAIN, -ENOSPC, -EIO: as tpc_plane_append().
 */
int tpc_partition_append_replica(tpc_plane *plane, uint64_t handle, int32_t term, const uint8_t *batches,
                                 uint32_t bytes, tpc_append_result *result);

/* As tpc_partition_read(), of everything in memory, committed or not. */
int tpc_partition_read_log(tpc_plane *plane, uint64_t handle, int64_t offset, int64_t bytes_max, int64_t upto_offset,
                           tpc_slice *slices, uint32_t slices_max);

/*
 * The log ends at an offset, behind the beginning of an epoch, from now on: the journal gets a CUT in *sequence, memory forgets
 * what is behind it. When `offset` is below written_offset the segments are the caller's to cut, before anything is written
 * behind. Producers are loaded anew with tpc_partition_reset_producers(). -EPERM: it leads, or is not replicated; -EINVAL:
 * below what is committed, or no batch ends there; -EBUSY: appends are on their way to the journal, wait for them; -EAGAIN.
 * Should the journal fail before the CUT is durable, the reopened one begins with it (tpc_plane_cuts_sequence).
 */
int tpc_partition_truncate(tpc_plane *plane, uint64_t handle, int64_t offset, int32_t last_epoch_kept,
                           uint64_t *sequence);

/*
 * As FOLLOWER in this term it answers Fetches of consumers that know of such (version 11 and later), up to its own high watermark;
 * -1: in none. What waits looks again.
 */
int tpc_partition_serve_reads(tpc_plane *plane, uint64_t handle, int32_t term);

/* The racks of consumers that Python tells where to read, in place of this leader: bits of tpc_plane_set_racks(). */
int tpc_partition_set_near_racks(tpc_plane *plane, uint64_t handle, uint64_t racks);

/* The racks' names (client.rack), copied: bit i is the i-th one, and bit 63 all that come behind. ends[i]: behind it in `names`. */
int tpc_plane_set_racks(tpc_plane *plane, const uint8_t *names, const uint32_t *ends, uint32_t count);

/* These are the producers as of written_offset; what is in memory behind it is added to them. */
int tpc_partition_reset_producers(tpc_plane *plane, uint64_t handle, const uint8_t *encoded, uint32_t bytes);
