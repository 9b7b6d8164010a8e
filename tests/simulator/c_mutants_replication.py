"""Faults in C's part of replication: leaders and followers of the steady state, roles, commits, cuts, what is shown."""

from __future__ import annotations

from typing import Final

from tests.simulator.c_mutant import Mutant

STEADY: Final = "replication/steady.c"
LINK: Final = "replication/steady_link.c"
TURN: Final = "replication/steady_turn.c"
LINKS_LIFE: Final = "replication/steady_life.c"
BEATS: Final = "replication/steady_beats.c"
COMMIT: Final = "log/commit.c"
REPLICA: Final = "replication/replica.c"
FOLLOWING: Final = "replication/replica_append.c"
PARTITION: Final = "log/partition.c"
LIFE: Final = "log/partition_life.c"

OF_LEADERS: Final = (
    Mutant(
        "committed beyond the own disk", "3.4", STEADY,
        "    if (offset > it->partition->durable_offset) offset = it->partition->durable_offset;\n", "",
        "engine/test_steady_rules.py::test_what_the_own_disk_has_not_is_not_committed",
    ),
    Mutant(
        "one of two is a majority", "3.4", STEADY,
        "have[(count - 1) / 2]", "have[count / 2]",
        "engine/test_steady_rules.py::test_a_leader_that_is_no_voter_needs_a_majority_of_the_others",
    ),
    Mutant(
        "whoever has most decides", "3.4", STEADY,
        "have[(count - 1) / 2]", "have[count - 1]",
        "engine/test_steady_rules.py::test_a_learner_counts_for_no_majority",
    ),
    Mutant(
        "a learner's ack counts", "3.4", STEADY,
        "        if (it->peers[i].votes) have[count++] = it->peers[i].match_offset;",
        "        have[count++] = it->peers[i].match_offset;",
        "engine/test_steady_lag.py::test_what_has_left_memory_is_asked_for_and_sent",
    ),
    Mutant(
        "a leader that is no voter counts itself", "3.4", STEADY,
        "    if (it->own_votes) have[count++] = it->partition->durable_offset;",
        "    have[count++] = it->partition->durable_offset;",
        "engine/test_steady_rules.py::test_a_leader_that_is_no_voter_needs_a_majority_of_the_others",
    ),
    Mutant(
        "the high watermark falls", "1", STEADY,
        "    if (offset <= it->partition->commit_offset) return;\n", "    if (offset < 0) return;\n",
        "engine/test_steady_rules.py::test_a_leader_that_knows_of_no_majority_any_more_takes_nothing_back",
    ),
    Mutant(
        "an ack of an older term counts", "3.3", STEADY,
        "    if (leads && entry->term < it->term) return;\n"
        "    bool is_ours = leads && entry->term == it->term &&",
        "    bool is_ours = leads && entry->term <= it->term &&",
        "engine/test_steady_rules.py::test_an_acknowledgement_of_an_earlier_term_is_passed_over",
    ),
    Mutant(
        "an ack of a later term counts and ends no leadership", "3.3", STEADY,
        "bool is_ours = leads && entry->term == it->term &&", "bool is_ours = leads && entry->term >= it->term &&",
        "engine/test_steady_rules.py::test_an_acknowledgement_of_a_later_term_is_the_machine_s",
    ),
    Mutant(
        "an ack of another life of the follower counts", "3.3", STEADY,
        "it->peers[i].link == from->id && it->peers[i].incarnation == incarnation", "it->peers[i].link == from->id",
        "engine/test_steady.py::test_an_acknowledgement_of_another_life_of_a_replica_commits_nothing",
    ),
    Mutant(
        "an ack to another life of the leader counts", "3.3", STEADY,
        "entry->term == it->term && entry->target == it->own_incarnation;", "entry->term == it->term;",
        "engine/test_steady.py::test_an_acknowledgement_of_another_life_of_a_replica_commits_nothing",
    ),
    Mutant(
        "another node's ack counts", "3.3", STEADY,
        "it->peers[i].link == from->id && it->peers[i].incarnation == incarnation",
        "it->peers[i].incarnation == incarnation",
        "engine/test_steady_rules.py::test_a_learner_counts_for_no_majority",
    ),
    Mutant(
        "an ack of what was never sent counts", "3.3", STEADY,
        "    if (!peer || entry->offset > peer->sent_offset) {", "    if (!peer) {",
        "engine/test_steady_rules.py::test_an_acknowledgement_of_what_was_never_sent_is_the_machine_s",
    ),
    Mutant(
        "an ack that Python hands on counts whatever was sent", "3.3", STEADY,
        "if (!peer || durable_offset > peer->sent_offset) return -ENOENT;", "if (!peer) return -ENOENT;",
        "engine/test_steady_rules.py::test_an_acknowledgement_of_what_was_never_sent_is_the_machine_s",
    ),
    Mutant(
        "what a voter has goes back", "3.3", STEADY,
        "    if (offset > peer->match_offset) {\n", "    if (offset != peer->match_offset) {\n",
        "engine/test_steady_rules.py::test_what_a_follower_has_never_goes_back",
    ),
    Mutant(
        "a leader that was stopped commits on", "3.3", STEADY,
        "    bool leads = it && !it->is_stopped && it->is_leader;\n"
        "    if (leads && entry",
        "    bool leads = it && it->is_leader;\n"
        "    if (leads && entry",
        "engine/test_steady_rules.py::test_a_leadership_that_is_over_commits_nothing",
    ),
    Mutant(
        "a stopped replica acks and commits what becomes durable", "2", STEADY,
        "    if (!it || it->is_stopped) return;\n"
        "    if (it->is_leader) {",
        "    if (!it) return;\n"
        "    if (it->is_leader) {",
        "engine/test_steady_rules.py::test_a_leadership_that_is_over_commits_nothing_that_becomes_durable",
    ),
    Mutant(
        "a commit of an older epoch is told as one of this term", "3.4", LINK,
        "commit_offset < it->start_offset ? -1 : commit_offset", "commit_offset",
        "engine/test_steady_rules.py::test_a_commit_of_an_earlier_term_is_told_as_none",
    ),
    Mutant(
        "items leave a peer's gap out", "3.1", TURN,
        "tpc_tail_measure(partition, peer->next_offset, most,", "tpc_tail_measure(partition, peer->told_offset, most,",
        "engine/test_steady.py::test_a_leader_does_what_the_machine_does",
    ),
    Mutant(
        "what is read for a peer is sent at another place", "3.1", "replication/steady_lag.c",
        "peer->want == STEADY_WAITS && peer->next_offset == want->offset ? peer : NULL;",
        "peer->want == STEADY_WAITS ? peer : NULL;",
        "engine/test_steady_lag.py::test_what_was_read_too_late_goes_nowhere",
    ),
    Mutant(
        "what is read of another epoch is sent as of this term", "3.1", "replication/steady_lag.c",
        "end_offset > it->partition->log_end_offset || header.partition_leader_epoch != it->term)",
        "end_offset > it->partition->log_end_offset)",
        "engine/test_steady_lag.py::test_what_was_read_too_late_goes_nowhere",
    ),
)  # fmt: skip

