#define _GNU_SOURCE /* preadv2, fallocate, affinity */
/*
 * Operations on files without io_uring: by threads that do nothing else, four at most, and one for the journal, whose writes
 * are carried out one after the other. They are started when they are first wanted.
 *
 * Lifetime. A thread in a system call cannot be called back, so an operation that runs is never cancelled: its result is
 * delivered, and until then its memory stays where it is. One that is queued still can be. Its descriptor is duplicated
 * when it is submitted, as io_uring takes a reference then: what is queued never meets another file that has got the number.
 *
 * A process that is killed ends only when its threads' system calls have: until then its files stay open, and with them
 * the lock on the journal.
 *
 * Threads take no signals, and run on every CPU that the process was given, not on the core's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "plain_state.h"

enum { THREAD_STACK_BYTES = 256 * 1024 };

static cpu_set_t allowed_cpus;

/* The module is loaded before a core pins itself. */
__attribute__((constructor)) static void note_allowed_cpus(void) {
    if (sched_getaffinity(0, sizeof allowed_cpus, &allowed_cpus) < 0) memset(&allowed_cpus, 0xff, sizeof allowed_cpus);
}

/* ------------------------------------------------------------------------------------------------ lists */

void plain_list_add(plain_list *list, plain_operation *operation) {
    operation->next = NULL;
    operation->previous = list->last;
    *(list->last ? &list->last->next : &list->first) = operation;
    list->last = operation;
    list->count++;
}

void plain_list_remove(plain_list *list, plain_operation *operation) {
    *(operation->previous ? &operation->previous->next : &list->first) = operation->next;
    *(operation->next ? &operation->next->previous : &list->last) = operation->previous;
    operation->next = operation->previous = NULL;
    list->count--;
}

plain_operation *plain_list_take(plain_list *list) {
    plain_operation *first = list->first;
    if (first) plain_list_remove(list, first);
    return first;
}

/* ------------------------------------------------------------------------------------------------ operations */

bool plain_is_of_file(const plain_operation *operation) {
    switch (operation->entry.opcode) {
    case IORING_OP_READ:
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV:
    case IORING_OP_FSYNC:
    case IORING_OP_OPENAT:
    case IORING_OP_CLOSE:
    case IORING_OP_FALLOCATE:
    case IORING_OP_FADVISE:
    case IORING_OP_UNLINKAT:
    case TPC_OP_FTRUNCATE:
        return true;
    default:
        return false;
    }
}

static bool takes_path_or_number(const plain_operation *operation) {
    unsigned opcode = operation->entry.opcode;
    return opcode == IORING_OP_OPENAT || opcode == IORING_OP_UNLINKAT || opcode == IORING_OP_CLOSE;
}

static void *address_of(const struct io_uring_sqe *entry) { return (void *)(uintptr_t)entry->addr; }

static int descriptor_of(const plain_operation *operation) {
    return operation->own_descriptor >= 0 ? operation->own_descriptor : operation->entry.fd;
}

/* Without RWF_DSYNC, where the file system or the kernel has none. What was not flushed was not written. */
static ssize_t write_and_flush(int descriptor, const struct iovec *vector, int count, off_t position) {
    ssize_t written = pwritev(descriptor, vector, count, position);
    return written > 0 && fdatasync(descriptor) < 0 ? -1 : written;
}

static ssize_t write_vector(const plain_operation *operation, const struct iovec *vector, int count) {
    int descriptor = descriptor_of(operation), flags = operation->entry.rw_flags;
    off_t position = (off_t)operation->entry.off;
    ssize_t written = pwritev2(descriptor, vector, count, position, flags);
    if (written < 0 && errno == ESPIPE) return writev(descriptor, vector, count); /* a pipe; nobody's but a test's */
    bool lacks_flag = written < 0 && (errno == EOPNOTSUPP || errno == ENOSYS);
    if (lacks_flag && flags == RWF_DSYNC) return write_and_flush(descriptor, vector, count, position);
    return lacks_flag && !flags ? pwritev(descriptor, vector, count, position) : written;
}

static ssize_t write_bytes(const plain_operation *operation) {
    struct iovec vector = {.iov_base = address_of(&operation->entry), .iov_len = operation->entry.len};
    return write_vector(operation, &vector, 1);
}

static ssize_t read_rest(const plain_operation *operation) {
    uint32_t done = operation->done_bytes;
    ssize_t count = pread(descriptor_of(operation), (uint8_t *)address_of(&operation->entry) + done,
                          operation->entry.len - done, (off_t)(operation->entry.off + done));
    if (count < 0) return done && errno != EINTR ? (ssize_t)done : -1;
    return count + done;
}

