/*
 * Operations that Python awaits (native/io/operations.c). Each returns an id (> 0) for tpc_operation_cancel(), or -errno
 * when it could not be queued: then nothing was submitted and no event comes. Otherwise one TPC_EVENT_OPERATION with the
 * given token comes.
 *
 * Paths and vectors are copied. Data buffers are the caller's: they must stay where they are until the event, also after a
 * cancel. Operations that the kernel lacks (unlink, truncate) are done as plain system calls and complete in the next wait.
 */

/* What tests of the wait itself have to wait for. */
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

/* a: the poll(2) events that are there. */
int64_t tpc_operation_poll(tpc_ring *ring, uint64_t token, int fd, unsigned poll_events);

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
