#define _GNU_SOURCE /* syncfs */
/*
 * The table of operations that Python awaits.
 *
 * A slot is taken at submission and freed at the last completion. Its memory (vector, path, a write in parts) belongs to the
 * slot and so lives exactly as long as the kernel may look at it. user_data is kind, generation,
 * slot; a completion of an older generation cannot occur, because a slot is reused only after its last completion, and is
 * asserted.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "recorder.h"
#include "ring_state.h"
#include "cdef/21_operations.h"

enum { PARTS_MAX = 1024 }; /* the kernel's UIO_MAXIOV */
#define NO_SLOT UINT32_MAX

enum completion_rule {
    RULE_EACH,   /* one completion, one event */
    RULE_LINKED, /* write and fdatasync: two completions, one event */
    RULE_PARTS,  /* write in parts: the next one is submitted until all are done or one was not whole */
};

typedef struct {
    uint64_t token;
    void *memory; /* freed after the last completion */
    uint32_t generation;
    uint32_t next_free;
    int32_t result; /* RULE_LINKED: of the first one */
    uint8_t rule;
    uint8_t completions_left;
    bool used;
    bool cancel_wanted;        /* the submission queue had no room for the cancel: again next turn */
    bool creates;              /* an open that may make the file: recorded when its inode is known */
    uint64_t record_tokens[2]; /* of what the recorder was told; the second one is a linked flush */
} operation;

/* The memory of an operation with RULE_PARTS. */
typedef struct {
    const uint8_t *data;
    uint64_t position;
    uint32_t length, done, part_bytes;
    int fd;
} write_in_parts;

struct tpc_operations {
    operation *slots;
    uint32_t slots_count;
    uint32_t first_free;
    uint32_t cancels_wanted;
};

/* ------------------------------------------------------------------------------------------------ slots */

static uint64_t user_data_of(const struct tpc_operations *table, uint32_t index) {
    return tpc_user_data(TPC_KIND_PYTHON, table->slots[index].generation, index);
}

static int grow(struct tpc_operations *table) {
    uint32_t count = table->slots_count ? table->slots_count * 2 : 256;
    operation *slots = realloc(table->slots, count * sizeof *slots);
    if (!slots) return -ENOMEM;
    memset(slots + table->slots_count, 0, (count - table->slots_count) * sizeof *slots);
    for (uint32_t i = count; i-- > table->slots_count;) {
        slots[i].next_free = table->first_free;
        table->first_free = i;
    }
    table->slots = slots;
    table->slots_count = count;
    return 0;
}

static int take_slot(tpc_ring *ring, uint64_t token, enum completion_rule rule, void *memory, uint32_t *index) {
    struct tpc_operations *table = ring->operations;
    if (table->first_free == NO_SLOT) {
        int result = grow(table);
        if (result < 0) return result;
    }
    *index = table->first_free;
    operation *slot = &table->slots[*index];
    table->first_free = slot->next_free;
    slot->token = token;
    slot->memory = memory;
    slot->generation = (slot->generation + 1) & 0xffffffu;
    slot->result = 0;
    slot->rule = (uint8_t)rule;
    slot->completions_left = rule == RULE_LINKED ? 2 : 1;
    slot->used = true;
    slot->cancel_wanted = false;
    slot->creates = false;
    slot->record_tokens[0] = slot->record_tokens[1] = 0;
    ring->statistics.operations++;
    return 0;
}

static void free_slot(tpc_ring *ring, uint32_t index) {
    struct tpc_operations *table = ring->operations;
    operation *slot = &table->slots[index];
    free(slot->memory);
    slot->memory = NULL;
    slot->used = false;
    if (slot->cancel_wanted) table->cancels_wanted--;
    slot->next_free = table->first_free;
    table->first_free = index;
    ring->statistics.operations--;
}

