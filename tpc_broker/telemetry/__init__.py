"""What a broker tells of itself: a core counts (`counters`), and the supervisor asks, adds up and answers.

* `status`, `status_watch`, `cluster_report`: for people, by `tpc-broker status`;
* `metrics`, `cluster_metrics`, `telemetry_metrics`: for Prometheus, by `admin`, with `health` for load balancers;
* `pushed`: metrics that clients push, as machines.
"""
