"""Several nodes as one broker: the part with sockets, files and clocks. All of it lives on core 0 of a node.

options     `--cluster` and what goes with it, checked
identity    who this data directory is: node, incarnation, boots, cluster
links       connections to the other nodes, and from them: who proves the secret may ask and tell
members     SWIM over UDP
voter_file  what the metadata group has promised, on the disk
metadata_group  drives `raft` for the cluster's metadata
node        all of it together: found or join, then follow the metadata
"""
