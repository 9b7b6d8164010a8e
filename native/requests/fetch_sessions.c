/*
 * Incremental fetch sessions (KIP-227) of one core.
 *
 * A consumer of a thousand partitions would name a thousand partitions in every fetch. With a session the broker remembers
 * them: the first (full) fetch has epoch 0 and names all, the answer carries a session id; each later (incremental) fetch
 * carries that id and the next epoch, and names only what was added, changed or forgotten. The answer to an incremental
 * fetch names only partitions that have something to say: records, a watermark or log start that moved, an error.
 *
 *   request          context
 *   epoch -1         sessionless; a session of that id is closed
 *   epoch 0          full; a session of that id is closed, a new one is made when there is room
 *   any other epoch  incremental; the id must be known (70), the epoch the expected one (71), and topics named the way
 *                    the session names them, by id or by name (106)
 *
 * Where subjects are asked about (grants.h) a session is of the one that has made it: to any other its id is not known.
 *
 * The table has a fixed number of slots, and what all sessions together keep has a bound (bytes_max), looked at before memory
 * is taken. Where either is reached the least recently used session is given up, when that was unused for eviction_ms;
 * else the new consumer goes without a session, which costs it bytes and nothing else. A session that would grow beyond the
 * bound is ended (70), so that its client begins with a full fetch.
 *
 * A session, and each of its partitions, is counted: a fetch that waits keeps what it read from, though another request
 * may have ended the session or changed what it asks for. Its bytes count until they are freed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "fetch.h"
#include "keyed_hash.h"
#include "io.h"

enum { EPOCH_FINAL = -1, EPOCH_INITIAL = 0, SESSION_BUCKETS_MIN = 8, SESSIONS_BUCKETS = 1024, SLOTS_DEFAULT = 1000 };

enum { HEAP_BYTES = 16 }; /* what malloc() keeps beside each allocation */

/* ---- keys ---- */

static uint64_t hash_of(const uint8_t *name, int32_t name_bytes, const uint8_t *id, int32_t partition) {
    return tpc_keyed_hash((uint32_t)partition, name ? name : id, name ? (size_t)name_bytes : 16);
}

static bool same_key(const tpc_fetch_asked *known, const uint8_t *name, int32_t name_bytes, const uint8_t *id,
                     int32_t partition) {
    if (known->partition != partition || (known->topic_name != NULL) != (name != NULL)) return false;
    if (!name) return memcmp(known->topic_id, id, 16) == 0;
    return known->topic_name_bytes == name_bytes && memcmp(known->topic_name, name, (size_t)name_bytes) == 0;
}

static uint64_t hash_of_asked(const tpc_fetch_asked *asked) {
    return hash_of(asked->topic_name, asked->topic_name_bytes, asked->topic_id, asked->partition);
}

/* ---- bytes ---- */

static int64_t bytes_of_known(const uint8_t *topic_name, int32_t topic_name_bytes) {
    return (int64_t)sizeof(tpc_fetch_known) + (topic_name ? topic_name_bytes : 0) + 1 + HEAP_BYTES;
}

static int64_t bytes_of_buckets(uint32_t count) { return (int64_t)count * (int64_t)sizeof(tpc_fetch_known *); }

static int64_t bytes_of_session(uint32_t buckets_count) {
    return (int64_t)sizeof(tpc_fetch_session) + 2 * HEAP_BYTES + bytes_of_buckets(buckets_count);
}

static uint32_t buckets_for(uint32_t least, uint32_t parts) {
    while (least < parts) least *= 2;
    return least;
}

/* Of a session that begins with these, each of which its first fetch holds, also when it is named twice. */
static int64_t bytes_of_full(const tpc_fetch_part *asked, int32_t count) {
    int64_t bytes = bytes_of_session(buckets_for(SESSION_BUCKETS_MIN, (uint32_t)count));
    for (int32_t i = 0; i < count; i++) bytes += bytes_of_known(asked[i].topic_name, asked[i].topic_name_bytes);
    return bytes;
}

/* ---- the partitions of one session ---- */

static tpc_fetch_known *find_known(const tpc_fetch_session *session, uint64_t hash, const uint8_t *name,
                                   int32_t name_bytes, const uint8_t *id, int32_t partition) {
    tpc_fetch_known *at = session->buckets[hash & (session->buckets_count - 1)];
    for (; at; at = at->bucket_next)
        if (at->hash == hash && same_key(&at->asked, name, name_bytes, id, partition)) return at;
    return NULL;
}

