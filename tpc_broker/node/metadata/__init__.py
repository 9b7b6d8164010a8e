"""The cluster's metadata on this node: its Raft group, the voters' file, observers, and who votes."""
