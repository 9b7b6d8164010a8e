/*
 * Load generator: connections that send prebuilt requests and count answers, so that the server is what is measured.
 *
 *   load PLAN        PLAN is the file that tpc_broker/bench/load.py writes; prints one JSON object
 *   load --buckets   reads numbers, prints the histogram bucket of each (for the tests)
 *
 * One thread, one io_uring: per connection a receive and at most one send under way; a send carries all requests that are
 * due, or of large ones under TLS a chunk. Closed loop (rate 0): each connection keeps `depth` requests under way. Open loop:
 * request j of sender i is due at start + (i + j * senders) / rate whatever the server does, and its latency counts from then; a
 * request that is due while `depth` are under way waits here, and its wait counts. Time is read once per turn, after the wait.
 *
 * The generator shares the machine with what it measures, so it must not cost much. It sleeps TURN_NS at least when nothing
 * arrives: with a timer for each of 80,000 requests a second, a third of its CPU went into setting timers (each is an exit to
 * the hypervisor). A request may so leave TURN_NS late, under load only, and its latency has that in it, as it has every
 * other delay from the moment it was due. How late requests left is a histogram of its own: what the generator, or a server
 * that took the CPU away from it, added. The thread's timer slack is taken away, so a lone request leaves when it is due.
 *
 * Closed loop: what was answered inside the measured time goes into the histogram. Open loop: what was due inside it does,
 * however late its answer, so that a stall at the end is not left out. The rate and the slots of 100 ms count what was answered
 * inside the measured time, the totals everything. The longest silence is the measured time's longest part without an answer to
 * anybody. After the end nothing is sent that was not due before, and what is under
 * way is awaited, so that totals can be compared with what the server has. A refused request ends the run with its error number.
 *
 * Fetch: a connection reads a range of offsets [first, end) of one partition with one request under way, in a session as stock
 * clients do it (KIP-227): the first request is whole, the later ones name the session, and the partition only when its offset has
 * moved. Templates have offset and session patched in. Records are counted by the headers of their batches, and a gap ends the run.
 *
 * A fetch connection may be paired with a sender, which is then the only one that writes its partition: the record at offset o
 * belongs to the sender's request o / records_per_request, so its time from intended sending to arrival is known without
 * looking into it. That goes into a histogram of its own. Paired ones read until they have all that was acknowledged.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"
#include "load.h"

enum { DEPTH_MAX = 4096, RECEIVE_BYTES = 1 << 16, SLOT_NS = 100000000, SLOTS_MAX = 1 << 16 };
enum { DRAIN_NS = 1000000000, TURN_NS = 50000 };
enum { KIND_RECEIVE, KIND_SEND };
enum { FETCH_WHOLE, FETCH_UNCHANGED, FETCH_TEMPLATES };
#define NO_BLOB UINT32_MAX
#define NO_PAIR UINT32_MAX

typedef struct {
    char magic[8];
    uint32_t connections, senders, depth, answers_per_request, blobs, records_per_request;
    double rate;
    uint64_t warm_up_ns, measure_ns, requests_max, passes_max; /* passes: of each sender over its requests */
} plan_header;

typedef struct {
    uint32_t address; /* as inet_addr() gives it */
    uint32_t port;
    uint32_t preamble, blob_first, blobs_count, offset_position;
    uint32_t protocol, pair, session_position, is_tls; /* session_position: 0 without sessions */
    int64_t offset_first, offset_end;
} plan_connection;

typedef struct {
    uint8_t *bytes;
    uint32_t size;
} blob;

typedef struct {
    plan_connection plan;
    int fd;
    load_tls *tls; /* NULL: plain */
    uint8_t *encrypted;
    unsigned depth, under_way, answers_missing, next_blob, iov_count;
    unsigned iov_done; /* TLS: encrypted ones of them */
    struct iovec chunk;
    uint64_t sent;  /* requests of this connection */
    uint64_t head;  /* answered ones: times[head % depth] is the oldest under way */
    int64_t *times; /* intended send times */
    bool sending, sends_large, finished;
    uint8_t *received;
    size_t received_bytes, received_room, wanted_bytes;
    struct iovec iov[SENDS_MAX];
    struct msghdr message;
    int64_t offset, offset_named;
    uint32_t session, session_epoch;
    blob templates[FETCH_TEMPLATES];
} connection;

