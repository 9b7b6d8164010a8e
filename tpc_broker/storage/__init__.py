"""The files of one core: journal, segments, checkpoints and their recovery, behind the data plane.

`JournalledStorage` (`journalled_storage`) is the face that a core's broker uses. It sees the world through `ports`.

* one partition's log: `partition_storage` is the face; `segment_log` what is known of it, `segment_reader`,
  `segment_appender`, `reserved_space`, `truncation`, `segment_retention` what is done with it; `files_life` and
  `roll_guard` when it may be; below them `segments`, `files`, `folders`, `batch_ranges`;
* from memory to the segments: `write_behind`, `short_runs`, `in_place_windows`, `segment_space`,
  `space_together`;
* journal and checkpoints: `journal_upkeep`, `journal_growth`, `journal_room`, `checkpoint`,
  `checkpoint_schedule`, `drain`;
* which partitions there are: `core_partitions`, `leader_partition`; moves between cores: `core_moves`;
* a start: `recovery`, `in_place_replay`, `handover`, `lost_and_found`;
* what goes: `retention`, `deletion`; replicas: `replicas`, `shipments`, `installation`, `filled_folders`;
* compaction: `cleanings` when, `compaction` what, `segment_swap` and `swap_guard` how the cleaner's files take the
  place of segments, `cleaning_status` what is told of it;
* trouble: `mending`, `repair`, `sealed_repair`, `readable_runs`, `refusals`.

A start reads the newer sound superblock and the checkpoint that it names, cuts each partition's segments at their
checkpointed position (what was written behind is not believed), and replays the journal from the checkpoint's cursor.
What is appended anyway is not cut before: it overwrites what was written behind, and only what is left behind its end
is cut. Batches that were written in place are checked where they lie. Sealed segments are opened without reading them;
files of many partitions are opened and written by few jobs (`replayed_runs`), and their new epochs wait for one commit.
A partition whose files cannot be believed is offline with its reason, and the others serve. When the number of cores
has changed, all journals are recovered first and the partitions are handed over.
"""