/* Takes a slot and an entry. On failure `memory` is freed. */
static int begin(tpc_ring *ring, uint64_t token, enum completion_rule rule, void *memory, struct io_uring_sqe **sqe,
                 int64_t *id) {
    uint32_t index;
    int result = take_slot(ring, token, rule, memory, &index);
    if (result < 0) {
        free(memory);
        return result;
    }
    uint64_t user_data = user_data_of(ring->operations, index);
    *sqe = tpc_ring_sqe(ring, user_data);
    if (!*sqe) {
        free_slot(ring, index);
        return -EBUSY;
    }
    *id = (int64_t)user_data;
    return 0;
}

static int64_t submit_plain(tpc_ring *ring, uint64_t token, void *memory, int opcode, int fd, const void *address,
                            uint32_t length, uint64_t offset, uint32_t operation_flags) {
    struct io_uring_sqe *sqe;
    int64_t id;
    int result = begin(ring, token, RULE_EACH, memory, &sqe, &id);
    if (result < 0) return result;
    io_uring_prep_rw(opcode, sqe, fd, address, length, offset);
    sqe->rw_flags = (int)operation_flags;
    return id;
}

/* The operation was done as a plain system call; its event comes with the next wait. The id is of no operation. */
static int64_t completed(tpc_ring *ring, uint64_t token, int result) {
    int pushed = tpc_ring_push_event(ring, TPC_EVENT_OPERATION, token, result < 0 ? -errno : result, 0, NULL);
    return pushed < 0 ? pushed : (int64_t)tpc_user_data(TPC_KIND_PYTHON, 0, NO_SLOT);
}

/* ------------------------------------------------------------------------------------------------ recording, for tests */

static bool recording(int64_t id) { return __builtin_expect(tpc_recorder_on, 0) && id > 0; }

static uint32_t record_flags(int write_flags) { return write_flags & RWF_DSYNC ? TPC_DISK_RECORD_DSYNC : 0; }

static int64_t recorded(tpc_ring *ring, int64_t id, uint64_t token) {
    ring->operations->slots[(uint32_t)id].record_tokens[0] = token;
    return id;
}

static void record_result(operation *slot, unsigned part, int32_t result) {
    if (slot->creates && result >= 0)
        slot->record_tokens[0] = tpc_disk_record_range(TPC_DISK_RECORD_CREATE, result, 0, 0);
    tpc_disk_record_completed(slot->record_tokens[part], result);
}

/* ------------------------------------------------------------------------------------------------ completions */

static void on_linked(tpc_ring *ring, uint32_t index, int32_t result) {
    operation *slot = &ring->operations->slots[index];
    if (slot->completions_left == 2) {
        slot->completions_left = 1;
        slot->result = result;
        return;
    }
    tpc_ring_push_event(ring, TPC_EVENT_OPERATION, slot->token, slot->result, result, NULL);
    free_slot(ring, index);
}

static uint32_t part_length(const write_in_parts *write) {
    uint32_t left = write->length - write->done;
    return left < write->part_bytes ? left : write->part_bytes;
}

static void prepare_part(struct io_uring_sqe *sqe, const write_in_parts *write) {
    io_uring_prep_rw(IORING_OP_WRITE, sqe, write->fd, write->data + write->done, part_length(write),
                     write->position + write->done);
}

/* Whether a write in parts is over, and then its result. */
static bool parts_are_over(tpc_ring *ring, uint32_t index, int32_t *result) {
    write_in_parts *write = ring->operations->slots[index].memory;
    bool whole = *result > 0 && (uint32_t)*result == part_length(write);
    if (*result > 0) write->done += (uint32_t)*result;
    struct io_uring_sqe *sqe = NULL;
    if (whole && write->done < write->length) sqe = tpc_ring_sqe(ring, user_data_of(ring->operations, index));
    if (sqe) prepare_part(sqe, write);
    if (!sqe && write->done) *result = (int32_t)write->done;
    return !sqe;
}

/* Rule: A buffer that the kernel may touch is never freed. A cancelled operation's result is delivered all the same.
 * See also tpc_broker/engine/ring.py. Held by tests/engine/test_trio_ring.py, tests/engine/test_ring_disk.py,
 * tests/engine/test_sanitizers.py. */
