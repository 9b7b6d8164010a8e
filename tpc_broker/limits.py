"""Every bound of the broker in one place, with the relations that must hold between them.

A limit that a user may set lives in the settings (``tpc_broker.metadata.broker_config``); what is here is what the code
relies on. Bytes unless the name says otherwise.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# Cores and the processes around them.
CORES_MAX = 1024  # broker id = node * 1024 + core
CORE_HEARTBEAT_MS = 1000  # how often the supervisor looks
CORE_BEAT_MS = 500  # how often a core's loop turns at least, and counts it
CORE_HEARTBEAT_MISSED_MS = 15_000
CORE_RESTART_DELAY_MS_MIN = 100
CORE_RESTART_DELAY_MS_MAX = 5_000
CORE_HEALTHY_MS = 10_000  # a core that served for so long begins with the least delay when it ends after all
CORE_START_ATTEMPTS_MAX = 5  # before the first "ready"; later a core is restarted for ever
CORE_DOWN_GRACE_MS = 1_000  # down for longer: its port accepts and closes, Metadata says LEADER_NOT_AVAILABLE
DRAIN_DEADLINE_MS = 20_000  # the default of drain.deadline.ms
DRAIN_DEADLINE_MS_MAX = 3_600_000
DRAIN_HURRIED_MS = 1_000

# Mailboxes between cores.
MAILBOX_CALLS_MAX = 256  # calls under way from one core to one other
MAILBOX_FRAME_BYTES_MAX = 64 * MIB
MAILBOX_CALL_TIMEOUT_MS = 30_000

# Cleaners, the processes that rewrite segments of compacted topics.
CLEANER_JOB_BYTES_MAX = 64 * MIB  # with two million producers and aborted transactions
CLEANER_ANSWER_BYTES_MAX = 256 * KIB
CLEANER_IDLE_S = 60.0  # without a job for so long, a process ends, and its memory is free
CLEANER_HELD_S = 10.0  # for so long, one that is ready waits for the job of the core whose turn it is
CLEANER_SILENT_S = 600.0  # a job that neither reads nor writes for so long hangs, and is killed
CLEANER_DECOMPRESSED_BYTES_MAX = 256 * MIB  # of a batch, whatever max.decompressed.message.bytes says
CLEANER_MEMORY_BYTES_BESIDE = 128 * MIB  # of a job, beside its map, its buffers and a batch in both its forms
CLEANER_BYTES_PER_SECOND_MIN = 1 * KIB  # whatever log.cleaner.io.max.bytes.per.second says
CLEANER_MAP_BYTES_MAX = 2 * 1024 * MIB - 1  # of one cleaner, as Kafka has it

# Control channel between supervisor and core.
CONTROL_LINE_BYTES_MAX = 1 * MIB
STATUS_ANSWER_MS = 1_000  # what a core has for telling its counters; one that is busy for longer is shown without
STATUS_BACKLOG = 16
SCRUB_DAMAGES_TOLD_MAX = 1_000  # stretches named in a report, and one at least of each partition; all are counted
SCRUB_PARTITIONS_TOLD_MAX = 5_000  # damaged ones
SCRUB_REPORT_BYTES_MAX = 16 * MIB  # of those, with the longest names
BACKUP_FREEZE_MS = 300  # so long a core stands still at most, while a backup fixes one moment for all of them
BACKUP_HOLD_MS = 20_000  # so long it makes no checkpoint for a backup, while its journal is copied
BACKUP_CATCH_UP_MS = 30_000  # so long a backup waits for a node's replicas to have what their leaders have
BACKUP_PACKET_BYTES = 64 * KIB  # between a backup and a core
CONTROL_REQUEST_BYTES_MAX = 4_096
ADMIN_CONNECTIONS_MAX = 16

# Connections of one core.
CONNECTIONS_MAX = 20_000
CONNECTIONS_MIN = 10  # max.connections below it would lock out those who could raise it again
CONNECTIONS_PER_IP_MIN = 2  # of an administrator: one to the address that was given, one to the core by its own
DESCRIPTORS_KEPT = 256  # for what is neither a client's connection nor a segment
PIPELINED_REQUESTS_MAX = 64
PRODUCE_PARTITIONS_MAX = 10_000  # of one request
PARTITIONS_A_PAGE_MAX = 2_000  # of an answer to DescribeTopicPartitions; Kafka's max.request.partition.size.limit
TRANSACTION_PARTITIONS_MAX = 10_000  # of one transaction, and of one request that adds some or writes markers
TRANSACTIONS_DESCRIBED_MAX = 10_000  # in one answer
PRODUCERS_TOLD_MAX = 10_000  # in one answer
REQUEST_BYTES_MAX = 100 * MIB  # where socket.request.max.bytes says nothing else; the budget grows with that
CORE_BUDGET_BYTES = 1024 * MIB
SEND_DEADLINE_MS = 60_000

# Connections that have not said who they are.
AUTHENTICATION_BYTES_MAX = 512 * KIB  # of a request, where sasl.server.max.receive.size says nothing else
AUTHENTICATION_MS_MAX = 10_000
STRANGERS_BYTES_MAX = 16 * MIB  # of a core: as many as have sent a byte each of a request have little
SUBJECTS_KNOWN_MAX = 65_536  # of a core, before those are forgotten that no connection has

# Membership (SWIM).
SWIM_DATAGRAM_BYTES_MAX = 1_400  # within one Ethernet frame, tunnels included: a fragment lost is a datagram lost
SWIM_FRAME_BYTES_MAX = 64 * KIB  # of a stream that exchanges the whole state
SWIM_MEMBERS_MAX = 4_096
SWIM_ENDPOINTS_MAX = 4  # of a node, beside the address of its membership protocol
SWIM_HOST_BYTES_MAX = 253  # a name in DNS
SWIM_NAME_BYTES_MAX = 64
SWIM_INFO_TEXT_BYTES_MAX = 640  # all texts of a node together
SWIM_CLUSTER_BYTES_MAX = 64
SWIM_RELAYS_MAX = 1_024  # pings under way for others

# Clusters of nodes.
CLUSTER_SEEDS_MAX = 64
CLUSTER_VOTERS_MAX = 5  # of the metadata; other nodes pull what those have committed
CLUSTER_SECRET_BYTES_MIN = 16
CLUSTER_SECRET_BYTES_MAX = 1_024
CLUSTER_SECRETS_MAX = 4  # believed at a time, while one takes the place of another
CLUSTER_SEAL_BYTES = 61  # around a datagram
CLUSTER_GROUP_BYTES_MAX = 64
LINK_GREETING_BYTES_MAX = 4 * KIB  # a frame from one who has not proved the secret
LINK_FRAME_BYTES_MAX = 64 * MIB
LINK_QUEUE_BYTES_MAX = 64 * MIB  # waiting to be sent to one node; what is above it is refused, or lost where it may be
REPLICATED_BATCH_BYTES_MAX = 32 * MIB  # of a partition with replicas on other nodes: it has to go through a link whole
OWN_BATCH_BYTES_MAX = 8 * MIB
"""Of records that the broker itself appends at once. One write of a group (all offsets of a commit, all assignments of
a round) is refused above it, because it is whole or not at all; whatever need not be is divided."""
OWN_RECORD_OVERHEAD_BYTES = 64  # at most, of a record beside its key and its value
OWN_TRANSACTION_BATCH_BYTES = 192  # what one of a transaction costs beside its records: markers are a batch of 78 bytes
COORDINATOR_WRITES_BYTES_MAX = 64 * MIB  # of one coordinator, that wait for the disk: above it clients are to come back
COORDINATOR_WRITES_MAX = 10_000  # the same
GROUP_BYTES_MAX = 32 * MIB  # of what the members of one group have said: what they support, and who they are
GROUPS_BYTES_MAX = 256 * MIB  # of all groups of a core together
GROUP_MEMBER_BYTES = KIB  # counted of a member, and of an id that was given out, beside what it has said
RESOURCE_CONFIG_BYTES_MAX = 16 * KIB  # of a group's or a subscription's name and settings: all is in each core's memory
RESOURCE_CONFIGS_BYTES_MAX = 4 * MIB  # of all of them together: some 50,000 groups that set one thing
SCRAM_CREDENTIALS_MAX = 20_000  # some 6 MiB of the metadata, 18 at most
QUOTA_ENTITIES_MAX = 65_536  # users, client ids, pairs of them and addresses with quotas: all is in each core's memory
QUOTA_NAME_BYTES_MAX = 512  # of a user, client id or address of theirs
CLIENT_METRICS_SUBSCRIPTIONS_MAX = 200  # every new instance is matched with each of them
LINK_REQUESTS_MAX = 256  # under way to one node, and from one node
LINK_GREETINGS_MAX = 64  # connections that have not proved the secret yet: from strangers, and as many from nodes
LINK_GREETINGS_OF_ADDRESS_MAX = 16  # of those, from one address that is not known
LINK_KNOWN_ADDRESSES_MAX = 1_024  # from which the secret has been proved
LINK_TEXT_BYTES_MAX = 512
SHIPMENTS_MAX = 64  # under way from one core
SHIPPED_CHUNK_BYTES = 4 * MIB  # of a segment in one answer
SHIPPED_FILES_MAX = 1 << 20

# The log.
BLOCK_BYTES = 4 * KIB  # of the journal, and of what is written past the page cache
JOURNAL_REGION_BLOCK_FIRST = 2  # behind the superblocks
JOURNAL_BYTES_MAX = 256 * MIB
JOURNAL_COMMIT_BYTES_MAX = 8 * MIB
IN_PLACE_BYTES_MAX = 512 * MIB
"""Of batches that were written once, in place, and that no checkpoint covers: recovery reads and checks each of them.
A checkpoint is asked for at a quarter; what is above it all goes through the journal as well."""
CACHE_BYTES_SURE = 32 * MIB
"""Of what is in segments already, kept by a core for its readers however short the machine's memory is."""
BYTES_WITHOUT_BOUND = 2**62
WRITE_BEHIND_BYTES_MAX = 4 * MIB
DISK_HEADROOM_BYTES = 16 * MIB
"""Clients' records leave so much of the file system free (at most a sixteenth of it), because what was admitted still
needs indexes, snapshots and checkpoints, and deletions need the metadata log."""
DISK_FULL_BYTES = 64 * MIB
"""A node with less than that for clients' records (at most a sixteenth of the file system) gets no new replicas while
others can have them: about what the partitions that it has reserve together in a moment."""
SPACE_LOOK_MS = 500  # between two looks whether there is segment space again where there was none
SPACELESS_TOLD_MS = 2_000  # a replica has had none for so long: others hear of it, and it stands behind them
SPACELESS_MS_MAX = 3_000  # so long a leader may have none before another one is to lead
SPACELESS_TRANSFER_MS = 3_000  # so long its leader tries to hand over, before it just resigns
SPACELESS_AGAIN_MS_MIN = 10_000  # between two times that a node gives up the same leadership for want of space ...
SPACELESS_AGAIN_MS_MAX = 320_000  # ... twice as long each time, up to this
FETCH_RESPONSE_BYTES_MAX = 55 * MIB
FETCH_SESSION_BYTES_MAX = 256 * MIB
"""Of what a core's fetch sessions remember: more than a thousand sessions of a thousand partitions each. Above it idle
ones are given up, and clients go without one. Of fetches that wait, beside their sessions, so much once more: above it
those of many partitions are answered at once."""

