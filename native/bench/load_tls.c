/* Connections of the load generator under TLS, by OpenSSL over memory: sockets stay the loop's. See load.h. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

enum { CHUNK_ROOM = LOAD_TLS_CHUNK / SSL3_RT_MAX_PLAIN_LENGTH * (SSL3_RT_MAX_PLAIN_LENGTH + 64) + SENDS_MAX * 64 };

struct load_tls {
    SSL *session;
    BIO *in;
    size_t begun; /* of the first part that has not left */
    size_t filled;
    uint8_t chunk[CHUNK_ROOM]; /* that leaves now */
};

static void give_up(const char *what) {
    fprintf(stderr, "load: TLS: %s: ", what);
    ERR_print_errors_fp(stderr);
    fputc('\n', stderr);
    exit(1);
}

/* Behind what the chunk has: a memory BIO grows, clears what it grew by, and has all of it copied once more. */
static int to_chunk(BIO *bio, const char *bytes, size_t count, size_t *written) {
    load_tls *it = BIO_get_data(bio);
    if (count > sizeof it->chunk - it->filled) return 0;
    memcpy(it->chunk + it->filled, bytes, count);
    it->filled += count;
    *written = count;
    return 1;
}

static long control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static BIO *open_chunk(load_tls *it) {
    static BIO_METHOD *method;
    if (!method) {
        method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "chunk");
        if (!method || !BIO_meth_set_write_ex(method, to_chunk) || !BIO_meth_set_ctrl(method, control)) return NULL;
    }
    BIO *bio = BIO_new(method);
    if (!bio) return NULL;
    BIO_set_data(bio, it);
    BIO_set_init(bio, 1);
    return bio;
}

load_tls *load_tls_open(int fd) {
    static SSL_CTX *context; /* nobody's certificate is looked at: the server is this bench's own */
    load_tls *it = calloc(1, sizeof *it);
    if (!context) context = SSL_CTX_new(TLS_client_method());
    if (!it || !context || !(it->session = SSL_new(context))) give_up("memory");
    if (!SSL_set_fd(it->session, fd) || SSL_connect(it->session) != 1) give_up("handshake");
    it->in = BIO_new(BIO_s_mem());
    BIO *out = open_chunk(it);
    if (!it->in || !out) give_up("memory");
    SSL_set_bio(it->session, it->in, out); /* what the server sends behind its handshake comes by the loop */
    return it;
}

struct iovec load_tls_encrypt(load_tls *it, const struct iovec *parts, unsigned count, unsigned *done) {
    size_t room = LOAD_TLS_CHUNK, written;
    for (it->filled = 0; *done < count && room > 0;) {
        const struct iovec *part = &parts[*done];
        size_t left = part->iov_len - it->begun, bytes = left < room ? left : room;
        const uint8_t *from = (const uint8_t *)part->iov_base + it->begun;
        if (SSL_write_ex(it->session, from, bytes, &written) != 1 || written != bytes) give_up("write");
        room -= bytes;
        it->begun = bytes < left ? it->begun + bytes : 0;
        *done += bytes == left;
    }
    return (struct iovec){it->chunk, it->filled};
}

void load_tls_received(load_tls *it, const uint8_t *bytes, size_t count) {
    size_t written;
    if (BIO_write_ex(it->in, bytes, count, &written) != 1 || written != count) give_up("memory");
}

size_t load_tls_read(load_tls *it, uint8_t *into, size_t room) {
    size_t got = 0;
    if (SSL_read_ex(it->session, into, room, &got) == 1) return got;
    if (SSL_get_error(it->session, 0) != SSL_ERROR_WANT_READ) give_up("read");
    return 0;
}
