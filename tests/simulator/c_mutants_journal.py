"""Faults in C's part of durability: the journal and its reader, appends and their undoing, memory, batches in place."""

from __future__ import annotations

from typing import Final

from tests.simulator.c_mutant import Mutant

JOURNAL: Final = "journal/journal.c"
POLICY: Final = "journal/journal_policy.c"
QUEUE: Final = "journal/journal_queue.c"
WRITER: Final = "journal/journal_writer.c"
SCAN: Final = "bytes/journal_scan.c"
APPEND: Final = "log/append.c"
TAIL: Final = "log/tail.c"
IN_PLACE: Final = "journal/in_place.c"
WINDOW: Final = "log/in_place_window.c"

PREFIX: Final = "Only the contiguous durable prefix is acknowledged"
POWER: Final = "Nothing acknowledged is lost by loss of power"
CHAIN: Final = "Each commit of the journal names the one before it"
BLOCKS: Final = "A block with acknowledged bytes is not written again"
TWICE: Final = "No offset of a leader epoch ever has two records"
PLACED: Final = "A batch written in place is on the disk before its journal entry is written"
VISIBLE: Final = "Readers see only what is durable"
WAITING: Final = "Whoever waits for records is answered once"
ORDER: Final = "log_start_offset <= last_stable_offset"
TOLD: Final = "Nobody is told that records are at offsets where they are not"

OF_WRITES: Final = (
    Mutant(
        "acknowledged when any write has ended", PREFIX, WRITER,
        "oldest->state != TPC_COMMIT_WRITTEN ||", "oldest->state < TPC_COMMIT_SUBMITTED ||",
        "engine/test_journal.py::test_several_in_flight_are_acknowledged_in_order_and_chained",
    ),
    Mutant(
        "a short write is whole", PREFIX, WRITER,
        "(int64_t)result == (int64_t)journal_blocks_of(written->bytes) * BLOCK_BYTES;", "result > 0;",
        "engine/test_journal.py::test_a_short_write_is_a_failure",
    ),
    Mutant(
        "a flush that fails is one", PREFIX, WRITER,
        "index % 2 == PART_FLUSH ? result == 0\n", "index % 2 == PART_FLUSH ? result <= 0\n",
        "engine/test_journal_order.py::test_a_flush_that_fails_fails_its_commit",
    ),
    Mutant(
        "written and not flushed is durable", POWER, WRITER,
        "    if (--written->completions_left) return;\n", "    written->completions_left = 0;\n",
        "engine/test_journal_order.py::test_a_flush_that_fails_fails_its_commit",
    ),
    Mutant(
        "the flush does not wait for the write", POWER, WRITER,
        "        write->flags |= IOSQE_IO_LINK;\n", "",
        "engine/test_journal_order.py::test_a_flush_begins_when_its_write_is_over",
    ),
    Mutant(
        "writes are not flushed", POWER, WRITER,
        "    write->rw_flags = dsync ? RWF_DSYNC : 0;\n", "    write->rw_flags = 0;\n",
        "engine/test_flushed_writes.py::test_each_commit_is_flushed",
    ),
    Mutant(
        "a vote leaves before it is durable", "1", WRITER,
        "    if (!journal->durable_untold) return;\n"
        "    journal->durable_untold = false;\n"
        "    uint64_t durable = journal->durable.sequence - 1;\n",
        "    uint64_t durable = journal->sequence_submit - 1;\n",
        "engine/test_journal_order.py::test_nobody_hears_of_a_commit_before_it_is_written",
    ),
    Mutant(
        "commits go on behind one that failed", PREFIX, POLICY,
        "    if (view->has_failed) {\n", "    if (view->has_failed && !view->is_waiting) {\n",
        "engine/test_journal_policy.py::test_every_state_of_the_journal_has_the_right_next_action",
    ),
    Mutant(
        "what failed is dropped while others are written", PREFIX, POLICY,
        "bool is_settled = !view->commits_in_flight && !view->in_place_in_flight;", "bool is_settled = true;",
        "engine/test_journal_policy.py::test_every_state_of_the_journal_has_the_right_next_action",
    ),
    Mutant(
        "a journal that failed takes entries", PREFIX, QUEUE,
        "return journal->stopped ? -ESHUTDOWN : journal->error ? -EIO : 0; }",
        "return journal->stopped ? -ESHUTDOWN : 0; }",
        "engine/test_journal.py::test_a_write_that_fails_fails_everything_after_the_durable_prefix",
    ),
    Mutant(
        "a journal that was stopped takes entries", PREFIX, QUEUE,
        "return journal->stopped ? -ESHUTDOWN : journal->error ? -EIO : 0; }", "return journal->error ? -EIO : 0; }",
        "engine/test_journal.py::test_a_journal_that_was_stopped_takes_nothing_more_and_tells_its_end",
    ),
    Mutant(
        "the chain goes on from what failed", CHAIN, WRITER,
        "    journal->crc_sealed = journal->durable.previous_crc;\n", "",
        "engine/test_journal.py::test_a_write_that_fails_fails_everything_after_the_durable_prefix",
    ),
    Mutant(
        "the journal goes on behind what failed", "After a failure the journal's first commit is placed over", WRITER,
        "    journal->position_sealed = journal->durable.position;\n", "",
        "engine/test_journal.py::test_a_write_that_fails_fails_everything_after_the_durable_prefix",
    ),
    Mutant(
        "the first commit after a failure is of any length",
        "After a failure the journal's first commit is placed over", JOURNAL,
        "    if (journal_open_commit(journal, BLOCK_BYTES) < 0) return -ENOMEM;\n", "",
        "engine/test_journal.py::test_a_failed_commit_in_the_regions_last_block_is_not_taken_for_its_successor",
    ),
    Mutant(
        "a failed run goes on under its number", CHAIN, JOURNAL,
        "if (!journal->error || run_id == journal->params.run_id || descriptor", "if (!journal->error || descriptor",
        "engine/test_journal.py::test_a_write_that_fails_fails_everything_after_the_durable_prefix",
    ),
)  # fmt: skip

