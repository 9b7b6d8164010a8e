/*
 * A ring whose entries a test carries out (TPC_BACKEND_SIMULATED): a disk and a network of its own, on a clock of its own
 * (tpc_io_replace()). Everything else is as with io_uring: the turn, the handlers, what Python hears. It never waits:
 * tpc_ring_wait() gives -ETIME when nothing is complete. Closing the ring cancels what is under way.
 */
typedef struct {
    uint64_t number; /* of this ring's entries: 1, 2, ... */
    uint64_t user_data;
    uint64_t address; /* as io_uring_enter(2) says of the fields of an entry */
    uint64_t offset;
    uint32_t length;
    int32_t descriptor;
    uint32_t operation_flags;
    uint16_t poll_events;
    uint8_t opcode;
    uint8_t flags;
} tpc_simulated_entry;

/* Takes up to `count` of what was submitted and not taken, in its order; how many. */
uint32_t tpc_simulated_take(tpc_ring *ring, tpc_simulated_entry *entries, uint32_t count);

/* The entry of that number is done. 0; -ENOENT: it was done before, or never taken. */
int tpc_simulated_complete(tpc_ring *ring, uint64_t number, int32_t result);

/* When the turn hooks want the next tpc_ring_wait() at the latest, in ns of the monotonic clock; INT64_MAX: never. */
int64_t tpc_simulated_until(const tpc_ring *ring);