OF_FOLLOWERS: Final = (
    Mutant(
        "a follower acks before it is durable", "3.3", LINK,
        ".offset = partition->durable_offset,", ".offset = partition->log_end_offset,",
        "engine/test_steady_rules.py::test_a_follower_acknowledges_its_disk_and_not_its_memory",
    ),
    Mutant(
        "an append of an older term is taken", "3.2", STEADY,
        "it->term == entry->term && it->leader_node", "it->term >= entry->term && it->leader_node",
        "engine/test_steady_rules.py::test_what_is_of_another_term_is_the_machine_s",
    ),
    Mutant(
        "an append of a later term is taken without noting it", "1", STEADY,
        "it->term == entry->term && it->leader_node", "it->term <= entry->term && it->leader_node",
        "engine/test_steady_rules.py::test_what_is_of_another_term_is_the_machine_s",
    ),
    Mutant(
        "another node is followed", "3.2", STEADY,
        "it->leader_node == from->node &&", "true &&",
        "engine/test_steady.py::test_only_the_leader_that_it_follows_is_taken_and_only_for_itself",
    ),
    Mutant(
        "another life of the leader is followed", "3.2", STEADY,
        "it->leader_incarnation == entry->source &&", "true &&",
        "engine/test_steady.py::test_only_the_leader_that_it_follows_is_taken_and_only_for_itself",
    ),
    Mutant(
        "what was sent to another life of the follower is taken", "3.2", STEADY,
        "it->leader_incarnation == entry->source && it->own_incarnation == entry->target;",
        "it->leader_incarnation == entry->source;",
        "engine/test_steady.py::test_only_the_leader_that_it_follows_is_taken_and_only_for_itself",
    ),
    Mutant(
        "a stopped follower takes on", "3.2", STEADY,
        "return it && !it->is_stopped && !it->is_leader && it->term", "return it && !it->is_leader && it->term",
        "engine/test_steady.py::test_a_follower_does_what_the_machine_does",
    ),
    Mutant(
        "what comes behind what Python is to judge is taken first", "3.2", STEADY,
        "        if (it && !it->is_leader) stop(plane, it); /* what comes behind it is Python's, too */\n", "",
        "engine/test_steady.py::test_a_follower_does_what_the_machine_does",
    ),
    Mutant(
        "what comes behind what is held is taken first", "3.2", STEADY,
        "result = it->held_first ? -EAGAIN : take_steady_append(plane, it, entry, frame);",
        "result = take_steady_append(plane, it, entry, frame);",
        "engine/test_steady.py::test_a_follower_holds_what_it_has_no_room_for",
    ),
    Mutant(
        "a commit behind a gap is learned", "3.4", STEADY,
        "it->start_offset <= entry->offset && entry->offset <= partition->log_end_offset ? 0 : -EINVAL;",
        "it->start_offset <= entry->offset ? 0 : -EINVAL;",
        "engine/test_steady_rules.py::test_a_commit_elsewhere_than_in_the_log_of_the_term_is_the_machine_s",
    ),
    Mutant(
        "an append in front of the term's marker is answered", "3.2", STEADY,
        "it->start_offset <= entry->offset && entry->offset <= partition->log_end_offset ? 0 : -EINVAL;",
        "entry->offset <= partition->log_end_offset ? 0 : -EINVAL;",
        "engine/test_steady_rules.py::test_a_commit_elsewhere_than_in_the_log_of_the_term_is_the_machine_s",
    ),
    Mutant(
        "the leader's commit is forgotten", "3.4", STEADY,
        "    if (entry->commit_offset > it->leader_commit_offset) it->leader_commit_offset = "
        "entry->commit_offset;\n",
        "    it->leader_commit_offset = entry->commit_offset;\n",
        "engine/test_steady_rules.py::test_a_follower_remembers_the_commit_until_it_has_what_is_committed",
    ),
    Mutant(
        "a batch of an older epoch is taken behind the marker", "3.2", FOLLOWING,
        "if (header.partition_leader_epoch != partition->leader_epoch) return false;",
        "if (header.partition_leader_epoch > partition->leader_epoch) return false;",
        "engine/test_steady_rules.py::test_what_does_not_follow_is_the_machine_s",
    ),
    Mutant(
        "a gap is taken", "3.2", FOLLOWING,
        "if (header.base_offset != end_offset || header", "if (header.base_offset < end_offset || header",
        "engine/test_replicated_partitions.py::test_what_does_not_follow_is_refused_and_nothing_is_appended",
    ),
    Mutant(
        "what the log has is taken once more", "3.2", FOLLOWING,
        "if (header.base_offset != end_offset || header", "if (header.base_offset > end_offset || header",
        "engine/test_replicated_partitions.py::test_what_does_not_follow_is_refused_and_nothing_is_appended",
    ),
    Mutant(
        "epochs fall within what is appended", "3.2", FOLLOWING,
        "header.partition_leader_epoch < epoch ||", "false ||",
        "engine/test_replicated_partitions.py::test_what_does_not_follow_is_refused_and_nothing_is_appended",
    ),
    Mutant(
        "a batch of an epoch above the term is taken", "3.2", FOLLOWING,
        "header.partition_leader_epoch < epoch ||\n"
        "            header.partition_leader_epoch > partition->leader_epoch)",
        "header.partition_leader_epoch < epoch)",
        "engine/test_replicated_partitions.py::test_what_does_not_follow_is_refused_and_nothing_is_appended",
    ),
    Mutant(
        "damaged records are taken", "3.2", FOLLOWING,
        "    if (tpc_append_check_batches(batches, bytes, &count) != TPC_ERROR_NONE) return -EBADMSG;\n",
        "    tpc_append_check_batches(batches, bytes, &count);\n",
        "engine/test_steady.py::test_damaged_records_are_not_appended",
    ),
    Mutant(
        "a follower's append of another term is taken", "3.2", FOLLOWING,
        "    if (term != partition->leader_epoch) return -ESTALE;\n", "    (void)term;\n",
        "engine/test_replicated_partitions.py::test_damaged_bytes_and_strangers_are_refused",
    ),
    Mutant(
        "a leader takes what another one sends", "3.2", FOLLOWING,
        "    if (partition->role != TPC_ROLE_FOLLOWER) return -EPERM;\n"
        "    if (term",
        "    if (term",
        "engine/test_replicated_partitions.py::test_damaged_bytes_and_strangers_are_refused",
    ),
    Mutant(
        "a follower stamps its own epoch", "3.2", FOLLOWING,
        ".is_stamped = true,", ".is_stamped = header.partition_leader_epoch == partition->leader_epoch,",
        "engine/test_replicated_partitions.py::test_a_follower_keeps_offsets_epochs_and_bytes_as_they_are_sent",
    ),
)  # fmt: skip

