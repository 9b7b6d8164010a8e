/*
 * Idempotent and transactional producers of Kafka's protocol, and readers that see when what they committed can be read.
 *
 *   transaction_load PLAN        PLAN is the file that tpc_broker/bench/transaction_load.py writes; prints one JSON object
 *
 * One thread, epoll. A producer sends one prebuilt Produce (version 12: the server adds the partitions) again and again, with the
 * sequences and the checksums that are due, `depth` of them under way. It ends a transaction after so many requests, or behind
 * the first answer after so long: nothing more is sent, what is under way is awaited, and EndTxn (version 5, whose answer has the
 * next epoch) goes over a connection of its own, as stock clients have one to the coordinator. Each `abort_every`th one is
 * aborted. Without transactions the same producer is idempotent and never ends anything.
 *
 * Readers follow one partition each, read_committed, with one long Fetch under way, each of a producer that waits for them: it
 * begins its next transaction when all of its readers have come past the marker of this one, by which time they wait again. The
 * time from sending EndTxn to that moment is the histogram "end_to_end", to EndTxn's answer "commits"; that of a Produce is
 * "histogram".
 *
 * What a server asks to be sent again is sent again after RETRY_NS, with all that came behind it, and counted. Any other error
 * ends the run. At the end every producer ends its transaction, so that totals can be compared with what the server has.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "histogram.h"
#include "load.h"

enum {
    BATCHES_MAX = 64,
    DEPTH_MAX = 5,
    RECEIVE_BYTES = 1 << 16,
    SLOT_NS = 100000000,
    SLOTS_MAX = 1 << 16,
    AT_ONCE = 64
};
enum { RETRY_NS = 20000000, DRAIN_NS = 1000000000 };
/* Of a batch: what is patched, and from where on its checksum counts. */
enum { BATCH_LENGTH = 8, BATCH_CRC = 17, BATCH_ATTRIBUTES = 21, BATCH_PRODUCER = 43, BATCH_SEQUENCE = 53 };
enum {
    END_COMMITTED = 10,
    END_ANSWER_BYTES = 21
}; /* behind the producer's id; size, correlation id, tags, throttle time, error */
enum {
    LOAD_IN_PROGRESS = 14,
    COORDINATOR_NOT_AVAILABLE = 15,
    NOT_ENOUGH_REPLICAS = 19,
    OUT_OF_ORDER_SEQUENCE = 45,
    CONCURRENT_TRANSACTIONS = 51
};

typedef struct {
    char magic[8];
    uint32_t producers, readers, depth, batch_records, requests_per_transaction, abort_every;
    uint64_t warm_up_ns, measure_ns, commit_every_ns,
        requests_max; /* commit_every: 0 and no requests either: no transactions */
} plan_header;

typedef struct {
    uint32_t address, port, coordinator_address, coordinator_port;
    int64_t producer_id;
    uint32_t epoch, batches, end_position, reserved;
    uint32_t positions[BATCHES_MAX]; /* of the batches in the request */
} plan_producer;

typedef struct {
    uint32_t address, port, producer, offset_position;
} plan_reader;

typedef struct {
    uint8_t *bytes;
    size_t size;
} blob;

typedef struct socket_state socket_state;
struct socket_state {
    int fd;
    void (*take)(socket_state *at, const uint8_t *bytes, size_t count, int64_t now);
    void *owner;
    uint8_t *received;
    size_t received_bytes, received_room;
    blob *sending[DEPTH_MAX];
    unsigned sending_count;
    size_t sent_bytes; /* of sending[0] */
    bool waits_for_room;
};

enum producer_state { SENDS, DRAINS, ENDS, WAITS_FOR_READERS, RESTS };

typedef struct {
    plan_producer plan;
    socket_state data, coordinator;
    blob slots[DEPTH_MAX], end;
    int64_t times[DEPTH_MAX], began_ns, retry_ns, end_sent_ns;
    uint64_t head, sent; /* requests of this transaction: answered in order, sent */
    uint64_t rewind_to;  /* what was refused first; UINT64_MAX: nothing */
    uint64_t transactions;
    unsigned readers_left;
    bool aborts;
    enum producer_state state;
} producer;

typedef struct {
    plan_reader plan;
    socket_state data;
    blob request;
    int64_t offset, awaited;
} reader_state;

