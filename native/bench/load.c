/*
 * Load generator: connections that send prebuilt requests and count answers, so that the server is what is measured.
 *
 *   load PLAN        PLAN is the file that tpc_broker/bench/load.py writes; prints one JSON object
 *   load --buckets   reads numbers, prints the histogram bucket of each (for the tests)
 *
 * One thread, one io_uring: per connection a receive and at most one send under way; a send carries all requests that are
 * due. Closed loop (rate 0): each connection keeps `depth` requests under way. Open loop: request j of connection i is due
 * at start + (i + j * connections) / rate whatever the server does, and its latency counts from then; a request that is due
 * while `depth` are under way waits here, and its wait counts. Time is read once per turn, after the wait.
 *
 * What was answered inside the measured time goes into the histogram and the slots of 100 ms; everything that was answered
 * is in the totals. After the end nothing is sent any more and what is under way is awaited, so that totals can be compared
 * with what the server has. Any refused request ends the run with its error number, unless errors are to be counted.
 *
 * Fetch: request template with the offset patched in; a connection reads a range of offsets [first, end) of one partition.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"
#include "load.h"

enum { DEPTH_MAX = 4096, SENDS_MAX = 64, RECEIVE_BYTES = 1 << 16, SLOT_NS = 100000000, SLOTS_MAX = 1 << 16 };
enum { DRAIN_NS = 1000000000 };
enum { KIND_RECEIVE, KIND_SEND };
#define NO_BLOB UINT32_MAX

typedef struct {
    char magic[8];
    uint32_t protocol, connections, depth, answers_per_request, blobs, reserved;
    double rate;
    uint64_t warm_up_ns, measure_ns, requests_max;
} plan_header;

typedef struct {
    uint32_t address; /* as inet_addr() gives it */
    uint32_t port;
    uint32_t preamble, blob_first, blobs_count, offset_place;
    int64_t offset_first, offset_end;
} plan_connection;

typedef struct {
    plan_connection plan;
    int fd;
    unsigned depth, under_way, answers_missing, next_blob, iov_count;
    uint64_t sent, due;      /* requests of this connection */
    uint64_t head;           /* answered ones: times[head % depth] is the oldest under way */
    int64_t *times;          /* intended send times */
    bool sending, finished;
    uint8_t *received;
    size_t received_bytes, received_room;
    struct iovec iov[SENDS_MAX];
    struct msghdr message;
    int64_t offset;
} connection;

typedef struct {
    uint8_t *bytes;
    uint32_t size;
} blob;

static plan_header plan;
static connection *connections;
static blob *blobs;
static struct io_uring ring;
static histogram latencies;
static uint64_t slots[SLOTS_MAX];
static int64_t start_ns, measure_from_ns, measure_to_ns;
static uint64_t requests_all, requests_measured, bytes_all, bytes_measured, records_all, records_measured, sent_all;
static unsigned finished_count, under_way_all;
static int64_t last_answer_ns;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what, int error) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(error));
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fail("memory", ENOMEM);
    return memory;
}

/* ---- the plan ---- */

static void read_plan(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, errno);
    if (fread(&plan, sizeof plan, 1, file) != 1 || memcmp(plan.magic, "TPCLOAD1", 8)) fail("the plan's header", EINVAL);
    if (plan.depth < 1 || plan.depth > DEPTH_MAX || plan.answers_per_request < 1) fail("the plan's numbers", EINVAL);
    connections = allocate(plan.connections, sizeof *connections);
    for (uint32_t index = 0; index < plan.connections; index++)
        if (fread(&connections[index].plan, sizeof(plan_connection), 1, file) != 1) fail("the plan's connections", EINVAL);
    blobs = allocate(plan.blobs, sizeof *blobs);
    for (uint32_t index = 0; index < plan.blobs; index++) {
        blob *at = &blobs[index];
        if (fread(&at->size, 4, 1, file) != 1) fail("the plan's requests", EINVAL);
        at->bytes = allocate(at->size, 1);
        if (fread(at->bytes, 1, at->size, file) != at->size) fail("the plan's requests", EINVAL);
    }
    fclose(file);
}

static void open_connection(connection *at) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)at->plan.port)};
    address.sin_addr.s_addr = at->plan.address;
    at->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (at->fd < 0 || connect(at->fd, (struct sockaddr *)&address, sizeof address) < 0) fail("connect", errno);
    int on = 1;
    setsockopt(at->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (at->plan.preamble != NO_BLOB) {
        blob *first = &blobs[at->plan.preamble];
        if (send(at->fd, first->bytes, first->size, MSG_NOSIGNAL) != (ssize_t)first->size) fail("send", errno);
    }
    at->depth = plan.depth;
    at->answers_missing = plan.answers_per_request;
    at->times = allocate(plan.depth, sizeof *at->times);
    at->received_room = RECEIVE_BYTES;
    at->received = allocate(at->received_room, 1);
    at->offset = at->plan.offset_first;
    if (plan.protocol == PROTOCOL_KAFKA_FETCH) {
        /* a template of its own, so that offsets are patched in while others send theirs */
        blob *shared = &blobs[at->plan.blob_first];
        uint8_t *own = allocate(shared->size, 1);
        memcpy(own, shared->bytes, shared->size);
        at->iov[0] = (struct iovec){own, shared->size};
    }
}