static ssize_t call(const plain_operation *operation) {
    const struct io_uring_sqe *entry = &operation->entry;
    int descriptor = descriptor_of(operation);
    switch (entry->opcode) {
    case IORING_OP_READ:
        return read_rest(operation);
    case IORING_OP_WRITE:
        return write_bytes(operation);
    case IORING_OP_WRITEV:
        return write_vector(operation, address_of(entry), (int)entry->len);
    case IORING_OP_FSYNC:
        return entry->fsync_flags & IORING_FSYNC_DATASYNC ? fdatasync(descriptor) : fsync(descriptor);
    case IORING_OP_OPENAT:
        return openat(descriptor, address_of(entry), (int)entry->open_flags, entry->len);
    case IORING_OP_FALLOCATE:
        return fallocate(descriptor, (int)entry->len, (off_t)entry->off, (off_t)entry->addr);
    case IORING_OP_FADVISE:
        errno = posix_fadvise(descriptor, (off_t)entry->off, entry->len, (int)entry->fadvise_advice);
        return errno ? -1 : 0;
    case IORING_OP_UNLINKAT:
        return unlinkat(descriptor, address_of(entry), (int)entry->unlink_flags);
    case TPC_OP_FTRUNCATE:
        return ftruncate(descriptor, (off_t)entry->off);
    default:
        return close(descriptor);
    }
}

/* A descriptor that close(2) was called with is gone, whatever it says: it is not closed again. */
static int32_t perform(const plain_operation *operation) {
    ssize_t result;
    do result = call(operation);
    while (result < 0 && errno == EINTR && operation->entry.opcode != IORING_OP_CLOSE);
    return result < 0 ? -errno : (int32_t)result;
}

/* As io_uring judges it: what is linked behind a failure, or behind a short read or write, is not done. */
static bool is_whole(const plain_operation *operation) {
    const struct io_uring_sqe *entry = &operation->entry;
    if (operation->result < 0) return false;
    if (entry->opcode == IORING_OP_READ || entry->opcode == IORING_OP_WRITE)
        return (uint32_t)operation->result == entry->len;
    if (entry->opcode != IORING_OP_WRITEV) return true;
    const struct iovec *vector = address_of(entry);
    size_t bytes = 0;
    for (uint32_t i = 0; i < entry->len; i++) bytes += vector[i].iov_len;
    return (size_t)operation->result == bytes;
}

static void give_descriptors_back(plain_operation *head) {
    for (plain_operation *each = head; each; each = each->chained) {
        if (each->own_descriptor >= 0) close(each->own_descriptor);
        each->own_descriptor = -1;
    }
}

/* Rule: Without io_uring too, an acknowledgement comes after the data is on the disk. What is linked behind a write that was
 * not whole is cancelled. Held by tests/engine/test_plain_ring.py. */
static void perform_chain(plain_operation *head) {
    bool goes_on = true;
    for (plain_operation *each = head; each; each = each->chained) {
        each->result = goes_on ? perform(each) : -ECANCELED;
        goes_on = goes_on && is_whole(each);
    }
    give_descriptors_back(head);
}

static void fail_chain(plain_operation *head, int32_t result) {
    give_descriptors_back(head);
    for (plain_operation *each = head; each; each = each->chained) each->result = each == head ? result : -ECANCELED;
}

/* ------------------------------------------------------------------------------------------------ threads */

/* Who is woken finds the lock free. */
static void report(plain_files *files, plain_operation *head) {
    uint64_t one = 1;
    pthread_mutex_lock(&files->lock);
    bool is_first = !files->reports.first;
    plain_list_add(&files->reports, head);
    pthread_mutex_unlock(&files->lock);
    if (!is_first) return;
    ssize_t written = write(files->reports_fd, &one, sizeof one);
    (void)written; /* it can fail only when it says something already */
}

static void *work(void *context) {
    plain_crew *crew = context;
    plain_files *files = crew->files;
    pthread_setname_np(pthread_self(), crew->name);
    pthread_setaffinity_np(pthread_self(), sizeof allowed_cpus, &allowed_cpus);
    pthread_mutex_lock(&files->lock);
    for (;;) {
        crew->idle_count++;
        while (!crew->queued.first && !files->is_stopping) pthread_cond_wait(&crew->wanted, &files->lock);
        crew->idle_count--;
        plain_operation *head = plain_list_take(&crew->queued);
        if (!head) break;
        head->is_running = true;
        pthread_mutex_unlock(&files->lock);
        perform_chain(head);
        report(files, head);
        pthread_mutex_lock(&files->lock);
    }
    pthread_mutex_unlock(&files->lock);
    return NULL;
}