OF_BLOCKS: Final = (
    Mutant(
        "durable blocks are written again before a checkpoint", BLOCKS, QUEUE,
        "return position_end < journal->position_recycled + journal->params.region_blocks;",
        "return position_end < journal->durable.position + journal->params.region_blocks;",
        "engine/test_journal.py::test_what_a_journal_may_never_take_is_named_and_all_else_waits",
    ),
    Mutant(
        "all blocks may be in use", BLOCKS, QUEUE,
        "return position_end < journal->position_recycled", "return position_end <= journal->position_recycled",
        "engine/test_journal.py::test_what_a_journal_may_never_take_is_named_and_all_else_waits",
    ),
    Mutant(
        "blocks are recycled that are not durable", BLOCKS, JOURNAL,
        "position < journal->position_recycled || position > journal->durable.position)",
        "position < journal->position_recycled)",
        "engine/test_journal.py::test_a_full_journal_refuses_and_goes_on_after_recycling",
    ),
    Mutant(
        "a region is made longer in the midst of a lap", BLOCKS, JOURNAL,
        "    if (journal->position_recycled < lap || journal->position_sealed == lap) return -EAGAIN;\n", "",
        "engine/test_journal.py::test_a_journal_is_made_longer_only_when_all_that_is_in_use_lies_in_one_lap",
    ),
    Mutant(
        "a commit goes over the region's end", BLOCKS, WRITER,
        "sealed->position = journal_commit_position(journal, journal->position_sealed, blocks);",
        "sealed->position = journal->position_sealed;",
        "engine/test_journal.py::test_a_commit_never_wraps_and_the_blocks_left_out_count_as_used",
    ),
    Mutant(
        "an entry is of the commit before it", PREFIX, QUEUE,
        "    *sequence = journal->sequence_next - 1;\n"
        "    return 0;",
        "    *sequence = journal->sequence_submit;\n"
        "    return 0;",
        "engine/test_journal.py::test_a_full_commit_is_closed_and_a_large_entry_gets_a_commit_of_its_size",
    ),
    Mutant(
        "batches with a gap between them share an entry", CHAIN, QUEUE,
        "newest->argument != entry->offset ||", "",
        "engine/test_journal_order.py::test_batches_share_an_entry_only_where_one_follows_the_other",
    ),
    Mutant(
        "batches of two partitions share an entry", CHAIN, QUEUE,
        " || newest->partition != entry->partition ||", " ||",
        "engine/test_journal_order.py::test_batches_share_an_entry_only_where_one_follows_the_other",
    ),
)  # fmt: skip

