/*
 * What is used of quotas: Kafka's rates over windows, in buckets that several cores may share.
 *
 * A rate is the sum of the last `count` windows over the time that they cover, (count - 1) whole ones and what has passed of
 * the one under way (Kafka's Rate and SampledStat; its windows begin with a first event, these at whole multiples). Who is
 * above the limit waits as long as it takes until the sum over the time then passed is the limit (QuotaUtils.throttleTime).
 *
 * Theory of operation. A bucket is found by a keyed hash of its kind and of who shares it, within a few places; one in which
 * nothing counts any more says the same as a new one, so its place is free. Where all places count, a kind's common bucket is
 * used: such clients are held together, and never go free. Places that nobody ever had are taken first, so that who has one
 * and uses nothing for a while keeps it. Addresses have places of their own: who connects from many of them would otherwise
 * have all others refused. Where all of those count, the one of which least is counted is taken with what is counted in it,
 * which is more than who takes it has used, and never less (the Space-Saving algorithm of Metwally et al., 2005). Several cores write without locks: each step is one compare and
 * exchange, so a core that dies leaves nothing behind. Two that claim a place for different keys at once see the winner's
 * key, and look further; what is added to a bucket in the moment in which it becomes another's is that one's.
 */
#include <errno.h>
#include <stdbool.h>

#include "quota.h"

#include "keyed_hash.h"

enum { AMOUNT_BITS = 40, PLACES_MAX = 16, CLIENTS_TO_ADDRESSES = 8 };

#define AMOUNT_MAX ((1ull << AMOUNT_BITS) - 1)
#define NUMBER_MASK ((1ull << (64 - AMOUNT_BITS)) - 1)
#define NS_PER_S 1e9
#define NS_PER_MS 1e6
#define THROTTLE_MS_MAX 2147483647.0 /* what an answer can say */

struct tpc_quota_table {
    uint64_t seed[2];
    uint64_t buckets_count;
    tpc_quota_bucket common[TPC_QUOTA_KINDS];
    tpc_quota_bucket buckets[];
};

size_t tpc_quota_table_bytes(uint32_t buckets) {
    size_t count = (size_t)buckets + buckets / CLIENTS_TO_ADDRESSES + 1;
    return sizeof(tpc_quota_table) + count * sizeof(tpc_quota_bucket);
}

/* At the end of the table; of so many buckets for clients, as was asked for. */
static uint64_t addresses_count(const tpc_quota_table *table) {
    return table->buckets_count / (CLIENTS_TO_ADDRESSES + 1) + 1;
}

