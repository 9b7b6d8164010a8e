"""``tpc``: the client and admin command line. Speaks the protocol through librdkafka (confluent-kafka), as users do.

Each command prints a table and progress on a terminal, plain text when piped, and JSON with ``--json``.
"""