OF_CHAINS: Final = (
    Mutant(
        "a commit does not name the one before it", CHAIN, WRITER,
        "    journal->crc_sealed = sealed->crc;\n", "",
        "engine/test_journal.py::test_the_chain_is_what_an_independent_reader_expects",
    ),
    Mutant(
        "a commit claims that it is durable", CHAIN, WRITER,
        ".durable_sequence = journal->sequence_first - 1,", ".durable_sequence = sequence,",
        "engine/test_journal_order.py::test_a_commit_says_what_was_durable_when_it_was_submitted",
    ),
    Mutant(
        "a commit claims nothing", CHAIN, WRITER,
        ".durable_sequence = journal->sequence_first - 1,", ".durable_sequence = 0,",
        "engine/test_journal_order.py::test_a_commit_says_what_was_durable_when_it_was_submitted",
    ),
    Mutant(
        "any predecessor will do", CHAIN, SCAN,
        "    if (!state->any_previous_crc && header->previous_crc != state->previous_crc) return ABSENT;\n", "",
        "native_bytes/test_journal_reader.py::test_leftovers_of_an_earlier_run_are_neither_replayed_nor_damage",
    ),
    Mutant(
        "a torn commit is replayed", CHAIN, SCAN,
        "    if (commit_crc(at, header->commit_bytes) != header->crc) return ABSENT;\n", "",
        "native_bytes/test_journal_reader.py::test_a_torn_tail_ends_the_chain_and_is_no_damage",
    ),
    Mutant(
        "another journal is replayed", CHAIN, SCAN,
        "memcmp(header->journal_id, journal_id, 16) == 0 &&", "journal_id &&",
        "native_bytes/test_journal_reader.py::test_another_journals_commits_are_strangers",
    ),
    Mutant(
        "a hole in what was durable is a torn tail", CHAIN, SCAN,
        "        if (header.durable_sequence < state->first_missing_sequence) {\n",
        "        if (header.durable_sequence <= header.sequence) {\n",
        "native_bytes/test_journal_reader.py::test_a_hole_in_what_was_durable_is_damage",
    ),
    Mutant(
        "a hole in what was under way is damage", CHAIN, SCAN,
        "        if (header.durable_sequence < state->first_missing_sequence) {\n",
        "        if (header.sequence < state->first_missing_sequence) {\n",
        "native_bytes/test_journal_reader.py::test_a_hole_among_what_was_in_flight_is_no_damage",
    ),
)  # fmt: skip

