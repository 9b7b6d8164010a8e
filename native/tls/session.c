/*
 * Sessions: one SSL object each, between two BIOs that are memory. See tls.h.
 *
 * OpenSSL asks its BIO for five bytes of a record, then for the rest, and no further (no read_ahead): so what was fed is
 * consumed record by record, and what is unread is unread ciphertext.
 */
#include "tls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef TPC_WITH_TLS

#include "context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

enum { RECORD_HEADER_BYTES = 5, MESSAGE_HEADER_BYTES = 4, HEAD_BYTES = RECORD_HEADER_BYTES + MESSAGE_HEADER_BYTES };

struct tpc_tls_session {
    SSL *ssl;
    tpc_tls_context *context;
    const uint8_t *input;
    size_t input_bytes;
    uint8_t *output;
    size_t output_room;
    size_t output_bytes;
    uint8_t *spill;
    size_t spill_bytes;
    size_t spill_room;
    uint32_t silent_records;
    uint8_t head[HEAD_BYTES]; /* of the record that a ClientHello begins with */
    uint8_t head_bytes;
    int error;
};

/* ------------------------------------------------------------------------------------------------ the BIO */

/* OpenSSL takes as much memory as the header of a message announces, and of a ClientHello believes 128 KiB of whoever it
 * is. So the header is looked at when it passes, in whatever pieces; records before it that are no handshake are passed by.
 * False: it is too long, or its header is in two records, or it is one of SSL 2. */
static bool is_short_hello(tpc_tls_session *session, const char *data, size_t bytes) {
    const uint8_t *head = session->head;
    size_t missing = HEAD_BYTES - session->head_bytes, taken = bytes < missing ? bytes : missing;
    memcpy(session->head + session->head_bytes, data, taken);
    session->head_bytes += (uint8_t)taken;
    if (head[0] & 0x80) return false;
    if (session->head_bytes < RECORD_HEADER_BYTES) return true;
    uint32_t record_bytes = (uint32_t)head[3] << 8 | head[4];
    if (head[0] != SSL3_RT_HANDSHAKE) {
        if (session->head_bytes == RECORD_HEADER_BYTES + record_bytes) session->head_bytes = 0;
        return true;
    }
    if (record_bytes < MESSAGE_HEADER_BYTES) return false;
    if (session->head_bytes < HEAD_BYTES || head[5] != SSL3_MT_CLIENT_HELLO) return true;
    return ((uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8]) <= TLS_HELLO_BYTES_MAX;
}

static int bio_read(BIO *bio, char *into, size_t room, size_t *read) {
    tpc_tls_session *session = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (session->input_bytes == 0) {
        BIO_set_retry_read(bio);
        return 0;
    }
    size_t bytes = session->input_bytes < room ? session->input_bytes : room;
    if (!session->context->dials && session->head_bytes < HEAD_BYTES &&
        !is_short_hello(session, (const char *)session->input, bytes)) {
        session->error = TLS_ERROR_LONG_HELLO;
        return 0;
    }
    memcpy(into, session->input, bytes);
    session->input += bytes;
    session->input_bytes -= bytes;
    *read = bytes;
    return 1;
}

static bool spill(tpc_tls_session *session, const char *data, size_t bytes) {
    size_t needed = session->spill_bytes + bytes;
    if (needed > TLS_SPILL_BYTES_MAX) return false;
    if (needed > session->spill_room) {
        size_t room = needed < 4096 ? 4096 : 2 * needed;
        uint8_t *grown = realloc(session->spill, room);
        if (grown == NULL) return false;
        session->spill = grown;
        session->spill_room = room;
    }
    memcpy(session->spill + session->spill_bytes, data, bytes);
    session->spill_bytes += bytes;
    return true;
}

