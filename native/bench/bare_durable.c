/*
 * The machine's limit: what a durable server costs that does nothing but be durable. A measuring stick, no broker.
 *
 *   bare_durable PORT FILE MODE [CPU [FOLLOWER_PORT FOLLOWER_PORT]]
 *
 *   dsync     every commit is written to FILE with O_DIRECT + RWF_DSYNC
 *   none      answered at once, nothing is written
 *   twice     dsync, and every byte once more behind it into files of 1 GiB, as segments are: through the page cache
 *   direct    the same with O_DIRECT
 *   in_place  every commit is written in place, to those files, with O_DIRECT + RWF_DSYNC; then a block to FILE, as an entry that
 *             names it would be; then it is answered
 *   follower  dsync, for batches that a leader sends one behind the other, without requests around them: each is checked,
 *             copied and written, and how much of the stream is on the disk is told the leader after each commit
 *
 * CPU -1: any. With followers it leads them: what it takes is sent to both at the end of the turn, while it is written here, and
 * answered when it is on the disk here and with one of them.
 *
 * Takes Produce requests of version 9 with one topic and one partition (anything else ends it), checks the CRC of the batch,
 * copies it to the open commit, and answers when that is on the disk. One commit is in flight; what comes meanwhile shares
 * the next. FILE is written once before the start, so that no write to it allocates; the files behind are allocated when they
 * are begun, and each commit starts on a block of its own. No topics, no offsets, no reads.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"

enum { CONNECTIONS_MAX = 4096, RECEIVE_BYTES = 1 << 16, BLOCK_BYTES = 4096, COMMITS = 4, WAITING_MAX = 65536 };
enum { ANSWER_BYTES_MAX = 128, OUT_BYTES = 1 << 18 };
enum { KIND_ACCEPT, KIND_RECEIVE, KIND_SEND, KIND_COMMIT, KIND_BEHIND, KIND_IN_PLACE, KIND_SENT_ON, KIND_ACK };
enum { BEHIND_FILES = 4, FOLLOWERS_MAX = 2, STREAM_BYTES = 4 << 20, BATCH_HEADER_BYTES = 61, ACK_BYTES = 8 };
static const uint64_t JOURNAL_BYTES = 256u << 20, COMMIT_BYTES = 32u << 20, BEHIND_BYTES = 1u << 30;

enum mode { MODE_DSYNC, MODE_NONE, MODE_TWICE, MODE_DIRECT, MODE_IN_PLACE, MODE_FOLLOWER };
static const char *const mode_names[] = {"dsync", "none", "twice", "direct", "in_place", "follower"};

typedef struct {
    int fd;
    uint8_t *received;
    size_t received_bytes, received_room;
    uint8_t *out[2]; /* one is filled while the other is sent */
    size_t out_bytes[2];
    int filling;
    bool sending;
} client;

typedef struct {
    client *to;
    uint64_t end; /* of its batch, in the stream of all that was taken */
    uint32_t bytes;
    uint8_t data[ANSWER_BYTES_MAX];
} waiting_answer;

typedef struct {
    uint8_t *data;
    size_t bytes, written_bytes, journal_bytes;
    waiting_answer *answers;
    unsigned answers_count, answered, uses; /* uses: who still needs the data, or its answers */
    uint64_t end;                           /* in the stream */
} commit;

/* Its bytes go out commit by commit, also of the open one; what it acknowledges are places in the stream. */
typedef struct {
    int fd;
    unsigned commit;
    size_t sent_bytes;
    bool sending;
    uint64_t ack, acknowledged;
    size_t ack_bytes;
} follower;

typedef struct {
    const uint8_t *at, *end;
} reader;

static struct io_uring ring;
static client clients[CONNECTIONS_MAX];
static commit commits[COMMITS];
static follower followers[FOLLOWERS_MAX];
static unsigned open_commit, settling_commit, followers_count;
static uint64_t taken_end, durable_end; /* in the stream */
static bool in_flight;
static enum mode mode;
static const char *journal_path;
static int journal_fd = -1, listening_fd;
static int behind_fds[BEHIND_FILES] = {-1, -1, -1, -1}; /* the newest is behind_fds[behind_number % BEHIND_FILES] */
static unsigned behind_number;
static uint64_t journal_position, behind_position;

static void fail(const char *what, int error) {
    fprintf(stderr, "bare_durable: %s: %s\n", what, strerror(error));
    exit(1);
}

