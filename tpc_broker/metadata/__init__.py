"""The cluster's metadata: topics, partitions and their owners, settings, producer-id blocks.

Theory of operation
-------------------
The metadata is a log of its own (`__cluster_metadata`, partition 0, on core 0), durable like any other. Its records
(`records`) say what changed; `ClusterImage` (`image`) is their replay and is what every core reads. `Controller`
(`controller`, with `config_control`) decides: it takes a request and the present image and returns
`(records, response)`; it changes nothing. The driver on core 0 does, one change at a time:

1. ask the controller; without records, answer at once;
2. append the records to the metadata log and wait until they are durable;
3. `image.apply(records, version)`, the version being the log's end offset;
4. push the records (or `image.to_bytes()`) to the other cores and wait for those that live;
5. answer.

Settings are tables: `topic_config` and `broker_config` (rows declared with `config_types`), read from text by
`settings` and shown by `describe`.

`assignment` decides which nodes hold, and lead, which partitions, and the moves that lead there.

Everything here is plain data and pure decisions: no clock, no randomness, no I/O. Imports the foundation and `routing`.
"""
