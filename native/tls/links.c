/*
 * Contexts of links between nodes: keys that both ends have, in place of certificates. See cdef/28_tls_links.h.
 *
 * One suite, so that a key belongs to one hash (RFC 8446, 4.2.11), and each handshake has a Diffie-Hellman exchange of its own:
 * whoever learns the key later cannot read what was said before.
 */
#include "tls.h"

#include <stdlib.h>
#include <string.h>

#ifdef TPC_WITH_TLS

#include "context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

static const uint8_t SUITE[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

static tpc_tls_context *context_of(const SSL *ssl) { return SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)); }

/* What OpenSSL takes for a key that was agreed on. NULL: no memory. */
static SSL_SESSION *session_of(SSL *ssl, const tls_key *key) {
    SSL_SESSION *session = SSL_SESSION_new();
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, SUITE);
    if (session != NULL && cipher != NULL && SSL_SESSION_set1_master_key(session, key->key, sizeof key->key) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int offer(SSL *ssl, const EVP_MD *digest, const unsigned char **name, size_t *name_bytes,
                 SSL_SESSION **session) {
    const tls_key *key = &context_of(ssl)->keys[0];
    *session = NULL;
    if (digest != NULL && EVP_MD_get_type(digest) != NID_sha256) return 0;
    *session = session_of(ssl, key);
    *name = key->name;
    *name_bytes = sizeof key->name;
    return *session != NULL;
}

/* Without a session the handshake goes on as if no key had been offered, and ends: there is no certificate. */
static int find(SSL *ssl, const unsigned char *name, size_t name_bytes, SSL_SESSION **session) {
    const tpc_tls_context *context = context_of(ssl);
    *session = NULL;
    for (uint32_t i = 0; i < context->keys_count; i++) {
        const tls_key *key = &context->keys[i];
        if (name_bytes != sizeof key->name || memcmp(name, key->name, name_bytes) != 0) continue;
        *session = session_of(ssl, key);
        return *session != NULL;
    }
    return 1;
}

/* Who dials believes no certificate; who is dialled has none, so that without a key in common there is no handshake. */
static bool harden(SSL_CTX *ssl, bool dials) {
    SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_num_tickets(ssl, 0);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_early_data(ssl, 0);
    if (dials) SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, NULL);
    return SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(ssl, "TLS_AES_128_GCM_SHA256") == 1;
}

tpc_tls_context *tpc_tls_links_new(int dials, const uint8_t *keys, uint32_t count) {
    tpc_tls_context *context = count > 0 && count <= TPC_TLS_KEYS_MAX ? calloc(1, sizeof *context) : NULL;
    SSL_CTX *ssl = context != NULL && tls_session_prepare()
                       ? SSL_CTX_new(dials ? TLS_client_method() : TLS_server_method())
                       : NULL;
    if (ssl == NULL || !harden(ssl, dials != 0)) {
        SSL_CTX_free(ssl);
        free(context);
        ERR_clear_error();
        return NULL;
    }
    *context = (tpc_tls_context){.ssl = ssl, .references = 1, .dials = dials != 0, .keys_count = count};
    for (uint32_t i = 0; i < count; i++) {
        memcpy(context->keys[i].name, keys, TPC_TLS_KEY_NAME_BYTES);
        memcpy(context->keys[i].key, keys + TPC_TLS_KEY_NAME_BYTES, TPC_TLS_KEY_BYTES);
        keys += TPC_TLS_KEY_NAME_BYTES + TPC_TLS_KEY_BYTES;
    }
    SSL_CTX_set_app_data(ssl, context);
    if (dials)
        SSL_CTX_set_psk_use_session_callback(ssl, offer);
    else
        SSL_CTX_set_psk_find_session_callback(ssl, find);
    return context;
}

#else

tpc_tls_context *tpc_tls_links_new(int dials, const uint8_t *keys, uint32_t count) {
    return (void)dials, (void)keys, (void)count, NULL;
}

#endif
