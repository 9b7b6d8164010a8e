#define _GNU_SOURCE /* preadv2(2) with RWF_NOWAIT, kernel 4.14 */
/* The system's calls behind io.h, and the conditions of threads that go by the same clock. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "ring_state.h"

enum { SCHEDSTAT_BYTES_MAX = 96 };

static int64_t or_error(int64_t result) { return result < 0 ? -errno : result; }

static int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static pthread_once_t schedstat_once = PTHREAD_ONCE_INIT;
static pthread_key_t schedstat_key; /* a thread's descriptor, and one: what it has open is closed when it ends */

static void close_schedstat(void *kept) { close((int)(intptr_t)kept - 1); }

static void make_schedstat_key(void) {
    if (pthread_key_create(&schedstat_key, close_schedstat) != 0) schedstat_key = UINT_MAX;
}

static int open_schedstat(void) {
    pthread_once(&schedstat_once, make_schedstat_key);
    int descriptor = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 || pthread_setspecific(schedstat_key, (void *)(intptr_t)(descriptor + 1)) == 0)
        return descriptor;
    close(descriptor);
    return -1;
}

/* proc(5): schedstat, since 2.6.9. */
static int64_t busy_ns(void) {
    static _Thread_local int descriptor = -2;
    char text[SCHEDSTAT_BYTES_MAX];
    int64_t ran_ns, waited_ns;
    if (descriptor == -2) descriptor = open_schedstat();
    ssize_t length = descriptor < 0 ? -1 : pread(descriptor, text, sizeof text - 1, 0);
    if (length <= 0) return -1;
    text[length] = 0;
    return sscanf(text, "%" SCNd64 " %" SCNd64, &ran_ns, &waited_ns) == 2 ? ran_ns + waited_ns : -1;
}

static int64_t draw(void *into, uint64_t bytes) { return or_error(getrandom(into, bytes, GRND_NONBLOCK)); }
static int64_t duplicate(int descriptor) { return or_error(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)); }
static int64_t close_one(int descriptor) { return or_error(close(descriptor)); }
static int64_t shut(int descriptor) { return or_error(shutdown(descriptor, SHUT_RDWR)); }

static int64_t abandon(int descriptor) {
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    return or_error(setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
}

static int64_t peer(int descriptor, void *address, uint64_t bytes) {
    socklen_t length = (socklen_t)bytes;
    return getpeername(descriptor, address, &length) < 0 ? -errno : (int64_t)length;
}

static int64_t receive(int descriptor, void *into, uint64_t bytes) {
    return or_error(recv(descriptor, into, bytes, MSG_DONTWAIT));
}

static int64_t send_message(int descriptor, const void *message, bool more) {
    return or_error(sendmsg(descriptor, message, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0)));
}

static int64_t read_cached(int descriptor, void *into, uint64_t bytes, int64_t position) {
    struct iovec room = {.iov_base = into, .iov_len = bytes};
    return or_error(preadv2(descriptor, &room, 1, position, RWF_NOWAIT));
}

#define OF_THE_SYSTEM                                                  \
    {monotonic_ns, wall_ms, busy_ns, draw,    duplicate,    close_one, \
     shut,         abandon, peer,    receive, send_message, read_cached}

tpc_io_calls tpc_io = OF_THE_SYSTEM;

void tpc_io_replace(const tpc_io_calls *calls) { tpc_io = calls ? *calls : (tpc_io_calls)OF_THE_SYSTEM; }

void tpc_monotonic_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}
