"""The log of one partition: its folder, its segments, and what is done with them.

`partition_storage` is the face, `leader_partition` the same partition in the data plane; `segment_log` what is known of
the log, `segment_reader`, `segment_appender`, `reserved_space`, `truncation`, `segment_retention`, `segment_swap` what
is done with it; `files_life`, `roll_guard` and `swap_guard` when it may be. Below them `folders`, `segments`, `files`,
`read_ahead`, `batch_ranges`, `short_steps`, and `readable_runs` of what is damaged.
"""
