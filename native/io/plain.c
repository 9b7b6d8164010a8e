#define _GNU_SOURCE /* accept4 */
/*
 * The same entries without io_uring: what a ring does on a host that refuses it. Entries, sockets, readiness and cancels.
 *
 * An entry is interpreted when it is submitted. Sockets and readiness: at once and without waiting, and where that would wait,
 * again when epoll says so. Files: by a few threads, and by one of its own for what is the journal's (plain_files.c). Results
 * are kept until they are harvested, so handlers run where they run with io_uring.
 *
 * Readiness. Every descriptor that somebody waits for is in one epoll set, for one event (EPOLLONESHOT) of any of those who
 * wait for it; who is left is armed again after it. A descriptor that is closed leaves the set by itself, and its number comes
 * back for another file: then arming it anew finds it gone, and who waited for the old one is told so (-EBADF). An event that
 * is still on its way for the old file has another generation, and is nobody's.
 *
 * Connections wait for their next request again and again, so the registration of one that does nothing but receive stays
 * armed in between, which spares a system call for each request. That is safe only because the user_data of a connection's
 * receives is that of one life, and its descriptor is closed at the end of that: who waits with the same user_data waits for
 * the same file. An event that finds nobody waiting, and a cancel, disarm it.
 *
 * Accept. A listener is shared with the next process at a change of versions, and its flags with it: it stays blocking, or
 * io_uring would answer -EAGAIN there. So poll(2) looks first. Who was faster than us may take what it saw; that wait is
 * bounded by the shortest SO_RCVTIMEO.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io.h"
#include "plain_state.h"

enum {
    OPERATIONS_PER_CHUNK = 64,
    HASH_BUCKETS = 4096,
    EPOLL_EVENTS_MAX = 128,
    SYSCALL_EPOLL_PWAIT2 = 441,                                /* 5.11; the same number on every architecture */
    ALWAYS_READY = POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM, /* what poll(2) says of a regular file */
};
#define REPORTS_EVENT UINT64_MAX
#define KEPT_FOR_NOBODY 1 /* not the user_data of a connection's receive */

typedef struct {
    plain_list waiting;
    uint64_t keeper; /* the user_data for whose waits it is armed until further notice; 0: for one event only */
    uint32_t generation;
} plain_descriptor;

typedef struct plain_chunk {
    struct plain_chunk *next;
    plain_operation operations[OPERATIONS_PER_CHUNK];
} plain_chunk;

typedef struct {
    tpc_substitute substitute;
    unsigned entries;
    plain_list queued, complete;
    plain_operation *free;
    plain_chunk *chunks;
    plain_operation *buckets[HASH_BUCKETS];
    plain_descriptor *descriptors;
    uint32_t descriptors_count;
    int epoll_fd;
    int held_file; /* -1: none */
    bool has_pwait2;
    plain_files files;
} tpc_plain;

static tpc_plain *plain_of(tpc_substitute *substitute) { return (tpc_plain *)substitute; }
static const tpc_plain *plain_seen(const tpc_substitute *substitute) { return (const tpc_plain *)substitute; }

/* ------------------------------------------------------------------------------------------------ entries */

static bool grow(tpc_plain *plain) {
    plain_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) return false;
    chunk->next = plain->chunks;
    plain->chunks = chunk;
    for (unsigned i = OPERATIONS_PER_CHUNK; i-- > 0;) {
        chunk->operations[i].next = plain->free;
        plain->free = &chunk->operations[i];
    }
    return true;
}

static struct io_uring_sqe *plain_entry(tpc_substitute *substitute) {
    tpc_plain *plain = plain_of(substitute);
    if (plain->queued.count == plain->entries || (!plain->free && !grow(plain))) return NULL;
    plain_operation *taken = plain->free;
    plain->free = taken->next;
    *taken = (plain_operation){.own_descriptor = -1, .state = PLAIN_QUEUED};
    plain_list_add(&plain->queued, taken);
    return &taken->entry;
}

static unsigned plain_queued(const tpc_substitute *substitute) { return plain_seen(substitute)->queued.count; }

static unsigned plain_space_left(const tpc_substitute *substitute) {
    return plain_seen(substitute)->entries - plain_seen(substitute)->queued.count;
}

/* ------------------------------------------------------------------------------------------------ completions */

static plain_operation **bucket_of(tpc_plain *plain, uint64_t user_data) {
    return &plain->buckets[user_data * 0x9e3779b97f4a7c15u >> 52];
}

