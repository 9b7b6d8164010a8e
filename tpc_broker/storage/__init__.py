"""The files of one core: journal, segments, checkpoints and their recovery, behind the data plane.

`JournalledStorage` (`journalled_storage`) is the face that a core's broker uses. It sees the world through `ports`.

* one partition's files: `partition_storage`, `segments`, `files`, `folders`, `reserved_space`, `batch_ranges`;
* from memory to the segments: `short_runs`, `in_place_windows`, `segment_space`;
* journal and checkpoints: `checkpoint`, `journal_growth`, `drain`;
* a start: `recovery`, `in_place_replay`, `handover`, `lost_and_found`;
* trouble: `repair`, `readable_runs`, `refusals`; deletion: `deletion`.
"""