OF_ROLES: Final = (
    Mutant(
        "a group is carried before its marker is durable", "3.4", STEADY,
        "start_offset < 0 || start_offset > partition->durable_offset ? -EINVAL", "start_offset < 0 ? -EINVAL",
        "engine/test_steady_rules.py::test_a_group_is_given_to_c_in_its_role_and_term_when_its_marker_is_durable",
    ),
    Mutant(
        "a group is carried in a term that is over", "3.2", STEADY,
        "             : term != partition->leader_epoch                              ? -ESTALE\n", "",
        "engine/test_steady_rules.py::test_a_group_is_given_to_c_in_its_role_and_term_when_its_marker_is_durable",
    ),
    Mutant(
        "a group is carried in another role", "3.2", STEADY,
        "!partition->is_replicated || partition->role != role", "!partition->is_replicated",
        "engine/test_steady_rules.py::test_a_group_is_given_to_c_in_its_role_and_term_when_its_marker_is_durable",
    ),
    Mutant(
        "a group is carried while its messages wait for Python", "3.2", STEADY,
        "partition->steady || waits_for_python(plane, partition)", "partition->steady",
        "engine/test_steady_rules.py::test_a_group_is_not_given_to_c_while_what_was_said_to_it_waits",
    ),
    Mutant(
        "C drives a group on in the next term", "2", LIFE,
        "    if (role == TPC_ROLE_LEADER && term <= partition->spent_epoch) return -EINVAL;\n"
        "    plane->replication->stop(plane, partition);\n",
        "    if (role == TPC_ROLE_LEADER && term <= partition->spent_epoch) return -EINVAL;\n",
        "engine/test_steady_rules.py::test_a_leadership_that_is_over_commits_nothing",
    ),
    Mutant(
        "C drives a group on that was disarmed", "2", LIFE,
        "    partition->role = TPC_ROLE_NONE;\n"
        "    plane->replication->stop(plane, partition);\n",
        "    partition->role = TPC_ROLE_NONE;\n",
        "engine/test_steady_rules.py::test_a_leadership_that_is_over_commits_nothing",
    ),
    Mutant(
        "a disarmed leader takes records", "2", LIFE,
        "    partition->role = TPC_ROLE_NONE;\n", "",
        "engine/test_plane_roles.py::test_what_was_sent_behind_a_batch_that_was_refused_while_nobody_led",
    ),
    Mutant(
        "nobody is answered when a leadership ends", "7.4", LIFE,
        "    if (!keep_waits) tpc_commit_waits_fail(plane, partition, -1, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);\n",
        "    (void)keep_waits;\n",
        "engine/test_plane_roles.py::test_a_partition_disarmed_during_the_write",
    ),
    Mutant(
        "what a leader appended is told when it leads no more", "2", LIFE,
        "    tpc_in_place_window_close(partition);\n"
        "    plane->replication->forget_appended(plane, partition);\n"
        "    tpc_verifications_forget",
        "    tpc_in_place_window_close(partition);\n"
        "    tpc_verifications_forget",
        "engine/test_replicated_partitions.py::test_what_is_not_taken_stays_in_memory_whatever_the_cache_may_keep",
    ),
    Mutant(
        "a follower keeps the waits of its leadership", "7.4", LIFE,
        "    if (role == TPC_ROLE_FOLLOWER) tpc_partition_disarm(plane, handle, false);\n", "",
        "engine/test_replicated_partitions.py::test_whoever_follows_answers_what_waits",
    ),
    Mutant(
        "a term falls", "2", LIFE,
        "    if (!known || term < partition->leader_epoch) return -EINVAL;\n", "    if (!known) return -EINVAL;\n",
        "engine/test_plane_partitions.py::test_a_leader_epoch_never_falls",
    ),
    Mutant(
        "a leader leads on in the term whose appends were undone", "4", LIFE,
        "    if (role == TPC_ROLE_LEADER && term <= partition->spent_epoch) return -EINVAL;\n", "",
        "engine/test_replicated_partitions.py::test_a_journal_that_fails_ends_the_roles_of_those_it_touched",
    ),
    Mutant(
        "what a leader appended counts as durable for the machine", "1", REPLICA,
        ".sequence = newest->sequence,", ".sequence = 0,",
        "engine/test_undurable.py::test_the_machine_is_told_by_which_commit_an_append_is_durable",
    ),
    Mutant(
        "what C appended counts as durable when the machine takes a group back", "1", STEADY,
        ".sequence = newest ? newest->sequence : 0,", ".sequence = newest ? 0 : 0,",
        "engine/test_undurable.py::test_the_machine_is_told_by_which_commit_an_append_is_durable",
    ),
    Mutant(
        "a commit of another term is taken", "3.4", COMMIT,
        "    if (term != partition->leader_epoch) return -ESTALE;\n", "    (void)term;\n",
        "engine/test_replicated_partitions.py::test_a_commit_that_cannot_be_is_refused",
    ),
    Mutant(
        "Python commits beyond what is durable", "3.4", COMMIT,
        "    if (end_offset > partition->durable_offset) return -EINVAL;\n", "",
        "engine/test_replicated_partitions.py::test_a_commit_that_cannot_be_is_refused",
    ),
    Mutant(
        "what is durable here is committed", "3.4", COMMIT,
        "    if (!partition->is_replicated)\n"
        "        tpc_partition_committed",
        "    if (true)\n"
        "        tpc_partition_committed",
        "engine/test_replicated_partitions.py::"
        "test_acks_one_is_answered_when_it_is_durable_and_acks_all_when_it_is_committed",
    ),
)  # fmt: skip

