/*
 * Load for the echo benchmark: N connections, each with one request under way; counts answers for a time.
 *
 *   echo_load HOST PORT CONNECTIONS REQUEST_BYTES WARM_UP_MS MEASURE_MS
 *
 * Prints: answers, nanoseconds measured, the median and 99th percentile of the time from send to whole answer in ns, and all
 * answers with those of the warm-up.
 * A ring of its own batches the system calls (a generator on epoll would be the bottleneck). Needs Linux 6.1.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES_MAX = 1 << 22, SENT = 1 };

typedef struct {
    int fd;
    unsigned received;
    int64_t sent_ns;
    char *buffer;
} connection;

static unsigned request_bytes;
static char *request;
static uint32_t *samples;
static size_t samples_count;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what, int error) {
    fprintf(stderr, "echo_load: %s: %s\n", what, strerror(error));
    exit(1);
}

static int connect_to(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) fail("connect", errno);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void receive(struct io_uring *ring, connection *at, uint64_t index) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    io_uring_prep_recv(sqe, at->fd, at->buffer, request_bytes - at->received, 0);
    sqe->user_data = index << 1;
}

static void request_one(struct io_uring *ring, connection *at, uint64_t index, int64_t now) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    io_uring_prep_send(sqe, at->fd, request, request_bytes, MSG_NOSIGNAL);
    sqe->user_data = index << 1 | SENT;
    sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
    at->received = 0;
    at->sent_ns = now;
    receive(ring, at, index);
}

static int by_value(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* Handles what has come; the number of whole answers. */
static uint64_t handle_completions(struct io_uring *ring, connection *all, int64_t now, int measuring) {
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    uint64_t answers = 0;
    io_uring_for_each_cqe(ring, head, cqe) {
        seen++;
        if (cqe->user_data & SENT) fail("send", cqe->res < 0 ? -cqe->res : EPIPE);
        if (cqe->res <= 0) fail("receive", cqe->res < 0 ? -cqe->res : ECONNRESET);
        uint64_t index = cqe->user_data >> 1;
        connection *at = &all[index];
        at->received += (unsigned)cqe->res;
        if (at->received < request_bytes) {
            receive(ring, at, index);
            continue;
        }
        answers++;
        if (measuring && samples_count < SAMPLES_MAX) samples[samples_count++] = (uint32_t)(now - at->sent_ns);
        request_one(ring, at, index, now);
    }
    io_uring_cq_advance(ring, seen);
    return answers;
}

int main(int count, char **arguments) {
    if (count != 7) fail("usage: echo_load HOST PORT CONNECTIONS REQUEST_BYTES WARM_UP_MS MEASURE_MS", EINVAL);
    unsigned connections = (unsigned)atoi(arguments[3]);
    request_bytes = (unsigned)atoi(arguments[4]);
    int64_t warm_up_ns = atoll(arguments[5]) * 1000000, measure_ns = atoll(arguments[6]) * 1000000;
    request = calloc(1, request_bytes);
    samples = malloc(SAMPLES_MAX * sizeof *samples);
    connection *all = calloc(connections, sizeof *all);
    struct io_uring ring;
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    int result = io_uring_queue_init_params(4096, &ring, &params);
    if (result < 0) fail("io_uring", -result);
    for (unsigned i = 0; i < connections; i++) {
        all[i].fd = connect_to(arguments[1], atoi(arguments[2]));
        all[i].buffer = malloc(request_bytes);
    }
    int64_t now = now_ns(), begin = now + warm_up_ns;
    for (unsigned i = 0; i < connections; i++) request_one(&ring, &all[i], i, now);
    uint64_t answers = 0, all_answers = 0;
    while (now < begin + measure_ns) {
        result = io_uring_submit_and_wait(&ring, 1);
        if (result < 0 && result != -EINTR) fail("io_uring_enter", -result);
        now = now_ns();
        uint64_t done = handle_completions(&ring, all, now, now >= begin);
        all_answers += done;
        if (now >= begin) answers += done;
    }
    qsort(samples, samples_count, sizeof *samples, by_value);
    printf("%llu %lld %u %u %llu\n", (unsigned long long)answers, (long long)(now - begin),
           samples_count ? samples[samples_count / 2] : 0, samples_count ? samples[samples_count * 99 / 100] : 0,
           (unsigned long long)all_answers);
    return 0;
}