static tpc_fetch_known *find_asked(const tpc_fetch_session *session, const tpc_fetch_asked *asked, uint64_t hash) {
    return find_known(session, hash, asked->topic_name, asked->topic_name_bytes, asked->topic_id, asked->partition);
}

static void release_known(tpc_fetch_sessions *sessions, tpc_fetch_known *known) {
    TPC_HOLDS(known->references > 0);
    if (--known->references > 0) return;
    sessions->bytes -= bytes_of_known(known->asked.topic_name, known->asked.topic_name_bytes);
    TPC_HOLDS(sessions->bytes >= 0);
    free(known);
}

static void order_append(tpc_fetch_session *session, tpc_fetch_known *known) {
    known->previous = session->last;
    known->next = NULL;
    *(session->last ? &session->last->next : &session->first) = known;
    session->last = known;
}

static void order_remove(tpc_fetch_session *session, tpc_fetch_known *known) {
    *(known->previous ? &known->previous->next : &session->first) = known->next;
    *(known->next ? &known->next->previous : &session->last) = known->previous;
}

static void chain(tpc_fetch_session *session, tpc_fetch_known *known) {
    tpc_fetch_known **bucket = &session->buckets[known->hash & (session->buckets_count - 1)];
    known->bucket_next = *bucket;
    *bucket = known;
}

static void unchain(tpc_fetch_session *session, tpc_fetch_known *known) {
    tpc_fetch_known **at = &session->buckets[known->hash & (session->buckets_count - 1)];
    while (*at != known) at = &(*at)->bucket_next;
    *at = known->bucket_next;
}

static int grow_buckets(tpc_fetch_session *session, uint32_t count) {
    tpc_fetch_known **buckets = calloc(count, sizeof *buckets);
    if (!buckets) return -ENOMEM;
    free(session->buckets);
    session->owner->bytes += bytes_of_buckets(count - session->buckets_count);
    session->buckets = buckets;
    session->buckets_count = count;
    for (tpc_fetch_known *at = session->first; at; at = at->next) chain(session, at);
    return 0;
}

static void ask(tpc_fetch_asked *asked, const tpc_fetch_part *part) {
    asked->fetch_offset = part->fetch_offset;
    asked->bytes_max = part->partition_bytes_max;
    asked->current_leader_epoch = part->current_leader_epoch;
    asked->last_fetched_epoch = part->last_fetched_epoch;
}

/* With its own copy of the name. One reference, the caller's. */
static tpc_fetch_known *known_new(tpc_fetch_sessions *sessions, const tpc_fetch_part *part) {
    size_t name_bytes = part->topic_name ? (size_t)part->topic_name_bytes : 0;
    tpc_fetch_known *known = malloc(sizeof *known + name_bytes + 1);
    if (!known) return NULL;
    *known = (tpc_fetch_known){.references = 1, .sent_high_watermark = -1, .sent_log_start_offset = -1};
    known->asked.partition = part->partition;
    known->asked.topic_name_bytes = -1;
    if (part->topic_name) {
        known->asked.topic_name = memcpy(known + 1, part->topic_name, name_bytes);
        known->asked.topic_name_bytes = part->topic_name_bytes;
    }
    memcpy(known->asked.topic_id, part->topic_id, sizeof known->asked.topic_id);
    ask(&known->asked, part);
    known->hash = hash_of_asked(&known->asked);
    sessions->bytes += bytes_of_known(part->topic_name, part->topic_name_bytes);
    return known;
}

/* There is room in the buckets. Takes the reference. */
static void session_add(tpc_fetch_session *session, tpc_fetch_known *known) {
    TPC_HOLDS(!known->in_session && session->parts_count < session->buckets_count);
    known->in_session = true;
    chain(session, known);
    order_append(session, known);
    session->parts_count++;
    session->owner->parts_count++;
}

static void session_remove(tpc_fetch_session *session, tpc_fetch_known *known) {
    TPC_HOLDS(known->in_session && session->parts_count > 0);
    TPC_HOLDS(session->owner->parts_count >= session->parts_count);
    known->in_session = false;
    unchain(session, known);
    order_remove(session, known);
    session->parts_count--;
    session->owner->parts_count--;
    release_known(session->owner, known);
}

/* A newer object takes the place of an older one with the same key. Takes the reference. */
static void session_replace(tpc_fetch_session *session, tpc_fetch_known *older, tpc_fetch_known *newer) {
    TPC_HOLDS(older->in_session && !newer->in_session);
    unchain(session, older);
    chain(session, newer);
    newer->in_session = true;
    older->in_session = false;
    newer->previous = older->previous;
    newer->next = older->next;
    *(newer->previous ? &newer->previous->next : &session->first) = newer;
    *(newer->next ? &newer->next->previous : &session->last) = newer;
    release_known(session->owner, older);
}

