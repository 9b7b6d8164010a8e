/*
 * What TCP over loopback allows, without io_uring and without any server.
 *
 *   loopback_limit MIB ROUNDS
 *
 * A child sends MIB in writes of 256 KiB, the parent reads them into one buffer; then ROUNDS round trips of 100 bytes, each side
 * blocking in recv. Prints one JSON object.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"

enum { CHUNK_BYTES = 256 << 10, PING_BYTES = 100 };

static histogram round_trips;
static char buffer[CHUNK_BYTES];

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "loopback_limit: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void send_all(int fd, size_t bytes) {
    if (send(fd, buffer, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) fail("send");
}

static void receive_all(int fd, size_t bytes) {
    if (recv(fd, buffer, bytes, MSG_WAITALL) != (ssize_t)bytes) fail("receive");
}

static void run_child(const struct sockaddr_in *address, long mib, long rounds) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address) < 0) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (long chunk = 0; chunk < mib * ((1 << 20) / CHUNK_BYTES); chunk++) send_all(fd, CHUNK_BYTES);
    for (long index = 0; index < rounds; index++) {
        receive_all(fd, PING_BYTES);
        send_all(fd, PING_BYTES);
    }
    exit(0);
}

int main(int count, char **arguments) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_bytes = sizeof address;
    long mib = count == 3 ? atol(arguments[1]) : 0, rounds = count == 3 ? atol(arguments[2]) : 0;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (mib < 1 || rounds < 1) errno = EINVAL, fail("usage: loopback_limit MIB ROUNDS");
    if (bind(listening, (struct sockaddr *)&address, sizeof address) < 0 || listen(listening, 1) < 0) fail("listen");
    getsockname(listening, (struct sockaddr *)&address, &address_bytes);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) run_child(&address, mib, rounds);
    int fd = accept(listening, NULL, NULL);
    if (fd < 0) fail("accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int64_t before_ns = now_ns();
    for (long chunk = 0; chunk < mib * ((1 << 20) / CHUNK_BYTES); chunk++) receive_all(fd, CHUNK_BYTES);
    int64_t stream_ns = now_ns() - before_ns;
    for (long index = 0; index < rounds; index++) {
        before_ns = now_ns();
        send_all(fd, PING_BYTES);
        receive_all(fd, PING_BYTES);
        histogram_add(&round_trips, (uint64_t)(now_ns() - before_ns));
    }
    waitpid(child, NULL, 0);
    printf("{\"stream_bytes\":%" PRId64 ",\"stream_ns\":%" PRId64 ",\"histogram\":", (int64_t)mib << 20, stream_ns);
    histogram_print(&round_trips, stdout);
    printf("}\n");
    return 0;
}