static plan_header plan;
static connection *connections;
static blob *blobs;
static struct io_uring ring;
static histogram latencies, end_to_end, lateness;
static uint64_t slots[SLOTS_MAX];
static int64_t start_ns, measure_from_ns, measure_to_ns;
static uint64_t requests_all, requests_measured, bytes_all, bytes_measured, records_all, records_measured, sent_all;
static unsigned finished_count, under_way_all;
static int64_t last_answer_ns, silence_longest_ns;

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
    if (fread(&plan, sizeof plan, 1, file) != 1 || memcmp(plan.magic, "TPCLOAD3", 8)) fail("the plan's header", EINVAL);
    if (plan.depth < 1 || plan.depth > DEPTH_MAX || plan.answers_per_request < 1) fail("the plan's numbers", EINVAL);
    connections = allocate(plan.connections, sizeof *connections);
    for (uint32_t index = 0; index < plan.connections; index++)
        if (fread(&connections[index].plan, sizeof(plan_connection), 1, file) != 1)
            fail("the plan's connections", EINVAL);
    blobs = allocate(plan.blobs, sizeof *blobs);
    for (uint32_t index = 0; index < plan.blobs; index++) {
        blob *at = &blobs[index];
        if (fread(&at->size, 4, 1, file) != 1) fail("the plan's requests", EINVAL);
        at->bytes = allocate(at->size, 1);
        if (fread(at->bytes, 1, at->size, file) != at->size) fail("the plan's requests", EINVAL);
    }
    fclose(file);
}

/* Fetch requests of its own, so that one is patched while others send theirs. */
static void make_templates(connection *at) {
    for (unsigned index = 0; index < FETCH_TEMPLATES && index < at->plan.blobs_count; index++) {
        blob *shared = &blobs[at->plan.blob_first + index];
        at->templates[index] = (blob){allocate(shared->size, 1), shared->size};
        memcpy(at->templates[index].bytes, shared->bytes, shared->size);
    }
}

static void open_connection(connection *at) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)at->plan.port)};
    address.sin_addr.s_addr = at->plan.address;
    at->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (at->fd < 0 || connect(at->fd, (struct sockaddr *)&address, sizeof address) < 0) fail("connect", errno);
    int on = 1;
    setsockopt(at->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (at->plan.is_tls) {
        at->tls = load_tls_open(at->fd);
        at->encrypted = allocate(RECEIVE_BYTES, 1);
    }
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
    at->offset_named = -1;
    if (at->plan.protocol == PROTOCOL_KAFKA_FETCH) make_templates(at);
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
    if (at->tls) {
        io_uring_prep_recv(sqe, at->fd, at->encrypted, RECEIVE_BYTES, 0);
        sqe->user_data = (uint64_t)(at - connections) << 1 | KIND_RECEIVE;
        return;
    }
    size_t room = at->received_room - at->received_bytes;
    bool is_rest = at->wanted_bytes > at->received_bytes && at->wanted_bytes <= at->received_room;
    if (is_rest) room = at->wanted_bytes - at->received_bytes; /* one wake-up for a large answer, not one per packet */
    io_uring_prep_recv(sqe, at->fd, at->received + at->received_bytes, room, is_rest ? MSG_WAITALL : 0);
    sqe->user_data = (uint64_t)(at - connections) << 1 | KIND_RECEIVE;
}

/* What is due, chunk by chunk. Of large requests each leaves at once, as far as the socket takes it: while the next one is
 * encrypted the server works. False: all of it has left. */
static bool encrypt(connection *at) {
    ssize_t sent;
    do {
        if (at->iov_done == at->iov_count) return false;
        at->chunk = load_tls_encrypt(at->tls, at->iov, at->iov_count, &at->iov_done);
        if (!at->sends_large) return true;
        sent = send(at->fd, at->chunk.iov_base, at->chunk.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN) fail("send", errno);
    } while ((size_t)sent == at->chunk.iov_len);
    if (sent > 0) at->chunk = (struct iovec){(uint8_t *)at->chunk.iov_base + sent, at->chunk.iov_len - (size_t)sent};
    return true;
}

