"""What one core does for its partitions all the time.

* From memory to the segments: `write_behind`, `short_runs`, `in_place_windows`; space for it: `segment_space`,
  `space_together`;
* the journal: `journal_upkeep`, `journal_growth`, `journal_room`, `checkpoint_schedule`, `checkpoint_beginning`;
* what goes: `retention`, `deletion`;
* compaction: `cleanings` when, `compaction` what, `cleaning_status` what is told of it;
* trouble: `mending`, `retry_delays`, `refusals`. What one part asks of another is in `maintenance_requests`.
"""
