/*
 * Connections and quotas: whose a request is, what it uses up, and how long its connection is muted for it (KIP-219).
 *
 * A request is looked at once, when it is whole and before anybody answers it, at the core that its client is connected to
 * (a stream of a link has no quota of its own). Of a Produce its bytes are counted then; a Fetch, and the time of any request,
 * are judged by what was used before, and what they use themselves is counted when it is known. So the one that goes above a
 * quota is answered as ever, and who is above it finds in the answer how long the connection takes nothing more; a Fetch is then
 * answered with nothing. Kafka tells the same of a Fetch and the time of a request one answer earlier.
 *
 * A muted connection is paused: it parks what it has received, and its socket fills. It stands in a heap by the end of its mute.
 *
 * Which quotas count for a client is looked up when its client id, its user or the quotas change; without any quota a request
 * costs one compare.
 */
#include "io.h"
#include "connection_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bytes.h"
#include "keyed_hash.h"
#include "quota.h"
#include "ring_state.h"

enum { OWN_BUCKETS = 16384, HEAP_FIRST = 64, FORMS = 8, NONE = -1, ANY = -2, ADDRESS = -3 };

static const uint8_t ANONYMOUS[] = "ANONYMOUS";
static const int64_t NS_PER_MS = 1000000;

/* A client's part in one quota. limit 0: it has none; key 0: there was no place for it, and its bucket is the common one. */
typedef struct {
    double limit;
    uint64_t key;
    tpc_quota_bucket *bucket;
} share;

/* What was looked up last for a connection. */
typedef struct quota_client {
    uint64_t generation;
    uint64_t client_hash;
    int64_t until_ns; /* then it is looked up again; INT64_MAX: it has places of its own */
    bool has_any;
    share shares[TPC_QUOTA_CLIENT_KINDS];
} quota_client;

typedef struct {
    uint64_t hash; /* 0: free */
    double limits[TPC_QUOTA_CLIENT_KINDS];
} rule_row;

typedef struct quotas {
    uint64_t generation; /* of the rules; never 0 */
    tpc_quota_windows windows;
    rule_row *rules;
    uint32_t rules_capacity;         /* a power of two, at most half full */
    bool has_clients, has_addresses; /* there are rules of them */
    bool counts_time;
    tpc_quota_table *own;
    tpc_quota_table *shared; /* NULL: there is none */
    uint64_t shared_listeners;
    connection **muted; /* a heap, the one whose mute ends next first */
    uint32_t muted_count, muted_capacity;
    tpc_quota_statistics statistics;
} quotas;

static quotas *quotas_of(tpc_connections *connections) {
    if (connections->quotas != NULL) return connections->quotas;
    quotas *made = calloc(1, sizeof *made);
    size_t bytes = tpc_quota_table_bytes(OWN_BUCKETS);
    void *memory = made ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        free(made);
        return NULL;
    }
    made->own = tpc_quota_table_in(memory, bytes);
    made->generation = 1;
    made->windows = (tpc_quota_windows){.window_ns = 1000 * NS_PER_MS, .count = 11};
    return connections->quotas = made;
}

void quotas_free(tpc_connections *connections) {
    quotas *it = connections->quotas;
    if (it == NULL) return;
    munmap(it->own, tpc_quota_table_bytes(OWN_BUCKETS));
    free(it->rules), free(it->muted), free(it);
    connections->quotas = NULL;
}

/* ------------------------------------------------------------------------------------------------ which quota counts */

/* Of an entity as rules name it; a name of NONE or ANY bytes is none. */
static uint64_t hash_of(const uint8_t *user, int32_t user_bytes, const uint8_t *client, int32_t client_bytes) {
    uint64_t user_form = (uint64_t)(user_bytes < 0 ? user_bytes : 0);
    uint64_t client_form = (uint64_t)(client_bytes < 0 ? client_bytes : 0);
    uint64_t of_user = tpc_keyed_hash(user_form, user, user_bytes < 0 ? 0 : (size_t)user_bytes);
    uint64_t hash = tpc_keyed_hash(of_user ^ client_form, client, client_bytes < 0 ? 0 : (size_t)client_bytes);
    return hash ? hash : 1;
}

