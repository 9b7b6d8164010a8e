"""Raft for one group per partition: machines without I/O, clocks or chance. This page is for who drives them.

What is replicated is a partition's log itself: a position is (epoch, end offset), the start of a term is a marker of no
length that carries the configuration, a term is Kafka's leader epoch. So there are no entries without records, and
membership changes only where a term begins. The rules are in docs/raft-rules.md; modules:

    items      positions, markers, batches, voters, configurations         log        what a log contains, cuts, epochs
    messages   what goes over links, `Frame`                               journal    entries, checkpoint, replay
    output     `Ready`, events, answers to commands                        settings   times and bounds
    steady     append, ack, match, commit: the part that C will carry      links      heartbeats, freshness, rounds
    group      one replica: layers `replica`, `elections`, `followers`, `leaders`, `membership`, and `Group` the whole
    core       `RaftCore`: all groups of a core, its links, its journal's order: the only class that a driver talks to

A `RaftCore` lives on one core, and is touched by that core's thread only. Its methods take what they need as arguments:
`now_ms` is any clock that never goes back, also across calls of different methods; `boot_id` is a number
above those of all earlier starts of this core (it also takes the place of chance: jitter of election timeouts is made
from it). All
methods return at once.

    core = RaftCore(Address(node, core), boot_id, now_ms, Settings())
    core.add_link(address, now_ms)                       a core of another node; heartbeats begin
    core.connected(address, now_ms)                      its connection is new: whatever was under way may be lost
    core.link_refused(address, now_ms)                   it was connected, and nobody listens there now: it has ended
    core.create_group(group, me, config, now_ms, checkpoint=None, cores={})
                                                         `config` is that of the CREATION record, taken if `me` is named
                                                         in it; None for a later learner; `checkpoint` is what
                                                         `journal.replay` gave; `cores`: which core of another node has
                                                         its replica, where that is not the core of the same number
    core.remove_group(group, now_ms)                     damaged or deleted: resigns, then is silent
    core.leave(group, now_ms);  core.has_left(group)     to another core of the node, as the same voter: when it
                                                         has left, `remove_group` here, and `create_group` there once
                                                         the driver has brought over what `journal.replay` gives of
                                                         it; until it is removed, `core.stay(group, now_ms)` takes it
                                                         back
    core.replica_moved(group, node, core_id, now_ms)     another node's replica is on another of its cores now
    core.receive(frame, now_ms)
    core.tick(now_ms);  core.next_deadline_ms()
    core.propose(group, proposals, now_ms)               -> Accepted | Refusal
    core.read_index(group, token, now_ms)                -> Refusal | None; then ReadReady or ReadFailed with the token
    core.stand_at_once(group, now_ms)                    it has no leader, and is to be the first one
    core.transfer_leadership(group, target, now_ms)      -> Refusal | None
    core.set_learners(group, learners, now_ms)           -> Refusal | None
    core.change_voters(group, target, now_ms)            -> Refusal | None; then ConfigCommitted or ChangeAborted
    core.abort_change(group, now_ms)
    core.items_read(group, target, prev, batches, now_ms)  what ReadItems asked for, from the segments
    core.not_read(group, target, prev, now_ms, ships=)   or: it is so much that segments are better, then ShipSegments;
                                                         or it could not be read, then ReadItems again: make a pause
    core.shipped(group, target, position, now_ms)        the segments that ShipSegments asked for are with the target
    core.persisted(sequence, now_ms)                     the journal is durable up to here
    core.journal_failed(durable_sequence, now_ms, unheard=());  core.journal_reopened(now_ms)
    core.checkpoint(group)                               -> Checkpoint of what is durable, and nothing else
    core.release(group, position)                        these items need not be kept in memory (they are in files)
    core.truncate_start(group, log_start_offset)
    core.compacted(group, contiguous_from_offset)        segments have gaps below: from there only segments travel
    core.ready(now_ms)                                   -> Ready: what this turn gives
    core.group(group), core.statistics()                 for looking at

The driver's duties, in each turn:

 1. Call what happened: `receive`, `persisted`, `tick` when `next_deadline_ms()` is reached, commands. Then `ready`
    once.
 2. Put `Ready.entries` into the journal in their order, behind those of all earlier turns. Never leave one out or
    reorder.
 3. Send `Ready.frames` with `after_sequence` 0 at once: a leader's AppendEntries leaves in parallel with its own
    write. Keep the others until the journal is durable up to their sequence. A frame may be lost, doubled or late;
    its messages may be separated.
 4. Carry out `Ready.events` in order. `LogCut`: no file is written above the cut before it is cut. `Committed` moves
    the high watermark; it never falls while the process lives. `RoleChanged` away from LEADER ends waits with
    NOT_LEADER_OR_FOLLOWER unless the same replica is elected again at once (OWN_NEXT_TERM): waits are for positions,
    and end when a `LogCut` takes them or another leader appears. What is committed is shown before. From
    `HandOverBegun` on nothing is appended until proposals are taken again.
 5. When the journal is durable up to a sequence, say so by `persisted`, in order. Not earlier: an ack, a vote and a
    leader's own part of a quorum are made of it.
 6. When a write of the journal fails: drop all frames and entries that wait for more than what is durable, call
    `journal_failed` with the durable sequence, once the journal is open again `journal_reopened`; the first entries
    after it undo what may be on the disk all the same. A sequence is never given twice, so those of failed entries
    are left out. What was shipped is kept until its AdoptEntry is durable: one that was lost is written again, because
    no cut would undo it. A group whose log was appended to and is not proposed yet is named as `unheard`: it is
    undone as well. A core that cannot reopen ends.
 7. After a crash: `journal.replay` of checkpoint and durable entries, then `create_group` with it and a new
    `boot_id`. A replica of which anything durable is missing is *not* created again: it has left, and comes back as
    a new incarnation, a learner; what the journal has of earlier ones is not its own. Nor is one created that has
    gone to another core.
 8. Checkpoints of all groups may take the place of all entries up to the durable sequence at which it was taken,
    once files hold everything of it. Segments hold uncommitted batches then: readers of files use `commit_hint`. It
    names no replica that was removed meanwhile, also where another incarnation is by now.
 9. Reads: a record below the high watermark is shown to anybody; whatever *decides* asks `read_index` first.
10. Delete the files of a removed replica only after `ConfigCommitted` has named it. It comes back only as another
    incarnation, also while the configuration that leaves it out is not committed: who is not a voter is made a
    learner only when the last configuration is committed, or it is deleted as the member that it has become again.
11. With thousands of groups: `gc.freeze()` once they are created, and a first threshold of the collector of some
    50,000. There are no cycles here, and an election of all groups makes a million objects: looking through them
    costs a fifth of it.

What a simulator needs to know: everything is deterministic (no set or dictionary is walked in an order that depends on
hashes of strings); all state of a replica hangs on `core.group(id)` with plain attributes; every rule is a small
method of its own, to be replaced by a mutant; items of one position are equal on all replicas, `payload` is handed
through untouched. The bytes behind `ShipSegments` and `Install` are the driver's: a simulator copies them from the
leader's own record of its log.
"""
