/*
 * TLS by the system's OpenSSL (3.0 or later). A context is what a listener is made of: certificate, key, whom it trusts. It
 * may be used by any number of connections, which keep it for as long as they live.
 */
typedef struct tpc_tls_context tpc_tls_context;

enum tpc_tls_client_auth { TPC_TLS_CLIENT_NONE = 0, TPC_TLS_CLIENT_REQUESTED = 1, TPC_TLS_CLIENT_REQUIRED = 2 };

enum tpc_tls_version { TPC_TLS_1_2 = 1, TPC_TLS_1_3 = 2 }; /* bits */

/* Texts are PEM, or lists with `:` in the names of IANA; NULL: none, or the default. */
typedef struct {
    const char *chain; /* the server's certificate first */
    const char *key;
    const char *password; /* of the key */
    const char *trusted;  /* certificates of authorities, and lists of revoked certificates (CRL) among them */
    const char *revoked;  /* such lists and no certificates; with it, each certificate is looked for in one */
    const char *ciphers;  /* of TLS 1.2 */
    const char *suites;   /* of TLS 1.3 */
    uint32_t client_auth;
    uint32_t versions;
} tpc_tls_settings;

/* Which part of the settings cannot be used. */
enum tpc_tls_part {
    TPC_TLS_PART_NONE = 0,
    TPC_TLS_PART_CHAIN = 1,
    TPC_TLS_PART_KEY = 2,
    TPC_TLS_PART_TRUSTED = 3,
    TPC_TLS_PART_CIPHERS = 4,
    TPC_TLS_PART_LIBRARY = 5, /* the library is not there, or has no memory */
    TPC_TLS_PART_REVOKED = 6
};

/* Whether this was built with OpenSSL. */
int tpc_tls_is_built(void);
/* NULL: `*part` of enum tpc_tls_part, and `why` in words. */
tpc_tls_context *tpc_tls_context_new(const tpc_tls_settings *settings, int *part, char *why, size_t why_bytes);
/* Connections that have it keep it. */
void tpc_tls_context_free(tpc_tls_context *context);
/* Seconds from now until the server's certificate expires. */
int64_t tpc_tls_context_expires_s(const tpc_tls_context *context);
/* What an error of TPC_CLOSE_TLS means. */
void tpc_tls_error_text(int error, char *text, size_t text_bytes);

/* Where a client's name stands in its certificate. */
enum tpc_tls_name { TPC_TLS_NAME_SUBJECT = 0, TPC_TLS_NAME_URI = 1, TPC_TLS_NAME_DNS = 2 };
