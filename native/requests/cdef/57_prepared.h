/*
 * Answers that are the same for every client of a listener until the broker says otherwise (native/requests/prepared.c):
 * Python makes one when it is first asked for, and C gives it to everybody who asks the same listener with the same bytes.
 * All share its frame. Who is given it may be told apart later, by a mark that its connection keeps.
 */

/* `answer` is what follows the correlation id; the request stays the caller's. The oldest answer of its API goes when there
 * are too many. `mark` is what tpc_connection_mark() says from now on of the request's connection, whatever the result, and
 * then of each that is given the answer; 0: what it said before. 0; -EMSGSIZE: the request's body is too long to be kept;
 * -ENOBUFS: no room in the budget, or too many APIs; -EACCES: subjects are asked about (58_grants.h), so it is not alike for all;
 * -ENOMEM. */
int tpc_plane_prepare_answer(tpc_plane *plane, const tpc_request *request, const uint8_t *answer, uint32_t answer_bytes,
                             uint32_t mark);
void tpc_plane_forget_answers(tpc_plane *plane, int16_t api_key);