static void submit_send(connection *at) {
    if (at->tls && !encrypt(at)) return;
    struct io_uring_sqe *sqe = entry();
    at->message.msg_iov = at->tls ? &at->chunk : at->iov;
    at->message.msg_iovlen = at->tls ? 1 : at->iov_count;
    io_uring_prep_sendmsg(sqe, at->fd, &at->message, MSG_NOSIGNAL | MSG_WAITALL);
    sqe->user_data = (uint64_t)(at - connections) << 1 | KIND_SEND;
    at->sending = true;
}

static int64_t intended_ns(const connection *at, uint64_t number) {
    uint64_t place = number * plan.senders + (uint64_t)(at - connections);
    return start_ns + (int64_t)((double)place * 1e9 / plan.rate);
}

static void put_fetch(connection *at) {
    bool is_whole = !at->session || at->offset != at->offset_named || !at->templates[FETCH_UNCHANGED].size;
    blob *from = &at->templates[is_whole ? FETCH_WHOLE : FETCH_UNCHANGED];
    if (at->plan.session_position) {
        uint32_t session[] = {htobe32(at->session), htobe32(at->session_epoch)};
        memcpy(from->bytes + at->plan.session_position, session, sizeof session);
    }
    if (is_whole) {
        uint64_t offset = htobe64((uint64_t)at->offset);
        memcpy(from->bytes + at->plan.offset_position, &offset, 8);
        at->offset_named = at->offset;
    }
    at->iov[at->iov_count++] = (struct iovec){from->bytes, from->size};
}

static void put_request(connection *at, int64_t intended) {
    if (at->plan.protocol == PROTOCOL_KAFKA_FETCH) {
        put_fetch(at);
    } else {
        blob *next = &blobs[at->plan.blob_first + at->next_blob];
        at->next_blob = (at->next_blob + 1) % at->plan.blobs_count;
        at->iov[at->iov_count++] = (struct iovec){next->bytes, next->size};
        at->sends_large = next->size >= LOAD_TLS_CHUNK;
        sent_all++;
    }
    at->times[at->sent % at->depth] = intended;
    at->sent++;
    at->under_way++;
    under_way_all++;
}

static bool is_measured(int64_t when) { return when >= measure_from_ns && when < measure_to_ns; }

static bool is_paired(const connection *at) { return at->plan.pair != NO_PAIR; }

/* Whether a sender will never send again. */
static bool has_stopped(const connection *at, int64_t now) {
    if (plan.requests_max && sent_all >= plan.requests_max) return true;
    if (plan.passes_max && at->sent >= plan.passes_max * at->plan.blobs_count) return true;
    return plan.rate > 0 ? intended_ns(at, at->sent) >= measure_to_ns : now >= measure_to_ns;
}

static void finish_fetches(connection *at, int64_t now) {
    if (at->finished || at->under_way) return;
    if (is_paired(at)) {
        connection *sender = &connections[at->plan.pair];
        if (!has_stopped(sender, now) || sender->under_way) return;
        if ((uint64_t)at->offset < sender->head * plan.records_per_request) return;
    } else if (at->offset < at->plan.offset_end) {
        return;
    }
    at->finished = true;
    finished_count++;
}

static void kick_fetch(connection *at, int64_t now) {
    finish_fetches(at, now);
    if (at->under_way || at->finished || (!is_paired(at) && now >= measure_to_ns)) return;
    at->iov_count = at->iov_done = 0;
    put_request(at, now);
    submit_send(at);
}

/* Sends what is due and allowed, unless a send is under way (its end calls this again). */
static void kick(connection *at, int64_t now) {
    if (at->sending) return;
    if (at->plan.protocol == PROTOCOL_KAFKA_FETCH) {
        kick_fetch(at, now);
        return;
    }
    at->iov_count = at->iov_done = 0;
    while (at->under_way < at->depth && at->iov_count < SENDS_MAX && !has_stopped(at, now)) {
        int64_t intended = plan.rate > 0 ? intended_ns(at, at->sent) : now;
        if (intended > now) break;
        if (plan.rate > 0 && is_measured(intended)) histogram_add(&lateness, (uint64_t)(now - intended));
        put_request(at, intended);
    }
    if (at->iov_count) submit_send(at);
}