OF_APPENDS: Final = (
    Mutant(
        "appends of two commits share the fate of the first", VISIBLE, APPEND,
        "newest->producer_id < 0 && newest->sequence == batch->sequence &&", "newest->producer_id < 0 &&",
        "engine/test_undurable.py::test_what_is_durable_ends_with_the_commit_that_is",
    ),
    Mutant(
        "durable with the commit before its own", VISIBLE, APPEND,
        "while (plane->undo_first && plane->undo_first->sequence <= sequence) {",
        "while (plane->undo_first && plane->undo_first->sequence <= sequence + 1) {",
        "engine/test_undurable.py::test_what_is_durable_ends_with_the_commit_that_is",
    ),
    Mutant(
        "a failure cuts nothing in the journal", TWICE, APPEND,
        "    remember_cut(plane, undone);\n", "",
        "engine/test_plane_produce.py::"
        "test_a_failure_rolls_everything_back_and_the_reopened_journal_begins_with_the_cuts",
    ),
    Mutant(
        "a failure cuts only its newest append", TWICE, APPEND,
        "cut->offset = cut->offset < undone->base_offset ? cut->offset : undone->base_offset;", "(void)cut->offset;",
        "engine/test_lost_cuts.py::test_a_log_is_cut_where_the_first_of_the_lost_appends_began",
    ),
    Mutant(
        "a reopened journal does not begin with the cuts", TWICE, APPEND,
        "    for (uint32_t i = 0; i < plane->cuts_count; i++) {\n"
        "        result = journal_cut",
        "    for (uint32_t i = 0; i < 0; i++) {\n"
        "        result = journal_cut",
        "engine/test_plane_produce.py::"
        "test_a_failure_rolls_everything_back_and_the_reopened_journal_begins_with_the_cuts",
    ),
    Mutant(
        "no epoch begins behind a failure", TWICE, APPEND,
        "    if (result == 0) partition->leader_epoch++;\n", "",
        "engine/test_plane_produce.py::"
        "test_a_failure_rolls_everything_back_and_the_reopened_journal_begins_with_the_cuts",
    ),
    Mutant(
        "offsets that were undone are given out again in their epoch", TWICE, APPEND,
        "    if (partition->spent_epoch < undone->leader_epoch) partition->spent_epoch = "
        "undone->leader_epoch;\n",
        "",
        "engine/test_replicated_partitions.py::test_a_journal_that_fails_ends_the_roles_of_those_it_touched",
    ),
    Mutant(
        "a leader leads on when its journal fails", "4", APPEND,
        "    if (partition->is_replicated) tpc_partition_disarm(plane, undone->handle, false);\n", "",
        "engine/test_replicated_partitions.py::test_a_journal_that_fails_ends_the_roles_of_those_it_touched",
    ),
    Mutant(
        "a cut that the journal lost is not made again", "4", APPEND,
        "    remember_truncations(plane);\n"
        "    plane->cuts_sequence = 0;",
        "    plane->cuts_sequence = 0;",
        "engine/test_lost_cuts.py::test_a_cut_that_was_lost_is_the_first_thing_that_is_written",
    ),
    Mutant(
        "a lost cut ends the log where a failure did", "4", APPEND,
        "            *cut = at->cut;\n", "            ;\n",
        "engine/test_lost_cuts.py::test_a_cut_that_was_lost_is_the_first_thing_that_is_written",
    ),
    Mutant(
        "cuts are forgotten before they are durable", TWICE, APPEND,
        "if (plane->cuts_sequence && plane->cuts_sequence <= sequence) plane->cuts_count",
        "if (plane->cuts_sequence) plane->cuts_count",
        "engine/test_trouble.py::test_what_cannot_be_mended_is_tried_more_and_more_seldom",
    ),
    Mutant(
        "a cut counts as durable too early", "4", APPEND,
        "        if (one->sequence > durable_sequence) {\n"
        "            at = &one->next;\n"
        "            continue;\n"
        "        }\n"
        "        *at = one->next;\n"
        "        free(one);\n"
        "    }\n"
        "}\n"
        "\n"
        "static void forget_adoptions",
        "        (void)durable_sequence;\n"
        "        *at = one->next;\n"
        "        free(one);\n"
        "    }\n"
        "}\n"
        "\n"
        "static void forget_adoptions",
        "engine/test_lost_cuts.py::test_a_cut_is_lost_with_its_own_commit_and_not_kept_by_the_one_before",
    ),
    Mutant(
        "a log that was shipped is forgotten when the journal fails", "5", APPEND,
        "    for (tpc_adoption *at = plane->adoptions; at; at = at->next) {\n"
        "        result",
        "    for (tpc_adoption *at = NULL; at; at = at->next) {\n"
        "        result",
        "engine/test_lost_cuts.py::test_a_log_that_was_shipped_is_adopted_again",
    ),
    Mutant(
        "what was undone stays in memory", PREFIX, APPEND,
        "    tpc_tail_cut(plane, partition, undone->base_offset);\n", "",
        "engine/test_plane_partitions.py::test_a_failure_cuts_a_run_where_its_first_undone_batch_begins",
    ),
    Mutant(
        "what was undone stays in the log", PREFIX, APPEND,
        "    partition->log_end_offset = undone->base_offset;\n", "",
        "engine/test_plane_produce.py::"
        "test_a_failure_rolls_everything_back_and_the_reopened_journal_begins_with_the_cuts",
    ),
    Mutant(
        "a producer keeps the number of what was undone", PREFIX, APPEND,
        "    if (undone->producer_id >= 0) tpc_producers_undo(&partition->producers, "
        "undone->producer_id, undone->producer);\n",
        "",
        "engine/test_plane_produce.py::"
        "test_a_failure_rolls_everything_back_and_the_reopened_journal_begins_with_the_cuts",
    ),
    Mutant(
        "who waits for what was undone is not told", WAITING, APPEND,
        "    tpc_commit_waits_fail(plane, partition, undone->base_offset, TPC_ERROR_KAFKA_STORAGE_ERROR);\n", "",
        "engine/test_plane_produce.py::test_a_mixed_request_waits_for_its_durable_partitions_only",
    ),
    Mutant(
        "the epoch is not stamped", "8", APPEND,
        "        tpc_batch_stamp(batch->batch, partition->log_end_offset, partition->leader_epoch);\n",
        "        tpc_batch_stamp(batch->batch, partition->log_end_offset, -1);\n",
        "engine/test_plane_produce.py::test_a_produce_is_answered_when_it_is_durable_and_readable",
    ),
    Mutant(
        "the offset is not stamped", "8", APPEND,
        "        tpc_batch_stamp(batch->batch, partition->log_end_offset, partition->leader_epoch);\n",
        "        tpc_batch_stamp(batch->batch, 0, partition->leader_epoch);\n",
        "engine/test_plane_produce.py::test_a_produce_is_answered_when_it_is_durable_and_readable",
    ),
    Mutant(
        "a repeat is appended once more", TOLD, "log/producer.c",
        "            return TPC_SEQUENCE_DUPLICATE;\n", "            return TPC_SEQUENCE_NEXT;\n",
        "engine/test_plane_partitions.py::test_sequences_of_one_producer",
    ),
    Mutant(
        "a gap in a producer's numbers is taken", TOLD, "log/producer.c",
        "known->sequence_lost || follows(last, header->base_sequence) ? TPC_SEQUENCE_NEXT",
        "known->sequence_lost || header->base_sequence > last ? TPC_SEQUENCE_NEXT",
        "engine/test_plane_partitions.py::test_sequences_of_one_producer",
    ),
    Mutant(
        "a producer that was fenced writes on", TOLD, "log/producer.c",
        "    if (header->producer_epoch < known->producer_epoch) return TPC_SEQUENCE_FENCED;\n", "",
        "engine/test_plane_partitions.py::test_sequences_of_one_producer",
    ),
    Mutant(
        "a repeat is answered before the first one is durable", WAITING, "requests/produce.c",
        "                                  .next_offset = earlier.last_offset + 1,\n",
        "                                  .next_offset = earlier.base_offset,\n",
        "engine/test_commit_waits.py::test_a_duplicate_waits_for_the_first_one_and_for_nothing_behind_it",
    ),
    Mutant(
        "a handle outlives its partition", "Withdrawing a partition raises its generation", "log/partition.c",
        "    plane->slots[slot].generation += plane->slots[slot].generation == UINT32_MAX ? 2 : 1; "
        "/* never 0 */\n",
        "",
        "engine/test_plane_roles.py::test_a_handle_is_of_one_partition_and_not_of_the_next_one_in_its_place",
    ),
    Mutant(
        "a repeat is told a place that is not looked at", TOLD, "requests/produce.c",
        "    if (!is_there(partition, header, &earlier)) {",
        "    if (false && !is_there(partition, header, &earlier)) {",
        "engine/test_doubted_answers.py::test_a_repeat_is_not_acknowledged_where_the_log_has_another_batch_or_none",
    ),
    Mutant(
        "producers of a cut log are believed", TOLD, "requests/produce.c",
        "    if (partition->producers_stale) {\n"
        "        result->error_code = tpc_produce_doubted",
        "    if (false) {\n"
        "        result->error_code = tpc_produce_doubted",
        "engine/test_doubted_answers.py::"
        "test_producers_of_a_log_that_was_cut_are_not_believed_until_they_are_found_again",
    ),
)  # fmt: skip

