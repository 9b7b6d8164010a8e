/*
 * Datagrams, each acknowledged (docs/datagrams.md), and the bare server beside them.
 *
 *   datagram_load PORT TOPIC_HASH PARTITIONS SOCKETS WINDOW VALUE_BYTES WARM_UP_MS MEASURED_MS
 *   datagram_load echo PORT
 *
 * The first one keeps WINDOW datagrams under way on each of SOCKETS connected sockets, by turns to all partitions, and sends what is
 * not answered within RETRY_MS again. It prints one JSON object. The second one answers the first 16 bytes of each
 * datagram, as an answer, until it is killed: what UDP over loopback allows a server that does nothing.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"

enum { HEADER_BYTES = 16, ACKNOWLEDGE = 1, ANSWER = 128, SOCKETS_MAX = 64, WINDOW_MAX = 1024, AT_ONCE = 64 };
enum { RETRY_MS = 200, DATAGRAM_BYTES_MAX = 16384, BUFFER_BYTES = 8 << 20 };

typedef struct {
    int64_t sent_ns; /* for the first time */
    int64_t again_ns;
    uint32_t partition;
    uint32_t sends; /* of its request id: an answer to an earlier one with this id cannot be */
} under_way;

typedef struct {
    int descriptor;
    under_way slots[WINDOW_MAX];
} sender;

static sender senders[SOCKETS_MAX];
static histogram answered;
static uint8_t datagram[DATAGRAM_BYTES_MAX];
static uint32_t topic, partitions, window, datagram_bytes, partition_next;
static uint64_t acknowledged, refused, again;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "datagram_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int udp_socket(void) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), bytes = BUFFER_BYTES;
    if (fd < 0) fail("socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    return fd;
}

static void echo(struct sockaddr_in address) {
    static uint8_t bytes[AT_ONCE][DATAGRAM_BYTES_MAX];
    static struct sockaddr_in from[AT_ONCE];
    struct iovec vectors[AT_ONCE];
    struct mmsghdr messages[AT_ONCE];
    int fd = udp_socket();
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) fail("bind");
    for (;;) {
        for (int i = 0; i < AT_ONCE; i++) {
            vectors[i] = (struct iovec){bytes[i], DATAGRAM_BYTES_MAX};
            messages[i].msg_hdr = (struct msghdr){
                .msg_name = &from[i], .msg_namelen = sizeof from[i], .msg_iov = &vectors[i], .msg_iovlen = 1};
        }
        int count = recvmmsg(fd, messages, AT_ONCE, MSG_WAITFORONE, NULL);
        if (count < 0) fail("receive");
        for (int i = 0; i < count; i++) {
            vectors[i].iov_len = HEADER_BYTES;
            bytes[i][1] = ANSWER;
            bytes[i][2] = bytes[i][3] = 0;
        }
        sendmmsg(fd, messages, (unsigned)count, 0);
    }
}

/* A slot's request id: which one it is, and which use of it. */
static void send_slot(sender *it, uint32_t slot) {
    under_way *one = &it->slots[slot];
    uint32_t words[3] = {htonl(topic), htonl(one->partition), htonl(one->sends * WINDOW_MAX + slot)};
    datagram[0] = 1;
    datagram[1] = ACKNOWLEDGE;
    datagram[2] = datagram[3] = 0;
    memcpy(datagram + 4, words, sizeof words);
    one->again_ns = now_ns() + (int64_t)RETRY_MS * 1000000;
    send(it->descriptor, datagram, datagram_bytes, MSG_DONTWAIT);
}

static void send_new(sender *it, uint32_t slot) {
    under_way *one = &it->slots[slot];
    one->partition = partition_next++ % partitions;
    one->sends++;
    one->sent_ns = now_ns();
    send_slot(it, slot);
}

