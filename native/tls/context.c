/*
 * Contexts: from PEM to what OpenSSL makes sessions of. Every text comes from the node's own settings. See tls.h.
 */
#include "tls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TPC_WITH_TLS

#include "context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

/* Fastest first; each with forward secrecy, and whole in itself (AEAD). */
#define SUITES_DEFAULT "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define CIPHERS_DEFAULT "ECDHE+AESGCM:ECDHE+CHACHA20"

int tpc_tls_is_built(void) { return 1; }

tpc_tls_context *tpc_tls_context_keep(tpc_tls_context *context) {
    context->references++;
    return context;
}

void tpc_tls_context_free(tpc_tls_context *context) {
    if (context == NULL || --context->references > 0) return;
    SSL_CTX_free(context->ssl);
    OPENSSL_cleanse(context, sizeof *context);
    free(context);
}

bool tpc_tls_context_asks_client(const tpc_tls_context *context) { return context->client_auth != TPC_TLS_CLIENT_NONE; }

int64_t tpc_tls_context_expires_s(const tpc_tls_context *context) {
    int days = 0, seconds = 0;
    ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(SSL_CTX_get0_certificate(context->ssl)));
    return (int64_t)days * 86400 + seconds;
}

void tpc_tls_error_text(int error, char *text, size_t text_bytes) {
    const char *reason = error == TLS_ERROR_SILENT_RECORDS ? "it sent records without data, again and again"
                         : error == TLS_ERROR_LONG_HELLO   ? "its ClientHello is too long, or too cut up"
                                                           : ERR_reason_error_string((unsigned long)error);
    snprintf(text, text_bytes, "%s", reason != NULL ? reason : "unknown");
}

/* ------------------------------------------------------------------------------------------------ parts of a context */

/* What went wrong, in OpenSSL's words where there are any. */
static int refuse(int part, const char *said, char *why, size_t why_bytes) {
    const char *reason = said != NULL ? said : ERR_reason_error_string(ERR_peek_last_error());
    snprintf(why, why_bytes, "%s", reason != NULL ? reason : "it cannot be used");
    ERR_clear_error();
    return part;
}

static BIO *open_text(const char *text) { return BIO_new_mem_buf(text, -1); }

/* PEM's own question for a password would wait at a terminal. */
static int give_password(char *into, int room, int is_writing, void *context) {
    const char *password = context;
    (void)is_writing;
    if (password == NULL) return -1;
    size_t bytes = strlen(password);
    if (bytes > (size_t)room) return -1;
    memcpy(into, password, bytes);
    return (int)bytes;
}

static const char *fault_of_time(const X509 *certificate) {
    if (X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0) return "the certificate has expired";
    if (X509_cmp_current_time(X509_get0_notBefore(certificate)) >= 0) return "the certificate is not valid yet";
    return NULL;
}

static int take_chain(SSL_CTX *ssl, const char *text, char *why, size_t why_bytes) {
    BIO *bio = open_text(text);
    X509 *first = bio != NULL ? PEM_read_bio_X509(bio, NULL, give_password, NULL) : NULL;
    const char *said = first == NULL ? "there is no certificate in it (PEM: -----BEGIN CERTIFICATE-----)" : NULL;
    if (said == NULL) said = fault_of_time(first);
    bool is_taken = said == NULL && SSL_CTX_use_certificate(ssl, first) == 1;
    for (X509 *next; is_taken && (next = PEM_read_bio_X509(bio, NULL, give_password, NULL)) != NULL;) {
        is_taken = SSL_CTX_add0_chain_cert(ssl, next) == 1;
        if (!is_taken) X509_free(next);
    }
    if (is_taken && ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) is_taken = false;
    X509_free(first);
    BIO_free(bio);
    if (!is_taken) return refuse(TPC_TLS_PART_CHAIN, said, why, why_bytes);
    ERR_clear_error();
    return TPC_TLS_PART_NONE;
}

static int take_key(SSL_CTX *ssl, const tpc_tls_settings *settings, char *why, size_t why_bytes) {
    BIO *bio = open_text(settings->key);
    EVP_PKEY *key =
        bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, give_password, (void *)(uintptr_t)settings->password) : NULL;
    BIO_free(bio);
    if (key == NULL) {
        bool is_locked = strstr(settings->key, "ENCRYPTED") != NULL;
        const char *said = !is_locked                   ? "there is no private key in it (PEM, PKCS #8)"
                           : settings->password == NULL ? "it is encrypted, and no password is given"
                                                        : "the password does not open it";
        return refuse(TPC_TLS_PART_KEY, said, why, why_bytes);
    }
    bool belongs = X509_check_private_key(SSL_CTX_get0_certificate(ssl), key) == 1;
    bool is_taken = belongs && SSL_CTX_use_PrivateKey(ssl, key) == 1;
    EVP_PKEY_free(key);
    if (is_taken) return TPC_TLS_PART_NONE;
    return refuse(TPC_TLS_PART_KEY, belongs ? NULL : "it is not the key of the certificate", why, why_bytes);
}

