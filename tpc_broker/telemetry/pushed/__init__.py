"""Metrics that clients push (KIP-714): who is asked for which, what they say, and what becomes of it.

Lives on every core, without I/O, clocks and chance: times come in as arguments, new ids too. A core knows the instances
of the clients whose connections it has, as a broker of Kafka does, and tells no other core of them. What an instance
is asked for follows from the subscriptions and from itself, and so does the subscription's id: on another core, or
after a restart, it goes on with what it was told.

`subscriptions`: resources of type CLIENT_METRICS, as matchers; `instances`: the machine that decides each Get and each
Push; `payload`: OpenTelemetry's MetricsData, read as far as it is needed; `standard`: the metrics of KIP-714 that are
told on, and `aggregates`: over all instances, because no label is a client's to choose.
"""