/* ---- answers ---- */

static void count_slot(int64_t now, uint64_t count) {
    uint64_t slot = (uint64_t)(now - measure_from_ns) / SLOT_NS;
    if (slot < SLOTS_MAX) slots[slot] += count;
}

/* Each request of the pair whose records arrived counts from the moment it was due. */
static void count_arrivals(const connection *at, int64_t next, int64_t now) {
    const connection *sender = &connections[at->plan.pair];
    for (int64_t offset = at->offset; offset < next; offset += plan.records_per_request) {
        int64_t intended = intended_ns(sender, (uint64_t)offset / plan.records_per_request);
        if (is_measured(intended)) histogram_add(&end_to_end, (uint64_t)(now - intended));
    }
}

static void count_fetched(connection *at, const answer *got, int64_t now) {
    if (at->plan.session_position) {
        if (!at->session_epoch) at->session = got->session;
        at->session_epoch = at->session ? at->session_epoch + 1 : 0;
    }
    if (got->next < 0) return;
    if (got->gap || got->first > at->offset || got->records != (uint64_t)(got->next - got->first)) {
        fprintf(stderr, "load: records are missing from offset %" PRId64 " on\n", at->offset);
        exit(3);
    }
    uint64_t records = (uint64_t)(got->next - at->offset);
    if (is_paired(at) && plan.rate > 0) count_arrivals(at, got->next, now);
    records_all += records;
    bytes_all += got->data_bytes;
    if (is_measured(now)) {
        records_measured += records;
        bytes_measured += got->data_bytes;
        if (!is_paired(at)) count_slot(now, records);
    }
    at->offset = got->next;
}

/* Until now: the measured time's part of it counts. */
static void note_silence(int64_t now) {
    int64_t end = now < measure_to_ns ? now : measure_to_ns;
    int64_t begin = last_answer_ns > measure_from_ns ? last_answer_ns : measure_from_ns;
    if (end - begin > silence_longest_ns) silence_longest_ns = end - begin;
}

static void count_answer(connection *at, const answer *got, int64_t now) {
    int64_t began = at->times[at->head % at->depth];
    note_silence(now);
    last_answer_ns = now;
    if (at->plan.protocol == PROTOCOL_KAFKA_FETCH) count_fetched(at, got, now);
    if (is_paired(at)) return;
    requests_all++;
    if (is_measured(now)) {
        requests_measured++;
        if (at->plan.protocol != PROTOCOL_KAFKA_FETCH) count_slot(now, 1);
    }
    if (is_measured(plan.rate > 0 ? began : now)) histogram_add(&latencies, (uint64_t)(now - began));
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
}

static void read_answers(connection *at, int64_t now) {
    size_t position = 0, wanted = 0;
    while (position < at->received_bytes) {
        answer got = answer_read(at->plan.protocol, at->received + position, at->received_bytes - position);
        wanted = got.wanted;
        if (!got.bytes) break;
        take_answer(at, &got, now);
        position += got.bytes;
    }
    memmove(at->received, at->received + position, at->received_bytes - position);
    at->received_bytes -= position;
    at->wanted_bytes = at->received_bytes ? wanted : 0;
    if (wanted > at->received_room || at->received_bytes == at->received_room) {
        at->received_room = wanted > 2 * at->received_room ? wanted : 2 * at->received_room;
        at->received = realloc(at->received, at->received_room);
        if (!at->received) fail("memory", ENOMEM);
    }
}

static void on_received(connection *at, int result, int64_t now) {
    if (result <= 0) fail("the server closed the connection", result < 0 ? -result : ECONNRESET);
    size_t got = (size_t)result;
    if (at->tls) {
        load_tls_received(at->tls, at->encrypted, got);
        got = load_tls_read(at->tls, at->received + at->received_bytes, at->received_room - at->received_bytes);
    }
    while (got) {
        at->received_bytes += got;
        read_answers(at, now);
        if (!at->tls) break;
        got = load_tls_read(at->tls, at->received + at->received_bytes, at->received_room - at->received_bytes);
    }
    receive(at);
    kick(at, now);
}

