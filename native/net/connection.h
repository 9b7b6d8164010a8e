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
 *
 * Borrowed handler: asked before the hot one when a request lies whole where it was received. It gets the request with frame
 * NULL, may use and overwrite its bytes during the call only, and releases nothing. 1 and 0 as above.
 */
#ifndef TPC_CONNECTION_H
#define TPC_CONNECTION_H

#include "ring.h"
#include "frame.h"
#include "tls.h"
#include "cdef/30_connection.h"
#include "cdef/31_identity.h"

/* The request is Python's: those behind it are not answered in C before it. */
void tpc_request_enters_python(tpc_connections *connections, tpc_request *request);
/* The request is answered, or C takes it over: those behind it may be answered in C again. Twice is allowed. */
void tpc_request_leaves_python(tpc_connections *connections, tpc_request *request);

void tpc_connections_set_borrowed(tpc_connections *connections, tpc_hot_handler handler, void *context);

/*
 * Asked about a large request whose beginning is there: by its subject, whether it matters where in memory it will lie, and then `*residue`, of
 * the address of its first byte, modulo 4096. Changes nothing that could go wrong: the request may never be finished.
 */
typedef bool (*tpc_alignment_handler)(void *context, const uint8_t *bytes, size_t have, uint32_t subject,
                                      uint32_t *residue);
void tpc_connections_set_alignment(tpc_connections *connections, tpc_alignment_handler handler, void *context);

/* The other way: a request that C had taken becomes an event. 0, or -ENOTCONN, -ENOBUFS: it was released, and in the latter
 * case its connection is closed. */
int tpc_request_to_python(tpc_connections *connections, tpc_request *request);

/* False from the moment at which an answer would be void. */
bool tpc_connection_is_open(tpc_connections *connections, uint64_t connection);

/* So long after a refusal comes what was sent before it was seen: behind answers that wait for as long as clients do. */
#define TPC_REFUSED_NS_MAX 60000000000ll

/*
 * A Produce of this connection was refused with an error after which its client tries again: what it had sent behind it
 * is still to come. tpc_connection_refusal() is that error for what was received while it may come, else 0.
 */
void tpc_connection_note_refusal(tpc_connections *connections, uint64_t connection, int16_t error_code);
int16_t tpc_connection_refusal(tpc_connections *connections, uint64_t connection, int64_t received_ns);

/* What tpc_connection_mark() says from now on. */
void tpc_connection_set_mark(tpc_connections *connections, uint64_t connection, uint32_t mark);

/* As tpc_answer_slices(), but the slices begin with the length field, and all of them have frames. */
int tpc_answer_framed(tpc_connections *connections, uint64_t connection, int64_t sequence, const tpc_slice *slices,
                      uint32_t count);

/*
 * Room for the bytes of an answer behind those of the connection's last one, so that answers that leave together lie
 * together: at least 256 bytes, `*room_bytes` of them. NULL: the connection is gone, or is closed for lack of memory.
 * tpc_answer_take() takes the first bytes of it as a slice with a reference. They may be changed until they are answered.
 */
uint8_t *tpc_answer_room(tpc_connections *connections, uint64_t connection, uint32_t *room_bytes, tpc_frame **chunk);
tpc_slice tpc_answer_take(tpc_frame *chunk, uint32_t bytes);

/* How many bytes of memory the next answer may keep at most until it has been sent, whoever makes it. */
int64_t tpc_answers_allowance(const tpc_connections *connections);

/*
 * Room for an answer that is made over several turns: charged before its bytes are there. What is allowed of `bytes`;
 * -ENOBUFS: answers that nobody reads hold all there is. Given back when it is answered, which charges what it has.
 */
int64_t tpc_answers_reserve(tpc_connections *connections, int64_t bytes);
void tpc_answers_unreserve(tpc_connections *connections, int64_t bytes);

#endif