OF_MEMORY: Final = (
    Mutant(
        "what is not durable is written to segments", ORDER, TAIL,
        "        if (run->next_offset > partition->durable_offset) break;\n", "",
        "engine/test_undurable.py::test_only_what_is_durable_is_written_behind",
    ),
    Mutant(
        "what is not durable counts as written", ORDER, TAIL,
        "if (upto_offset < partition->written_offset || upto_offset > partition->durable_offset) "
        "return -EINVAL;",
        "if (upto_offset < partition->written_offset) return -EINVAL;",
        "engine/test_plane_partitions.py::test_write_behind_and_eviction",
    ),
    Mutant(
        "a run that is written in part is written", ORDER, TAIL,
        "        if (place < run->slice.length) { /* it stays dirty until the rest of it is written, too */\n",
        "        if (!place) { /* it stays dirty until the rest of it is written, too */\n",
        "engine/test_plane_partitions.py::test_small_batches_of_one_commit_share_a_run",
    ),
    Mutant(
        "appends leave memory before Python has taken them", ORDER, TAIL,
        "return partition->is_appended && tail_at(partition, 0)->next_offset > partition->told_offset;",
        "return partition->is_appended && partition->told_offset < 0 && partition->tail_count;",
        "engine/test_replicated_partitions.py::test_what_is_not_taken_stays_in_memory_whatever_the_cache_may_keep",
    ),
    Mutant(
        "what a follower lacks leaves memory first", ORDER, "replication/steady.c",
        "if (is_in_tail && peer->next_offset < offset && steady_link_find(plane, peer->link)) return true;",
        "if (is_in_tail && peer->next_offset < 0 && steady_link_find(plane, peer->link)) return offset < 0;",
        "engine/test_steady_lag.py::test_what_a_slow_peer_has_not_had_stays_in_memory",
    ),
    Mutant(
        "batches of two commits become one run", ORDER, TAIL,
        "return newest->sequence == batch->sequence && newest->slice", "return newest->slice",
        "engine/test_plane_partitions.py::test_write_behind_and_eviction",
    ),
    Mutant(
        "the journal is recycled under what no segment has", BLOCKS, TAIL,
        "        if (tail_at(partition, partition->tail_clean)->sequence < sequence) return 1;\n",
        "        if (tail_at(partition, partition->tail_count - 1)->sequence < sequence) return 1;\n",
        "engine/test_undurable.py::test_no_checkpoint_covers_a_commit_of_which_a_segment_lacks_something",
    ),
    Mutant(
        "a checkpoint has producers that are not durable", PREFIX, "log/partition.c",
        "if (partition->appends_undurable && !durable_state(plane, partition, &state)) continue;", "",
        "engine/test_undurable.py::test_a_checkpoint_has_producers_as_durable_batches_left_them",
    ),
    Mutant(
        "the log's start goes beyond what is committed", ORDER, "log/partition_life.c",
        "if (log_start_offset < partition->log_start_offset || log_start_offset > "
        "partition->high_watermark) return -EINVAL;",
        "if (log_start_offset < partition->log_start_offset) return -EINVAL;",
        "engine/test_plane_partitions.py::test_refusals",
    ),
)  # fmt: skip

