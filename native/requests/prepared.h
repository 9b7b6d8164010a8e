/* Answers that are the same for every client: what the handlers of requests use of prepared.c. */
#ifndef TPC_PREPARED_H
#define TPC_PREPARED_H

#include "frame.h"

struct tpc_plane;
struct tpc_request;

enum { TPC_PREPARED_MAX = 64, TPC_PREPARED_PER_API_MAX = 16, TPC_PREPARED_BODY_BYTES_MAX = 128 };

typedef struct {
    tpc_frame *frame; /* NULL: free */
    uint64_t number;  /* grows: the least is the oldest */
    int16_t api_key, api_version;
    uint16_t listener;
    uint32_t body_bytes;
    uint32_t mark; /* of the connections that are given it; 0: none */
    uint8_t body[TPC_PREPARED_BODY_BYTES_MAX];
} tpc_prepared;

/* Whether the request was answered; it stays the caller's. */
bool tpc_prepared_answer(struct tpc_plane *plane, const struct tpc_request *request);
void tpc_prepared_free(struct tpc_plane *plane);

#endif