static STACK_OF(X509_INFO) * all_in(const char *text) {
    BIO *bio = open_text(text);
    STACK_OF(X509_INFO) *all = bio != NULL ? PEM_X509_INFO_read_bio(bio, NULL, give_password, NULL) : NULL;
    BIO_free(bio);
    return all;
}

/* Each certificate of a chain is looked for in its issuer's list, and refused where there is none. But for the last, which
 * stands in the trust store: if its issuer does not, no list of that one can be checked. All lists are the node's own. */
static int judge(int is_good, X509_STORE_CTX *chain) {
    int error = X509_STORE_CTX_get_error(chain), depth = X509_STORE_CTX_get_error_depth(chain);
    bool has_no_list = error == X509_V_ERR_UNABLE_TO_GET_CRL || error == X509_V_ERR_UNABLE_TO_GET_CRL_ISSUER ||
                       error == X509_V_ERR_CRL_SIGNATURE_FAILURE;
    bool is_last = depth > 0 && depth == sk_X509_num(X509_STORE_CTX_get0_chain(chain)) - 1;
    if (is_good || !has_no_list || !is_last) return is_good;
    X509_STORE_CTX_set_error(chain, X509_V_OK);
    return 1;
}

static bool add_list(SSL_CTX *ssl, X509_CRL *list) {
    X509_STORE *store = SSL_CTX_get_cert_store(ssl);
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    X509_STORE_set_verify_cb(store, judge);
    return X509_STORE_add_crl(store, list) == 1;
}

/* Authorities into the store, and their names into what clients are told. One `info` may hold a list as well. */
static bool add_trusted(SSL_CTX *ssl, const X509_INFO *info, uint32_t *authorities) {
    if (info->crl != NULL && !add_list(ssl, info->crl)) return false;
    if (info->x509 == NULL) return true;
    ++*authorities;
    return X509_STORE_add_cert(SSL_CTX_get_cert_store(ssl), info->x509) == 1 &&
           SSL_CTX_add_client_CA(ssl, info->x509) == 1;
}

static int take_trusted(SSL_CTX *ssl, const char *text, char *why, size_t why_bytes) {
    STACK_OF(X509_INFO) *all = all_in(text);
    uint32_t authorities = 0;
    bool is_good = all != NULL;
    for (int i = 0; is_good && i < sk_X509_INFO_num(all); i++)
        is_good = add_trusted(ssl, sk_X509_INFO_value(all, i), &authorities);
    sk_X509_INFO_pop_free(all, X509_INFO_free);
    const char *said = is_good && authorities == 0 ? "there is no certificate in it" : NULL;
    if (!is_good || said != NULL) return refuse(TPC_TLS_PART_TRUSTED, said, why, why_bytes);
    /* As in Java's trust stores, whatever stands there is trusted, self-signed or not. */
    X509_STORE_set_flags(SSL_CTX_get_cert_store(ssl), X509_V_FLAG_PARTIAL_CHAIN);
    return TPC_TLS_PART_NONE;
}

/* A file without a list would revoke nothing, and a certificate in it would be trusted: neither is what was meant. */
static int take_revoked(SSL_CTX *ssl, const char *text, char *why, size_t why_bytes) {
    STACK_OF(X509_INFO) *all = all_in(text);
    bool is_good = all != NULL;
    uint32_t lists = 0;
    const char *said = NULL;
    for (int i = 0; is_good && said == NULL && i < sk_X509_INFO_num(all); i++) {
        const X509_INFO *info = sk_X509_INFO_value(all, i);
        if (info->x509 != NULL) said = "there is a certificate in it, and only lists of revoked ones belong there";
        if (info->crl == NULL) continue;
        lists++;
        is_good = add_list(ssl, info->crl);
    }
    sk_X509_INFO_pop_free(all, X509_INFO_free);
    if (is_good && said == NULL && lists == 0)
        said = "there is no list of revoked certificates in it (PEM: -----BEGIN X509 CRL-----)";
    return is_good && said == NULL ? TPC_TLS_PART_NONE : refuse(TPC_TLS_PART_REVOKED, said, why, why_bytes);
}