static rule_row *row_of(rule_row *rules, uint32_t capacity, uint64_t hash) {
    uint32_t at = (uint32_t)hash & (capacity - 1);
    while (rules[at].hash && rules[at].hash != hash) at = (at + 1) & (capacity - 1);
    return &rules[at];
}

/* By precedence: which names an entity has, and which of them those have in common that share its quota. */
static const struct {
    int32_t user, client; /* 0: its name */
} forms[FORMS] = {{0, 0}, {0, ANY}, {0, NONE}, {ANY, 0}, {ANY, ANY}, {ANY, NONE}, {NONE, 0}, {NONE, ANY}};

static tpc_quota_table *table_of(const quotas *it, uint16_t listener) {
    bool is_shared = it->shared != NULL && listener < 64 && (it->shared_listeners >> listener & 1);
    return is_shared ? it->shared : it->own;
}

typedef struct {
    const uint8_t *user, *client;
    uint32_t user_bytes, client_bytes;
} names;

/* A client without an id has only quotas that name none, as in Kafka. */
static void look_up(quotas *it, uint16_t listener, const names *of, int64_t now_ns, quota_client *client) {
    tpc_quota_table *table = table_of(it, listener);
    client->until_ns = INT64_MAX;
    for (uint32_t i = 0; i < FORMS; i++) {
        bool by_client = forms[i].client != NONE, by_user = forms[i].user != NONE;
        if (by_client && !of->client_bytes) continue;
        const rule_row *row =
            row_of(it->rules, it->rules_capacity,
                   hash_of(of->user, forms[i].user ? forms[i].user : (int32_t)of->user_bytes, of->client,
                           forms[i].client ? forms[i].client : (int32_t)of->client_bytes));
        for (int kind = 0; row->hash && kind < TPC_QUOTA_CLIENT_KINDS; kind++) {
            share *found = &client->shares[kind];
            if (found->limit > 0 || row->limits[kind] <= 0) continue;
            found->limit = row->limits[kind];
            found->bucket = tpc_quota_bucket_of(table, &it->windows, kind, of->user, by_user ? of->user_bytes : 0,
                                                of->client, by_client ? of->client_bytes : 0, now_ns, &found->key);
            client->has_any = true;
            if (!found->key) client->until_ns = now_ns + it->windows.window_ns;
        }
    }
}

/* Whether each of its buckets is still its own; one in which nothing counted may have become another's. */
static bool is_whole(const quota_client *client) {
    for (int kind = 0; kind < TPC_QUOTA_CLIENT_KINDS && client->has_any; kind++) {
        const share *of = &client->shares[kind];
        if (of->key && __atomic_load_n(&of->bucket->key, __ATOMIC_RELAXED) != of->key) return false;
    }
    return true;
}

/* NULL: no memory, and nothing is counted. */
static quota_client *resolve(connection *it, const uint8_t *client, uint32_t client_bytes) {
    quotas *all = it->owner->quotas;
    uint64_t client_hash = tpc_keyed_hash(0, client, client_bytes);
    int64_t now_ns = tpc_ring_now_ns(it->owner->ring);
    quota_client *known = it->quota;
    if (known != NULL && known->generation == all->generation && known->client_hash == client_hash &&
        now_ns < known->until_ns && is_whole(known))
        return known;
    if (known == NULL) known = it->quota = malloc(sizeof *known);
    if (known == NULL) return NULL;
    *known = (quota_client){.generation = all->generation, .client_hash = client_hash};
    names of = {it->user ? it->user : ANONYMOUS, client, it->user ? it->user_bytes : sizeof ANONYMOUS - 1,
                client_bytes};
    look_up(all, it->listener, &of, now_ns, known);
    return known;
}

static bool has_quotas(const connection *it) {
    const quotas *all = it->owner->quotas;
    return __builtin_expect(all != NULL, 0) && all->has_clients && it->carrier == NULL;
}

static uint32_t id_bytes(const tpc_request *request) {
    return request->client_id_bytes > 0 ? (uint32_t)request->client_id_bytes : 0;
}

bool quota_counts(connection *it, const tpc_request *request) {
    if (!has_quotas(it)) return false;
    const quota_client *client = resolve(it, request->client_id, id_bytes(request));
    return client != NULL && client->has_any;
}

/* ------------------------------------------------------------------------------------------------ muting */

