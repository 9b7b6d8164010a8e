/*
 * Operations that Python awaits (native/ring/operations.c). Each returns an id (> 0) for tpc_operation_cancel(), or -errno
 * when it could not be queued: then nothing was submitted and no event comes. Otherwise TPC_EVENT_OPERATION events with the
 * given token come: exactly one, or for multishot kinds several, the last one without TPC_MORE in b.
 *
 * Paths, addresses, vectors and times are copied. Data buffers are the caller's: they must stay where they are until the
 * last event, also after a cancel. Operations that the kernel lacks (unlink, truncate, shutdown) are done as plain system
 * calls and complete in the next wait.
 */
enum { TPC_MORE = 2 /* IORING_CQE_F_MORE in b: more events of this operation will come */ };

int64_t tpc_operation_nop(tpc_ring *ring, uint64_t token);
int64_t tpc_operation_read(tpc_ring *ring, uint64_t token, int fd, void *data, uint32_t length, uint64_t position);
/* `write_flags`: RWF_DSYNC for a durable write. */
int64_t tpc_operation_write(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length,
                            uint64_t position, int write_flags);
/* The same in parts of at most `part_bytes`, each submitted when the one before it has ended, so that other writes to the disk
 * wait for one part and not for all. a: how much was written, or -errno when nothing was. */
int64_t tpc_operation_write_in_parts(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length,
                                     uint64_t position, uint32_t part_bytes);
/* Up to 1024 parts: pointers and lengths in two arrays. */
int64_t tpc_operation_readv(tpc_ring *ring, uint64_t token, int fd, void *const *parts, const size_t *lengths,
                            unsigned count, uint64_t position);
int64_t tpc_operation_writev(tpc_ring *ring, uint64_t token, int fd, void *const *parts, const size_t *lengths,
                             unsigned count, uint64_t position, int write_flags);
/* Write and, when it was whole, fdatasync. a: what the write gave; b: what fdatasync gave (0 or -errno; -ECANCELED after a
 * short or failed write). */
int64_t tpc_operation_write_fdatasync(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length,
                                      uint64_t position);
int64_t tpc_operation_fsync(tpc_ring *ring, uint64_t token, int fd, bool data_only);
int64_t tpc_operation_openat(tpc_ring *ring, uint64_t token, int folder_fd, const char *path, int flags, unsigned mode);
int64_t tpc_operation_close(tpc_ring *ring, uint64_t token, int fd);
int64_t tpc_operation_fallocate(tpc_ring *ring, uint64_t token, int fd, int mode, uint64_t position, uint64_t length);
/* What will be read soon, into the page cache: done when it is asked for, not when it is there. */
int64_t tpc_operation_read_ahead(tpc_ring *ring, uint64_t token, int fd, uint64_t position, uint32_t length);
int64_t tpc_operation_ftruncate(tpc_ring *ring, uint64_t token, int fd, uint64_t length);
int64_t tpc_operation_unlinkat(tpc_ring *ring, uint64_t token, int folder_fd, const char *path, int flags);

/* a: the descriptor (non-blocking, close-on-exec). Multishot only where TPC_FEATURE_MULTISHOT_ACCEPT is usable: -EOPNOTSUPP. */
int64_t tpc_operation_accept(tpc_ring *ring, uint64_t token, int fd, bool multishot);
int64_t tpc_operation_connect(tpc_ring *ring, uint64_t token, int fd, const void *address, uint32_t address_length);
int64_t tpc_operation_receive(tpc_ring *ring, uint64_t token, int fd, void *data, uint32_t length, int flags);
int64_t tpc_operation_send(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length, int flags);
/* Like send, of bytes that are copied: for small messages, whose pinning would cost more than the copy. */
int64_t tpc_operation_send_copied(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length, int flags);
/* Like send_copied, without an event when all bytes were sent: see tpc_operation_settled(). */
int64_t tpc_operation_send_quietly(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length,
                                   int flags);
/* Whether a quiet send is over without an event: 1; else 0, and its event will come. */
int tpc_operation_settled(tpc_ring *ring, int64_t operation);
/* Like send, without the kernel's copy. The event comes when the kernel has let go of the buffer. -EOPNOTSUPP before 6.0. */
int64_t tpc_operation_send_zero_copy(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length,
                                     int flags);
/* Gathers parts; `rights_fd` >= 0 goes along as SCM_RIGHTS (Unix sockets). */
int64_t tpc_operation_sendmsg(tpc_ring *ring, uint64_t token, int fd, void *const *parts, const size_t *lengths,
                              unsigned count, int flags, int rights_fd);
int64_t tpc_operation_shutdown(tpc_ring *ring, uint64_t token, int fd, int how);
/* a: the poll(2) events that are there. Multishot: -EOPNOTSUPP before 5.13. */
int64_t tpc_operation_poll(tpc_ring *ring, uint64_t token, int fd, unsigned poll_events, bool multishot);
/* a: -ETIME when it is over. */
int64_t tpc_operation_timeout(tpc_ring *ring, uint64_t token, int64_t timeout_ns);

/* Asks the kernel to cancel. The operation's own event still comes, with -ECANCELED, or with its result when it was faster.
 * 0; -ENOENT: no such operation (it has completed). */
int tpc_operation_cancel(tpc_ring *ring, int64_t operation);

/* syncfs(2), which Python 3.11 lacks; for a helper thread. 0 or -errno. */
int tpc_syncfs(int fd);

/* Bytes for a place in a file. `result`: 0 or -errno. */
typedef struct {
    int64_t position;
    const void *data;
    uint64_t data_bytes;
    int32_t fd;
    int32_t result;
} tpc_file_write;

/* Carries out all of them by pwrite(2), one after the other; for a helper thread. A short write is gone on with. */
void tpc_write_many(tpc_file_write *writes, uint32_t count);

/* Disk space for a range of a file, whose size stays as it is. `result`: 0 or -errno. */
typedef struct {
    int64_t position;
    int64_t length;
    int32_t fd;
    int32_t result;
} tpc_file_space;

/* Takes all of them by fallocate(2), one after the other; for a helper thread. */
void tpc_reserve_many(tpc_file_space *spaces, uint32_t count);