# Metrics that clients push, of one core.
TELEMETRY_BYTES_MAX = 16 * MIB  # of one push when it is decompressed, where telemetry.max.bytes is larger
TELEMETRY_PUSHES_WAITING_MAX = 100  # to be read, beside the one that is; above it clients are told to come later
TELEMETRY_FIELDS_MAX = 50_000  # of a push, looked at: more than a mebibyte of real metrics has
TELEMETRY_INSTANCES_MAX = 10_000  # above it the one that was longest silent is forgotten
TELEMETRY_EXPIRY_MS_MIN = 60_000  # so long an instance may be silent, whatever its interval
TELEMETRY_SWEEP_MS = 10_000  # between two looks for those that were silent for longer
TELEMETRY_PATTERN_BYTES_MAX = 4 * KIB  # of an operator's expression
TELEMETRY_PATTERN_MEMORY_BYTES_MAX = 256 * KIB  # that RE2 takes for it
TELEMETRY_PATTERN_INSTRUCTIONS_MAX = 1_500  # of RE2's program: with them a match takes some 2 ms at most
TELEMETRY_MATCHED_BYTES_MAX = 256  # of what is known of a client; what is longer is not matched
SOFTWARE_KINDS_MAX = 4_096  # names and versions of software that connections are told apart by; then half of them go
SOFTWARE_TEXT_LENGTH_MAX = 256  # of either; what is longer is not kept