/* ---- the table ---- */

static tpc_fetch_session **bucket_of(const tpc_fetch_sessions *sessions, int32_t session_id) {
    return &sessions->buckets[((uint32_t)session_id * 2654435761u >> 16) & (sessions->buckets_count - 1)];
}

const tpc_fetch_session *tpc_fetch_session_find(const tpc_fetch_sessions *sessions, int32_t session_id) {
    tpc_fetch_session *at = *bucket_of(sessions, session_id);
    while (at && at->session_id != session_id) at = at->bucket_next;
    return at;
}

static tpc_fetch_session *find_session(const tpc_fetch_sessions *sessions, int32_t session_id) {
    return (tpc_fetch_session *)tpc_fetch_session_find(sessions, session_id);
}

/* Rule: A fetch session's id is of use to the subject that has made it only, where subjects are asked about: another one neither
 * reads by it nor ends it, and does not hear that there is one. Held by tests/engine/test_grants.py. */
static tpc_fetch_session *find_own(const tpc_fetch_sessions *sessions, int32_t session_id, const tpc_fetch *fetch) {
    tpc_fetch_session *found = find_session(sessions, session_id);
    if (!found || !sessions->are_owned) return found;
    return fetch->subject && found->subject == fetch->subject ? found : NULL;
}

static void release_session(tpc_fetch_session *session) {
    TPC_HOLDS(session->references > 0);
    if (--session->references > 0) return;
    TPC_HOLDS(!session->first && !session->last);
    session->owner->bytes -= bytes_of_session(session->buckets_count);
    TPC_HOLDS(session->owner->bytes >= 0);
    free(session->buckets);
    free(session);
}

static void recency_remove(tpc_fetch_sessions *sessions, tpc_fetch_session *session) {
    *(session->previous ? &session->previous->next : &sessions->first) = session->next;
    *(session->next ? &session->next->previous : &sessions->last) = session->previous;
}

static void recency_append(tpc_fetch_sessions *sessions, tpc_fetch_session *session) {
    session->previous = sessions->last;
    session->next = NULL;
    *(sessions->last ? &sessions->last->next : &sessions->first) = session;
    sessions->last = session;
}

/* Out of the table; fetches under way may still hold it, with the partitions that are their own. */
static void end_session(tpc_fetch_sessions *sessions, tpc_fetch_session *session) {
    tpc_fetch_session **at = bucket_of(sessions, session->session_id);
    while (*at != session) at = &(*at)->bucket_next;
    *at = session->bucket_next;
    recency_remove(sessions, session);
    TPC_HOLDS(sessions->count > 0 && sessions->parts_count >= session->parts_count);
    sessions->count--;
    if (session->references == 1) {
        while (session->first) session_remove(session, session->first);
    } else {
        sessions->parts_count -= session->parts_count; /* its last fetch releases them */
    }
    release_session(session);
}

static bool evict_idle(tpc_fetch_sessions *sessions, const tpc_fetch_session *but, int64_t now_ms) {
    tpc_fetch_session *idle = sessions->first;
    if (!idle || idle == but || now_ms - idle->last_used_ms < sessions->eviction_ms) return false;
    end_session(sessions, idle);
    sessions->evicted++;
    return true;
}

/* Rule: What fetch sessions remember has a bound that is looked at before memory is taken; a client that would go
 * past it is served without a session. What waiting fetches of more than 64 partitions take has one too: above it
 * they are answered at once, and their clients ask again. Those of up to 64 partitions always wait, one for each
 * connection. See also native/requests/fetch_wait.c. Held by tests/engine/test_fetch_bounds.py,
 * tests/engine/test_plane_fetch_random.py. */
/* Whether so much more may be kept, with what is given up by idle sessions other than this one. */
static bool has_bytes(tpc_fetch_sessions *sessions, const tpc_fetch_session *session, int64_t bytes, int64_t now_ms) {
    bool fits = bytes <= sessions->bytes_max;
    while (fits && sessions->bytes + bytes > sessions->bytes_max) fits = evict_idle(sessions, session, now_ms);
    sessions->refused += !fits;
    return fits;
}