static void on_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags) {
    tpc_ring *ring = context;
    uint32_t index = (uint32_t)user_data;
    operation *slot = &ring->operations->slots[index];
    assert(index < ring->operations->slots_count && slot->used &&
           slot->generation == tpc_user_data_generation(user_data));
    if (slot->rule == RULE_PARTS && !parts_are_over(ring, index, &result)) return;
    if (__builtin_expect(tpc_recorder_on, 0))
        record_result(slot, slot->rule == RULE_LINKED && slot->completions_left == 1, result);
    if (slot->rule == RULE_LINKED) {
        on_linked(ring, index, result);
        return;
    }
    tpc_ring_push_event(ring, TPC_EVENT_OPERATION, slot->token, result, flags, NULL);
    free_slot(ring, index);
}

int tpc_operations_new(tpc_ring *ring) {
    struct tpc_operations *table = calloc(1, sizeof *table);
    if (!table) return -ENOMEM;
    table->first_free = NO_SLOT;
    ring->operations = table;
    return tpc_ring_handle(ring, TPC_KIND_PYTHON, on_completion, ring);
}

void tpc_operations_free(tpc_ring *ring) {
    struct tpc_operations *table = ring->operations;
    for (uint32_t i = 0; i < table->slots_count; i++) free(table->slots[i].memory);
    free(table->slots);
    free(table);
    ring->operations = NULL;
}

/* ------------------------------------------------------------------------------------------------ cancel */

static int submit_cancel(tpc_ring *ring, uint32_t index) {
    struct io_uring_sqe *sqe = tpc_ring_sqe(ring, tpc_user_data(TPC_KIND_NONE, 0, 0));
    if (!sqe) return -EBUSY;
    io_uring_prep_rw(IORING_OP_ASYNC_CANCEL, sqe, -1, NULL, 0, 0);
    sqe->addr = user_data_of(ring->operations, index);
    return 0;
}

static void want_cancel(tpc_ring *ring, uint32_t index) {
    operation *slot = &ring->operations->slots[index];
    bool queued = submit_cancel(ring, index) == 0;
    ring->operations->cancels_wanted += (uint32_t)!queued - (uint32_t)slot->cancel_wanted;
    slot->cancel_wanted = !queued;
}

int tpc_operation_cancel(tpc_ring *ring, int64_t id) {
    struct tpc_operations *table = ring->operations;
    uint32_t index = (uint32_t)id;
    if (index >= table->slots_count || !table->slots[index].used) return -ENOENT;
    if (table->slots[index].generation != tpc_user_data_generation((uint64_t)id)) return -ENOENT;
    want_cancel(ring, index);
    return 0;
}

void tpc_operations_cancel_all(tpc_ring *ring) {
    for (uint32_t i = 0; i < ring->operations->slots_count; i++)
        if (ring->operations->slots[i].used) want_cancel(ring, i);
}

void tpc_operations_turn(tpc_ring *ring) {
    struct tpc_operations *table = ring->operations;
    for (uint32_t i = 0; table->cancels_wanted && i < table->slots_count; i++)
        if (table->slots[i].used && table->slots[i].cancel_wanted) want_cancel(ring, i);
}

/* ------------------------------------------------------------------------------------------------ files */

int64_t tpc_operation_nop(tpc_ring *ring, uint64_t token) {
    return submit_plain(ring, token, NULL, IORING_OP_NOP, -1, NULL, 0, 0, 0);
}

int64_t tpc_operation_read(tpc_ring *ring, uint64_t token, int fd, void *data, uint32_t length, uint64_t position) {
    return submit_plain(ring, token, NULL, IORING_OP_READ, fd, data, length, position, 0);
}

int64_t tpc_operation_write(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length,
                            uint64_t position, int write_flags) {
    int64_t id = submit_plain(ring, token, NULL, IORING_OP_WRITE, fd, data, length, position, (uint32_t)write_flags);
    if (!recording(id)) return id;
    return recorded(ring, id, tpc_disk_record_write(fd, data, length, (int64_t)position, record_flags(write_flags)));
}

