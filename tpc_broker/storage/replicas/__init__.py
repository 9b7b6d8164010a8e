"""What replication asks of one core's files.

`replicas`: terms, votes and cuts in the journal. `shipments`: segments that another replica reads; `filled_files` and
`filled_logs`: a log that is made of what was read there; `installation`: it takes the place of what was here.
"""
