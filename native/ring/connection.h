/*
 * The connections of one core, for the other C parts of the data plane.
 *
 * An id of a connection is generation << 32 | slot, never 0, and never used again: a late answer, or a late completion,
 * for a connection that is gone finds another generation and does nothing.
 *
 * Hot handler: called inside the wait for each request, in the order of its connection. 1: taken, the handler owns the
 * request and answers sooner or later (at once if it likes) by (connection, sequence), and releases the request when it
 * needs it no more; both orders are fine. 0: not taken and nothing changed; Python gets it as TPC_EVENT_REQUEST.
 * It may close any connection, this one too.
 */
#ifndef TPC_CONNECTION_H
#define TPC_CONNECTION_H

#include "ring.h"
#include "frame.h"
#include "cdef/30_connection.h"

/* The request is answered, or C takes it over: those behind it may be answered in C again. Twice is allowed. */
void tpc_request_leaves_python(tpc_connections *connections, tpc_request *request);

#endif