static void place(quotas *it, uint32_t at, connection *muted) {
    it->muted[at] = muted;
    muted->muted_place = at + 1;
}

static void move_up(quotas *it, uint32_t at) {
    connection *moved = it->muted[at];
    for (; at > 0 && it->muted[(at - 1) / 2]->muted_until_ns > moved->muted_until_ns; at = (at - 1) / 2)
        place(it, at, it->muted[(at - 1) / 2]);
    place(it, at, moved);
}

static void move_down(quotas *it, uint32_t at) {
    connection *moved = it->muted[at];
    for (uint32_t below; (below = 2 * at + 1) < it->muted_count; at = below) {
        if (below + 1 < it->muted_count && it->muted[below + 1]->muted_until_ns < it->muted[below]->muted_until_ns)
            below++;
        if (it->muted[below]->muted_until_ns >= moved->muted_until_ns) break;
        place(it, at, it->muted[below]);
    }
    place(it, at, moved);
}

void quota_unmute(connection *it) {
    quotas *all = it->owner->quotas;
    if (!it->muted_place) return;
    uint32_t at = it->muted_place - 1;
    connection *last = all->muted[--all->muted_count];
    it->muted_place = 0;
    it->muted_until_ns = 0;
    identity_unmuted(it, it->muted_since_ns);
    if (last == it) return;
    place(all, at, last);
    move_up(all, at);
    move_down(all, last->muted_place - 1);
}

static void mute(connection *it, int64_t until_ns) {
    quotas *all = it->owner->quotas;
    if (it->muted_place) {
        if (until_ns <= it->muted_until_ns) return;
        it->muted_until_ns = until_ns;
        move_down(all, it->muted_place - 1);
        return;
    }
    if (all->muted_count == all->muted_capacity) {
        uint32_t capacity = all->muted_capacity ? all->muted_capacity * 2 : HEAP_FIRST;
        connection **grown = realloc(all->muted, capacity * sizeof(connection *));
        if (grown == NULL) {
            connection_begin_close(it, TPC_CLOSE_BUDGET, ENOMEM);
            return;
        }
        all->muted = grown;
        all->muted_capacity = capacity;
    }
    it->muted_since_ns = tpc_ring_now_ns(it->owner->ring);
    it->muted_until_ns = until_ns;
    place(all, all->muted_count++, it);
    move_up(all, it->muted_place - 1);
}

/* Rule: A mute ends when its time has come or with its connection, and by nothing else. Held by
 * tests/engine/test_quotas.py. */
int64_t quota_turn(tpc_connections *connections, int64_t now_ns) {
    quotas *all = connections->quotas;
    if (all == NULL) return INT64_MAX;
    while (all->muted_count && all->muted[0]->muted_until_ns <= now_ns) {
        connection *it = all->muted[0];
        quota_unmute(it);
        connection_needs_attention(it);
    }
    return all->muted_count ? all->muted[0]->muted_until_ns : INT64_MAX;
}

