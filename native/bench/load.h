/* The load generator's connections and how it reads answers (load_answers.c); the loop is in load.c. */
#ifndef TPC_BENCH_LOAD_H
#define TPC_BENCH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum protocol { PROTOCOL_KAFKA_PRODUCE, PROTOCOL_REDIS, PROTOCOL_NATS, PROTOCOL_KAFKA_FETCH };

/* What one answer said. */
typedef struct {
    size_t bytes;        /* of the stream; 0: not whole yet */
    size_t wanted;       /* room that the whole answer needs, when that is known */
    int32_t error;       /* the server's error number, or -1 where it has only a text */
    bool ignored;        /* belongs to no request */
    bool ping;           /* wants "PONG" back (NATS) */
    int64_t first, next; /* fetch: offsets of the first record and after the last one, -1 without records */
    uint64_t records;    /* fetch: as the headers of its whole batches count them */
    uint64_t data_bytes; /* fetch: bytes of those batches */
    uint32_t session;    /* fetch: the id of the session, 0 without one */
    bool gap;            /* fetch: a batch does not begin where the one before it ended */
} answer;

/* Reads the answer at the start of `bytes`. */
answer answer_read(enum protocol protocol, const uint8_t *bytes, size_t count);

enum { SENDS_MAX = 64, LOAD_TLS_CHUNK = 1 << 17 };

/* A connection under TLS (load_tls.c). The handshake waits; whatever goes wrong ends the program. */
typedef struct load_tls load_tls;
load_tls *load_tls_open(int fd);
/* The next LOAD_TLS_CHUNK bytes of the parts, at most: those in front of `*done` have left whole, and it moves on. There are up
 * to SENDS_MAX parts, and a part's records are its own. The bytes stay until the next call. */
struct iovec load_tls_encrypt(load_tls *it, const struct iovec *parts, unsigned count, unsigned *done);
void load_tls_received(load_tls *it, const uint8_t *bytes, size_t count);
/* 0: nothing for now. */
size_t load_tls_read(load_tls *it, uint8_t *into, size_t room);

#endif
