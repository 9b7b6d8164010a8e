/* How long each API takes, and which requests took longest; counted where a request is answered. */
#ifndef TPC_LATENCY_H
#define TPC_LATENCY_H

#include "connection_state.h"

/* A request was answered: C reads no clock for it while it has the turn, so what one batch of completions brings and
 * answers took no time. */
void latency_note(connection *it, const answer *place, uint64_t answer_bytes);

/* Once a turn: ends the window of the slowest requests. */
void latency_turn(tpc_latencies *latencies, int64_t now_ns);

#endif