int64_t tpc_operation_write_in_parts(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length,
                                     uint64_t position, uint32_t part_bytes) {
    if (part_bytes == 0 || length > INT32_MAX) return -EINVAL;
    write_in_parts *write = malloc(sizeof *write);
    if (!write) return -ENOMEM;
    *write = (write_in_parts){.data = data, .position = position, .length = length, .part_bytes = part_bytes, .fd = fd};
    struct io_uring_sqe *sqe;
    int64_t id;
    int result = begin(ring, token, RULE_PARTS, write, &sqe, &id);
    if (result < 0) return result;
    prepare_part(sqe, write);
    if (!recording(id)) return id;
    return recorded(ring, id, tpc_disk_record_write(fd, data, length, (int64_t)position, 0));
}

int64_t tpc_operation_writev(tpc_ring *ring, uint64_t token, int fd, void *const *parts, const size_t *lengths,
                             unsigned count, uint64_t position, int write_flags) {
    if (count == 0 || count > PARTS_MAX) return -EINVAL;
    struct iovec *vector = malloc(count * sizeof *vector);
    if (!vector) return -ENOMEM;
    for (unsigned i = 0; i < count; i++) vector[i] = (struct iovec){.iov_base = parts[i], .iov_len = lengths[i]};
    int64_t id =
        submit_plain(ring, token, vector, IORING_OP_WRITEV, fd, vector, count, position, (uint32_t)write_flags);
    if (!recording(id)) return id;
    return recorded(ring, id,
                    tpc_disk_record_writev(fd, parts, lengths, count, (int64_t)position, record_flags(write_flags)));
}

int64_t tpc_operation_write_fdatasync(tpc_ring *ring, uint64_t token, int fd, const void *data, uint32_t length,
                                      uint64_t position) {
    int result = tpc_ring_reserve(ring, 2);
    if (result < 0) return result;
    struct io_uring_sqe *sqe;
    int64_t id;
    result = begin(ring, token, RULE_LINKED, NULL, &sqe, &id);
    if (result < 0) return result;
    io_uring_prep_rw(IORING_OP_WRITE, sqe, fd, data, length, position);
    sqe->flags = IOSQE_IO_LINK;
    sqe = tpc_ring_sqe(ring, (uint64_t)id);
    assert(sqe); /* reserved above */
    io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    if (recording(id)) {
        operation *slot = &ring->operations->slots[(uint32_t)id];
        slot->record_tokens[0] = tpc_disk_record_write(fd, data, length, (int64_t)position, 0);
        slot->record_tokens[1] = tpc_disk_record_flush(fd, TPC_DISK_RECORD_DATA_ONLY | TPC_DISK_RECORD_LINKED);
    }
    return id;
}

int64_t tpc_operation_fsync(tpc_ring *ring, uint64_t token, int fd, bool data_only) {
    int64_t id =
        submit_plain(ring, token, NULL, IORING_OP_FSYNC, fd, NULL, 0, 0, data_only ? IORING_FSYNC_DATASYNC : 0);
    return recording(id) ? recorded(ring, id, tpc_disk_record_flush(fd, data_only ? TPC_DISK_RECORD_DATA_ONLY : 0))
                         : id;
}

int64_t tpc_operation_openat(tpc_ring *ring, uint64_t token, int folder_fd, const char *path, int flags,
                             unsigned mode) {
    char *copy = strdup(path);
    if (!copy) return -ENOMEM;
    int64_t id =
        submit_plain(ring, token, copy, IORING_OP_OPENAT, folder_fd, copy, mode, 0, (uint32_t)flags | O_CLOEXEC);
    if (recording(id)) ring->operations->slots[(uint32_t)id].creates = flags & O_CREAT;
    return id;
}

