/*
 * What a core asks of the system beside the entries of its ring. None of it waits. In production these are system calls (io.c); a
 * simulation puts its own in their place for all rings of the process (tpc_io_replace()). Results are as system calls give them,
 * with -errno in place of errno. A descriptor is one that the core was given, or that one of its entries opened.
 */
typedef struct {
    int64_t (*monotonic_ns)(void);
    int64_t (*wall_ms)(void);                    /* since 1970 */
    int64_t (*busy_ns)(void);                    /* that this thread has run or waited for a CPU; -1: not known */
    int64_t (*draw)(void *into, uint64_t bytes); /* random bytes */
    int64_t (*duplicate)(int descriptor);        /* another for the same file; closed like any */
    int64_t (*close)(int descriptor);
    int64_t (*shut)(int descriptor);    /* of a socket, both ways: who waits for it is told */
    int64_t (*abandon)(int descriptor); /* of a socket: its close will be a reset */
    int64_t (*peer)(int descriptor, void *address, uint64_t bytes); /* of a socket: the length of its sockaddr */
    int64_t (*receive)(int descriptor, void *into, uint64_t bytes);
    int64_t (*send)(int descriptor, const void *message, bool more); /* struct msghdr; `more` comes at once */
    /* What of a file is in memory; -EAGAIN: not the first byte. */
    int64_t (*read_cached)(int descriptor, void *into, uint64_t bytes, int64_t position);
} tpc_io_calls;

/* NULL: the system's. While no ring is open. */
void tpc_io_replace(const tpc_io_calls *calls);