OF_ANSWERS: Final = (
    Mutant(
        "acks=all is answered when it is durable", "7.4", COMMIT,
        "level == TPC_WAIT_DURABLE ? partition->durable_offset : partition->commit_offset;",
        "level == TPC_WAIT_LEVELS ? 0 : partition->durable_offset;",
        "engine/test_replicated_partitions.py::test_commits_end_waits_in_order_and_never_fall",
    ),
    Mutant(
        "acks=all waits as acks=1", "7.4", "requests/produce.c",
        "is_early ? TPC_WAIT_DURABLE : TPC_WAIT_COMMITTED;",
        "is_early || true ? TPC_WAIT_DURABLE : TPC_WAIT_COMMITTED;",
        "engine/test_replicated_partitions.py::"
        "test_acks_one_is_answered_when_it_is_durable_and_acks_all_when_it_is_committed",
    ),
    Mutant(
        "a batch of a transaction is answered as acks=1", "7.4", "requests/produce.c",
        "bool is_early = about->request.acks == 1 && !about->has_transactional;",
        "bool is_early = about->request.acks == 1;",
        "engine/test_verification.py::test_what_is_in_a_transaction_is_told_when_it_is_committed",
    ),
    Mutant(
        "acks=1 is answered before it is durable", "7.4", "requests/pending.c",
        "if (!wait->partition || wait->end_offset <= tpc_partition_reached(wait->partition, level)) continue;",
        "if (!wait->partition || level == TPC_WAIT_DURABLE) continue;",
        "engine/test_plane_produce.py::test_nothing_is_answered_or_readable_while_the_write_is_under_way",
    ),
    Mutant(
        "a wait ends when somebody's offset is reached", "7.4", COMMIT,
        "while (waits->first && waits->first->end_offset <= reached)", "while (waits->first && reached >= 0)",
        "engine/test_commit_waits.py::test_a_wait_ends_when_its_offset_is_reached_and_not_before",
    ),
    Mutant(
        "too few replicas refuse nothing", "7.5", REPLICA,
        "return acks == TPC_ACKS_ALL || partition->refuses_all_acks ? partition->refusal : TPC_ERROR_NONE;",
        "return partition->refuses_all_acks ? partition->refusal : TPC_ERROR_NONE;",
        "engine/test_replicated_partitions.py::"
        "test_with_too_few_replicas_only_acks_all_is_refused_and_with_too_much_on_its_way_all_are_held_back",
    ),
    Mutant(
        "a leader takes any amount that nobody else has", "7.5", STEADY,
        "return it && it->is_leader && it->uncommitted.bytes >= it->uncommitted_bytes_max;",
        "return it && it->is_leader && it->uncommitted.bytes < 0;",
        "engine/test_steady.py::test_a_leader_takes_nothing_more_when_too_much_waits",
    ),
    Mutant(
        "Fetch shows what is durable", "7.3", "requests/fetch.c",
        "int64_t upto = tpc_fetch_upto(fetch, reading->partition), next_offset = 0;\n",
        "int64_t upto = fetch->isolation_level == TPC_READ_COMMITTED ? tpc_fetch_upto(fetch, "
        "reading->partition)\n"
        "                                                                : "
        "reading->partition->durable_offset,\n"
        "            next_offset = 0;\n",
        "engine/test_near_reads.py::test_a_follower_answers_up_to_its_own_high_watermark_whoever_knows_of_followers",
    ),
    Mutant(
        "Python reads what is durable", "7.3", "log/tail.c",
        "    if (upto_offset > partition->high_watermark) upto_offset = partition->high_watermark;\n",
        "    if (upto_offset > partition->durable_offset) upto_offset = partition->durable_offset;\n",
        "engine/test_replicated_partitions.py::"
        "test_acks_one_is_answered_when_it_is_durable_and_acks_all_when_it_is_committed",
    ),
    Mutant(
        "segments show all that they have", "7.3", "log/segment_window.c",
        "    if (window->upto_offset <= upto_offset) return 0;\n",
        "    if (window->upto_offset <= upto_offset || upto_offset >= 0) return 0;\n",
        "engine/test_plane_fetch_segments.py::test_segments_that_hold_more_than_is_committed_show_only_that",
    ),
    Mutant(
        "a Fetch is answered with the end of the log", "7.1", "requests/fetch.c",
        "    reading->high_watermark = partition->high_watermark;",
        "    reading->high_watermark = partition->log_end_offset;",
        "engine/test_near_reads.py::test_a_follower_answers_up_to_its_own_high_watermark_whoever_knows_of_followers",
    ),
    Mutant(
        "a leader of replicas says by itself what is out of range", "7.2", "requests/fetch.c",
        "if (partition->role != TPC_ROLE_LEADER || partition->is_replicated) return TPC_FETCH_FALLBACK_OFFSET;",
        "if (partition->role != TPC_ROLE_LEADER) return TPC_FETCH_FALLBACK_OFFSET;",
        "engine/test_near_reads.py::test_a_leader_says_that_an_offset_is_nowhere_when_a_quorum_follows_it",
    ),
    Mutant(
        "a follower says what is out of range", "7.2", "requests/fetch.c",
        "if (partition->role != TPC_ROLE_LEADER || partition->is_replicated) return TPC_FETCH_FALLBACK_OFFSET;",
        "if (partition->role == TPC_ROLE_LEADER && partition->is_replicated) return TPC_FETCH_FALLBACK_OFFSET;",
        "engine/test_near_reads.py::test_a_follower_never_says_that_an_offset_is_nowhere",
    ),
    Mutant(
        "a follower serves in a term in which it was not told to", "7.2", "requests/fetch.c",
        "partition->role == TPC_ROLE_FOLLOWER && partition->read_term == partition->leader_epoch &&",
        "partition->role == TPC_ROLE_FOLLOWER && partition->read_term >= 0 &&",
        "engine/test_near_reads.py::test_one_that_follows_in_another_term_serves_when_it_is_told_to_again",
    ),
    Mutant(
        "readers of another epoch are served", "7.2", "requests/fetch.c",
        "if (asked->current_leader_epoch >= 0 && asked->current_leader_epoch != partition->leader_epoch)",
        "if (asked->current_leader_epoch > partition->leader_epoch)",
        "engine/test_plane_fetch.py::test_reasons_to_leave_are_counted",
    ),
    Mutant(
        "the last stable offset is the high watermark", "A reader of committed records gets none", PARTITION,
        "    if (!oldest || oldest->first_offset > partition->high_watermark) return "
        "partition->high_watermark;\n",
        "    if (!oldest || oldest->first_offset >= 0) return partition->high_watermark;\n",
        "engine/test_read_committed.py::test_nothing_at_the_last_stable_offset_and_what_was_aborted_below",
    ),
    Mutant(
        "an ended transaction is stable before its marker is committed", "A reader of committed records gets none",
        "log/transaction.c",
        "while (transactions->ended_first && transactions->ended_first->marker_end <= high_watermark)",
        "while (transactions->ended_first && high_watermark >= 0)",
        "engine/test_read_committed.py::test_readers_are_woken_when_producers_are_found_out_anew",
    ),
)  # fmt: skip