int64_t tpc_operation_close(tpc_ring *ring, uint64_t token, int fd) {
    return submit_plain(ring, token, NULL, IORING_OP_CLOSE, fd, NULL, 0, 0, 0);
}

int64_t tpc_operation_fallocate(tpc_ring *ring, uint64_t token, int fd, int mode, uint64_t position, uint64_t length) {
    struct io_uring_sqe *sqe;
    int64_t id;
    int result = begin(ring, token, RULE_EACH, NULL, &sqe, &id);
    if (result < 0) return result;
    io_uring_prep_rw(IORING_OP_FALLOCATE, sqe, fd, NULL, (uint32_t)mode, position);
    sqe->addr = length; /* the length travels in the address field */
    struct stat status;
    if (!recording(id) || mode & FALLOC_FL_KEEP_SIZE || fstat(fd, &status) < 0) return id;
    if ((uint64_t)status.st_size >= position + length) return id; /* no new length: nothing that is read changes */
    return recorded(ring, id, tpc_disk_record_range(TPC_DISK_RECORD_ALLOCATE, fd, (int64_t)position, (int64_t)length));
}

int64_t tpc_operation_read_ahead(tpc_ring *ring, uint64_t token, int fd, uint64_t position, uint32_t length) {
    return submit_plain(ring, token, NULL, IORING_OP_FADVISE, fd, NULL, length, position, POSIX_FADV_WILLNEED);
}

int64_t tpc_operation_ftruncate(tpc_ring *ring, uint64_t token, int fd, uint64_t length) {
    uint64_t record = tpc_disk_record_range(TPC_DISK_RECORD_TRUNCATE, fd, (int64_t)length, 0);
    if (!tpc_ring_has(ring, TPC_FEATURE_FTRUNCATE)) {
        int result = ftruncate(fd, (off_t)length);
        tpc_disk_record_completed(record, result);
        return completed(ring, token, result);
    }
    int64_t id = submit_plain(ring, token, NULL, TPC_OP_FTRUNCATE, fd, NULL, 0, length, 0);
    return record && id > 0 ? recorded(ring, id, record) : id;
}

int64_t tpc_operation_unlinkat(tpc_ring *ring, uint64_t token, int folder_fd, const char *path, int flags) {
    tpc_disk_record_name(TPC_DISK_RECORD_UNLINK, path, NULL);
    if (!tpc_ring_has(ring, TPC_FEATURE_UNLINKAT)) return completed(ring, token, unlinkat(folder_fd, path, flags));
    char *copy = strdup(path);
    if (!copy) return -ENOMEM;
    return submit_plain(ring, token, copy, IORING_OP_UNLINKAT, folder_fd, copy, 0, 0, (uint32_t)flags);
}

int64_t tpc_operation_poll(tpc_ring *ring, uint64_t token, int fd, unsigned poll_events) {
    struct io_uring_sqe *sqe;
    int64_t id;
    int result = begin(ring, token, RULE_EACH, NULL, &sqe, &id);
    if (result < 0) return result;
    io_uring_prep_poll_add(sqe, fd, poll_events);
    return id;
}

/* ------------------------------------------------------------------------------------------------ for helper threads */

int tpc_syncfs(int fd) { return syncfs(fd) < 0 ? -errno : 0; }

static int write_whole(const tpc_file_write *write) {
    uint64_t done = 0;
    while (done < write->data_bytes) {
        ssize_t count = pwrite(write->fd, (const uint8_t *)write->data + done, write->data_bytes - done,
                               write->position + (int64_t)done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return count < 0 ? -errno : -EIO;
        done += (uint64_t)count;
    }
    return 0;
}

void tpc_write_many(tpc_file_write *writes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) writes[i].result = write_whole(&writes[i]);
}

void tpc_reserve_many(tpc_file_space *spaces, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        tpc_file_space *space = &spaces[i];
        int result;
        do result = fallocate(space->fd, FALLOC_FL_KEEP_SIZE, space->position, space->length);
        while (result < 0 && errno == EINTR);
        space->result = result < 0 ? -errno : 0;
    }
}
