"""What a start finds, and what it needs to find: checkpoints, recovery, and the partitions that a core has.

* `checkpoint` and `captures` leave what `recovery` begins with; `journal_opening`, `in_place_replay`, `replayed_runs`,
  `handed_producers`, `filled_folders`, `side_by_side` are parts of a start;
* `core_partitions`: the state of each partition from then on; `lost_and_found`: those that the metadata do not know;
* while no core runs: `handover` to another number of cores, `ended_groups` in a copy, `repair` and `sealed_repair` of
  what is damaged, and `scrub_report`, which says where it is.
"""