# The loop.
STALL_MS = 10  # counted
STALL_LOG_MS = 300  # logged: other cores and clients notice

CORE_CPU_SLICE_NS = 100_000  # of the kernel's scheduler: its least
TASK_SLICE_NS = 1_000_000  # of one queue's tasks, before another queue may have its turn
TASK_STEP_NS_ASSUMED = 50_000  # until a queue's steps have been measured

DATAGRAM_RECEIVE_BUFFER_BYTES = 4 * MIB  # of a core's socket; the kernel gives what net.core.rmem_max allows
DATAGRAM_PARTITIONS_TOLD_MAX = 60_000  # of a topic and core: the others' datagrams may take a forward

LISTENERS_MAX = 16  # of a broker; each has a socket a core

# Log lines that others cause.
LOG_LINE_PERIOD_S = 60.0  # one of a cause and who is behind it
LOG_LINES_OF_CAUSE_MAX = 20  # told apart by who is behind them; all others share one more
LOG_CAUSES_MAX = 200
LOG_LINE_LENGTH_MAX = 1_000
VAIN_LINE_S = 3600.0  # a client that asks for what is not there goes on doing so
CLIENT_ID_SHOWN_MAX = 64  # characters

assert CORE_HEARTBEAT_MISSED_MS > 10 * CORE_HEARTBEAT_MS, "a busy core must not be taken for a dead one"
assert BACKUP_FREEZE_MS < CORE_BEAT_MS, "a core that a backup has stopped is not taken for one that hangs"
assert CORE_BEAT_MS < CORE_HEARTBEAT_MS, "a core that is well is never silent at a look that is on time"
assert DATAGRAM_PARTITIONS_TOLD_MAX * 12 < CONTROL_LINE_BYTES_MAX, "a core tells them in one line"
assert STALL_MS < STALL_LOG_MS < CORE_HEARTBEAT_MS, "routine is not logged, and what is goes before the watcher"
assert CORE_RESTART_DELAY_MS_MIN < CORE_RESTART_DELAY_MS_MAX, "back-off grows"
assert CORE_HEALTHY_MS > CORE_RESTART_DELAY_MS_MAX, "a core that only ever crashes must reach the longest delay"
assert CONNECTIONS_MIN < CONNECTIONS_MAX, "the bounds leave a choice"
assert JOURNAL_COMMIT_BYTES_MAX * 8 <= JOURNAL_BYTES_MAX, "a commit is a small part of the journal, or recycling stalls"
assert IN_PLACE_BYTES_MAX // 4 >= 16 * JOURNAL_COMMIT_BYTES_MAX, "a checkpoint of large batches pays"
assert IN_PLACE_BYTES_MAX <= 2 * JOURNAL_BYTES_MAX, "recovery takes about as long for what is written once"
assert JOURNAL_COMMIT_BYTES_MAX % BLOCK_BYTES == 0, "commits are whole blocks"
assert SPACELESS_TOLD_MS >= 4 * SPACE_LOOK_MS, "what is full for a moment changes nothing"
assert SPACELESS_MS_MAX >= SPACELESS_TOLD_MS + 2 * SPACE_LOOK_MS, "nobody is chosen who is full since the same moment"
assert SPACELESS_AGAIN_MS_MIN > SPACELESS_MS_MAX + SPACELESS_TRANSFER_MS, (
    "who got a leadership has found that it has no space, and told so, before it can come back"
)
assert SPACELESS_AGAIN_MS_MIN < SPACELESS_AGAIN_MS_MAX, "back-off grows"
assert CORE_BUDGET_BYTES >= REQUEST_BYTES_MAX * 2, "one largest request must not starve all others"
assert SWIM_DATAGRAM_BYTES_MAX >= 2 * SWIM_INFO_TEXT_BYTES_MAX, "a node's information fits beside any header"
assert CLUSTER_VOTERS_MAX + 1 <= 6, "voters, and one that is to become one, are the rows of a group's table (raft)"
assert LINK_GREETINGS_OF_ADDRESS_MAX * 4 <= LINK_GREETINGS_MAX, "no stranger takes all places"
assert LINK_GREETING_BYTES_MAX < LINK_FRAME_BYTES_MAX <= LINK_QUEUE_BYTES_MAX, "one frame must fit"
assert 2 * REPLICATED_BATCH_BYTES_MAX <= LINK_FRAME_BYTES_MAX, "a batch fits into a frame, whatever is beside it"
assert OWN_BATCH_BYTES_MAX < REPLICATED_BATCH_BYTES_MAX, "what the broker writes itself goes through a link, too"
assert OWN_BATCH_BYTES_MAX <= JOURNAL_COMMIT_BYTES_MAX, "and is no more for the journal than what it takes at once"
assert COORDINATOR_WRITES_BYTES_MAX >= 4 * OWN_BATCH_BYTES_MAX, "one client's largest write leaves room for the others'"
assert GROUP_BYTES_MAX >= 2 * OWN_BATCH_BYTES_MAX, "a round that can be written can be joined, with two protocols"
assert GROUP_BYTES_MAX * 4 <= GROUPS_BYTES_MAX <= CORE_BUDGET_BYTES / 2, "one group leaves room for others"
assert SWIM_FRAME_BYTES_MAX >= 8 * SWIM_DATAGRAM_BYTES_MAX, "any update fits into a frame"