static plan_header plan;
static producer *producers;
static reader_state *readers;
static histogram latencies, commits, end_to_end;
static uint64_t slots[SLOTS_MAX];
static int poll_fd;
static int64_t start_ns, measure_from_ns, measure_to_ns;
static uint64_t requests_all, requests_measured, transactions_all, transactions_measured, aborted_all, resent_all,
    sent_all;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what, int error) {
    fprintf(stderr, "transaction_load: %s: %s\n", what, strerror(error));
    exit(1);
}

static void refuse(const char *what, int error) {
    fprintf(stderr, "transaction_load: %s was refused with error %d\n", what, error);
    exit(2);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fail("memory", ENOMEM);
    return memory;
}

static bool is_transactional(void) { return plan.commit_every_ns || plan.requests_per_transaction; }

static bool is_measured(int64_t when) { return when >= measure_from_ns && when < measure_to_ns; }

/* ---- the plan ---- */

static void read_whole(FILE *file, void *into, size_t bytes) {
    if (fread(into, 1, bytes, file) != bytes) fail("the plan", EINVAL);
}

static blob read_blob(FILE *file) {
    uint32_t size;
    read_whole(file, &size, 4);
    blob made = {allocate(size, 1), size};
    read_whole(file, made.bytes, size);
    return made;
}

static void read_plan(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, errno);
    read_whole(file, &plan, sizeof plan);
    if (memcmp(plan.magic, "TPCTXNS1", 8) || plan.depth < 1 || plan.depth > DEPTH_MAX) fail("the plan", EINVAL);
    producers = allocate(plan.producers, sizeof *producers);
    for (uint32_t index = 0; index < plan.producers; index++) {
        producer *at = &producers[index];
        read_whole(file, &at->plan, sizeof at->plan);
        blob request = read_blob(file);
        for (unsigned slot = 0; slot < plan.depth; slot++) {
            at->slots[slot] = (blob){allocate(request.size, 1), request.size};
            memcpy(at->slots[slot].bytes, request.bytes, request.size);
        }
        free(request.bytes);
        at->end = read_blob(file);
        at->rewind_to = UINT64_MAX;
    }
    readers = allocate(plan.readers, sizeof *readers);
    for (uint32_t index = 0; index < plan.readers; index++) {
        read_whole(file, &readers[index].plan, sizeof readers[index].plan);
        readers[index].request = read_blob(file);
    }
    fclose(file);
}

/* ---- connections ---- */

static void watch(socket_state *at, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (at->waits_for_room ? EPOLLOUT : 0), .data.ptr = at};
    if (epoll_ctl(poll_fd, operation, at->fd, &event) < 0) fail("epoll", errno);
}

static void open_socket(socket_state *at, uint32_t address, uint32_t port, void *owner,
                        void (*take)(socket_state *, const uint8_t *, size_t, int64_t)) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = address};
    at->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (at->fd < 0 || connect(at->fd, (struct sockaddr *)&to, sizeof to) < 0) fail("connect", errno);
    int on = 1;
    setsockopt(at->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    at->owner = owner;
    at->take = take;
    at->received_room = RECEIVE_BYTES;
    at->received = allocate(at->received_room, 1);
    watch(at, EPOLL_CTL_ADD);
}

static void go_on_sending(socket_state *at) {
    while (at->sending_count) {
        blob *next = at->sending[0];
        ssize_t count = send(at->fd, next->bytes + at->sent_bytes, next->size - at->sent_bytes,
                             MSG_NOSIGNAL | MSG_DONTWAIT | (at->sending_count > 1 ? MSG_MORE : 0));
        if (count < 0 && errno != EAGAIN) fail("send", errno);
        if (count > 0) at->sent_bytes += (size_t)count;
        if (at->sent_bytes < next->size) break;
        at->sent_bytes = 0;
        memmove(at->sending, at->sending + 1, --at->sending_count * sizeof *at->sending);
    }
    if (at->waits_for_room == (at->sending_count > 0)) return;
    at->waits_for_room = at->sending_count > 0;
    watch(at, EPOLL_CTL_MOD);
}

static void receive(socket_state *at, int64_t now) {
    ssize_t count =
        recv(at->fd, at->received + at->received_bytes, at->received_room - at->received_bytes, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) fail("the server closed the connection", count < 0 ? errno : ECONNRESET);
    at->received_bytes += (size_t)count;
    size_t position = 0, whole = 0;
    while (at->received_bytes - position >= 4) {
        uint32_t size;
        memcpy(&size, at->received + position, 4);
        whole = 4 + (size_t)be32toh(size);
        if (at->received_bytes - position < whole) break;
        at->take(at, at->received + position, whole, now);
        position += whole;
        whole = 0;
    }
    memmove(at->received, at->received + position, at->received_bytes - position);
    at->received_bytes -= position;
    if (whole <= at->received_room) return;
    at->received_room = whole;
    at->received = realloc(at->received, whole);
    if (!at->received) fail("memory", ENOMEM);
}

