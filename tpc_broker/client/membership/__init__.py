"""Who reads which partitions, and what is committed: `Membership` of `consumer/ports`.

Modules
    `settings`     what a member asks of its group, with units, defaults and bounds
    `encoding`     what clients of the classic protocol say to each other in JoinGroup and SyncGroup; no I/O
    `assignors`    how a classic group's leader divides partitions: range, round robin, cooperative-sticky; no I/O
    `steps`        what a machine wants to be carried out; no I/O
    `classic`      a member of a classic group as a machine; no I/O
    `consumer`     a member of a group of KIP-848 as a machine; no I/O
    `offsets`      OffsetCommit and OffsetFetch as plain values; no I/O
    `explaining`   errors in words that name the group, the member, the coordinator and the setting; no I/O
    `line`         a connection of one's own to the group's coordinator, wherever that is
    `committing`   commits and committed positions, tried again
    `topics`       names and numbers of topics, as the cluster tells them
    `stuck`        a handler that takes too long is named
    `group`        drives a member's machine: `GroupMembership`
    `by_hand`      partitions that the program chose: `HandMembership`

Invariants: no partition is read by two members of a group, as far as the coordinator knows who is a member: what is to
be given back is finished or given up, committed, and forgotten, before the coordinator hears of it. What is lost (the
member was fenced) is forgotten at once, and not committed.
"""