static void on_sent(connection *at, int result, int64_t now) {
    size_t whole = 0;
    for (size_t index = 0; index < at->message.msg_iovlen; index++) whole += at->message.msg_iov[index].iov_len;
    if (result < 0 || (size_t)result != whole) fail("send", result < 0 ? -result : EPIPE);
    at->sending = false;
    if (at->tls) submit_send(at);
    if (!at->sending) kick(at, now);
}

/* ---- the loop ---- */

static void wait_for_completions(int64_t now) {
    int64_t until = now + 100000000;
    if (plan.rate > 0 && now < measure_to_ns) {
        for (uint32_t index = 0; index < plan.senders; index++) {
            connection *at = &connections[index];
            int64_t next = at->under_way < at->depth ? intended_ns(at, at->sent) : until;
            if (next < until) until = next;
        }
    }
    struct __kernel_timespec time = {.tv_nsec = until - now > TURN_NS ? until - now : TURN_NS};
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
    if (now > measure_to_ns + 30ll * DRAIN_NS) return true;
    if (under_way_all) return false;
    for (uint32_t index = 0; index < plan.senders; index++)
        if (!has_stopped(&connections[index], now)) return false;
    bool is_reading = plan.connections > plan.senders && finished_count < plan.connections - plan.senders;
    return !is_reading || (!plan.senders && now >= measure_to_ns);
}

/* Requests that were due and could not be sent for want of answers. */
static uint64_t unsent(int64_t now) {
    uint64_t count = 0;
    for (uint32_t index = 0; plan.rate > 0 && index < plan.senders; index++)
        for (uint64_t number = connections[index].sent; intended_ns(&connections[index], number) < measure_to_ns;
             number++)
            count += !has_stopped(&connections[index], now);
    return count;
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
            for (uint32_t index = 0; index < plan.senders; index++) kick(&connections[index], now);
    }
}

static void print_result(int64_t used_ns) {
    bool ends_early = !plan.senders || plan.requests_max || plan.passes_max;
    int64_t end_ns = last_answer_ns < measure_to_ns && ends_early ? last_answer_ns : measure_to_ns;
    note_silence(end_ns);
    uint64_t slots_count = plan.measure_ns / SLOT_NS < SLOTS_MAX ? plan.measure_ns / SLOT_NS : SLOTS_MAX;
    printf("{\"requests\":%" PRIu64 ",\"requests_all\":%" PRIu64 ",\"unanswered\":%" PRIu64 ",\"elapsed_ns\":%" PRId64
           ",\"cpu_ns\":%" PRId64 ",\"run_ns\":%" PRId64 ",\"bytes\":%" PRIu64 ",\"bytes_all\":%" PRIu64
           ",\"records\":%" PRIu64 ",\"records_all\":%" PRIu64 ",\"silence_longest_ns\":%" PRId64 ",\"histogram\":",
           requests_measured, requests_all, under_way_all + unsent(now_ns()), end_ns - measure_from_ns, used_ns,
           now_ns() - start_ns, bytes_measured, bytes_all, records_measured, records_all, silence_longest_ns);
    histogram_print(&latencies, stdout);
    printf(",\"end_to_end\":");
    histogram_print(&end_to_end, stdout);
    printf(",\"lateness\":");
    histogram_print(&lateness, stdout);
    printf(",\"slots\":[");
    for (uint64_t slot = 0; slot < slots_count; slot++) printf("%s%" PRIu64, slot ? "," : "", slots[slot]);
    printf("]}\n");
}

static int print_buckets(void) {
    uint64_t value;
    while (scanf("%" SCNu64, &value) == 1) printf("%u\n", histogram_bucket(value));
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
    if (prctl(PR_SET_TIMERSLACK, 1ul) < 0) fail("the timer slack", errno);
    int64_t before_ns = cpu_ns();
    run();
    print_result(cpu_ns() - before_ns);
    return 0;
}