/* The same list in OpenSSL's names; NULL: one is unknown, or there is no memory. */
static char *in_own_names(const char *given) {
    size_t room = 2 * strlen(given) + 1, bytes = 0; /* its names are shorter than those of IANA */
    char *made = calloc(1, room), *names = strdup(given), *rest = names;
    for (char *name; made != NULL && names != NULL && (name = strsep(&rest, ":")) != NULL;) {
        const char *own = OPENSSL_cipher_name(name);
        int added = snprintf(made + bytes, room - bytes, "%s%s", bytes > 0 ? ":" : "", own);
        bytes += (size_t)added;
        if (bytes < room && strcmp(own, "(NONE)") != 0) continue;
        free(made);
        made = NULL;
    }
    free(names);
    return made;
}

static int take_ciphers(SSL_CTX *ssl, const tpc_tls_settings *settings, char *why, size_t why_bytes) {
    char *own = settings->ciphers != NULL ? in_own_names(settings->ciphers) : strdup(CIPHERS_DEFAULT);
    bool is_good = own != NULL && SSL_CTX_set_cipher_list(ssl, own) == 1;
    free(own);
    if (is_good)
        is_good = SSL_CTX_set_ciphersuites(ssl, settings->suites != NULL ? settings->suites : SUITES_DEFAULT) == 1;
    return is_good ? TPC_TLS_PART_NONE : refuse(TPC_TLS_PART_CIPHERS, "one of them is unknown", why, why_bytes);
}

static void harden(SSL_CTX *ssl, const tpc_tls_settings *settings) {
    SSL_CTX_set_min_proto_version(ssl, settings->versions & TPC_TLS_1_2 ? TLS1_2_VERSION : TLS1_3_VERSION);
    SSL_CTX_set_max_proto_version(ssl, settings->versions & TPC_TLS_1_3 ? TLS1_3_VERSION : TLS1_2_VERSION);
    SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    SSL_CTX_set_num_tickets(ssl, 0);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_early_data(ssl, 0);
    SSL_CTX_set_max_cert_list(ssl, TLS_CHAIN_BYTES_MAX);
    SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
    if (settings->client_auth == TPC_TLS_CLIENT_NONE) return;
    bool is_needed = settings->client_auth == TPC_TLS_CLIENT_REQUIRED;
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | (is_needed ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
}

static int fill(SSL_CTX *ssl, const tpc_tls_settings *settings, char *why, size_t why_bytes) {
    harden(ssl, settings);
    int part = take_ciphers(ssl, settings, why, why_bytes);
    if (part == 0) part = take_chain(ssl, settings->chain, why, why_bytes);
    if (part == 0) part = take_key(ssl, settings, why, why_bytes);
    if (part == 0 && settings->trusted != NULL) part = take_trusted(ssl, settings->trusted, why, why_bytes);
    if (part == 0 && settings->revoked != NULL) part = take_revoked(ssl, settings->revoked, why, why_bytes);
    if (part == 0 && settings->client_auth != TPC_TLS_CLIENT_NONE && settings->trusted == NULL)
        part = refuse(TPC_TLS_PART_TRUSTED, "none are given to check clients' certificates by", why, why_bytes);
    return part;
}

tpc_tls_context *tpc_tls_context_new(const tpc_tls_settings *settings, int *part, char *why, size_t why_bytes) {
    tpc_tls_context *context = calloc(1, sizeof *context);
    SSL_CTX *ssl = context != NULL && tls_session_prepare() ? SSL_CTX_new(TLS_server_method()) : NULL;
    *part = ssl != NULL ? fill(ssl, settings, why, why_bytes)
                        : refuse(TPC_TLS_PART_LIBRARY, "there is no memory for it", why, why_bytes);
    if (*part != TPC_TLS_PART_NONE) {
        SSL_CTX_free(ssl);
        free(context);
        return NULL;
    }
    *context = (tpc_tls_context){.ssl = ssl, .references = 1, .client_auth = settings->client_auth};
    return context;
}

#else

int tpc_tls_is_built(void) { return 0; }
tpc_tls_context *tpc_tls_context_keep(tpc_tls_context *context) { return context; }
void tpc_tls_context_free(tpc_tls_context *context) { (void)context; }
bool tpc_tls_context_asks_client(const tpc_tls_context *context) { return (void)context, false; }
int64_t tpc_tls_context_expires_s(const tpc_tls_context *context) { return (void)context, 0; }
void tpc_tls_error_text(int error, char *text, size_t text_bytes) { snprintf(text, text_bytes, "%d", error); }

tpc_tls_context *tpc_tls_context_new(const tpc_tls_settings *settings, int *part, char *why, size_t why_bytes) {
    (void)settings;
    *part = TPC_TLS_PART_LIBRARY;
    snprintf(why, why_bytes, "this broker was built without OpenSSL");
    return NULL;
}

#endif