/* ---- sending ---- */

static struct io_uring_sqe *entry(void) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (sqe) return sqe;
    io_uring_submit(&ring);
    return io_uring_get_sqe(&ring);
}

static void receive(connection *at) {
    struct io_uring_sqe *sqe = entry();
    io_uring_prep_recv(sqe, at->fd, at->received + at->received_bytes, at->received_room - at->received_bytes, 0);
    sqe->user_data = (uint64_t)(at - connections) << 1 | KIND_RECEIVE;
}

static void submit_send(connection *at) {
    struct io_uring_sqe *sqe = entry();
    at->message.msg_iov = at->iov;
    at->message.msg_iovlen = at->iov_count;
    io_uring_prep_sendmsg(sqe, at->fd, &at->message, MSG_NOSIGNAL | MSG_WAITALL);
    sqe->user_data = (uint64_t)(at - connections) << 1 | KIND_SEND;
    at->sending = true;
}

static int64_t intended_ns(const connection *at, uint64_t number) {
    uint64_t place = number * plan.connections + (uint64_t)(at - connections);
    return start_ns + (int64_t)((double)place * 1e9 / plan.rate);
}

static void put_request(connection *at, int64_t intended) {
    if (plan.protocol == PROTOCOL_KAFKA_FETCH) {
        uint64_t offset = htobe64((uint64_t)at->offset);
        memcpy((uint8_t *)at->iov[0].iov_base + at->plan.offset_place, &offset, 8);
        at->iov_count = 1;
    } else {
        blob *next = &blobs[at->plan.blob_first + at->next_blob];
        at->next_blob = (at->next_blob + 1) % at->plan.blobs_count;
        at->iov[at->iov_count++] = (struct iovec){next->bytes, next->size};
    }
    at->times[at->sent % at->depth] = intended;
    at->sent++;
    at->under_way++;
    under_way_all++;
    sent_all++;
}

/* Sends what is due and allowed, unless a send is under way (its end calls this again). */
static void kick(connection *at, int64_t now) {
    if (at->sending || at->finished || now >= measure_to_ns) return;
    at->iov_count = 0;
    while (at->under_way < at->depth && at->iov_count < SENDS_MAX) {
        if (plan.requests_max && sent_all >= plan.requests_max) break;
        if (plan.rate > 0) {
            int64_t intended = intended_ns(at, at->sent);
            if (intended > now) break;
            put_request(at, intended);
        } else {
            put_request(at, now);
        }
    }
    if (at->iov_count) submit_send(at);
}

/* ---- answers ---- */

static void count_answer(connection *at, const answer *got, int64_t now) {
    requests_all++;
    bytes_all += got->data_bytes;
    last_answer_ns = now;
    int64_t before = at->offset;
    if (got->next >= 0) at->offset = got->next;
    records_all += (uint64_t)(at->offset - before);
    if (now < measure_from_ns || now >= measure_to_ns) return;
    requests_measured++;
    bytes_measured += got->data_bytes;
    records_measured += (uint64_t)(at->offset - before);
    histogram_add(&latencies, (uint64_t)(now - at->times[at->head % at->depth]));
    uint64_t slot = (uint64_t)(now - measure_from_ns) / SLOT_NS;
    if (slot < SLOTS_MAX) slots[slot] += plan.protocol == PROTOCOL_KAFKA_FETCH ? (uint64_t)(at->offset - before) : 1;
}

static void take_answer(connection *at, const answer *got, int64_t now) {
    if (got->error) {
        fprintf(stderr, "load: a request was refused with error %d\n", got->error);
        exit(2);
    }
    if (got->ping && send(at->fd, "PONG\r\n", 6, MSG_NOSIGNAL) != 6) fail("send", errno);
    if (got->ignored) return;
    if (--at->answers_missing) return;
    at->answers_missing = plan.answers_per_request;
    if (!at->under_way) fail("an answer without a request", EPROTO);
    count_answer(at, got, now);
    at->head++;
    at->under_way--;
    under_way_all--;
    if (plan.protocol == PROTOCOL_KAFKA_FETCH && at->offset >= at->plan.offset_end && !at->finished) {
        at->finished = true;
        finished_count++;
    }
}

static void on_received(connection *at, int result, int64_t now) {
    if (result <= 0) fail("the server closed the connection", result < 0 ? -result : ECONNRESET);
    at->received_bytes += (size_t)result;
    size_t position = 0, wanted = 0;
    while (position < at->received_bytes) {
        answer got = answer_read(plan.protocol, at->received + position, at->received_bytes - position);
        wanted = got.wanted;
        if (!got.bytes) break;
        take_answer(at, &got, now);
        position += got.bytes;
    }
    memmove(at->received, at->received + position, at->received_bytes - position);
    at->received_bytes -= position;
    if (wanted > at->received_room || at->received_bytes == at->received_room) {
        at->received_room = wanted > 2 * at->received_room ? wanted : 2 * at->received_room;
        at->received = realloc(at->received, at->received_room);
        if (!at->received) fail("memory", ENOMEM);
    }
    receive(at);
    kick(at, now);
}