static struct io_uring_sqe *entry(unsigned kind, uint64_t index) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (!sqe) {
        io_uring_submit(&ring);
        sqe = io_uring_get_sqe(&ring);
    }
    sqe->user_data = index << 3 | kind;
    return sqe;
}

/* Fills in `sqe` after a helper of liburing, which clears the user data. */
static void mark(struct io_uring_sqe *sqe, unsigned kind, uint64_t index) { sqe->user_data = index << 3 | kind; }

static void receive(client *at) {
    struct io_uring_sqe *sqe = entry(KIND_RECEIVE, 0);
    io_uring_prep_recv(sqe, at->fd, at->received + at->received_bytes, at->received_room - at->received_bytes, 0);
    mark(sqe, KIND_RECEIVE, (uint64_t)(at - clients));
}

static void send_answers(client *at) {
    if (at->sending || !at->out_bytes[at->filling]) return;
    int sent = at->filling;
    struct io_uring_sqe *sqe = entry(KIND_SEND, 0);
    io_uring_prep_send(sqe, at->fd, at->out[sent], at->out_bytes[sent], MSG_NOSIGNAL | MSG_WAITALL);
    mark(sqe, KIND_SEND, (uint64_t)(at - clients));
    at->sending = true;
    at->filling = !sent;
    at->out_bytes[at->filling] = 0;
}

static void queue_answer(client *at, const uint8_t *data, size_t bytes) {
    size_t *filled = &at->out_bytes[at->filling];
    if (*filled + bytes > OUT_BYTES) fail("answers", ENOBUFS);
    memcpy(at->out[at->filling] + *filled, data, bytes);
    *filled += bytes;
}

/* ---- requests ---- */

static uint32_t read_varint(reader *in) {
    uint32_t value = 0;
    for (unsigned shift = 0; shift < 35 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        value |= (uint32_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) break;
    }
    return value;
}

/* Makes the answer of version 9 and finds the batch; false when the request is another one. */
static bool parse(const uint8_t *frame, size_t frame_bytes, waiting_answer *out, reader *batch) {
    reader in = {frame + 8, frame + frame_bytes};
    if (frame_bytes < 40 || frame[1] != 0 || frame[3] != 9) return false;
    in.at += 2 + (uint16_t)(frame[8] << 8 | frame[9]) + 1; /* client id, tags */
    in.at += 1 + 2 + 4;                                    /* transactional id, acks, time-out */
    const uint8_t *topics = in.at;
    if (in.at >= in.end || read_varint(&in) != 2) return false;
    uint32_t name = read_varint(&in);
    in.at += name - 1;
    if (in.at >= in.end || read_varint(&in) != 2) return false;
    in.at += 4;
    size_t copied = (size_t)(in.at - topics); /* topic and partition go back as they came */
    uint32_t records = read_varint(&in);
    if (!records || (size_t)(in.end - in.at) < records - 1 || copied + 64 > ANSWER_BYTES_MAX) return false;
    *batch = (reader){in.at, in.at + records - 1};
    uint8_t *at = out->data + 4;
    memcpy(at, frame + 4, 4);
    at[4] = 0;
    memcpy(at += 5, topics, copied);
    memset(at += copied, 0, 10);                        /* error, base offset */
    memset(at += 10, 0xff, 8);                          /* append time */
    memset(at += 8, 0, 8);                              /* log start */
    const uint8_t rest[] = {1, 0, 0, 0, 0, 0, 0, 0, 0}; /* record errors, no message, tags twice, throttle time, tags */
    memcpy(at += 8, rest, sizeof rest);
    out->bytes = (uint32_t)(at + sizeof rest - out->data);
    uint32_t size = htobe32(out->bytes - 4);
    memcpy(out->data, &size, 4);
    return true;
}

/* Copies a batch to the open commit. */
static commit *take_batch(const uint8_t *batch, size_t bytes) {
    commit *into = &commits[open_commit];
    uint32_t crc;
    if (bytes < BATCH_HEADER_BYTES) fail("a batch", EPROTO);
    memcpy(&crc, batch + 17, 4);
    if (tpc_crc32c(0, batch + 21, bytes - 21) != be32toh(crc)) fail("a CRC", EBADMSG);
    if (mode == MODE_NONE) return into;
    if (into->bytes + bytes > COMMIT_BYTES || into->answers_count + 1 == WAITING_MAX) fail("the commit", ENOBUFS);
    memcpy(into->data + into->bytes, batch, bytes);
    into->bytes += bytes;
    into->end = taken_end += bytes;
    return into;
}