/* What stands there afterwards, whoever was first. */
static uint64_t first_of(uint64_t *place, uint64_t value) {
    uint64_t expected = 0;
    if (__atomic_compare_exchange_n(place, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return value;
    return expected;
}

tpc_quota_table *tpc_quota_table_in(void *memory, size_t bytes) {
    tpc_quota_table *table = memory;
    if (bytes < tpc_quota_table_bytes(1)) {
        errno = EINVAL;
        return NULL;
    }
    first_of(&table->seed[0], tpc_keyed_hash(1, NULL, 0) | 1);
    first_of(&table->seed[1], tpc_keyed_hash(2, NULL, 0) | 1);
    first_of(&table->buckets_count, (bytes - sizeof *table) / sizeof table->buckets[0]);
    return table;
}

static uint64_t window_of(const tpc_quota_windows *windows, int64_t now_ns) {
    return (uint64_t)(now_ns / windows->window_ns);
}

void tpc_quota_add(tpc_quota_bucket *bucket, const tpc_quota_windows *windows, uint64_t amount, int64_t now_ns) {
    uint64_t window = window_of(windows, now_ns), number = window & NUMBER_MASK, after;
    uint64_t *cell = &bucket->cells[window % TPC_QUOTA_WINDOWS_MAX];
    uint64_t before = __atomic_load_n(cell, __ATOMIC_RELAXED);
    do {
        uint64_t has = before >> AMOUNT_BITS == number ? before & AMOUNT_MAX : 0;
        has = amount < AMOUNT_MAX - has ? has + amount : AMOUNT_MAX;
        after = number << AMOUNT_BITS | has;
    } while (!__atomic_compare_exchange_n(cell, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

uint64_t tpc_quota_sum(const tpc_quota_bucket *bucket, const tpc_quota_windows *windows, int64_t now_ns) {
    uint64_t window = window_of(windows, now_ns), sum = 0;
    for (uint32_t i = 0; i < TPC_QUOTA_WINDOWS_MAX; i++) {
        uint64_t cell = __atomic_load_n(&bucket->cells[i], __ATOMIC_RELAXED);
        if (((window - (cell >> AMOUNT_BITS)) & NUMBER_MASK) < windows->count) sum += cell & AMOUNT_MAX;
    }
    return sum;
}

int64_t tpc_quota_throttle_ms(const tpc_quota_bucket *bucket, const tpc_quota_windows *windows, double limit,
                              int64_t now_ns) {
    double passed_ns = (double)((windows->count - 1) * windows->window_ns + now_ns % windows->window_ns);
    if (passed_ns < NS_PER_MS) passed_ns = NS_PER_MS;
    double above = (double)tpc_quota_sum(bucket, windows, now_ns) - limit * passed_ns / NS_PER_S;
    if (above <= 0) return 0;
    double throttle_ms = above / limit * 1000;
    return throttle_ms < THROTTLE_MS_MAX ? (int64_t)throttle_ms + 1 : (int64_t)THROTTLE_MS_MAX;
}

static uint64_t key_of(const tpc_quota_table *table, int kind, const uint8_t *user, uint32_t user_bytes,
                       const uint8_t *client, uint32_t client_bytes) {
    uint64_t of_user = tpc_keyed_hash_with(table->seed, (uint64_t)kind, user, user_bytes);
    uint64_t key = tpc_keyed_hash_with(table->seed, of_user, client, client_bytes);
    return key ? key : 1;
}

static void find_places(tpc_quota_table *table, int kind, uint64_t key, tpc_quota_bucket **places) {
    uint64_t addresses = addresses_count(table), clients = table->buckets_count - addresses;
    bool is_address = kind == TPC_QUOTA_CONNECTION;
    tpc_quota_bucket *begin = table->buckets + (is_address ? clients : 0);
    for (uint32_t i = 0; i < PLACES_MAX; i++) places[i] = &begin[(key + i) % (is_address ? addresses : clients)];
}

/* Rule: An address that takes another's place takes what is counted there: nobody gets more than a quota by coming from many
 * addresses, and nobody is refused while there is one that is below it. Held by tests/engine/test_quota_counting.py. */
static tpc_quota_bucket *take_least(tpc_quota_bucket **places, const tpc_quota_windows *windows, uint64_t key,
                                    int64_t now_ns) {
    tpc_quota_bucket *least = places[0];
    uint64_t least_sum = UINT64_MAX;
    for (uint32_t i = 0; i < PLACES_MAX; i++) {
        uint64_t sum = tpc_quota_sum(places[i], windows, now_ns);
        if (sum >= least_sum) continue;
        least = places[i];
        least_sum = sum;
    }
    __atomic_store_n(&least->key, key, __ATOMIC_RELAXED); /* of two that take it at once, both are counted in it */
    return least;
}

tpc_quota_bucket *tpc_quota_bucket_again(tpc_quota_table *table, const tpc_quota_windows *windows, int kind,
                                         int64_t now_ns, uint64_t *key) {
    tpc_quota_bucket *places[PLACES_MAX];
    find_places(table, kind, *key, places);
    for (uint32_t i = 0; i < PLACES_MAX; i++)
        if (__atomic_load_n(&places[i]->key, __ATOMIC_RELAXED) == *key) return places[i];
    for (uint32_t i = 0; i < 2 * PLACES_MAX; i++) {
        tpc_quota_bucket *place = places[i % PLACES_MAX];
        bool is_first_round = i < PLACES_MAX;
        uint64_t before = __atomic_load_n(&place->key, __ATOMIC_RELAXED);
        if (before && before != *key && (is_first_round || tpc_quota_sum(place, windows, now_ns) > 0)) continue;
        if (before == *key ||
            __atomic_compare_exchange_n(&place->key, &before, *key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return place;
        if (before == *key) return place;
    }
    if (kind == TPC_QUOTA_CONNECTION) return take_least(places, windows, *key, now_ns);
    *key = 0;
    return &table->common[kind];
}

tpc_quota_bucket *tpc_quota_bucket_of(tpc_quota_table *table, const tpc_quota_windows *windows, int kind,
                                      const uint8_t *user, uint32_t user_bytes, const uint8_t *client,
                                      uint32_t client_bytes, int64_t now_ns, uint64_t *key) {
    *key = key_of(table, kind, user, user_bytes, client, client_bytes);
    return tpc_quota_bucket_again(table, windows, kind, now_ns, key);
}