static void take_answers(sender *it, bool counts) {
    uint8_t bytes[AT_ONCE][HEADER_BYTES];
    struct iovec vectors[AT_ONCE];
    struct mmsghdr messages[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        vectors[i] = (struct iovec){bytes[i], HEADER_BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    int count = recvmmsg(it->descriptor, messages, AT_ONCE, MSG_DONTWAIT, NULL);
    int64_t now = now_ns();
    for (int i = 0; i < count; i++) {
        uint32_t id, slot;
        memcpy(&id, bytes[i] + 12, sizeof id);
        id = ntohl(id);
        slot = id % WINDOW_MAX;
        if (slot >= window || id / WINDOW_MAX != it->slots[slot].sends % (UINT32_MAX / WINDOW_MAX + 1)) continue;
        bool is_good = bytes[i][2] == 0 && bytes[i][3] == 0;
        if (!is_good) {
            refused++;
            continue; /* it is sent again when its time has come */
        }
        if (counts) {
            acknowledged++;
            histogram_add(&answered, (uint64_t)(now - it->slots[slot].sent_ns));
        }
        send_new(it, slot);
    }
}

static void send_again(sender *it) {
    int64_t now = now_ns();
    for (uint32_t slot = 0; slot < window; slot++) {
        if (it->slots[slot].again_ns > now) continue;
        again++;
        send_slot(it, slot);
    }
}

static void run(int count, int64_t warm_up_ns, int64_t measured_ns) {
    struct pollfd polled[SOCKETS_MAX];
    for (int i = 0; i < count; i++) {
        polled[i] = (struct pollfd){senders[i].descriptor, POLLIN, 0};
        for (uint32_t slot = 0; slot < window; slot++) send_new(&senders[i], slot);
    }
    int64_t from = now_ns() + warm_up_ns, until = from + measured_ns, look = from;
    for (int64_t now = now_ns(); now < until; now = now_ns()) {
        if (poll(polled, (nfds_t)count, 20) < 0) fail("poll");
        for (int i = 0; i < count; i++)
            if (polled[i].revents) take_answers(&senders[i], now >= from);
        if (now < look) continue;
        for (int i = 0; i < count; i++) send_again(&senders[i]);
        look = now + 20000000;
    }
}

int main(int count, char **arguments) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (count == 3 && strcmp(arguments[1], "echo") == 0) {
        address.sin_port = htons((uint16_t)atoi(arguments[2]));
        echo(address);
    }
    if (count != 9) {
        fprintf(stderr, "datagram_load PORT TOPIC_HASH PARTITIONS SOCKETS WINDOW VALUE_BYTES WARM_UP_MS MEASURED_MS\n");
        return 2;
    }
    int sockets = atoi(arguments[4]);
    address.sin_port = htons((uint16_t)atoi(arguments[1]));
    topic = (uint32_t)strtoul(arguments[2], NULL, 10);
    partitions = (uint32_t)atoi(arguments[3]);
    window = (uint32_t)atoi(arguments[5]);
    datagram_bytes = HEADER_BYTES + (uint32_t)atoi(arguments[6]);
    if (sockets < 1 || sockets > SOCKETS_MAX || window < 1 || window > WINDOW_MAX || partitions < 1 ||
        datagram_bytes > DATAGRAM_BYTES_MAX) {
        fprintf(stderr, "datagram_load: 1 to %d sockets, 1 to %d under way, %d bytes at most\n", SOCKETS_MAX,
                WINDOW_MAX, DATAGRAM_BYTES_MAX);
        return 2;
    }
    for (int i = 0; i < sockets; i++) {
        senders[i].descriptor = udp_socket();
        if (connect(senders[i].descriptor, (struct sockaddr *)&address, sizeof address) < 0) fail("connect");
    }
    int64_t measured_ns = atoll(arguments[8]) * 1000000;
    run(sockets, atoll(arguments[7]) * 1000000, measured_ns);
    printf("{\"acknowledged\": %llu, \"refused\": %llu, \"again\": %llu, \"buckets\": ",
           (unsigned long long)acknowledged, (unsigned long long)refused, (unsigned long long)again);
    histogram_print(&answered, stdout);
    printf("}\n");
    return 0;
}