int tpc_connection_mute(tpc_connections *connections, uint64_t id, int64_t milliseconds) {
    connection *it = connection_find(connections, id);
    if (it == NULL || it->state != CONNECTION_OPEN || it->carrier != NULL) return -ENOTCONN;
    if (quotas_of(connections) == NULL) return -ENOTCONN;
    if (milliseconds > 0) mute(it, tpc_ring_now_ns(connections->ring) + milliseconds * NS_PER_MS);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ requests */

/* Rule: Whoever found no place of its own waits no longer than a window for what others use, and then looks for one again. Held
 * by tests/engine/test_quotas.py. */
static int64_t throttle_of(const connection *it, const quota_client *client, int kind, int64_t now_ns) {
    const quotas *all = it->owner->quotas;
    const share *of = &client->shares[kind];
    if (of->limit <= 0) return 0;
    int64_t throttle_ms = tpc_quota_throttle_ms(of->bucket, &all->windows, of->limit, now_ns);
    int64_t window_ms = all->windows.window_ns / NS_PER_MS;
    bool is_bounded = kind == TPC_QUOTA_REQUEST || !of->key; /* of a request's time it is never longer, as in Kafka */
    return is_bounded && throttle_ms > window_ms ? window_ms : throttle_ms;
}

static void count(quotas *all, int kind, int64_t throttle_ms) {
    all->statistics.throttled[kind]++;
    all->statistics.throttled_ms[kind] += (uint64_t)throttle_ms;
}

/* Rule: A request is counted before it is answered, by whom it is of and not by what it calls itself: a quota of a user holds for
 * whichever client ids. Held by tests/engine/test_quotas.py. */
void quota_take(connection *it, tpc_request *request, uint32_t bytes, answer *place_of_answer) {
    if (!has_quotas(it) || !connection_may_be_served(it)) return; /* who logs in is nobody yet */
    quotas *all = it->owner->quotas;
    quota_client *client = resolve(it, request->client_id, id_bytes(request));
    if (client == NULL || !client->has_any) return;
    int64_t now_ns = tpc_ring_now_ns(it->owner->ring), throttle_ms = 0, of_time_ms;
    int kind = request->api_key == TPC_API_FETCH ? TPC_QUOTA_FETCH : TPC_QUOTA_PRODUCE;
    share *of = &client->shares[kind];
    if (request->api_key == TPC_API_PRODUCE && of->limit > 0) tpc_quota_add(of->bucket, &all->windows, bytes, now_ns);
    if (request->api_key == TPC_API_PRODUCE || request->api_key == TPC_API_FETCH)
        throttle_ms = throttle_of(it, client, kind, now_ns);
    of_time_ms = throttle_of(it, client, TPC_QUOTA_REQUEST, now_ns);
    if (of_time_ms > throttle_ms) {
        throttle_ms = of_time_ms;
        kind = TPC_QUOTA_REQUEST;
    }
    if (request->api_key == TPC_API_FETCH && !throttle_ms && of->limit > 0) {
        place_of_answer->fetch_quota = of->bucket;
        place_of_answer->fetch_quota_key = of->key;
    }
    if (!throttle_ms) return;
    count(all, kind, throttle_ms);
    request->throttle_ms = (uint32_t)throttle_ms;
    mute(it, now_ns + throttle_ms * NS_PER_MS);
}

/* While a Fetch waited its bucket may have become another's. */
void quota_fetched(connection *it, const answer *place, uint64_t bytes) {
    const quotas *all = it->owner->quotas;
    tpc_quota_bucket *bucket = place->fetch_quota;
    int64_t now_ns = tpc_ring_now_ns(it->owner->ring);
    uint64_t key = place->fetch_quota_key;
    if (key && __atomic_load_n(&bucket->key, __ATOMIC_RELAXED) != key)
        bucket = tpc_quota_bucket_again(table_of(all, it->listener), &all->windows, TPC_QUOTA_FETCH, now_ns, &key);
    tpc_quota_add(bucket, &all->windows, bytes, now_ns);
}

int64_t quota_time_begins(const connection *it) {
    const quotas *all = it->owner->quotas;
    return __builtin_expect(all != NULL, 0) && all->counts_time ? tpc_monotonic_ns() : 0;
}

static void spent(connection *it, int64_t spent_ns) {
    const share *of = it->quota ? &it->quota->shares[TPC_QUOTA_REQUEST] : NULL;
    if (of == NULL || of->limit <= 0 || spent_ns <= 0 || !is_whole(it->quota)) return;
    tpc_quota_add(of->bucket, &it->owner->quotas->windows, (uint64_t)spent_ns, tpc_ring_now_ns(it->owner->ring));
}

void quota_time_ends(connection *it, int64_t began_ns) {
    if (began_ns && it->carrier == NULL) spent(it, tpc_monotonic_ns() - began_ns);
}

void tpc_quota_spent(tpc_connections *connections, uint64_t id, const uint8_t *client, uint32_t client_bytes,
                     int64_t spent_ns) {
    connection *it = connection_find(connections, id);
    if (it == NULL || !has_quotas(it) || resolve(it, client, client_bytes) == NULL) return;
    spent(it, spent_ns);
}

/* Whether one more connection of the address may come; then it is counted. */
bool quota_admits(tpc_connections *connections, uint16_t listener, const peer_address *peer) {
    quotas *all = connections->quotas;
    if (all == NULL || !all->has_addresses) return true;
    const rule_row *row =
        row_of(all->rules, all->rules_capacity, hash_of(peer->bytes, sizeof peer->bytes, NULL, ADDRESS));
    if (!row->hash) row = row_of(all->rules, all->rules_capacity, hash_of(NULL, ANY, NULL, ADDRESS));
    double limit = row->limits[0];
    if (limit <= 0) return true;
    int64_t now_ns = tpc_ring_now_ns(connections->ring);
    uint64_t key;
    tpc_quota_bucket *bucket = tpc_quota_bucket_of(table_of(all, listener), &all->windows, TPC_QUOTA_CONNECTION,
                                                   peer->bytes, sizeof peer->bytes, NULL, 0, now_ns, &key);
    int64_t throttle_ms = tpc_quota_throttle_ms(bucket, &all->windows, limit, now_ns);
    if (throttle_ms == 0) {
        tpc_quota_add(bucket, &all->windows, 1, now_ns);
        return true;
    }
    count(all, TPC_QUOTA_CONNECTION, throttle_ms);
    return false;
}

/* ------------------------------------------------------------------------------------------------ what is set */

static rule_row *rows_of(const tpc_quota_rule *rules, uint32_t count, uint32_t *capacity) {
    *capacity = 2;
    while (*capacity < 2 * count) *capacity *= 2;
    rule_row *rows = calloc(*capacity, sizeof *rows);
    for (uint32_t i = 0; rows != NULL && i < count; i++) {
        uint64_t hash = hash_of(rules[i].user, rules[i].user_bytes, rules[i].client, rules[i].client_bytes);
        rule_row *row = row_of(rows, *capacity, hash);
        row->hash = hash;
        memcpy(row->limits, rules[i].limits, sizeof row->limits);
    }
    return rows;
}

int tpc_quotas_set(tpc_connections *connections, const tpc_quota_windows *windows, const tpc_quota_rule *rules,
                   uint32_t rules_count) {
    if (windows->window_ns < NS_PER_MS || windows->count < 1 || windows->count > TPC_QUOTA_WINDOWS_MAX) return -EINVAL;
    if (connections->quotas == NULL && !rules_count) return 0;
    quotas *it = quotas_of(connections);
    uint32_t capacity;
    rule_row *rows = rows_of(rules, rules_count, &capacity);
    if (it == NULL || rows == NULL) {
        free(rows);
        return -ENOMEM;
    }
    free(it->rules);
    it->rules = rows;
    it->rules_capacity = capacity;
    it->windows = *windows;
    it->has_clients = it->has_addresses = it->counts_time = false;
    for (uint32_t i = 0; i < rules_count; i++) {
        bool is_address = rules[i].client_bytes == ADDRESS;
        it->has_addresses |= is_address;
        it->has_clients |= !is_address;
        it->counts_time |= !is_address && rules[i].limits[TPC_QUOTA_REQUEST] > 0;
    }
    it->generation++;
    return 0;
}

int tpc_quotas_share(tpc_connections *connections, void *memory, size_t bytes, uint64_t listeners) {
    quotas *it = quotas_of(connections);
    if (it == NULL) return -ENOMEM;
    tpc_quota_table *table = tpc_quota_table_in(memory, bytes);
    if (table == NULL) return -EINVAL;
    it->shared = table;
    it->shared_listeners = listeners;
    it->generation++;
    return 0;
}

int tpc_connection_set_user(tpc_connections *connections, uint64_t id, const uint8_t *user, uint32_t user_bytes) {
    connection *it = connection_find(connections, id);
    if (it == NULL) return -ENOTCONN;
    uint8_t *copied = malloc(user_bytes + 1);
    if (copied == NULL) return -ENOMEM;
    memcpy(copied, user, user_bytes);
    free(it->user);
    it->user = copied;
    it->user_bytes = user_bytes;
    if (it->quota != NULL) it->quota->generation = 0;
    return 0;
}

void tpc_quotas_statistics(const tpc_connections *connections, tpc_quota_statistics *statistics) {
    const quotas *it = connections->quotas;
    *statistics = (tpc_quota_statistics){0};
    if (it == NULL) return;
    *statistics = it->statistics;
    statistics->muted = it->muted_count;
}

void quota_forget(connection *it) {
    free(it->quota), free(it->user);
    it->quota = NULL;
    it->user = NULL;
}