OF_CUTS: Final = (
    Mutant(
        "what is committed is cut", "3.2", REPLICA,
        "if (offset < partition->commit_offset || offset > partition->log_end_offset) return -EINVAL;",
        "if (offset > partition->log_end_offset) return -EINVAL;",
        "engine/test_replicated_partitions.py::test_what_is_committed_is_never_cut_nor_the_inside_of_a_batch",
    ),
    Mutant(
        "a leader cuts its log", "3.2", REPLICA,
        "if (!partition->is_replicated || partition->role == TPC_ROLE_LEADER) return -EPERM;",
        "if (!partition->is_replicated) return -EPERM;",
        "engine/test_replicated_partitions.py::test_what_is_committed_is_never_cut_nor_the_inside_of_a_batch",
    ),
    Mutant(
        "a batch is cut in two", "3.2", REPLICA,
        "    if (!tpc_tail_begins_at(partition, offset)) return -EINVAL;\n", "",
        "engine/test_replicated_partitions.py::test_what_is_committed_is_never_cut_nor_the_inside_of_a_batch",
    ),
    Mutant(
        "what is on its way to the disk is cut", "4", REPLICA,
        "    if (!tpc_tail_begins_at(partition, offset)) return -EINVAL;\n"
        "    if (partition->appends_undurable) return -EBUSY;\n",
        "    if (!tpc_tail_begins_at(partition, offset)) return -EINVAL;\n",
        "engine/test_replicated_partitions.py::test_appends_that_are_on_their_way_are_waited_for",
    ),
    Mutant(
        "a cut keeps a later epoch", "4", REPLICA,
        "tpc_journal_append(plane->journal, TPC_JOURNAL_CUT, partition->topic_id, partition->index, offset,\n"
        "                                   last_epoch_kept, NULL, 0, sequence);",
        "tpc_journal_append(plane->journal, TPC_JOURNAL_CUT, partition->topic_id, partition->index, offset,\n"
        "                                   partition->leader_epoch, NULL, 0, sequence);",
        "engine/test_replicated_partitions.py::"
        "test_a_cut_is_journalled_behind_what_it_takes_and_the_log_goes_on_from_there",
    ),
    Mutant(
        "a cut is forgotten when the journal fails", "4", REPLICA,
        "    plane->truncations = truncation;\n", "    free(truncation);\n",
        "engine/test_lost_cuts.py::test_a_cut_that_was_lost_is_the_first_thing_that_is_written",
    ),
    Mutant(
        "who waits for what is cut is not told", "Whoever waits for records is answered once", REPLICA,
        "    tpc_commit_waits_fail(plane, partition, offset, TPC_ERROR_NOT_LEADER_OR_FOLLOWER);\n", "",
        "engine/test_replicated_partitions.py::test_whoever_waits_for_what_is_cut_between_two_terms_is_told",
    ),
    Mutant(
        "what was cut is read from segments", "3.2", REPLICA,
        "    tpc_windows_close_all(&plane->windows, partition);\n"
        "    tpc_commit_waits_fail",
        "    tpc_commit_waits_fail",
        "engine/test_plane_fetch_segments.py::test_segments_of_a_log_that_was_cut_are_opened_anew",
    ),
    Mutant(
        "what was cut stays in memory", "3.2", REPLICA,
        "    tpc_tail_truncate(plane, partition, offset);\n", "",
        "engine/test_replicated_partitions.py::"
        "test_a_cut_is_journalled_behind_what_it_takes_and_the_log_goes_on_from_there",
    ),
    Mutant(
        "producers of what was cut are believed", "Nobody is told that records are at offsets where they are not",
        REPLICA,
        "    partition->producers_stale = true;\n", "",
        "engine/test_doubted_answers.py::"
        "test_producers_of_a_log_that_was_cut_are_not_believed_until_they_are_found_again",
    ),
    Mutant(
        "what segments have stays written when it is cut", "log_start_offset <= last_stable_offset", REPLICA,
        "    if (partition->written_offset > offset) partition->written_offset = offset;\n", "",
        "engine/test_replicated_partitions.py::test_a_cut_below_what_is_in_segments_empties_memory",
    ),
)  # fmt: skip

