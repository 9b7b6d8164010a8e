/* Who a connection is, and what it may do before that is known: native/net/connection_identity.c. */
enum tpc_stage {
    TPC_STAGE_SERVES = 0, /* any request, within the rights of its subject */
    TPC_STAGE_SASL = 1,   /* it has not shown who it is: only what that takes */
    TPC_STAGE_TOKEN = 2,  /* the same, and its frames are a mechanism's tokens, without a header (api_key -1) */
    TPC_STAGES_COUNT = 3
};

/* Of the principal, such as User:alice, and of the address that it comes from. */
enum { TPC_PRINCIPAL_BYTES_MAX = 512, TPC_HOST_BYTES_MAX = 64 };

typedef struct {
    uint32_t principal_bytes;
    uint32_t host_bytes;
    uint8_t principal[512];
    uint8_t host[64];
} tpc_subject_names;

/* Connections that come to a listener from now on begin in a stage. 0; -EINVAL: there is no such listener, or stage. */
int tpc_connections_listener_stage(tpc_connections *connections, uint32_t listener, int stage);
/* On (1), a connection is served only once it was let in, and a stream only when the core that it came to has said for
 * whom it is. Streams that it has said nothing of are ended. */
void tpc_connections_require_subject(tpc_connections *connections, int on);
/*
 * From now on the connection serves requests, as that subject: a number > 0 of this core's, and the names that other cores
 * are told. Past `session_deadline_ns` (monotonic; 0: never) it takes only what renews it. Again, to renew it. 0; -ENOTCONN;
 * -EINVAL: no number, or names that are too long; -ENOMEM.
 */
int tpc_connection_let_in(tpc_connections *connections, uint64_t connection, uint32_t subject,
                          int64_t session_deadline_ns, const tpc_subject_names *names);
/* Of one that has not shown who it is: whether its frames are tokens from now on. 0; -ENOTCONN: it is gone, or let in. */
int tpc_connection_expect_tokens(tpc_connections *connections, uint64_t connection, int on);
/* For whom a stream is. 0; -ENOTCONN; -ENODATA: it is no stream, or nothing was said. */
int tpc_connection_carried_subject(tpc_connections *connections, uint64_t connection, tpc_subject_names *names);
/* 0: nobody yet, or it is gone. */
uint32_t tpc_connection_subject(tpc_connections *connections, uint64_t connection);