static void handle_request(client *from, const uint8_t *frame, size_t frame_bytes) {
    commit *into = &commits[open_commit];
    waiting_answer *answer = &into->answers[into->answers_count];
    reader batch;
    if (!parse(frame, frame_bytes, answer, &batch)) fail("a request that is not the one of the measurement", EPROTO);
    take_batch(batch.at, (size_t)(batch.end - batch.at));
    if (mode == MODE_NONE) {
        queue_answer(from, answer->data, answer->bytes);
        return;
    }
    answer->to = from;
    answer->end = taken_end;
    into->answers_count++;
}

/* One frame at the start of what was received: a request with its size in front, or a batch with its size inside. 0: not whole. */
static size_t frame_at(const client *at, size_t position) {
    size_t received = at->received_bytes - position, head = mode == MODE_FOLLOWER ? 12 : 4;
    if (received < head) return 0;
    uint32_t size;
    memcpy(&size, at->received + position + head - 4, 4);
    size_t whole = head + be32toh(size);
    return whole <= received ? whole : whole <= at->received_room ? 0 : whole;
}

static void on_received(client *at, int result) {
    if (result <= 0) {
        close(at->fd);
        at->fd = -1;
        return;
    }
    at->received_bytes += (size_t)result;
    size_t position = 0;
    for (size_t bytes; (bytes = frame_at(at, position)) != 0; position += bytes) {
        if (bytes > at->received_bytes - position) {
            at->received_room = bytes + RECEIVE_BYTES;
            at->received = realloc(at->received, at->received_room);
            break;
        }
        if (mode == MODE_FOLLOWER) {
            commit *into = take_batch(at->received + position, bytes);
            into->answers[0].to = at;
            into->answers_count = 1;
        } else {
            handle_request(at, at->received + position + 4, bytes - 4);
        }
    }
    memmove(at->received, at->received + position, at->received_bytes - position);
    at->received_bytes -= position;
    receive(at);
    if (mode == MODE_NONE) send_answers(at);
}

/* ---- followers ---- */