OF_BEATS: Final = (
    Mutant(
        "a heartbeat vouches for machines that it does not name", "3.5", BEATS,
        "        if (!(heard->machines >> machine & 1)) continue;\n", "",
        "engine/test_steady.py::test_who_says_that_it_is_there_is_heard_and_so_is_all_that_it_says_behind_it",
    ),
    Mutant(
        "a silence is forgotten when somebody is heard again", "3.5", BEATS,
        "        if (is_gap) heard->since_ns[machine] = now_ns;\n",
        "        if (is_gap && !heard->since_ns[machine]) heard->since_ns[machine] = now_ns;\n",
        "engine/test_steady.py::test_after_a_gap_another_stretch_begins",
    ),
    Mutant(
        "a link that is new was heard before", "3.5", LINKS_LIFE,
        "    steady_unheard(plane, it->id);\n", "",
        "engine/test_steady.py::test_what_was_heard_is_known_of_a_link_that_is_gone_until_its_number_is_another_ones",
    ),
    Mutant(
        "a machine that is gone is vouched for", "3.5", BEATS,
        "it->beats = is_said ? before | bit : before & ~bit;", "it->beats = is_said ? before | bit : before;",
        "engine/test_steady.py::test_a_machine_is_said_to_be_there_for_as_long_as_it_wants",
    ),
    Mutant(
        "a core that stood still hears no delay", "3.5", BEATS,
        "        if (late_ns > all->late_ns[machine]) all->late_ns[machine] = late_ns;\n",
        "        all->late_ns[machine] = late_ns;\n",
        "engine/test_steady.py::test_how_late_beats_were_counts_what_work_took_and_not_that_the_thread_was_stopped",
    ),
)  # fmt: skip

MUTANTS: Final = (*OF_LEADERS, *OF_FOLLOWERS, *OF_ROLES, *OF_ANSWERS, *OF_CUTS, *OF_BEATS)
