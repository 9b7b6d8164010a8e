"""Pipelines: PySpark programs over topics and archives, each with a command ``tpc pipeline NAME``.

Each module has a frozen job (what is to be done), a function that does it on a session, and a frozen result; none of
them prints. A program runs on any master, says how far it is (`progress`), goes on where it was when it is started
again, and raises `PipelineError` (or the data source's own errors) in one sentence that is meant for the user.

Programs: `archive` (topic to Parquet, exactly once), `backfill` (Parquet to topic), `replay` (topic to topic through
SQL), `quality` with `quality_report` (what is wrong with the records), `compacting` (of an archive, the latest of each
key).

What they stand on: `file_list` (the commit of a set of files) and `merging` (which small files become large ones) on
`folder` (how the driver reaches files anywhere); `dated_files` and `files_source` (tasks that write an archive's files
themselves); `steps` (a long batch that can be interrupted) on `origins` (where its records come from); `transfer` (such
a batch into a topic) with `placing` (how rows are written) and `pace` (not too fast); `topics` (what is asked before a
start).
"""
