/*
 * TLS without sockets: what was received is fed, what is to be sent is taken.
 *
 * A session reads ciphertext where it lies (`tpc_tls_feed`), and keeps at most the part of one record that has come. What it
 * has to send goes where it is told (`tpc_tls_set_output`), and what has no room there, such as a handshake's messages, is
 * spilled into memory of its own, at most TLS_SPILL_BYTES_MAX.
 *
 * Only TLS 1.2 and 1.3. No renegotiation, compression, early data or resumption. One thread.
 */
#ifndef TPC_TLS_H
#define TPC_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cdef/27_tls.h"
#include "cdef/28_tls_links.h"

enum {
    TLS_RECORD_BYTES = 16384,      /* of plaintext in one record, at most */
    TLS_OVERHEAD_BYTES_MAX = 128,  /* of one record, above its plaintext */
    TLS_SPILL_BYTES_MAX = 1 << 16, /* a certificate chain of a server has to fit */
    TLS_HELLO_BYTES_MAX = 16384,   /* of a ClientHello */
    TLS_CHAIN_BYTES_MAX = 32768,   /* of a client's certificates */
    TLS_SILENT_RECORDS_MAX = 64    /* in a row without a byte for whoever reads: the peer means no good */
};

/* What a call has come to when it is not a number of bytes. */
enum { TLS_WANTS_MORE = 0, TLS_ENDED = -1, TLS_FAILED = -2 };

typedef struct tpc_tls_session tpc_tls_session;

tpc_tls_context *tpc_tls_context_keep(tpc_tls_context *context);
bool tpc_tls_context_asks_client(const tpc_tls_context *context);

/* NULL: no memory. */
tpc_tls_session *tpc_tls_session_new(tpc_tls_context *context);
void tpc_tls_session_free(tpc_tls_session *session);

/* The next bytes that were received, borrowed until they are read or others are fed; how many of them are unread. */
void tpc_tls_feed(tpc_tls_session *session, const uint8_t *data, size_t bytes);
size_t tpc_tls_unread(const tpc_tls_session *session);

/* 1: the handshake is whole. TLS_WANTS_MORE, TLS_FAILED. */
int tpc_tls_handshake(tpc_tls_session *session);
/* Decrypted bytes, of one record at most; TLS_WANTS_MORE, TLS_ENDED (close_notify), TLS_FAILED. */
int tpc_tls_read(tpc_tls_session *session, uint8_t *into, size_t room);
/* Decrypted already and not read. */
size_t tpc_tls_pending(const tpc_tls_session *session);
/* All of `bytes`, in records of TLS_RECORD_BYTES but for the last. 0 or TLS_FAILED. */
int tpc_tls_write(tpc_tls_session *session, const uint8_t *data, size_t bytes);
/* Says to the peer that nothing follows. */
void tpc_tls_end(tpc_tls_session *session);
/* Of the last TLS_FAILED: see tpc_tls_error_text(). */
int tpc_tls_error(const tpc_tls_session *session);

/* Where the next ciphertext goes while it fits; how much went there. */
void tpc_tls_set_output(tpc_tls_session *session, uint8_t *into, size_t room);
size_t tpc_tls_output_bytes(const tpc_tls_session *session);
/* What went nowhere yet; it is to be sent before anything else. */
size_t tpc_tls_spilled(const tpc_tls_session *session);
void tpc_tls_take_spilled(tpc_tls_session *session, uint8_t *into);

/* A peer's name as text without a zero at its end: its length. 0: it gave no certificate; -ENOENT: no such name is in it;
 * -ENAMETOOLONG. */
int tpc_tls_peer_name(const tpc_tls_session *session, int where, char *into, size_t room);

#endif