static void hash(tpc_plain *plain, plain_operation *operation) {
    plain_operation **bucket = bucket_of(plain, operation->entry.user_data);
    operation->hash_next = *bucket;
    operation->hash_place = bucket;
    if (*bucket) (*bucket)->hash_place = &operation->hash_next;
    *bucket = operation;
}

static void unhash(plain_operation *operation) {
    if (!operation->hash_place) return;
    *operation->hash_place = operation->hash_next;
    if (operation->hash_next) operation->hash_next->hash_place = operation->hash_place;
    operation->hash_place = NULL;
}

static void complete(tpc_plain *plain, plain_operation *operation, int32_t result) {
    unhash(operation);
    operation->state = PLAIN_COMPLETE;
    operation->result = result;
    plain_list_add(&plain->complete, operation);
}

static void complete_chain(tpc_plain *plain, plain_operation *head) {
    for (plain_operation *each = head, *next; each; each = next) {
        next = each->chained;
        complete(plain, each, each->result);
    }
}

static unsigned plain_completed(const tpc_substitute *substitute) { return plain_seen(substitute)->complete.count; }

static bool plain_next(tpc_substitute *substitute, tpc_substitute_completion *completion) {
    tpc_plain *plain = plain_of(substitute);
    plain_operation *done = plain_list_take(&plain->complete);
    if (!done) return false;
    *completion = (tpc_substitute_completion){.user_data = done->entry.user_data, .result = done->result};
    done->next = plain->free;
    plain->free = done;
    return true;
}

/* ------------------------------------------------------------------------------------------------ sockets */

