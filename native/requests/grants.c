/* The table of grants; grants.h says how it works. */
#include "grants.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fetch.h"
#include "keyed_hash.h"
#include "prepared.h"

enum {
    KEY_BYTES = 16,
    BUCKETS = TPC_GRANTS_MAX,
    PLACES = TPC_GRANTS_MAX + TPC_GRANTS_TRANSACTIONAL_MAX,
    LOOKED_AT_MAX = 64, /* for one that is void */
    RIGHTS_OF_TOPICS = TPC_RIGHT_READ | TPC_RIGHT_WRITE
};

typedef struct {
    uint64_t generation;
    uint8_t key[KEY_BYTES];
    uint32_t subject; /* 0: free */
    uint32_t next;    /* in its bucket: 1 + the place; 0: none */
    uint8_t known, allowed;
} grant;

/* Of memory that is never touched the kernel gives none. */
struct tpc_grants {
    uint32_t hand, hand_transactional; /* from the first place, and from TPC_GRANTS_MAX: which is taken next */
    uint32_t turn;                     /* of those that a subject gives up of its own */
    uint32_t buckets[BUCKETS];
    grant places[PLACES];
};

/* ---- the table ---- */

/* Ids are drawn by the broker, or hashed with its key, so nobody chooses a bucket. */
static uint32_t *bucket_of(struct tpc_grants *all, const uint8_t *key, uint32_t subject) {
    uint64_t words[2];
    memcpy(words, key, sizeof words);
    uint64_t mixed = (words[0] ^ words[1] ^ subject * 0xff51afd7ed558ccdull) * 0x9e3779b97f4a7c15ull;
    return &all->buckets[mixed >> 48 & (BUCKETS - 1)];
}

/* NULL: there is none, of whatever generation. */
static grant *find(struct tpc_grants *all, const uint8_t *key, uint32_t subject) {
    for (uint32_t place = *bucket_of(all, key, subject); place; place = all->places[place - 1].next) {
        grant *at = &all->places[place - 1];
        if (at->subject == subject && memcmp(at->key, key, KEY_BYTES) == 0) return at;
    }
    return NULL;
}

static void unchain(struct tpc_grants *all, const grant *gone) {
    uint32_t number = (uint32_t)(gone - all->places) + 1, *at = bucket_of(all, gone->key, gone->subject);
    while (*at != number) at = &all->places[*at - 1].next;
    *at = gone->next;
}

/* Behind the hand one that is void, or else on both sides one of the subject's own. The count: there is none in reach. */
static uint32_t spare_of(const tpc_plane *plane, const grant *places, uint32_t count, uint32_t hand, uint32_t turn,
                         uint32_t subject) {
    for (uint32_t i = 0; i < LOOKED_AT_MAX; i++)
        if (places[(hand + i) % count].generation != plane->grants_generation) return (hand + i) % count;
    for (uint32_t i = 0; i < 2 * LOOKED_AT_MAX && subject; i++) {
        uint32_t at = (hand + count - LOOKED_AT_MAX + (turn + i) % (2 * LOOKED_AT_MAX)) % count;
        if (places[at].subject == subject) return at;
    }
    return count;
}

/* Rule: Whoever may write can think of any number of transactional ids, so they take each other's places, and never a topic's; a
 * subject's own go first, and others' one by one only where it has none in reach. See also native/requests/produce.c. Held by
 * tests/engine/test_grants.py. */
/* In the place of one that is void, or else of the oldest. The hand stays where it is when a subject gives up a place itself. */
static grant *make(tpc_plane *plane, const uint8_t *key, uint32_t subject, bool is_transactional) {
    struct tpc_grants *all = plane->grants;
    grant *places = all->places + (is_transactional ? TPC_GRANTS_MAX : 0);
    uint32_t *hand = is_transactional ? &all->hand_transactional : &all->hand, at = *hand;
    uint32_t count = is_transactional ? TPC_GRANTS_TRANSACTIONAL_MAX : TPC_GRANTS_MAX;
    uint32_t found = spare_of(plane, places, count, *hand, all->turn, is_transactional ? subject : 0);
    if (found < count) at = found;
    grant *made = &places[at];
    bool is_own = found < count && made->generation == plane->grants_generation;
    if (made->subject) {
        unchain(all, made);
        plane->grant_statistics.evicted += made->generation == plane->grants_generation;
    }
    uint32_t *bucket = bucket_of(all, key, subject);
    *made = (grant){.subject = subject, .next = *bucket};
    memcpy(made->key, key, KEY_BYTES);
    *bucket = (uint32_t)(made - all->places) + 1;
    if (is_own)
        all->turn++;
    else
        *hand = (at + 1) % count;
    return made;
}

/* ---- asking ---- */

bool tpc_grants_recall(tpc_plane *plane, tpc_granted *held, const uint8_t *topic_id, uint32_t subject, uint32_t right) {
    const grant *found = subject ? find(plane->grants, topic_id, subject) : NULL;
    if (!found || found->generation != plane->grants_generation || !(found->known & right)) {
        plane->grant_statistics.unknown++;
        return false;
    }
    *held = (tpc_granted){
        .generation = found->generation, .subject = subject, .known = found->known, .allowed = found->allowed};
    return true;
}