static bool make_room(tpc_fetch_sessions *sessions, int64_t bytes, int64_t now_ms) {
    while (sessions->count >= sessions->slots_max)
        if (!evict_idle(sessions, NULL, now_ms)) return false;
    return has_bytes(sessions, NULL, bytes, now_ms);
}

/* 1 to 2^31 - 1. */
static int32_t draw_session_id(tpc_fetch_sessions *sessions) {
    uint64_t chance = sessions->chance;
    int32_t drawn;
    do {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        drawn = (int32_t)(chance >> 33);
    } while (drawn == 0);
    sessions->chance = chance;
    return drawn;
}

static tpc_fetch_session *session_new(tpc_fetch_sessions *sessions, bool by_id, int64_t now_ms, int32_t parts_count) {
    tpc_fetch_session *session = calloc(1, sizeof *session);
    if (!session) return NULL;
    *session = (tpc_fetch_session){.owner = sessions,
                                   .references = 1,
                                   .expected_epoch = EPOCH_INITIAL + 1,
                                   .uses_topic_ids = by_id,
                                   .last_used_ms = now_ms,
                                   .buckets_count = buckets_for(SESSION_BUCKETS_MIN, (uint32_t)parts_count)};
    session->buckets = calloc(session->buckets_count, sizeof(tpc_fetch_known *));
    if (!session->buckets) {
        free(session);
        return NULL;
    }
    sessions->bytes += bytes_of_session(session->buckets_count);
    return session;
}

int tpc_fetch_sessions_init(tpc_fetch_sessions *sessions) {
    *sessions = (tpc_fetch_sessions){
        .buckets_count = SESSIONS_BUCKETS, .slots_max = SLOTS_DEFAULT, .bytes_max = TPC_FETCH_SESSION_BYTES_MAX};
    sessions->buckets = calloc(SESSIONS_BUCKETS, sizeof(tpc_fetch_session *));
    if (!sessions->buckets) return -ENOMEM;
    if (tpc_io.draw(&sessions->chance, sizeof sessions->chance) < 0 || !sessions->chance)
        sessions->chance = (uint64_t)(uintptr_t)sessions | 1;
    return 0;
}

void tpc_fetch_sessions_free(tpc_fetch_sessions *sessions) {
    while (sessions->first) end_session(sessions, sessions->first);
    free(sessions->buckets);
}

/* ---- contexts ---- */

static int sessionless(const tpc_fetch_part *asked, int32_t count, tpc_fetch *fetch) {
    tpc_fetch_known *own = calloc((size_t)count + 1, sizeof *own);
    fetch->parts = malloc(((size_t)count + 1) * sizeof *fetch->parts);
    if (!own || !fetch->parts) {
        free(own), free(fetch->parts);
        fetch->parts = NULL;
        return -ENOMEM;
    }
    for (int32_t i = 0; i < count; i++) {
        own[i].asked.topic_name = asked[i].topic_name;
        own[i].asked.topic_name_bytes = asked[i].topic_name ? asked[i].topic_name_bytes : -1;
        own[i].asked.partition = asked[i].partition;
        memcpy(own[i].asked.topic_id, asked[i].topic_id, 16);
        ask(&own[i].asked, &asked[i]);
        fetch->parts[i] = &own[i].asked;
    }
    if (!count) free(own);
    fetch->with_names = count > 0;
    fetch->parts_count = count;
    return 0;
}

static void hold(tpc_fetch *fetch, tpc_fetch_session *session) {
    session->references++;
    fetch->session = session;
    fetch->session_id = session->session_id;
}

static void hold_part(tpc_fetch *fetch, tpc_fetch_known *known) {
    known->references++;
    fetch->parts[fetch->parts_count++] = &known->asked;
}

static int full(tpc_fetch_sessions *sessions, const tpc_fetch_part *asked, int32_t count, bool by_id, int64_t now_ms,
                tpc_fetch *fetch) {
    int32_t session_id = draw_session_id(sessions);
    if (find_session(sessions, session_id) || !make_room(sessions, bytes_of_full(asked, count), now_ms))
        return sessionless(asked, count, fetch);
    tpc_fetch_session *session = session_new(sessions, by_id, now_ms, count);
    fetch->parts = malloc(((size_t)count + 1) * sizeof *fetch->parts);
    if (!session || !fetch->parts) goto no_memory;
    for (int32_t i = 0; i < count; i++) {
        tpc_fetch_known *known = known_new(sessions, &asked[i]);
        if (!known) goto no_memory;
        tpc_fetch_known *older = find_asked(session, &known->asked, known->hash);
        if (older)
            session_replace(session, older, known);
        else
            session_add(session, known);
        hold_part(fetch, known);
    }
    session->session_id = session_id;
    session->subject = fetch->subject;
    session->bucket_next = *bucket_of(sessions, session_id);
    *bucket_of(sessions, session_id) = session;
    recency_append(sessions, session);
    sessions->count++;
    TPC_HOLDS(sessions->count <= sessions->slots_max && session->parts_count <= (uint32_t)count);
    hold(fetch, session);
    return 0;
no_memory:
    for (int32_t i = 0; i < fetch->parts_count; i++) release_known(sessions, tpc_fetch_known_of(fetch->parts[i]));
    free(fetch->parts);
    fetch->parts = NULL;
    fetch->parts_count = 0;
    while (session && session->first) session_remove(session, session->first);
    if (session) release_session(session);
    return -ENOMEM;
}

