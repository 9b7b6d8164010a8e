/*
 * Answers that hold stretches of files: from the page cache to the socket, without a copy in between.
 *
 * sendfile(2) hands the pages themselves to the socket. It is called straight from the turn, not through the ring, which
 * would make a thread of the kernel do it (IORING_OP_SPLICE always does). So it must not wait, for neither side:
 *   - for the socket: it has no flag of its own, so the descriptor is made non-blocking around the call, and only then, because
 *     the ring's receives and sends on it would take that for themselves. What does not fit waits for POLLOUT.
 *   - for the disk: cachestat(2) (kernel 6.5) says whether the pages are there. If not, or where the kernel cannot say, a stretch
 *     is read through the ring into memory, takes its place in the answer, and is sent from there. A page that is dropped
 *     between the two calls makes us wait for it; nothing worse.
 * Where sendfile is refused (a filter, a sandbox, a file system without it) all stretches are read.
 * A connection sends at most SEND_FILE_BYTES_PER_TURN before the others have their turn.
 */
#include "connection_state.h"
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SEND_FILE_BYTES_PER_TURN = 512 * 1024,
    STAGED_BYTES_MAX = 256 * 1024,
    STAGED_BYTES_MIN = 16 * 1024,
    PAGE_BYTES = 4096,
    SYSCALL_CACHESTAT = 451
}; /* 451 on every architecture */

typedef struct {
    uint64_t begin;
    uint64_t length;
} cache_range;

typedef struct {
    uint64_t cached, dirty, written_back, evicted, recently_evicted;
} cache_counts;

static bool is_cached(const connection *it, const tpc_file_range *range, int64_t position, uint64_t bytes) {
    cache_range asked = {.begin = (uint64_t)position, .length = bytes};
    cache_counts counts;
    if (!tpc_ring_has(it->owner->ring, TPC_FEATURE_CACHESTAT)) return false;
    if (syscall(SYSCALL_CACHESTAT, range->descriptor, &asked, &counts, 0) < 0) return false;
    return counts.cached >= ((uint64_t)position + bytes - 1) / PAGE_BYTES - (uint64_t)position / PAGE_BYTES + 1;
}

/* Of the call, and not of the connection. EPERM: by a filter, or by a firewall, which meets what is read, too. */
static bool is_refusal(int error) {
    return error == ENOSYS || error == EINVAL || error == EOPNOTSUPP || error == EPERM || error == EACCES;
}

/* Bytes sent, -errno, -ENODATA: it is to be read. */
static int64_t send_file(connection *it, const tpc_slice *slice, uint64_t bytes_max) {
    const tpc_file_range *range = tpc_frame_file(slice->frame);
    off_t position = range->position + it->head_offset;
    size_t bytes = slice->length - it->head_offset;
    if (bytes > bytes_max) bytes = bytes_max;
    if (!is_cached(it, range, position, bytes)) return -ENODATA;
    int flags = fcntl(it->descriptor, F_GETFL);
    if (!(flags & O_NONBLOCK)) fcntl(it->descriptor, F_SETFL, flags | O_NONBLOCK);
    ssize_t sent = sendfile(it->descriptor, range->descriptor, &position, bytes);
    int error = sent < 0 ? errno : EIO; /* 0: the file is shorter than it was */
    if (!(flags & O_NONBLOCK)) fcntl(it->descriptor, F_SETFL, flags);
    if (sent < 0 && is_refusal(error)) return -ENODATA;
    it->owner->statistics.sends_of_files++;
    return sent > 0 ? sent : -error;
}

/* The memory in front of the next stretch, which it leaves together with. Bytes sent or -errno. */
static int64_t send_memory(connection *it, answer *head) {
    const tpc_slice *slices = answer_slices(head);
    struct iovec vector[SEND_SLICES_MAX];
    struct msghdr message = {.msg_iov = vector};
    uint32_t offset = it->head_offset, i = it->head_slice;
    for (; i < head->count && message.msg_iovlen < SEND_SLICES_MAX && !slices[i].frame->holds_file; i++, offset = 0)
        vector[message.msg_iovlen++] =
            (struct iovec){.iov_base = (void *)(slices[i].data + offset), .iov_len = slices[i].length - offset};
    return tpc_io.send(it->descriptor, &message, i < head->count);
}