/* As it is in the table: which other id has the same, nobody can find who does not know the key of this process. */
static void key_of(const uint8_t *id, size_t id_bytes, uint8_t *key) {
    enum { FIRST_HALF = 0x7472616e, SECOND_HALF = 0x73616374 }; /* of no partition's number, and of no topic's name */
    uint64_t halves[2] = {tpc_keyed_hash(FIRST_HALF, id, id_bytes), tpc_keyed_hash(SECOND_HALF, id, id_bytes)};
    memcpy(key, halves, KEY_BYTES);
}

enum tpc_grant tpc_grants_ask_transactional(tpc_plane *plane, const uint8_t *id, int32_t id_bytes, uint32_t subject) {
    uint8_t key[KEY_BYTES];
    if (id_bytes < 0) return TPC_GRANT_REFUSED; /* a transaction of no id is nobody's */
    key_of(id, (size_t)id_bytes, key);
    const grant *found = subject ? find(plane->grants, key, subject) : NULL;
    if (!found || found->generation != plane->grants_generation || !(found->known & TPC_RIGHT_TRANSACT)) {
        plane->grant_statistics.unknown++;
        return TPC_GRANT_UNKNOWN;
    }
    if (found->allowed & TPC_RIGHT_TRANSACT) return TPC_GRANT_ALLOWED;
    plane->grant_statistics.refused_produces++;
    return TPC_GRANT_REFUSED;
}

/* ---- what Python says ---- */

static int install(tpc_plane *plane, uint64_t generation, uint32_t subject, const uint8_t *key, uint32_t known,
                   uint32_t allowed) {
    if (!plane->grants || !subject || allowed & ~known) return -EINVAL;
    if (generation != plane->grants_generation) return -ESTALE;
    grant *at = find(plane->grants, key, subject);
    if (!at) at = make(plane, key, subject, known == TPC_RIGHT_TRANSACT);
    if (at->generation != generation) at->known = at->allowed = 0;
    at->generation = generation;
    at->allowed |= (uint8_t)(allowed & ~(uint32_t)at->known);
    at->known |= (uint8_t)known;
    plane->grant_statistics.installed++;
    return 0;
}

int tpc_grants_install(tpc_plane *plane, uint64_t generation, uint32_t subject, const uint8_t *topic_id, uint32_t known,
                       uint32_t allowed) {
    if (!known || known & ~(uint32_t)RIGHTS_OF_TOPICS) return -EINVAL;
    return install(plane, generation, subject, topic_id, known, allowed);
}

int tpc_grants_install_transactional(tpc_plane *plane, uint64_t generation, uint32_t subject, const uint8_t *id,
                                     uint32_t id_bytes, int allowed) {
    uint8_t key[KEY_BYTES];
    key_of(id, id_bytes, key);
    return install(plane, generation, subject, key, TPC_RIGHT_TRANSACT, allowed ? TPC_RIGHT_TRANSACT : 0);
}

/* ---- life ---- */

/* Rule: What a subject may do in C is what the newest rules say: a change of them makes every grant void in the call that tells of
 * it, before anybody sees the new rules, and asks again about whoever waits. See also tpc_broker/broker/grants.py,
 * native/requests/fetch_wait.c. Held by tests/engine/test_grants.py, tests/engine/test_grants_random.py. */
static int renew(tpc_plane *plane, uint64_t generation) {
    if (generation <= plane->grants_generation) return -EINVAL;
    plane->grants_generation = generation;
    tpc_plane_publish_rights_changed(plane);
    return 0;
}

int tpc_grants_begin(tpc_plane *plane, uint64_t generation) {
    if (plane->grants || generation <= plane->grants_generation) return -EINVAL;
    plane->grants = calloc(1, sizeof *plane->grants);
    if (!plane->grants) return -ENOMEM;
    plane->grant_statistics = (tpc_grant_statistics){0};
    plane->fetches->sessions.are_owned = true;
    tpc_prepared_free(plane);
    return renew(plane, generation);
}

void tpc_grants_end(tpc_plane *plane) {
    if (!plane->grants) return;
    free(plane->grants);
    plane->grants = NULL;
    plane->fetches->sessions.are_owned = false;
}

int tpc_grants_forget(tpc_plane *plane, uint64_t generation) {
    if (!plane->grants) return -EINVAL;
    int result = renew(plane, generation);
    plane->grant_statistics.forgotten += result == 0;
    return result;
}

void tpc_grants_set_datagrams(tpc_plane *plane, uint32_t subject) { plane->datagrams_subject = subject; }

void tpc_grants_get_statistics(const tpc_plane *plane, tpc_grant_statistics *statistics) {
    *statistics = plane->grant_statistics;
    statistics->generation = plane->grants ? plane->grants_generation : 0;
}
