/*
 * Quotas of clients: what each may use a second, counted over Kafka's windows (quota.c), and connections that are muted for
 * the time that they are over it (connection_quota.c).
 */
enum {
    TPC_QUOTA_PRODUCE = 0,      /* bytes of requests */
    TPC_QUOTA_FETCH = 1,        /* bytes of answers */
    TPC_QUOTA_REQUEST = 2,      /* nanoseconds of this core */
    TPC_QUOTA_CLIENT_KINDS = 3, /* the kinds above */
    TPC_QUOTA_CONNECTION = 3,   /* connections of an address */
    TPC_QUOTA_KINDS = 4,
    TPC_QUOTA_WINDOWS_MAX = 32
};

/* A rate is taken over `count` windows, the one under way included, of `window_ns` each. */
typedef struct {
    int64_t window_ns;
    uint32_t count; /* 1 to TPC_QUOTA_WINDOWS_MAX */
} tpc_quota_windows;

/* What those that share a quota have used. A cell is a window's number (24 bits) and the amount in it (40 bits). */
typedef struct {
    uint64_t key; /* 0: free */
    uint64_t cells[32];
} tpc_quota_bucket;

/* In memory of one core, or of all of a node: everything in it changes in single atomic steps, and no core waits for another. */
typedef struct tpc_quota_table tpc_quota_table;

/* How much memory so many buckets of clients need, and an eighth as many of addresses. */
size_t tpc_quota_table_bytes(uint32_t buckets);
/* The table in memory that is all zero, or that another core has begun: the first one draws what its keys depend on. NULL with
 * errno EINVAL: there is no room for a bucket. */
tpc_quota_table *tpc_quota_table_in(void *memory, size_t bytes);
/* The bucket of a kind and of whom it is shared by. It may be another's later: see `key`. Where there is no place it is the
 * kind's common one; an address takes the place of another, with what is counted there. */
tpc_quota_bucket *tpc_quota_bucket_of(tpc_quota_table *table, const tpc_quota_windows *windows, int kind,
                                      const uint8_t *user, uint32_t user_bytes, const uint8_t *client,
                                      uint32_t client_bytes, int64_t now_ns, uint64_t *key);
/* The same by what `key` said then, which is not 0: of one that may be another's by now. */
tpc_quota_bucket *tpc_quota_bucket_again(tpc_quota_table *table, const tpc_quota_windows *windows, int kind,
                                         int64_t now_ns, uint64_t *key);
void tpc_quota_add(tpc_quota_bucket *bucket, const tpc_quota_windows *windows, uint64_t amount, int64_t now_ns);
/* In the windows that count. */
uint64_t tpc_quota_sum(const tpc_quota_bucket *bucket, const tpc_quota_windows *windows, int64_t now_ns);
/* How long nothing more may be used until the rate is `limit` a second; 0: it is not above it. */
int64_t tpc_quota_throttle_ms(const tpc_quota_bucket *bucket, const tpc_quota_windows *windows, double limit,
                              int64_t now_ns);

/* A quota of users and client ids. Bytes of a name: -1: none is named, -2: whoever has none of its own. client_bytes -3: it is
 * of an address, `user` has the 16 bytes of it (IPv4 as mapped to IPv6), and limits[0] is of new connections. */
typedef struct {
    const uint8_t *user;
    const uint8_t *client;
    int32_t user_bytes;
    int32_t client_bytes;
    double limits[3]; /* a second, by kind; 0: none */
} tpc_quota_rule;

typedef struct {
    uint64_t throttled[4]; /* requests; of the last kind, connections that were refused */
    uint64_t throttled_ms[4];
    uint64_t muted; /* connections, now */
} tpc_quota_statistics;

/* In place of those before. What was counted stays. 0 or -ENOMEM, -EINVAL, and then those before stay. */
int tpc_quotas_set(tpc_connections *connections, const tpc_quota_windows *windows, const tpc_quota_rule *rules,
                   uint32_t rules_count);
/* Connections of these listeners (bit n: of listener n) are counted in a table that the cores of the node share. The memory is
 * the caller's, and stays. 0, -EINVAL, -ENOMEM. */
int tpc_quotas_share(tpc_connections *connections, void *memory, size_t bytes, uint64_t listeners);
/* Who is behind a connection; before it is said it is ANONYMOUS. 0, -ENOTCONN, -ENOMEM. */
int tpc_connection_set_user(tpc_connections *connections, uint64_t connection, const uint8_t *user,
                            uint32_t user_bytes);
/* Takes no request for so long, or for longer where it is muted already. 0 or -ENOTCONN. */
int tpc_connection_mute(tpc_connections *connections, uint64_t connection, int64_t milliseconds);
/* Time that a request of this client has taken of the core. */
void tpc_quota_spent(tpc_connections *connections, uint64_t connection, const uint8_t *client, uint32_t client_bytes,
                     int64_t spent_ns);
void tpc_quotas_statistics(const tpc_connections *connections, tpc_quota_statistics *statistics);