static bool wait_writable(connection *it) {
    sending *to = send_take(it->owner);
    struct io_uring_sqe *sqe = to != NULL ? send_entry(it, to) : NULL;
    if (sqe == NULL) return false;
    io_uring_prep_poll_add(sqe, it->descriptor, POLLOUT);
    send_begun(it, to, SENDING_POLL);
    return true;
}

bool send_read_stretch(connection *it, const tpc_slice *slice) {
    uint32_t bytes = slice->length - it->head_offset;
    if (bytes > STAGED_BYTES_MAX) bytes = answers_have_room(it->owner) ? STAGED_BYTES_MAX : STAGED_BYTES_MIN;
    sending *to = send_take(it->owner);
    tpc_frame *frame = to != NULL ? tpc_frame_new_forced(it->owner->budget, bytes) : NULL;
    if (frame != NULL) {
        to->frames[0] = frame;
        to->count = 1;
    }
    struct io_uring_sqe *sqe = to != NULL && frame != NULL ? send_entry(it, to) : NULL;
    if (sqe == NULL) {
        if (to != NULL && frame == NULL) send_return(it->owner, to);
        return false;
    }
    const tpc_file_range *range = tpc_frame_file(slice->frame);
    io_uring_prep_read(sqe, range->descriptor, frame->data, bytes, (uint64_t)(range->position + it->head_offset));
    send_begun(it, to, SENDING_READ);
    it->owner->statistics.reads_of_files++;
    return true;
}

static void hold(const connection *it, answer *head, int64_t bytes) {
    head->memory_bytes += (uint64_t)bytes;
    it->owner->answers_held_bytes += bytes;
}

/* The slices that have left, stretches among them that were read into memory. */
static void let_go_of_sent(const connection *it, answer *head) {
    const tpc_slice *slices = answer_slices(head);
    for (uint32_t i = 0; i < it->head_slice; i++) {
        if (!slices[i].frame->holds_file) hold(it, head, -(int64_t)slices[i].length);
        tpc_frame_release(slices[i].frame);
    }
}

void send_stretch_read(connection *it, sending *by, int32_t result) {
    answer *head = answer_at(it, it->first_sequence);
    tpc_slice *slices = result > 0 ? malloc((head->count + 1) * sizeof *slices) : NULL;
    if (slices == NULL) {
        connection_begin_close(it, TPC_CLOSE_IO_ERROR, result > 0 ? ENOMEM : result < 0 ? -result : EIO);
        return;
    }
    uint32_t at = it->head_slice, done = it->head_offset + (uint32_t)result;
    tpc_slice rest = answer_slices(head)[at];
    let_go_of_sent(it, head);
    slices[0] = tpc_slice_of(by->frames[0], by->frames[0]->data, (uint32_t)result);
    hold(it, head, result);
    uint32_t next = 1, after = at + 1;
    if (done < rest.length) {
        tpc_frame_file(rest.frame)->position += done;
        rest.length -= done;
        slices[next++] = rest;
    } else {
        tpc_frame_release(rest.frame);
    }
    memcpy(slices + next, answer_slices(head) + after, (head->count - after) * sizeof *slices);
    head->count = next + head->count - after;
    free(head->slices);
    head->slices = slices;
    it->head_slice = 0;
    it->head_offset = 0;
    connection_needs_attention(it);
}

/* Sends the answers at the head that hold stretches of files. False: there is more to do in the next turn, for which a
 * connection that stopped receiving counts as well, since what was sent may let it go on. */
bool send_with_files(connection *it) {
    uint64_t sent_before = it->sent_bytes;
    for (uint64_t left_bytes = SEND_FILE_BYTES_PER_TURN; left_bytes > 0;) {
        answer *head = answer_at(it, it->first_sequence);
        bool is_next = it->first_sequence < it->next_sequence && head->state == ANSWER_READY;
        if (!is_next) return !(it->paused && it->sent_bytes > sent_before);
        if (!head->holds_files) return false;
        const tpc_slice *slice = &answer_slices(head)[it->head_slice];
        bool is_file = slice->frame->holds_file;
        int64_t sent = is_file ? send_file(it, slice, left_bytes) : send_memory(it, head);
        if (sent == -EAGAIN) return wait_writable(it);
        if (sent == -ENODATA) return send_read_stretch(it, slice);
        if (sent == -EINTR) continue;
        if (sent < 0) {
            send_broke(it, (int)-sent);
            return true;
        }
        left_bytes -= (uint64_t)sent < left_bytes ? (uint64_t)sent : left_bytes;
        answers_progressed(it, (uint64_t)sent);
    }
    return false;
}
