/*
 * How many connections each address has. The table has a row for each address with at least one, and none for others. It
 * never shrinks: it has room for the most addresses that were connected at once, and so is bounded by max.connections.
 * It belongs to no budget of memory. Clients choose their addresses, so the hash has a key.
 */
#ifndef TPC_PEER_COUNTS_H
#define TPC_PEER_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

/* Of IPv6; an address of IPv4 is the one that it is mapped to, so that it is the same one on every listener. */
typedef struct {
    uint8_t bytes[16];
} peer_address;

typedef struct {
    peer_address address;
    uint32_t count; /* 0: the row is free */
} peer_row;

/* All zero: empty. */
typedef struct {
    peer_row *rows;
    uint32_t capacity; /* a power of two, or 0; at most half of the rows are taken */
    uint32_t taken;
} peer_counts;

/* False: it has none (a Unix socket), or is not connected any more. */
bool peer_address_of(int descriptor, peer_address *address);
uint32_t peer_counts_of(const peer_counts *counts, const peer_address *address);
/* False: no memory, and nothing is counted. */
bool peer_counts_add(peer_counts *counts, const peer_address *address);
/* One that was added. */
void peer_counts_remove(peer_counts *counts, const peer_address *address);
void peer_counts_free(peer_counts *counts);

#endif
