#include "peer_counts.h"
#include "io.h"
#include "keyed_hash.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { ROWS_FIRST = 64 };

bool peer_address_of(int descriptor, peer_address *address) {
    union {
        struct sockaddr any;
        struct sockaddr_in ip4;
        struct sockaddr_in6 ip6;
        struct sockaddr_storage storage;
    } peer = {0};
    if (tpc_io.peer(descriptor, &peer, sizeof peer) < 0) return false;
    *address = (peer_address){{[10] = 0xff, [11] = 0xff}};
    if (peer.any.sa_family == AF_INET)
        memcpy(address->bytes + 12, &peer.ip4.sin_addr, 4);
    else if (peer.any.sa_family == AF_INET6)
        memcpy(address->bytes, &peer.ip6.sin6_addr, 16);
    else
        return false;
    return true;
}

static uint32_t home_of(const peer_counts *counts, const peer_address *address) {
    return (uint32_t)tpc_keyed_hash(0, address->bytes, sizeof address->bytes) & (counts->capacity - 1);
}

/* Where the address stands, or the free row where it would. There are rows. */
static uint32_t place_of(const peer_counts *counts, const peer_address *address) {
    uint32_t at = home_of(counts, address);
    while (counts->rows[at].count && memcmp(&counts->rows[at].address, address, sizeof *address) != 0)
        at = (at + 1) & (counts->capacity - 1);
    return at;
}

uint32_t peer_counts_of(const peer_counts *counts, const peer_address *address) {
    return counts->capacity ? counts->rows[place_of(counts, address)].count : 0;
}

static bool grow(peer_counts *counts) {
    peer_counts larger = {.capacity = counts->capacity ? counts->capacity * 2 : ROWS_FIRST, .taken = counts->taken};
    larger.rows = calloc(larger.capacity, sizeof *larger.rows);
    if (larger.rows == NULL) return false;
    for (uint32_t i = 0; i < counts->capacity; i++)
        if (counts->rows[i].count) larger.rows[place_of(&larger, &counts->rows[i].address)] = counts->rows[i];
    free(counts->rows);
    *counts = larger;
    return true;
}

bool peer_counts_add(peer_counts *counts, const peer_address *address) {
    if ((counts->taken + 1) * 2 > counts->capacity && !grow(counts)) return false;
    peer_row *row = &counts->rows[place_of(counts, address)];
    if (!row->count) {
        row->address = *address;
        counts->taken++;
    }
    row->count++;
    return true;
}

/* Rows behind one that became free move up, unless they stand where they would be looked for first. */
static void close_gap(peer_counts *counts, uint32_t gap) {
    uint32_t mask = counts->capacity - 1;
    for (uint32_t at = (gap + 1) & mask; counts->rows[at].count; at = (at + 1) & mask) {
        uint32_t home = home_of(counts, &counts->rows[at].address);
        if (((at - home) & mask) < ((at - gap) & mask)) continue;
        counts->rows[gap] = counts->rows[at];
        counts->rows[at].count = 0;
        gap = at;
    }
}

void peer_counts_remove(peer_counts *counts, const peer_address *address) {
    assert(counts->capacity > 0);
    uint32_t at = place_of(counts, address);
    assert(counts->rows[at].count > 0);
    if (--counts->rows[at].count > 0) return;
    counts->taken--;
    close_gap(counts, at);
}

void peer_counts_free(peer_counts *counts) {
    free(counts->rows);
    *counts = (peer_counts){0};
}