static int bio_write(BIO *bio, const char *data, size_t bytes, size_t *written) {
    tpc_tls_session *session = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (session->spill_bytes == 0 && bytes <= session->output_room - session->output_bytes) {
        memcpy(session->output + session->output_bytes, data, bytes);
        session->output_bytes += bytes;
    } else if (!spill(session, data, bytes)) {
        return 0;
    }
    *written = bytes;
    return 1;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

/* Of the process: made with the first context. */
static BIO_METHOD *method;

bool tls_session_prepare(void) {
    if (method != NULL) return true;
    BIO_METHOD *made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tpc frames");
    if (made == NULL) return false;
    BIO_meth_set_read_ex(made, bio_read);
    BIO_meth_set_write_ex(made, bio_write);
    BIO_meth_set_ctrl(made, bio_control);
    method = made;
    return true;
}

/* ------------------------------------------------------------------------------------------------ its life */

/* Counts the records that come. Behind a ServerHello, which may ask for it, another ClientHello may come (TLS 1.3). */
static void on_message(int is_sent, int version, int type, const void *data, size_t bytes, SSL *ssl, void *context) {
    (void)version, (void)ssl;
    tpc_tls_session *session = context;
    if (!is_sent && type == SSL3_RT_HEADER) session->silent_records++;
    if (is_sent && type == SSL3_RT_HANDSHAKE && bytes > 0 && *(const uint8_t *)data == SSL3_MT_SERVER_HELLO)
        session->head_bytes = 0;
}

tpc_tls_session *tpc_tls_session_new(tpc_tls_context *context) {
    tpc_tls_session *session = calloc(1, sizeof *session);
    if (session == NULL) return NULL;
    session->ssl = SSL_new(context->ssl);
    BIO *bio = session->ssl != NULL ? BIO_new(method) : NULL;
    if (bio == NULL) {
        SSL_free(session->ssl);
        free(session);
        return NULL;
    }
    BIO_set_data(bio, session);
    BIO_set_init(bio, 1);
    SSL_set_bio(session->ssl, bio, bio);
    if (context->dials)
        SSL_set_connect_state(session->ssl);
    else
        SSL_set_accept_state(session->ssl);
    SSL_set_msg_callback(session->ssl, on_message);
    SSL_set_msg_callback_arg(session->ssl, session);
    session->context = tpc_tls_context_keep(context);
    return session;
}

void tpc_tls_session_free(tpc_tls_session *session) {
    if (session == NULL) return;
    SSL_free(session->ssl);
    tpc_tls_context_free(session->context);
    free(session->spill);
    free(session);
}

/* ------------------------------------------------------------------------------------------------ bytes */

void tpc_tls_feed(tpc_tls_session *session, const uint8_t *data, size_t bytes) {
    session->input = data;
    session->input_bytes = bytes;
}

size_t tpc_tls_unread(const tpc_tls_session *session) { return session->input_bytes; }

size_t tpc_tls_pending(const tpc_tls_session *session) { return (size_t)SSL_pending(session->ssl); }

int tpc_tls_error(const tpc_tls_session *session) { return session->error; }

/* Errors that others have left are none of the next call's. To empty a list that is empty costs some 400 instructions. */
static void forget_errors(void) {
    if (ERR_peek_error() != 0) ERR_clear_error();
}

/* What a call that did not succeed has come to. */
static int outcome(tpc_tls_session *session, int returned) {
    int error = SSL_get_error(session->ssl, returned);
    if (error == SSL_ERROR_WANT_READ && session->silent_records <= TLS_SILENT_RECORDS_MAX) return TLS_WANTS_MORE;
    if (error == SSL_ERROR_ZERO_RETURN) return TLS_ENDED;
    if (error == SSL_ERROR_WANT_READ)
        session->error = TLS_ERROR_SILENT_RECORDS;
    else if (session->error != TLS_ERROR_LONG_HELLO)
        session->error = (int)(ERR_peek_error() & INT32_MAX);
    ERR_clear_error();
    return TLS_FAILED;
}

int tpc_tls_handshake(tpc_tls_session *session) {
    forget_errors();
    int returned = SSL_do_handshake(session->ssl);
    if (returned != 1) return outcome(session, returned);
    session->silent_records = 0;
    return 1;
}

int tpc_tls_read(tpc_tls_session *session, uint8_t *into, size_t room) {
    size_t bytes;
    forget_errors();
    int returned = SSL_read_ex(session->ssl, into, room, &bytes);
    if (returned != 1) return outcome(session, returned);
    session->silent_records = 0;
    return (int)bytes;
}

int tpc_tls_write(tpc_tls_session *session, const uint8_t *data, size_t bytes) {
    size_t written;
    forget_errors();
    int returned = SSL_write_ex(session->ssl, data, bytes, &written);
    if (returned == 1 && written == bytes) return 0;
    outcome(session, returned);
    return TLS_FAILED;
}

void tpc_tls_end(tpc_tls_session *session) {
    forget_errors();
    if (SSL_is_init_finished(session->ssl)) SSL_shutdown(session->ssl);
    forget_errors();
}

void tpc_tls_set_output(tpc_tls_session *session, uint8_t *into, size_t room) {
    session->output = into;
    session->output_room = room;
    session->output_bytes = 0;
}

size_t tpc_tls_output_bytes(const tpc_tls_session *session) { return session->output_bytes; }
size_t tpc_tls_spilled(const tpc_tls_session *session) { return session->spill_bytes; }

void tpc_tls_take_spilled(tpc_tls_session *session, uint8_t *into) {
    memcpy(into, session->spill, session->spill_bytes);
    free(session->spill);
    session->spill = NULL;
    session->spill_bytes = session->spill_room = 0;
}

int tpc_tls_peer_name(const tpc_tls_session *session, int where, char *into, size_t room) {
    X509 *certificate = SSL_get0_peer_certificate(session->ssl);
    return certificate == NULL ? 0 : tls_name_of(certificate, where, into, room);
}

#else /* without OpenSSL there are no contexts, so nothing below is called */

tpc_tls_session *tpc_tls_session_new(tpc_tls_context *context) { return (void)context, NULL; }
void tpc_tls_session_free(tpc_tls_session *session) { (void)session; }
void tpc_tls_feed(tpc_tls_session *session, const uint8_t *data, size_t bytes) {
    (void)session, (void)data, (void)bytes;
}
size_t tpc_tls_unread(const tpc_tls_session *session) { return (void)session, 0; }
int tpc_tls_handshake(tpc_tls_session *session) { return (void)session, TLS_FAILED; }
int tpc_tls_read(tpc_tls_session *session, uint8_t *into, size_t room) {
    return (void)session, (void)into, (void)room, TLS_FAILED;
}
size_t tpc_tls_pending(const tpc_tls_session *session) { return (void)session, 0; }
int tpc_tls_write(tpc_tls_session *session, const uint8_t *data, size_t bytes) {
    return (void)session, (void)data, (void)bytes, TLS_FAILED;
}
void tpc_tls_end(tpc_tls_session *session) { (void)session; }
int tpc_tls_error(const tpc_tls_session *session) { return (void)session, 0; }
void tpc_tls_set_output(tpc_tls_session *session, uint8_t *into, size_t room) { (void)session, (void)into, (void)room; }
size_t tpc_tls_output_bytes(const tpc_tls_session *session) { return (void)session, 0; }
size_t tpc_tls_spilled(const tpc_tls_session *session) { return (void)session, 0; }
void tpc_tls_take_spilled(tpc_tls_session *session, uint8_t *into) { (void)session, (void)into; }
int tpc_tls_peer_name(const tpc_tls_session *session, int where, char *into, size_t room) {
    return (void)session, (void)where, (void)into, (void)room, 0;
}

#endif
