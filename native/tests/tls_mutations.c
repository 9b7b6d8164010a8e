/*
 * The TLS filter's sessions under a client whose bytes are changed on their way: for the sanitizers.
 *
 *   tls_mutations CHAIN KEY SEED ROUNDS [canary]      PEM files; prints the handshakes that were whole and those that failed
 *
 * A round is one session and one client of OpenSSL's, over memory. What the client sends comes in pieces, each in a heap block
 * of exactly its size, and every other round some of it is flipped, cut, repeated or made up. What the filter writes goes to a
 * block of exactly the room that it was told. What it reads is the beginning of what the client has written, whatever
 * happened on the way: that is what TLS promises. The canary says that a block is longer than it is, so that a fault is seen
 * to be found.
 */
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tls.h"

enum { STEPS = 24, WRITTEN_MAX = 1 << 20, PIECE_MAX = 40000 };

static uint64_t random_state;
static size_t lie; /* the canary's: bytes that are fed and not there */

static uint32_t next_random(uint32_t below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

static void require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}

static char *file_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);
    require(file && text && fread(text, 1, (1 << 16) - 1, file) > 0, "a file that can be read");
    fclose(file);
    return text;
}

typedef struct {
    SSL *client;
    BIO *to_client, *from_client;
    tpc_tls_session *filter;
    uint8_t *written;
    size_t written_bytes, read_bytes;
    int is_whole, has_ended, is_changed;
} pair;

/* What the filter has to say, by way of a block of some room. */
static void take_output(pair *it, uint8_t *block) {
    BIO_write(it->to_client, block, (int)tpc_tls_output_bytes(it->filter));
    size_t spilled = tpc_tls_spilled(it->filter);
    require(spilled <= TLS_SPILL_BYTES_MAX, "the bound of what is spilled");
    if (spilled) {
        uint8_t *taken = malloc(spilled);
        tpc_tls_take_spilled(it->filter, taken);
        BIO_write(it->to_client, taken, (int)spilled);
        free(taken);
    }
    tpc_tls_set_output(it->filter, NULL, 0);
}

static void read_all(pair *it) {
    for (int got = 1; got > 0 && !it->has_ended;) {
        size_t room = 1 + next_random(TLS_RECORD_BYTES);
        uint8_t *into = malloc(room);
        got = tpc_tls_read(it->filter, into, room);
        require(got <= (int)room, "no more than there is room for");
        if (got > 0) {
            require(it->read_bytes + (size_t)got <= it->written_bytes, "nothing that was not written");
            require(!memcmp(into, it->written + it->read_bytes, (size_t)got), "what was written");
            it->read_bytes += (size_t)got;
        }
        free(into);
        it->has_ended = got == TLS_ENDED || got == TLS_FAILED;
        if (got == TLS_FAILED) tpc_tls_error(it->filter);
        if (got == TLS_WANTS_MORE) require(tpc_tls_unread(it->filter) == 0, "all that was fed is taken");
    }
}

static void feed(pair *it, const uint8_t *bytes, size_t count) {
    uint8_t *piece = malloc(count), *room_of_output;
    size_t room = next_random(3) ? next_random(2 * TLS_RECORD_BYTES) : 0;
    room_of_output = malloc(room ? room : 1);
    memcpy(piece, bytes, count);
    tpc_tls_set_output(it->filter, room_of_output, room);
    tpc_tls_feed(it->filter, piece, count + lie);
    if (!it->is_whole) {
        int result = tpc_tls_handshake(it->filter);
        require(result == 1 || result == TLS_WANTS_MORE || result == TLS_FAILED, "a handshake's result");
        it->is_whole = result == 1;
        it->has_ended = result == TLS_FAILED;
    }
    if (it->is_whole && !it->has_ended) {
        char name[300];
        require(tpc_tls_peer_name(it->filter, TPC_TLS_NAME_SUBJECT, name, sizeof name) == 0, "no certificate, no name");
        read_all(it);
        if (!it->has_ended && !next_random(4)) tpc_tls_write(it->filter, it->written, next_random(3000));
    }
    take_output(it, room_of_output);
    free(room_of_output);
    free(piece);
}