static void connect_follower(follower *at, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1;
    at->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(at->fd, (struct sockaddr *)&address, sizeof address) < 0) fail("a follower", errno);
    setsockopt(at->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void await_ack(follower *at) {
    struct io_uring_sqe *sqe = entry(KIND_ACK, 0);
    io_uring_prep_recv(sqe, at->fd, (uint8_t *)&at->ack + at->ack_bytes, ACK_BYTES - at->ack_bytes, 0);
    mark(sqe, KIND_ACK, (uint64_t)(at - followers));
}

static void send_on(follower *at) {
    while (at->commit != open_commit && at->sent_bytes == commits[at->commit].bytes && !at->sending) {
        commits[at->commit].uses--;
        at->commit = (at->commit + 1) % COMMITS;
        at->sent_bytes = 0;
    }
    commit *from = &commits[at->commit];
    if (at->sending || at->sent_bytes == from->bytes) return;
    struct io_uring_sqe *sqe = entry(KIND_SENT_ON, 0);
    io_uring_prep_send(sqe, at->fd, from->data + at->sent_bytes, from->bytes - at->sent_bytes, MSG_NOSIGNAL);
    mark(sqe, KIND_SENT_ON, (uint64_t)(at - followers));
    at->sending = true;
}

static void on_sent_on(follower *at, int result) {
    if (result <= 0) fail("a follower", result < 0 ? -result : EPIPE);
    at->sent_bytes += (size_t)result;
    at->sending = false;
}

/* On the disk here and, with followers, with one of them. */
static uint64_t committed_end(void) {
    uint64_t most = followers_count ? 0 : durable_end;
    for (unsigned index = 0; index < followers_count; index++)
        if (followers[index].acknowledged > most) most = followers[index].acknowledged;
    return most < durable_end ? most : durable_end;
}

static void settle(void) {
    uint64_t committed = committed_end();
    while (settling_commit != open_commit) {
        commit *at = &commits[settling_commit];
        unsigned first = at->answered;
        for (; at->answered < at->answers_count && at->answers[at->answered].end <= committed; at->answered++) {
            waiting_answer *answer = &at->answers[at->answered];
            if (answer->to->fd >= 0) queue_answer(answer->to, answer->data, answer->bytes);
        }
        for (unsigned index = first; index < at->answered; index++)
            if (at->answers[index].to->fd >= 0) send_answers(at->answers[index].to);
        if (at->answered < at->answers_count) return;
        at->uses--;
        settling_commit = (settling_commit + 1) % COMMITS;
    }
}

static void on_ack(follower *at, int result) {
    if (result <= 0) fail("a follower", result < 0 ? -result : EPIPE);
    at->ack_bytes = (at->ack_bytes + (size_t)result) % ACK_BYTES;
    if (!at->ack_bytes) at->acknowledged = at->ack;
    await_ack(at);
    settle();
}

/* ---- commits ---- */

/* Begins the next file behind; one that no write can be under way to is removed. */
static void open_behind(void) {
    char path[4096];
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | (mode == MODE_TWICE ? 0 : O_DIRECT);
    if (++behind_number >= BEHIND_FILES) {
        snprintf(path, sizeof path, "%s.behind.%u", journal_path, behind_number - BEHIND_FILES);
        close(behind_fds[behind_number % BEHIND_FILES]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s.behind.%u", journal_path, behind_number);
    int fd = open(path, flags, 0600);
    if (fd < 0) fail(path, errno);
    if (fallocate(fd, mode == MODE_TWICE ? FALLOC_FL_KEEP_SIZE : 0, 0, (off_t)BEHIND_BYTES) < 0)
        fail("fallocate", errno);
    behind_fds[behind_number % BEHIND_FILES] = fd;
    behind_position = 0;
}

static void write_behind(commit *at, unsigned kind, int flags) {
    uint64_t bytes = mode == MODE_TWICE ? at->bytes : at->written_bytes;
    if (!behind_number || behind_position + bytes > BEHIND_BYTES) open_behind();
    struct io_uring_sqe *sqe = entry(kind, 0);
    io_uring_prep_write(sqe, behind_fds[behind_number % BEHIND_FILES], at->data, (unsigned)bytes, behind_position);
    sqe->rw_flags = flags;
    mark(sqe, kind, (uint64_t)(at - commits));
    behind_position += bytes;
}

static void write_journal(commit *at, size_t bytes) {
    if (journal_position + bytes > JOURNAL_BYTES) journal_position = 0;
    struct io_uring_sqe *sqe = entry(KIND_COMMIT, 0);
    io_uring_prep_write(sqe, journal_fd, at->data, (unsigned)bytes, journal_position);
    sqe->rw_flags = RWF_DSYNC;
    mark(sqe, KIND_COMMIT, (uint64_t)(at - commits));
    journal_position += bytes;
    at->journal_bytes = bytes;
}

static void submit_commit(void) {
    commit *at = &commits[open_commit];
    if (in_flight || journal_fd < 0 || !at->answers_count) return;
    commit *following = &commits[(open_commit + 1) % COMMITS];
    if (following->uses) return;
    at->written_bytes = (at->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    at->uses = 2 + followers_count;
    if (mode == MODE_FOLLOWER) {
        memcpy(at->answers[0].data, &at->end, ACK_BYTES);
        at->answers[0].bytes = ACK_BYTES;
        at->answers[0].end = at->end;
    }
    if (mode == MODE_IN_PLACE)
        write_behind(at, KIND_IN_PLACE, RWF_DSYNC);
    else
        write_journal(at, at->written_bytes);
    if (mode == MODE_TWICE || mode == MODE_DIRECT) {
        at->uses++;
        write_behind(at, KIND_BEHIND, 0);
    }
    in_flight = true;
    open_commit = (open_commit + 1) % COMMITS;
    following->bytes = 0;
    following->answers_count = following->answered = 0;
}

static void on_committed(commit *at, int result) {
    if (result != (int)at->journal_bytes) fail("a durable write", result < 0 ? -result : EIO);
    durable_end = at->end;
    at->uses--;
    in_flight = false;
    settle();
}

/* ---- the loop ---- */

static void accept_next(void) {
    struct io_uring_sqe *sqe = entry(KIND_ACCEPT, 0);
    io_uring_prep_accept(sqe, listening_fd, NULL, NULL, SOCK_CLOEXEC);
    mark(sqe, KIND_ACCEPT, 0);
}

static void on_accepted(int fd) {
    if (fd < 0) fail("accept", -fd);
    unsigned index = 0;
    while (index < CONNECTIONS_MAX && (clients[index].fd >= 0 || clients[index].sending)) index++;
    if (index == CONNECTIONS_MAX) fail("accept", EMFILE);
    client *at = &clients[index];
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!at->received) {
        at->received_room = mode == MODE_FOLLOWER ? STREAM_BYTES : RECEIVE_BYTES;
        at->received = malloc(at->received_room);
        at->out[0] = malloc(OUT_BYTES);
        at->out[1] = malloc(OUT_BYTES);
    }
    at->fd = fd;
    at->received_bytes = at->out_bytes[0] = at->out_bytes[1] = 0;
    receive(at);
    accept_next();
}

static void handle(const struct io_uring_cqe *cqe) {
    uint64_t index = cqe->user_data >> 3;
    switch (cqe->user_data & 7) {
    case KIND_ACCEPT:
        on_accepted(cqe->res);
        break;
    case KIND_RECEIVE:
        on_received(&clients[index], cqe->res);
        break;
    case KIND_SEND:
        clients[index].sending = false;
        if (clients[index].fd >= 0) send_answers(&clients[index]);
        break;
    case KIND_COMMIT:
        on_committed(&commits[index], cqe->res);
        break;
    case KIND_BEHIND:
        if (cqe->res <= 0) fail("the write behind", -cqe->res);
        commits[index].uses--;
        break;
    case KIND_IN_PLACE:
        if (cqe->res != (int)commits[index].written_bytes) fail("a durable write", cqe->res < 0 ? -cqe->res : EIO);
        write_journal(&commits[index], BLOCK_BYTES);
        break;
    case KIND_SENT_ON:
        on_sent_on(&followers[index], cqe->res);
        break;
    case KIND_ACK:
        on_ack(&followers[index], cqe->res);
        break;
    }
}

static void open_journal(void) {
    journal_fd = open(journal_path, O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
    if (journal_fd < 0) fail(journal_path, errno);
    uint8_t *block;
    if (posix_memalign((void **)&block, BLOCK_BYTES, 1 << 20)) fail("memory", ENOMEM);
    memset(block, 0, 1 << 20);
    for (uint64_t place = 0; place < JOURNAL_BYTES; place += 1 << 20)
        if (pwrite(journal_fd, block, 1 << 20, (off_t)place) != 1 << 20) fail("writing the journal once", errno);
    if (fsync(journal_fd) < 0) fail("fsync", errno);
    free(block);
}

static enum mode mode_of(const char *name) {
    for (unsigned index = 0; index < sizeof mode_names / sizeof *mode_names; index++)
        if (!strcmp(name, mode_names[index])) return (enum mode)index;
    fail("usage: bare_durable PORT FILE dsync|none|twice|direct|in_place|follower [CPU [PORT PORT]]", EINVAL);
    return MODE_NONE;
}

static void listen_on(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listening_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listening_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listening_fd, (struct sockaddr *)&address, sizeof address) < 0) fail("bind", errno);
    if (listen(listening_fd, 1024) < 0) fail("listen", errno);
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0) fail("affinity", errno);
}

int main(int count, char **arguments) {
    mode = mode_of(count < 4 ? "" : arguments[3]);
    journal_path = arguments[2];
    if (count > 4 && atoi(arguments[4]) >= 0) pin(atoi(arguments[4]));
    for (unsigned index = 0; index < CONNECTIONS_MAX; index++) clients[index].fd = -1;
    for (unsigned index = 0; index < COMMITS; index++) {
        if (posix_memalign((void **)&commits[index].data, BLOCK_BYTES, COMMIT_BYTES)) fail("memory", ENOMEM);
        commits[index].answers = malloc(WAITING_MAX * sizeof *commits[index].answers);
    }
    if (mode != MODE_NONE) open_journal();
    int result = io_uring_queue_init(4096, &ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (result == -EINVAL) result = io_uring_queue_init(4096, &ring, 0);
    if (result < 0) fail("io_uring", -result);
    listen_on(atoi(arguments[1]));
    accept_next();
    for (; followers_count + 5 < (unsigned)count && followers_count < FOLLOWERS_MAX; followers_count++) {
        connect_follower(&followers[followers_count], atoi(arguments[5 + followers_count]));
        await_ack(&followers[followers_count]);
    }
    for (;;) {
        result = io_uring_submit_and_wait(&ring, 1);
        if (result < 0 && result != -EINTR) fail("wait", -result);
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0;
        io_uring_for_each_cqe(&ring, head, cqe) {
            handle(cqe);
            seen++;
        }
        io_uring_cq_advance(&ring, seen);
        for (unsigned index = 0; index < followers_count; index++) send_on(&followers[index]);
        submit_commit();
    }
}