/* Changed and added ones. -ENOMEM leaves some of them done, which the client's next request says again. -ENOBUFS: sessions
 * would keep more than they may. */
static int take_asked(tpc_fetch_session *session, const tpc_fetch_part *asked, int32_t count, int64_t now_ms) {
    tpc_fetch_sessions *sessions = session->owner;
    uint32_t buckets = buckets_for(session->buckets_count, session->parts_count + (uint32_t)count);
    if (buckets > session->buckets_count) {
        if (!has_bytes(sessions, session, bytes_of_buckets(buckets - session->buckets_count), now_ms)) return -ENOBUFS;
        if (grow_buckets(session, buckets) < 0) return -ENOMEM;
    }
    for (int32_t i = 0; i < count; i++) {
        const tpc_fetch_part *part = &asked[i];
        uint64_t hash = hash_of(part->topic_name, part->topic_name_bytes, part->topic_id, part->partition);
        tpc_fetch_known *known =
            find_known(session, hash, part->topic_name, part->topic_name_bytes, part->topic_id, part->partition);
        if (known) {
            ask(&known->asked, part);
            continue;
        }
        if (!has_bytes(sessions, session, bytes_of_known(part->topic_name, part->topic_name_bytes), now_ms))
            return -ENOBUFS;
        known = known_new(sessions, part);
        if (!known) return -ENOMEM;
        session_add(session, known);
    }
    return 0;
}

static int incremental(tpc_fetch_sessions *sessions, tpc_fetch_session *session, const tpc_fetch_request *request,
                       const tpc_fetch_part *asked, const tpc_fetch_forgotten *forgotten, int64_t now_ms,
                       tpc_fetch *fetch) {
    fetch->parts = malloc(((size_t)session->parts_count + (size_t)request->parts_count + 1) * sizeof *fetch->parts);
    if (!fetch->parts) return -ENOMEM; /* the fetch is freed by the caller */
    session->last_used_ms = now_ms;
    recency_remove(sessions, session);
    recency_append(sessions, session);
    int result = take_asked(session, asked, request->parts_count, now_ms);
    if (result == -ENOBUFS) {
        end_session(sessions, session);
        fetch->error_code = TPC_ERROR_FETCH_SESSION_ID_NOT_FOUND;
        return 0;
    }
    if (result < 0) return result;
    for (int32_t i = 0; i < request->forgotten_count; i++) {
        const tpc_fetch_forgotten *gone = &forgotten[i];
        uint64_t hash = hash_of(gone->topic_name, gone->topic_name_bytes, gone->topic_id, gone->partition);
        tpc_fetch_known *known =
            find_known(session, hash, gone->topic_name, gone->topic_name_bytes, gone->topic_id, gone->partition);
        if (known) session_remove(session, known);
    }
    if (!session->parts_count) {
        end_session(sessions, session);
        return 0;
    }
    session->expected_epoch = session->expected_epoch == INT32_MAX ? 1 : session->expected_epoch + 1;
    hold(fetch, session);
    for (tpc_fetch_known *at = session->first; at; at = at->next) hold_part(fetch, at);
    TPC_HOLDS((uint32_t)fetch->parts_count == session->parts_count); /* each of them, once */
    return 0;
}