/* In place; the count afterwards, of at most twice as many. */
static size_t change(uint8_t *bytes, size_t count) {
    size_t at = next_random((uint32_t)count), many = 1 + next_random(8);
    switch (next_random(5)) {
    case 0:
        bytes[at] ^= (uint8_t)(1 << next_random(8));
        return count;
    case 1: /* cut */
        return at;
    case 2: /* made up */
        while (many-- && at < count) bytes[at++] = (uint8_t)next_random(256);
        return count;
    case 3: /* twice */
        memcpy(bytes + count, bytes, count);
        return 2 * count;
    default: /* a length */
        if (count > 5) memset(bytes + 3, next_random(2) ? 0xff : 0, 2);
        return count;
    }
}

/* What the client has to say now, in pieces. */
static void carry(pair *it, int changes) {
    size_t count = BIO_ctrl_pending(it->from_client);
    if (!count || it->has_ended) return;
    uint8_t *bytes = malloc(2 * count);
    BIO_read(it->from_client, bytes, (int)count);
    if (changes && !next_random(3)) {
        count = change(bytes, count);
        it->is_changed = 1;
    }
    for (size_t done = 0; done < count && !it->has_ended;) {
        size_t piece = 1 + next_random(next_random(4) ? PIECE_MAX : 16);
        if (piece > count - done) piece = count - done;
        feed(it, bytes + done, piece);
        done += piece;
    }
    free(bytes);
}

static void step_client(pair *it) {
    if (!SSL_is_init_finished(it->client)) {
        SSL_do_handshake(it->client);
        return;
    }
    uint8_t answer[4096];
    while (SSL_read(it->client, answer, sizeof answer) > 0) {
    }
    size_t count = 1 + next_random(next_random(8) ? 500 : 3 * TLS_RECORD_BYTES);
    if (it->written_bytes + count > WRITTEN_MAX) return;
    uint8_t *from = it->written + it->written_bytes;
    for (size_t i = 0; i < count; i++) from[i] = (uint8_t)next_random(256);
    if (SSL_write(it->client, from, (int)count) == (int)count) it->written_bytes += count;
    if (!next_random(8)) SSL_key_update(it->client, SSL_KEY_UPDATE_REQUESTED);
    if (!next_random(16)) SSL_shutdown(it->client);
}

static int round_is_whole(tpc_tls_context *context, SSL_CTX *clients, uint8_t *written, int changes) {
    pair it = {.client = SSL_new(clients), .filter = tpc_tls_session_new(context), .written = written};
    require(it.client && it.filter, "memory");
    it.to_client = BIO_new(BIO_s_mem());
    it.from_client = BIO_new(BIO_s_mem());
    SSL_set_bio(it.client, it.to_client, it.from_client);
    SSL_set_connect_state(it.client);
    if (next_random(2)) SSL_set_max_proto_version(it.client, TLS1_2_VERSION);
    for (int step = 0; step < STEPS && !it.has_ended; step++) {
        step_client(&it);
        carry(&it, changes);
    }
    require(it.is_changed || it.is_whole, "a handshake that nobody has touched");
    require(it.is_changed || it.has_ended || it.read_bytes == it.written_bytes, "all of it is read");
    tpc_tls_end(it.filter);
    tpc_tls_session_free(it.filter);
    SSL_free(it.client);
    return it.is_whole;
}

int main(int count, char **arguments) {
    require(count >= 5, "tls_mutations CHAIN KEY SEED ROUNDS [canary]");
    char why[300] = "", *chain = file_text(arguments[1]), *key = file_text(arguments[2]);
    tpc_tls_settings settings = {.chain = chain, .key = key, .versions = TPC_TLS_1_2 | TPC_TLS_1_3};
    int part = 0;
    tpc_tls_context *context = tpc_tls_context_new(&settings, &part, why, sizeof why);
    SSL_CTX *clients = SSL_CTX_new(TLS_client_method());
    uint8_t *written = malloc(WRITTEN_MAX);
    require(context && clients && written, why);
    lie = count > 5;
    random_state = strtoull(arguments[3], NULL, 10);
    long whole = 0, failed = 0, rounds = strtol(arguments[4], NULL, 10);
    for (long i = 0; i < rounds; i++) {
        if (round_is_whole(context, clients, written, i % 2))
            whole++;
        else
            failed++;
    }
    printf("%ld %ld\n", whole, failed);
    free(written), free(chain), free(key);
    SSL_CTX_free(clients);
    tpc_tls_context_free(context);
    return 0;
}
