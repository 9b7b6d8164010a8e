/* What context.c, session.c and names.c of this folder share. Needs OpenSSL. */
#ifndef TPC_TLS_CONTEXT_H
#define TPC_TLS_CONTEXT_H

#include <openssl/ssl.h>

#include "tls.h"

/* Of links between nodes; see links.c. */
typedef struct {
    uint8_t name[TPC_TLS_KEY_NAME_BYTES];
    uint8_t key[TPC_TLS_KEY_BYTES];
} tls_key;

struct tpc_tls_context {
    SSL_CTX *ssl;
    uint32_t references;
    uint32_t client_auth;
    bool dials;
    uint32_t keys_count;
    tls_key keys[TPC_TLS_KEYS_MAX];
};

/* An error of our own among those of OpenSSL, which have a library's number above their lowest 23 bits. */
enum { TLS_ERROR_SILENT_RECORDS = 1, TLS_ERROR_LONG_HELLO = 2 };

/* session.c. False: no memory. */
bool tls_session_prepare(void);

/* names.c, as tpc_tls_peer_name(). */
int tls_name_of(const X509 *certificate, int where, char *into, size_t room);

#endif
