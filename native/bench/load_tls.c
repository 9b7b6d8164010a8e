/* Connections of the load generator under TLS, by OpenSSL over memory: sockets stay the loop's. See load.h. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

struct load_tls {
    SSL *session;
    BIO *in, *out;
    uint8_t *bytes; /* that leave now */
    size_t room;
};

static void give_up(const char *what) {
    fprintf(stderr, "load: TLS: %s: ", what);
    ERR_print_errors_fp(stderr);
    fputc('\n', stderr);
    exit(1);
}

load_tls *load_tls_open(int fd) {
    static SSL_CTX *context; /* nobody's certificate is looked at: the server is this bench's own */
    load_tls *it = calloc(1, sizeof *it);
    if (!context) context = SSL_CTX_new(TLS_client_method());
    if (!it || !context || !(it->session = SSL_new(context))) give_up("memory");
    if (!SSL_set_fd(it->session, fd) || SSL_connect(it->session) != 1) give_up("handshake");
    it->in = BIO_new(BIO_s_mem());
    it->out = BIO_new(BIO_s_mem());
    if (!it->in || !it->out) give_up("memory");
    SSL_set_bio(it->session, it->in, it->out); /* what the server sends behind its handshake comes by the loop */
    return it;
}

struct iovec load_tls_encrypt(load_tls *it, const struct iovec *parts, unsigned count) {
    for (unsigned index = 0; index < count; index++) {
        size_t written;
        if (SSL_write_ex(it->session, parts[index].iov_base, parts[index].iov_len, &written) != 1) give_up("write");
    }
    size_t bytes = BIO_ctrl_pending(it->out), taken;
    if (bytes > it->room) {
        free(it->bytes);
        it->room = bytes;
        it->bytes = malloc(bytes);
        if (!it->bytes) give_up("memory");
    }
    if (BIO_read_ex(it->out, it->bytes, bytes, &taken) != 1 || taken != bytes) give_up("read");
    return (struct iovec){it->bytes, bytes};
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