static void on_sent(connection *at, int result, int64_t now) {
    size_t whole = 0;
    for (unsigned index = 0; index < at->iov_count; index++) whole += at->iov[index].iov_len;
    if (result < 0 || (size_t)result != whole) fail("send", result < 0 ? -result : EPIPE);
    at->sending = false;
    kick(at, now);
}

/* ---- the loop ---- */

static void wait_for_completions(int64_t now) {
    int64_t until = now + 100000000;
    if (plan.rate > 0 && now < measure_to_ns) {
        for (uint32_t index = 0; index < plan.connections; index++) {
            connection *at = &connections[index];
            int64_t next = at->under_way < at->depth ? intended_ns(at, at->sent) : until;
            if (next < until) until = next;
        }
    }
    struct __kernel_timespec time = {.tv_nsec = until > now ? until - now : 1};
    struct io_uring_cqe *first;
    int result = io_uring_submit_and_wait_timeout(&ring, &first, 1, &time, NULL);
    if (result < 0 && result != -ETIME && result != -EINTR) fail("wait", -result);
}

static void handle_completions(int64_t now) {
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    io_uring_for_each_cqe(&ring, head, cqe) {
        connection *at = &connections[cqe->user_data >> 1];
        seen++;
        if ((cqe->user_data & 1) == KIND_RECEIVE)
            on_received(at, cqe->res, now);
        else
            on_sent(at, cqe->res, now);
    }
    io_uring_cq_advance(&ring, seen);
}

static bool all_done(int64_t now) {
    if (under_way_all) return now > measure_to_ns + 30ll * DRAIN_NS;
    if (now >= measure_to_ns || (plan.requests_max && sent_all >= plan.requests_max)) return true;
    return finished_count == plan.connections;
}

static int64_t cpu_ns(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return ((int64_t)used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000000 +
           ((int64_t)used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000;
}

static void run(void) {
    start_ns = now_ns();
    measure_from_ns = start_ns + (int64_t)plan.warm_up_ns;
    measure_to_ns = measure_from_ns + (int64_t)plan.measure_ns;
    last_answer_ns = measure_from_ns;
    for (uint32_t index = 0; index < plan.connections; index++) {
        receive(&connections[index]);
        kick(&connections[index], start_ns);
    }
    int64_t now = start_ns;
    while (!all_done(now)) {
        wait_for_completions(now);
        now = now_ns();
        handle_completions(now);
        if (plan.rate > 0)
            for (uint32_t index = 0; index < plan.connections; index++) kick(&connections[index], now);
    }
}

static void print_result(int64_t used_ns) {
    int64_t end_ns = last_answer_ns < measure_to_ns && (finished_count || plan.requests_max) ? last_answer_ns : measure_to_ns;
    uint64_t slots_count = plan.measure_ns / SLOT_NS < SLOTS_MAX ? plan.measure_ns / SLOT_NS : SLOTS_MAX;
    printf("{\"requests\":%" PRIu64 ",\"requests_all\":%" PRIu64 ",\"unanswered\":%u,\"elapsed_ns\":%" PRId64
           ",\"cpu_ns\":%" PRId64 ",\"run_ns\":%" PRId64 ",\"bytes\":%" PRIu64 ",\"bytes_all\":%" PRIu64
           ",\"records\":%" PRIu64 ",\"records_all\":%" PRIu64 ",\"histogram\":",
           requests_measured, requests_all, under_way_all, end_ns - measure_from_ns, used_ns, now_ns() - start_ns,
           bytes_measured, bytes_all, records_measured, records_all);
    histogram_print(&latencies, stdout);
    printf(",\"slots\":[");
    for (uint64_t slot = 0; slot < slots_count; slot++) printf("%s%" PRIu64, slot ? "," : "", slots[slot]);
    printf("]}\n");
}

static int print_buckets(void) {
    uint64_t value;
    while (scanf("%" SCNu64, &value) == 1) printf("%u\n", histogram_place(value));
    return 0;
}

int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "--buckets")) return print_buckets();
    if (count != 2) fail("usage: load PLAN", EINVAL);
    read_plan(arguments[1]);
    unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    int result = io_uring_queue_init(4096, &ring, flags);
    if (result == -EINVAL) result = io_uring_queue_init(4096, &ring, 0);
    if (result < 0) fail("io_uring", -result);
    for (uint32_t index = 0; index < plan.connections; index++) open_connection(&connections[index]);
    int64_t before_ns = cpu_ns();
    run();
    print_result(cpu_ns() - before_ns);
    return 0;
}