OF_PLACES: Final = (
    Mutant(
        "the entry of a batch in place is written beside it", PLACED, POLICY,
        "    if (view->state == TPC_COMMIT_IN_PLACE && !view->in_place_early) return TPC_JOURNAL_NOTHING;\n", "",
        "engine/test_in_place_commits.py::test_a_commit_waits_for_all_of_its_batches_in_place",
    ),
    Mutant(
        "a batch is half in place", PLACED, IN_PLACE,
        "    if (result != set->groups[group].bytes && !set->error)", "    if (result <= 0 && !set->error)",
        "engine/test_in_place_commits.py::test_a_batch_of_which_a_part_is_in_place_fails_its_commit",
    ),
    Mutant(
        "a write in place that fails is not seen", PLACED, WRITER,
        "journal_commit_moves(placed, error ? TPC_COMMIT_FAIL : TPC_COMMIT_IN_PLACE_ENDED);\n"
        "    if (error && !journal->error) journal->error = error;\n",
        "journal_commit_moves(placed, TPC_COMMIT_IN_PLACE_ENDED);\n"
        "    (void)error;\n",
        "engine/test_in_place.py::test_a_write_to_the_segment_that_fails_fails_the_commit",
    ),
    Mutant(
        "batches in place are not flushed", PLACED, IN_PLACE,
        "        write->rw_flags = dsync ? RWF_DSYNC : 0;\n", "        write->rw_flags = 0;\n",
        "engine/test_flushed_writes.py::test_batches_in_place_are_flushed_before_their_commit_is_written",
    ),
    Mutant(
        "a batch is proven by the first of its writes", PLACED, IN_PLACE,
        "    return --set->groups_left == 0;\n", "    return --set->groups_left == set->groups_count - 1;\n",
        "engine/test_in_place_commits.py::test_a_commit_waits_for_all_of_its_batches_in_place",
    ),
    Mutant(
        "an entry does not say which bytes are in place", PLACED, WINDOW,
        ".header_crc = tpc_crc32c(0, batch->batch, HEADER_BYTES)};", ".header_crc = 0};",
        "engine/test_in_place.py::test_what_was_written_once_comes_back",
    ),
    Mutant(
        "a place outlives a failure", PLACED, APPEND,
        "    tpc_in_place_windows_close_all(plane);\n"
        "    while (plane->undo_last) {",
        "    while (plane->undo_last) {",
        "engine/test_in_place.py::test_a_write_to_the_segment_that_fails_fails_the_commit",
    ),
    Mutant(
        "a place is opened behind a cut that is not durable", PLACED, WINDOW,
        "if (tpc_journal_health(plane->journal) < 0 || plane->cuts_count ||",
        "if (tpc_journal_health(plane->journal) < 0 ||",
        "engine/test_in_place_commits.py::test_nothing_is_placed_before_what_a_failure_cut_is_cut_in_the_journal",
    ),
)  # fmt: skip

MUTANTS: Final = (*OF_WRITES, *OF_BLOCKS, *OF_CHAINS, *OF_APPENDS, *OF_MEMORY, *OF_PLACES)
