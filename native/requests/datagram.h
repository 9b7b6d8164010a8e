/*
 * Records that come as datagrams.
 *
 * Theory of operation. Each core has a socket of the one port; the kernel's program (ebpf/programs/steer.c) gives each
 * datagram to the core that owns its partition. One multishot recvmsg fills provided buffers (6.0; before, a poll and recvmsg).
 * The buffers go back at the next turn, so a turn takes TPC_DATAGRAMS_A_TURN at most; what is above stays in the socket, and
 * what is above that the kernel drops and counts.
 *
 * The records of a partition that come in one turn, or while the journal cannot begin another commit, make one batch, which is
 * appended as a Produce is, before the journal seals its commit in the same turn. One wait of the partition (commit.c) tells when it is committed; then each sender that
 * asked for it is answered, by sendmmsg that never blocks. An answer is the datagram's own header, so never longer than
 * what came. A batch for which the journal or the segment has no room stays open for a moment and takes what comes behind.
 *
 * A datagram for a partition that another core owns goes there over the link, once: what comes over a link is never sent on. The
 * owner answers from its own socket, which has the same address.
 */
#ifndef TPC_DATAGRAM_H
#define TPC_DATAGRAM_H

#include "link.h"
#include "plane.h"
#include "cdef/60_datagram.h"

#endif