/* Whether there is one more. Under the lock. */
static bool start_thread(plain_crew *crew) {
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&crew->threads[crew->threads_count], &attributes, work, crew) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    crew->threads_count += started;
    return started;
}

/* False: there is no thread, and none to be had. */
static bool hand_over(plain_crew *crew, plain_operation *head) {
    plain_files *files = crew->files;
    pthread_mutex_lock(&files->lock);
    plain_list_add(&crew->queued, head);
    if (crew->idle_count < crew->queued.count && crew->threads_count < crew->threads_max) start_thread(crew);
    bool has_thread = crew->threads_count > 0;
    if (!has_thread) plain_list_remove(&crew->queued, head);
    pthread_mutex_unlock(&files->lock);
    if (has_thread) pthread_cond_signal(&crew->wanted); /* who is woken finds the lock free */
    return has_thread;
}

int32_t plain_read_cached(plain_operation *operation) {
    const struct io_uring_sqe *entry = &operation->entry;
    struct iovec vector = {.iov_base = address_of(entry), .iov_len = entry->len};
    if (entry->off == (uint64_t)-1) return -ESPIPE;
    ssize_t count = preadv2(entry->fd, &vector, 1, (off_t)entry->off, RWF_NOWAIT);
    operation->done_bytes = count > 0 ? (uint32_t)count : 0; /* 0 may be a lie: preadv2(2), BUGS */
    if (count < 0 && errno == ESPIPE) return -ESPIPE;
    return count > 0 && (uint32_t)count == entry->len ? (int32_t)count : -EAGAIN;
}

/* 0, or -EBADF. Where there is no number left, the caller's own is used: who asks keeps it open until the result is in. */
static int own_descriptors(plain_operation *head) {
    for (plain_operation *each = head; each; each = each->chained) {
        if (takes_path_or_number(each)) continue;
        each->own_descriptor = fcntl(each->entry.fd, F_DUPFD_CLOEXEC, 0);
        if (each->own_descriptor < 0 && errno == EBADF) return -EBADF;
    }
    return 0;
}

bool plain_files_begin(plain_files *files, plain_operation *head) {
    int result = own_descriptors(head);
    if (result < 0) {
        fail_chain(head, result);
        return true;
    }
    bool is_journal = head->entry.user_data >> 56 == TPC_KIND_JOURNAL;
    if (hand_over(is_journal ? &files->journal : &files->others, head)) return false;
    perform_chain(head);
    return true;
}

bool plain_files_cancel(plain_files *files, plain_operation *head) {
    bool is_journal = head->entry.user_data >> 56 == TPC_KIND_JOURNAL;
    pthread_mutex_lock(&files->lock);
    bool is_queued = !head->is_running;
    if (is_queued) plain_list_remove(is_journal ? &files->journal.queued : &files->others.queued, head);
    pthread_mutex_unlock(&files->lock);
    if (is_queued) fail_chain(head, -ECANCELED);
    return is_queued;
}

plain_list plain_files_reports(plain_files *files) {
    pthread_mutex_lock(&files->lock);
    plain_list taken = files->reports;
    files->reports = (plain_list){0};
    pthread_mutex_unlock(&files->lock);
    return taken;
}

/* ------------------------------------------------------------------------------------------------ life */

static void crew_new(plain_crew *crew, plain_files *files, const char *name, unsigned threads_max) {
    *crew = (plain_crew){.files = files, .name = name, .threads_max = threads_max};
    pthread_cond_init(&crew->wanted, NULL);
}

static void crew_free(plain_crew *crew) {
    for (unsigned i = 0; i < crew->threads_count; i++) pthread_join(crew->threads[i], NULL);
    pthread_cond_destroy(&crew->wanted);
}

int plain_files_new(plain_files *files) {
    files->reports_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (files->reports_fd < 0) return -errno;
    pthread_mutex_init(&files->lock, NULL);
    crew_new(&files->journal, files, "journal", 1);
    crew_new(&files->others, files, "files", PLAIN_CREW_THREADS_MAX);
    return 0;
}

void plain_files_free(plain_files *files) {
    pthread_mutex_lock(&files->lock);
    files->is_stopping = true;
    pthread_cond_broadcast(&files->journal.wanted);
    pthread_cond_broadcast(&files->others.wanted);
    pthread_mutex_unlock(&files->lock);
    crew_free(&files->journal);
    crew_free(&files->others);
    pthread_mutex_destroy(&files->lock);
    close(files->reports_fd);
}