/* ---- producing ---- */

/* As request number `number` of this transaction. In one without an end, sequences begin again at 2^31. */
static void patch(const producer *at, blob *request, uint64_t number) {
    uint64_t id = htobe64((uint64_t)at->plan.producer_id);
    uint16_t epoch = htobe16((uint16_t)at->plan.epoch);
    uint32_t sequence = htobe32((uint32_t)(number * plan.batch_records & INT32_MAX));
    for (uint32_t index = 0; index < at->plan.batches; index++) {
        uint8_t *batch = request->bytes + at->plan.positions[index];
        memcpy(batch + BATCH_PRODUCER, &id, 8);
        memcpy(batch + BATCH_PRODUCER + 8, &epoch, 2);
        memcpy(batch + BATCH_SEQUENCE, &sequence, 4);
        uint32_t length;
        memcpy(&length, batch + BATCH_LENGTH, 4);
        size_t checked = 12 + (size_t)be32toh(length) - BATCH_ATTRIBUTES;
        uint32_t checksum = htobe32(tpc_crc32c(0, batch + BATCH_ATTRIBUTES, checked));
        memcpy(batch + BATCH_CRC, &checksum, 4);
    }
}

static bool is_over(int64_t now) {
    return now >= measure_to_ns || (plan.requests_max && sent_all >= plan.requests_max);
}

/* Whether nothing more is to be sent in this transaction. */
static bool is_full(const producer *at, int64_t now) {
    if (is_over(now)) return true;
    if (plan.requests_per_transaction) return at->sent >= plan.requests_per_transaction;
    return plan.commit_every_ns && at->sent && now >= at->began_ns + (int64_t)plan.commit_every_ns;
}

static void send_end(producer *at, int64_t now) {
    uint64_t id = htobe64((uint64_t)at->plan.producer_id);
    uint16_t epoch = htobe16((uint16_t)at->plan.epoch);
    uint8_t *fields = at->end.bytes + at->plan.end_position;
    memcpy(fields, &id, 8);
    memcpy(fields + 8, &epoch, 2);
    fields[END_COMMITTED] = !at->aborts;
    at->coordinator.sending[at->coordinator.sending_count++] = &at->end;
    go_on_sending(&at->coordinator);
    if (at->state != ENDS) at->end_sent_ns = now;
    at->state = ENDS;
    at->retry_ns = 0;
}

static void begin_end(producer *at, int64_t now) {
    at->transactions++;
    at->aborts = plan.abort_every && at->transactions % plan.abort_every == 0;
    at->readers_left = 0;
    for (uint32_t index = 0; index < plan.readers; index++)
        if (&producers[readers[index].plan.producer] == at) {
            readers[index].awaited += (int64_t)(at->sent * plan.batch_records + 1);
            at->readers_left++;
        }
    send_end(at, now);
}

static void kick(producer *at, int64_t now) {
    if (at->state == SENDS && is_full(at, now)) at->state = DRAINS;
    if (at->state == DRAINS && at->head == at->sent) {
        if (is_transactional() && at->sent)
            begin_end(at, now);
        else
            at->state = RESTS;
    }
    if (at->state != SENDS || at->rewind_to != UINT64_MAX) return;
    if (!at->sent) at->began_ns = now;
    while (at->sent - at->head < plan.depth && at->data.sending_count < DEPTH_MAX && !is_full(at, now)) {
        blob *request = &at->slots[at->sent % plan.depth];
        patch(at, request, at->sent);
        at->times[at->sent % plan.depth] = now;
        at->data.sending[at->data.sending_count++] = request;
        at->sent++;
        sent_all++;
    }
    go_on_sending(&at->data);
}

/* What was refused and all behind it, with nothing under way any more. */
static void send_again(producer *at, int64_t now) {
    at->retry_ns = 0;
    if (at->state == ENDS) {
        send_end(at, now);
        return;
    }
    uint64_t end = at->sent;
    for (at->sent = at->head = at->rewind_to; at->sent < end; at->sent++) {
        at->data.sending[at->data.sending_count++] = &at->slots[at->sent % plan.depth];
        resent_all++;
    }
    at->rewind_to = UINT64_MAX;
    go_on_sending(&at->data);
    kick(at, now);
}

