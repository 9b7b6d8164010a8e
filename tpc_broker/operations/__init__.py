"""What operators do to a broker's data and host, beside the broker or without: the commands of `tpc-broker`.

* `backup` and its parts, `restored_node`: a copy of one moment, and a broker of it; a core's part is `backup_hold`;
* `scrub`, `repair` and their parts: what is damaged, and what can be mended. What a scrub found is
  `storage.recovery.scrub_report`: replicas and metrics read it, too;
* `dump`, `bundle`, `redaction`, `doctor`: files, a node and its host looked at;
* `pending_users`, `user_commands`: users that a broker has from its first start;
* `data_commands`: what these commands take and print.

A core uses `backup_hold` and `pending_users`, the supervisor `backup_staging`. Nothing else is of a running broker.
"""