int tpc_fetch_find_context(tpc_fetch_sessions *sessions, const tpc_fetch_request *request, bool by_id,
                           const tpc_fetch_part *asked, const tpc_fetch_forgotten *forgotten, int64_t now_ms,
                           tpc_fetch *fetch) {
    tpc_fetch_session *session = find_own(sessions, request->session_id, fetch);
    if (request->session_epoch == EPOCH_INITIAL || request->session_epoch == EPOCH_FINAL) {
        if (session) end_session(sessions, session);
        if (request->session_epoch == EPOCH_FINAL) return sessionless(asked, request->parts_count, fetch);
        return full(sessions, asked, request->parts_count, by_id, now_ms, fetch);
    }
    fetch->incremental = 1;
    if (!session)
        fetch->error_code = TPC_ERROR_FETCH_SESSION_ID_NOT_FOUND;
    else if (session->expected_epoch != request->session_epoch)
        fetch->error_code = TPC_ERROR_INVALID_FETCH_SESSION_EPOCH;
    else if (session->uses_topic_ids != by_id && (request->parts_count || request->forgotten_count))
        fetch->error_code = TPC_ERROR_FETCH_SESSION_TOPIC_ID_ERROR;
    else
        return incremental(sessions, session, request, asked, forgotten, now_ms, fetch);
    return 0;
}

void tpc_fetch_forget_context(tpc_fetch_sessions *sessions, tpc_fetch *fetch) {
    if (fetch->with_names)
        free(tpc_fetch_known_of(fetch->parts[0]));
    else
        for (int32_t i = 0; i < fetch->parts_count; i++) release_known(sessions, tpc_fetch_known_of(fetch->parts[i]));
    free(fetch->parts);
    tpc_fetch_session *session = fetch->session;
    if (!session) return;
    if (session->references == 1) /* it was ended meanwhile */
        while (session->first) {
            tpc_fetch_known *known = session->first;
            order_remove(session, known);
            release_known(sessions, known);
        }
    release_session(session);
}

/* ---- the answer ---- */

static bool has_news(const tpc_fetch_known *known, const tpc_fetch_outcome *outcome) {
    return outcome->has_records || outcome->is_elsewhere || outcome->error_code != 0 ||
           known->sent_high_watermark != outcome->high_watermark ||
           known->sent_log_start_offset != outcome->log_start_offset;
}

void tpc_fetch_select(tpc_fetch *fetch, const tpc_fetch_outcome *outcomes, uint8_t *chosen) {
    tpc_fetch_session *session = fetch->session;
    for (int32_t i = 0; i < fetch->parts_count; i++) {
        chosen[i] = 1;
        if (!session) continue;
        tpc_fetch_known *known = tpc_fetch_known_of(fetch->parts[i]);
        if (!known->in_session) known = find_asked(session, &known->asked, known->hash);
        if (!known) continue;
        chosen[i] = has_news(known, &outcomes[i]) || !fetch->incremental;
        bool failed = outcomes[i].error_code != 0;
        known->sent_high_watermark = failed ? -1 : outcomes[i].high_watermark;
        known->sent_log_start_offset = failed ? -1 : outcomes[i].log_start_offset;
    }
    if (!session || session->parts_count < 2) return;
    /* Served ones go to the end, so that a small limit does not starve the others. */
    for (int32_t i = 0; i < fetch->parts_count; i++) {
        if (!outcomes[i].has_records) continue;
        tpc_fetch_known *known = tpc_fetch_known_of(fetch->parts[i]);
        if (!known->in_session) known = find_asked(session, &known->asked, known->hash);
        if (!known || known == session->last) continue;
        order_remove(session, known);
        order_append(session, known);
    }
}

int tpc_fetch_session_describe(const tpc_plane *plane, int32_t session_id, int32_t *expected_epoch,
                               tpc_fetch_asked *parts, tpc_fetch_outcome *sent, int32_t parts_max) {
    const tpc_fetch_session *session = tpc_fetch_session_find(&plane->fetches->sessions, session_id);
    if (!session) return -ENOENT;
    *expected_epoch = session->expected_epoch;
    int32_t count = 0;
    for (const tpc_fetch_known *at = session->first; at && count < parts_max; at = at->next, count++) {
        parts[count] = at->asked;
        sent[count] = (tpc_fetch_outcome){.high_watermark = at->sent_high_watermark,
                                          .log_start_offset = at->sent_log_start_offset};
    }
    return (int)session->parts_count;
}

int tpc_fetch_session_longest_chain(const tpc_plane *plane, int32_t session_id) {
    const tpc_fetch_session *session = tpc_fetch_session_find(&plane->fetches->sessions, session_id);
    if (!session) return -ENOENT;
    int longest = 0;
    for (uint32_t i = 0; i < session->buckets_count; i++) {
        int length = 0;
        for (const tpc_fetch_known *at = session->buckets[i]; at; at = at->bucket_next) length++;
        if (length > longest) longest = length;
    }
    return longest;
}