static void skip_string(const uint8_t **at, const uint8_t *end) {
    unsigned shift = 0;
    size_t size = 0;
    while (*at < end) {
        uint8_t byte = *(*at)++;
        size |= (size_t)(byte & 0x7f) << shift;
        shift += 7;
        if (!(byte & 0x80)) break;
    }
    if (size > 1) *at += size - 1;
}

/* The first error of a Produce: one topic, partitions without errors have 33 bytes each. */
static int produce_error(const producer *at, const uint8_t *bytes, size_t count) {
    const uint8_t *in = bytes + 10, *end = bytes + count; /* size, correlation id, tags, number of topics */
    skip_string(&in, end);
    in++;
    for (uint32_t index = 0; index < at->plan.batches; index++, in += 33) {
        if (end - in < 33) fail("an answer to Produce", EPROTO);
        uint16_t error;
        memcpy(&error, in + 4, 2);
        if (error) return be16toh(error);
    }
    return 0;
}

static bool is_to_be_sent_again(int error) {
    return error == CONCURRENT_TRANSACTIONS || error == NOT_ENOUGH_REPLICAS || error == LOAD_IN_PROGRESS ||
           error == COORDINATOR_NOT_AVAILABLE;
}

static void take_produced(socket_state *from, const uint8_t *bytes, size_t count, int64_t now) {
    producer *at = from->owner;
    if (at->head == at->sent) fail("an answer without a request", EPROTO);
    int error = produce_error(at, bytes, count);
    bool is_behind = at->rewind_to != UINT64_MAX;
    if (error && !is_to_be_sent_again(error) && !(is_behind && error == OUT_OF_ORDER_SEQUENCE))
        refuse("Produce", error);
    if (error && !is_behind) at->rewind_to = at->head;
    int64_t began = at->times[at->head++ % plan.depth];
    if (at->rewind_to != UINT64_MAX) {
        if (at->head == at->sent) at->retry_ns = now + RETRY_NS;
        return;
    }
    requests_all++;
    if (is_measured(now)) {
        requests_measured++;
        histogram_add(&latencies, (uint64_t)(now - began));
        uint64_t slot = (uint64_t)(now - measure_from_ns) / SLOT_NS;
        if (slot < SLOTS_MAX) slots[slot]++;
    }
    kick(at, now);
}

static void begin_transaction(producer *at, int64_t now) {
    at->state = is_over(now) ? RESTS : SENDS;
    at->head = at->sent = 0;
    kick(at, now);
}

static void take_ended(socket_state *from, const uint8_t *bytes, size_t count, int64_t now) {
    producer *at = from->owner;
    if (at->state != ENDS || count < END_ANSWER_BYTES) fail("an answer to EndTxn", EPROTO);
    uint16_t error, epoch;
    uint64_t id;
    memcpy(&error, bytes + 13, 2);
    memcpy(&id, bytes + 15, 8);
    memcpy(&epoch, bytes + 23, 2);
    if (error && !is_to_be_sent_again(be16toh(error))) refuse("EndTxn", be16toh(error));
    if (error) {
        at->retry_ns = now + RETRY_NS;
        resent_all++;
        return;
    }
    at->plan.producer_id = (int64_t)be64toh(id);
    at->plan.epoch = be16toh(epoch);
    transactions_all++;
    aborted_all += at->aborts;
    if (is_measured(now)) {
        transactions_measured++;
        histogram_add(&commits, (uint64_t)(now - at->end_sent_ns));
    }
    at->state = WAITS_FOR_READERS;
    if (!at->readers_left) begin_transaction(at, now);
}

/* ---- reading ---- */

static void send_fetch(reader_state *at) {
    uint64_t offset = htobe64((uint64_t)at->offset);
    memcpy(at->request.bytes + at->plan.offset_position, &offset, 8);
    at->data.sending[at->data.sending_count++] = &at->request;
    go_on_sending(&at->data);
}

static void take_fetched(socket_state *from, const uint8_t *bytes, size_t count, int64_t now) {
    reader_state *at = from->owner;
    producer *of = &producers[at->plan.producer];
    answer got = answer_read(PROTOCOL_KAFKA_FETCH, bytes, count);
    if (got.error) refuse("Fetch", got.error);
    bool was_behind = at->offset < at->awaited;
    if (got.next >= 0) at->offset = got.next;
    send_fetch(at);
    if (!was_behind || at->offset < at->awaited || --of->readers_left) return;
    if (is_measured(now)) histogram_add(&end_to_end, (uint64_t)(now - of->end_sent_ns));
    if (of->state == WAITS_FOR_READERS) begin_transaction(of, now);
}

