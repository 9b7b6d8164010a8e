/*
 * TLS 1.3 between nodes, by keys that both have (RFC 8446, 2.2): no certificates, and still forward secrecy.
 *
 * A key is TPC_TLS_KEY_BYTES, and has a name of TPC_TLS_KEY_NAME_BYTES that is told in the clear. Who dials offers the first
 * one; who was dialled takes any of its own.
 */
enum { TPC_TLS_KEY_BYTES = 32, TPC_TLS_KEY_NAME_BYTES = 16, TPC_TLS_KEYS_MAX = 4 };

/* `keys`: count times name and key, one behind the other. NULL: no memory, or this was built without OpenSSL. */
tpc_tls_context *tpc_tls_links_new(int dials, const uint8_t *keys, uint32_t count);

/* A session without a socket, for the greeting of two nodes; `tls.h` says more. */
typedef struct tpc_tls_session tpc_tls_session;
tpc_tls_session *tpc_tls_session_new(tpc_tls_context *context);
void tpc_tls_session_free(tpc_tls_session *session);
void tpc_tls_feed(tpc_tls_session *session, const uint8_t *data, size_t bytes);
size_t tpc_tls_unread(const tpc_tls_session *session);
int tpc_tls_handshake(tpc_tls_session *session);
int tpc_tls_read(tpc_tls_session *session, uint8_t *into, size_t room);
int tpc_tls_write(tpc_tls_session *session, const uint8_t *data, size_t bytes);
int tpc_tls_error(const tpc_tls_session *session);
void tpc_tls_set_output(tpc_tls_session *session, uint8_t *into, size_t room);
size_t tpc_tls_output_bytes(const tpc_tls_session *session);
size_t tpc_tls_spilled(const tpc_tls_session *session);
void tpc_tls_take_spilled(tpc_tls_session *session, uint8_t *into);