static void set_receive_time(int descriptor, long microseconds) {
    struct timeval time = {.tv_usec = microseconds};
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

static int accept_one(const struct io_uring_sqe *entry) {
    struct pollfd asked = {.fd = entry->fd, .events = POLLIN};
    if (poll(&asked, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
    }
    set_receive_time(entry->fd, 1);
    int accepted = accept4(entry->fd, (struct sockaddr *)(uintptr_t)entry->addr, (socklen_t *)(uintptr_t)entry->addr2,
                           (int)entry->accept_flags);
    if (accepted >= 0) set_receive_time(accepted, 0); /* it has the listener's */
    return accepted;
}

static ssize_t read_stream(const struct io_uring_sqe *entry) {
    struct pollfd asked = {.fd = entry->fd, .events = POLLIN};
    if (poll(&asked, 1, 0) > 0) return read(entry->fd, (void *)(uintptr_t)entry->addr, entry->len);
    errno = EAGAIN;
    return -1;
}

/* Without waiting: the result, -errno, or -EAGAIN: when the descriptor is ready. */
static int32_t attempt(const struct io_uring_sqe *entry) {
    void *address = (void *)(uintptr_t)entry->addr;
    int flags = (int)entry->msg_flags | MSG_DONTWAIT;
    ssize_t result;
    do {
        if (entry->opcode == IORING_OP_ACCEPT)
            result = accept_one(entry);
        else if (entry->opcode == IORING_OP_READ)
            result = read_stream(entry);
        else if (entry->opcode == IORING_OP_SEND)
            result = send(entry->fd, address, entry->len, flags);
        else if (entry->opcode == IORING_OP_SENDMSG)
            result = sendmsg(entry->fd, address, flags);
        else if (entry->opcode == IORING_OP_RECV)
            result = recv(entry->fd, address, entry->len, flags);
        else
            result = recvmsg(entry->fd, address, flags);
    } while (result < 0 && errno == EINTR);
    return result < 0 ? -errno : (int32_t)result;
}

static uint32_t events_of(const struct io_uring_sqe *entry) {
    if (entry->opcode == IORING_OP_POLL_ADD) return __io_uring_prep_poll_mask(entry->poll32_events);
    return entry->opcode == IORING_OP_SEND || entry->opcode == IORING_OP_SENDMSG ? POLLOUT : POLLIN;
}

/* ------------------------------------------------------------------------------------------------ readiness */

static void end_wait(tpc_plain *plain, plain_operation *operation, int32_t result) {
    plain_list_remove(&plain->descriptors[operation->entry.fd].waiting, operation);
    complete(plain, operation, result);
}

static void end_all_waits(tpc_plain *plain, plain_descriptor *descriptor, const plain_operation *but, int32_t result) {
    for (plain_operation *each = descriptor->waiting.first, *next; each; each = next) {
        next = each->next;
        if (each != but) end_wait(plain, each, result);
    }
}

/* Who waits alone, for a connection's next bytes; 0: it is somebody else, or several. Such waits are all for POLLIN. */
static uint64_t keeper_of(const plain_descriptor *descriptor) {
    const plain_operation *only = descriptor->waiting.first;
    bool keeps = only && !only->next && only->entry.opcode == IORING_OP_POLL_ADD &&
                 only->entry.user_data >> 56 == TPC_KIND_RECEIVE;
    return keeps ? only->entry.user_data : 0;
}

/* For the events of all who wait for it. 0 or -errno. */
static int32_t enroll(tpc_plain *plain, int number, int how) {
    plain_descriptor *descriptor = &plain->descriptors[number];
    uint64_t keeper = keeper_of(descriptor);
    struct epoll_event event = {.events = keeper ? 0 : EPOLLONESHOT};
    for (plain_operation *each = descriptor->waiting.first; each; each = each->next)
        event.events |= events_of(&each->entry);
    event.data.u64 = (uint64_t)descriptor->generation << 32 | (uint32_t)number;
    int32_t result = epoll_ctl(plain->epoll_fd, how, number, &event) < 0 ? -errno : 0;
    descriptor->keeper = result == 0 ? keeper : 0;
    return result;
}

/* What stays armed and is nobody's would be told of without end. The end of the connection may still be, once. */
static void disarm(tpc_plain *plain, int number) {
    plain_descriptor *descriptor = &plain->descriptors[number];
    struct epoll_event event = {.events = EPOLLONESHOT,
                                .data.u64 = (uint64_t)descriptor->generation << 32 | (uint32_t)number};
    descriptor->keeper = 0;
    epoll_ctl(plain->epoll_fd, EPOLL_CTL_MOD, number, &event); /* one that is closed already is not in the set */
}

/* `added` is new among those who wait for it (NULL: none is). */
static void arm(tpc_plain *plain, int number, const plain_operation *added) {
    plain_descriptor *descriptor = &plain->descriptors[number];
    if (descriptor->keeper && descriptor->keeper == keeper_of(descriptor)) return;
    int32_t result = enroll(plain, number, EPOLL_CTL_MOD);
    if (result == 0) return;
    if (result == -ENOENT || result == -EPERM) { /* the first one, or the number is another file's now */
        end_all_waits(plain, descriptor, added, -EBADF);
        if (!added) return;
    }
    if (result == -ENOENT) {
        descriptor->generation++;
        result = enroll(plain, number, EPOLL_CTL_ADD);
        if (result == 0) return;
    }
    if (result == -EPERM) /* a kind of file that cannot be waited for, because it is always ready */
        result = (int32_t)(events_of(&added->entry) & ALWAYS_READY);
    end_all_waits(plain, descriptor, NULL, result);
}

static bool has_descriptor(tpc_plain *plain, int number) {
    if (number < 0) return false;
    if ((uint32_t)number < plain->descriptors_count) return true;
    uint32_t count = plain->descriptors_count ? plain->descriptors_count : 64;
    while (count <= (uint32_t)number) count *= 2;
    plain_descriptor *descriptors = realloc(plain->descriptors, count * sizeof *descriptors);
    if (!descriptors) return false;
    memset(descriptors + plain->descriptors_count, 0, (count - plain->descriptors_count) * sizeof *descriptors);
    plain->descriptors = descriptors;
    plain->descriptors_count = count;
    return true;
}

static void plain_keep_nothing(tpc_substitute *substitute) {
    tpc_plain *plain = plain_of(substitute);
    for (uint32_t i = 0; i < plain->descriptors_count; i++)
        if (plain->descriptors[i].keeper) plain->descriptors[i].keeper = KEPT_FOR_NOBODY;
}

static void wait_until_ready(tpc_plain *plain, plain_operation *operation) {
    int number = operation->entry.fd;
    if (!has_descriptor(plain, number)) {
        complete(plain, operation, number < 0 ? -EBADF : -ENOMEM);
        return;
    }
    operation->state = PLAIN_WAITING;
    hash(plain, operation);
    plain_list_add(&plain->descriptors[number].waiting, operation);
    arm(plain, number, operation);
}

static void on_ready(tpc_plain *plain, const struct epoll_event *event) {
    int number = (int)(uint32_t)event->data.u64;
    plain_descriptor *descriptor = &plain->descriptors[number];
    if (event->data.u64 >> 32 != descriptor->generation) return;
    if (descriptor->keeper && !descriptor->waiting.first) disarm(plain, number);
    for (plain_operation *each = descriptor->waiting.first, *next; each; each = next) {
        next = each->next;
        uint32_t seen = event->events & (events_of(&each->entry) | EPOLLERR | EPOLLHUP);
        if (!seen) continue;
        int32_t result = each->entry.opcode == IORING_OP_POLL_ADD ? (int32_t)seen : attempt(&each->entry);
        if (result != -EAGAIN) end_wait(plain, each, result);
    }
    if (descriptor->waiting.first) arm(plain, number, NULL);
}

/* ------------------------------------------------------------------------------------------------ cancels */

/* 0, or -EALREADY: it runs, and its result comes. */
static int32_t cancel(tpc_plain *plain, plain_operation *operation) {
    if (operation->state == PLAIN_WAITING) {
        int number = operation->entry.fd;
        end_wait(plain, operation, -ECANCELED);
        if (plain->descriptors[number].keeper) disarm(plain, number);
        return 0;
    }
    plain_operation *head = operation->head;
    if (!plain_files_cancel(&plain->files, head)) return -EALREADY;
    complete_chain(plain, head);
    return 0;
}

static int32_t cancel_one(tpc_plain *plain, uint64_t user_data) {
    plain_operation *found = *bucket_of(plain, user_data);
    while (found && found->entry.user_data != user_data) found = found->hash_next;
    return found ? cancel(plain, found) : -ENOENT;
}

/* How many there were. */
static int32_t cancel_all(tpc_plain *plain) {
    int32_t count = 0;
    for (unsigned i = 0; i < HASH_BUCKETS; i++) {
        plain_operation *each = plain->buckets[i];
        while (each) {
            bool is_cancelled = cancel(plain, each) == 0;
            count += is_cancelled;
            each = is_cancelled ? plain->buckets[i] : each->hash_next; /* others of its chain may have gone with it */
        }
    }
    return count;
}

static int32_t cancel_asked(tpc_plain *plain, const struct io_uring_sqe *entry) {
    if (!entry->cancel_flags) return cancel_one(plain, entry->addr);
    bool is_all = entry->cancel_flags == (IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
    return is_all ? cancel_all(plain) : -EINVAL;
}

/* ------------------------------------------------------------------------------------------------ submission */

static void begin_files(tpc_plain *plain, plain_operation *head) {
    bool is_of_files = true;
    for (plain_operation *each = head; each; each = each->chained) {
        each->head = head;
        each->state = PLAIN_WITH_CREW;
        is_of_files = is_of_files && plain_is_of_file(each);
        each->result = each == head ? -EINVAL : -ECANCELED;
    }
    if (!is_of_files || plain_files_begin(&plain->files, head)) {
        complete_chain(plain, head);
        return;
    }
    for (plain_operation *each = head; each; each = each->chained) hash(plain, each);
}

static void begin(tpc_plain *plain, plain_operation *operation) {
    const struct io_uring_sqe *entry = &operation->entry;
    int32_t result = -EINVAL;
    switch (entry->opcode) {
    case IORING_OP_NOP:
        result = 0;
        break;
    case IORING_OP_ASYNC_CANCEL:
        result = cancel_asked(plain, entry);
        break;
    case IORING_OP_POLL_ADD:
        if (!entry->len) result = -EAGAIN;
        break;
    case IORING_OP_READ:
        result = plain_read_cached(operation);
        if (result == -EAGAIN) {
            begin_files(plain, operation);
            return;
        }
        if (result == -ESPIPE) result = attempt(entry);
        break;
    case IORING_OP_ACCEPT:
    case IORING_OP_SEND:
    case IORING_OP_SENDMSG:
    case IORING_OP_RECV:
    case IORING_OP_RECVMSG:
        if (!entry->ioprio) result = attempt(entry);
        break;
    default:
        begin_files(plain, operation);
        return;
    }
    if (result == -EAGAIN)
        wait_until_ready(plain, operation);
    else
        complete(plain, operation, result);
}

static unsigned plain_submit(tpc_substitute *substitute) {
    tpc_plain *plain = plain_of(substitute);
    unsigned count = 0;
    for (plain_operation *first; (first = plain_list_take(&plain->queued)); count++) {
        plain_operation *last = first;
        for (; last->entry.flags & IOSQE_IO_LINK && plain->queued.first; count++)
            last = last->chained = plain_list_take(&plain->queued);
        bool is_known = true;
        for (plain_operation *each = first; each; each = each->chained)
            is_known = is_known && !(each->entry.flags & ~IOSQE_IO_LINK);
        if (!is_known) {
            for (plain_operation *each = first; each; each = each->chained)
                each->result = each == first ? -EINVAL : -ECANCELED;
            complete_chain(plain, first);
        } else if (first->chained) {
            begin_files(plain, first);
        } else {
            begin(plain, first);
        }
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------ the wait */

static int wait_for_events(tpc_plain *plain, struct epoll_event *events, int64_t timeout_ns) {
    if (plain->has_pwait2) {
        struct __kernel_timespec time = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
        long count = syscall(SYSCALL_EPOLL_PWAIT2, plain->epoll_fd, events, EPOLL_EVENTS_MAX,
                             timeout_ns < 0 ? NULL : &time, NULL, (size_t)0);
        if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count < 0 ? -errno : (int)count;
        plain->has_pwait2 = false; /* a kernel or a filter that does not know it */
    }
    int64_t timeout_ms = timeout_ns < 0 ? -1 : timeout_ns / 1000000 + (timeout_ns % 1000000 > 0);
    int count =
        epoll_wait(plain->epoll_fd, events, EPOLL_EVENTS_MAX, timeout_ms > INT32_MAX ? INT32_MAX : (int)timeout_ms);
    return count < 0 ? -errno : count;
}

static void take_reports(tpc_plain *plain) {
    plain_list reports = plain_files_reports(&plain->files);
    for (plain_operation *head; (head = plain_list_take(&reports));) complete_chain(plain, head);
}

/* Rule: A buffer of an operation in a thread is left alone until its result is in, also after a cancel. See also
 * native/io/plain_files.c. Held by tests/engine/test_plain_ring.py, tests/engine/test_sanitizers.py. */
static int plain_wait(tpc_substitute *substitute, bool waits, int64_t timeout_ns) {
    tpc_plain *plain = plain_of(substitute);
    struct epoll_event events[EPOLL_EVENTS_MAX];
    int64_t until_ns = waits && timeout_ns >= 0 ? tpc_monotonic_ns() + timeout_ns : 0;
    for (int64_t left_ns = timeout_ns;;) {
        bool blocks = waits && !plain->complete.first;
        int count = wait_for_events(plain, events, blocks ? left_ns : 0);
        if (count < 0) return count;
        for (int i = 0; i < count; i++) {
            if (events[i].data.u64 == REPORTS_EVENT)
                take_reports(plain);
            else
                on_ready(plain, &events[i]);
        }
        if (!blocks || plain->complete.first) return 0;
        if (timeout_ns < 0) continue;
        left_ns = until_ns - tpc_monotonic_ns();
        if (left_ns <= 0) return -ETIME;
    }
}

/* ------------------------------------------------------------------------------------------------ life */

static void plain_free(tpc_substitute *substitute) {
    tpc_plain *plain = plain_of(substitute);
    plain_files_free(&plain->files);
    close(plain->epoll_fd);
    if (plain->held_file >= 0) close(plain->held_file);
    for (plain_chunk *each = plain->chunks, *next; each; each = next) {
        next = each->next;
        free(each);
    }
    free(plain->descriptors);
    free(plain);
}

static int plain_hold_file(tpc_substitute *substitute, int descriptor) {
    tpc_plain *plain = plain_of(substitute);
    if (plain->held_file >= 0) return -EBUSY;
    plain->held_file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    return plain->held_file < 0 ? -errno : 0;
}

int tpc_plain_new(unsigned entries, tpc_substitute **out) {
    tpc_plain *plain = calloc(1, sizeof *plain);
    if (!plain) return -ENOMEM;
    plain->substitute =
        (tpc_substitute){plain_free, plain_entry,     plain_queued, plain_space_left,   plain_submit,
                         plain_wait, plain_completed, plain_next,   plain_keep_nothing, plain_hold_file};
    plain->entries = entries;
    plain->held_file = -1;
    plain->has_pwait2 = true;
    plain->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int result = plain->epoll_fd < 0 ? -errno : plain_files_new(&plain->files);
    if (result < 0) goto failed;
    /* For each write to it, so that nobody has to read it. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = REPORTS_EVENT};
    if (epoll_ctl(plain->epoll_fd, EPOLL_CTL_ADD, plain->files.reports_fd, &event) < 0) {
        result = -errno;
        plain_files_free(&plain->files);
        goto failed;
    }
    *out = &plain->substitute;
    return 0;
failed:
    if (plain->epoll_fd >= 0) close(plain->epoll_fd);
    free(plain);
    return result;
}