/* ---- the loop ---- */

static int wait_ms(int64_t now) {
    int64_t until = now + SLOT_NS;
    for (uint32_t index = 0; index < plan.producers; index++) {
        const producer *at = &producers[index];
        if (at->retry_ns && at->retry_ns < until) until = at->retry_ns;
    }
    return until > now ? (int)((until - now + 999999) / 1000000) : 0;
}

static bool all_rest(void) {
    for (uint32_t index = 0; index < plan.producers; index++)
        if (producers[index].state != RESTS) return false;
    return true;
}

static void run(void) {
    start_ns = now_ns();
    measure_from_ns = start_ns + (int64_t)plan.warm_up_ns;
    measure_to_ns = measure_from_ns + (int64_t)plan.measure_ns;
    for (uint32_t index = 0; index < plan.readers; index++) send_fetch(&readers[index]);
    for (uint32_t index = 0; index < plan.producers; index++) kick(&producers[index], start_ns);
    int64_t now = start_ns;
    while (!all_rest() && now < measure_to_ns + 30ll * DRAIN_NS) {
        struct epoll_event events[AT_ONCE];
        int count = epoll_wait(poll_fd, events, AT_ONCE, wait_ms(now));
        if (count < 0 && errno != EINTR) fail("wait", errno);
        now = now_ns();
        for (int index = 0; index < count; index++) {
            socket_state *at = events[index].data.ptr;
            if (events[index].events & EPOLLOUT) go_on_sending(at);
            if (events[index].events & ~(uint32_t)EPOLLOUT) receive(at, now);
        }
        for (uint32_t index = 0; index < plan.producers; index++)
            if (producers[index].retry_ns && producers[index].retry_ns <= now) send_again(&producers[index], now);
    }
}

static int64_t cpu_ns(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return ((int64_t)used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000000 +
           ((int64_t)used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000;
}

static void print_result(int64_t ended_ns) {
    uint64_t unanswered = 0;
    for (uint32_t index = 0; index < plan.producers; index++) unanswered += producers[index].state != RESTS;
    int64_t to_ns = plan.requests_max && ended_ns < measure_to_ns ? ended_ns : measure_to_ns;
    uint64_t slots_count = plan.measure_ns / SLOT_NS < SLOTS_MAX ? plan.measure_ns / SLOT_NS : SLOTS_MAX;
    printf("{\"requests\":%" PRIu64 ",\"requests_all\":%" PRIu64 ",\"transactions\":%" PRIu64
           ",\"transactions_all\":%" PRIu64 ",\"aborted_all\":%" PRIu64 ",\"resent_all\":%" PRIu64
           ",\"unanswered\":%" PRIu64 ",\"elapsed_ns\":%" PRId64 ",\"cpu_ns\":%" PRId64 ",\"run_ns\":%" PRId64
           ",\"histogram\":",
           requests_measured, requests_all, transactions_measured, transactions_all, aborted_all, resent_all,
           unanswered, to_ns - measure_from_ns, cpu_ns(), ended_ns - start_ns);
    histogram_print(&latencies, stdout);
    printf(",\"commits\":");
    histogram_print(&commits, stdout);
    printf(",\"end_to_end\":");
    histogram_print(&end_to_end, stdout);
    printf(",\"slots\":[");
    for (uint64_t slot = 0; slot < slots_count; slot++) printf("%s%" PRIu64, slot ? "," : "", slots[slot]);
    printf("]}\n");
}

int main(int count, char **arguments) {
    if (count != 2) fail("usage: transaction_load PLAN", EINVAL);
    read_plan(arguments[1]);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (poll_fd < 0) fail("epoll", errno);
    for (uint32_t index = 0; index < plan.producers; index++) {
        producer *at = &producers[index];
        open_socket(&at->data, at->plan.address, at->plan.port, at, take_produced);
        if (is_transactional())
            open_socket(&at->coordinator, at->plan.coordinator_address, at->plan.coordinator_port, at, take_ended);
    }
    for (uint32_t index = 0; index < plan.readers; index++) {
        reader_state *at = &readers[index];
        open_socket(&at->data, at->plan.address, at->plan.port, at, take_fetched);
    }
    if (prctl(PR_SET_TIMERSLACK, 1ul) < 0) fail("the timer slack", errno);
    run();
    print_result(now_ns());
    return 0;
}
