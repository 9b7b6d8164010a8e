"""What the cores count, as Prometheus metrics.

The names, kinds and labels are a table (`COUNTED`), so that nothing gets a label whose values clients choose: a series
is named by core, and where there is one, by API or reason, which are lists of ours. Counters begin with a core's
process, as Prometheus expects of a process that was started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

from tpc_broker import __version__
from tpc_broker.options import ON_IO_URING, ChosenBackend
from tpc_broker.storage.recovery.scrub_report import FINISHED, read_report
from tpc_broker.telemetry.cluster_metrics import cluster_metrics, replica_metrics
from tpc_broker.telemetry.health import cluster_of, disk_of
from tpc_broker.telemetry.telemetry_metrics import telemetry_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from prometheus_client.core import Metric

    from tpc_broker.telemetry.counters import CoreStatus

NS_PER_S: Final = 1e9
NS: Final = 1 / NS_PER_S


class Counted(NamedTuple):
    """One number of each core. `name` ends in `_total` where it only grows; `scale` converts to seconds or bytes."""

    name: str
    part: str
    field: str
    explanation: str
    scale: float = 1.0


COUNTED: Final = (
    Counted("tpc_connections", "connections", "connections", "Connections that are open."),
    Counted("tpc_connections_opened_total", "connections", "opened", "Connections that were accepted."),
    Counted(
        "tpc_connections_refused_total",
        "connections",
        "refused",
        "Connections refused above max.connections or max.connections.per.ip.",
    ),
    Counted(
        "tpc_connections_refused_per_ip_total",
        "connections",
        "refused_per_ip",
        "Of them, refused above max.connections.per.ip.",
    ),
    Counted("tpc_accept_failures_total", "connections", "accept_failures", "Connections that could not be accepted."),
    Counted("tpc_requests_total", "connections", "requests", "Requests that arrived."),
    Counted("tpc_requests_in_c_total", "connections", "requests_hot", "Requests that C took without Python."),
    Counted("tpc_requests_unanswered", "connections", "requests_unanswered", "Requests that are not answered yet."),
    Counted("tpc_received_bytes_total", "connections", "received_bytes", "Bytes received from clients."),
    Counted("tpc_sent_bytes_total", "connections", "sent_bytes", "Bytes sent to clients."),
    Counted("tpc_answers_unsent_bytes", "connections", "answer_bytes_unsent", "Bytes of answers that wait to be sent."),
    Counted("tpc_budget_used_bytes", "connections", "budget_bytes_used", "Memory that requests and answers hold."),
    Counted("tpc_budget_refusals_total", "connections", "budget_refusals", "Times that memory was short."),
    Counted("tpc_budget_waits_total", "connections", "starvations", "Receives that waited for memory."),
    Counted("tpc_partitions", "plane", "partitions", "Partitions that are open on this core."),
    Counted("tpc_partitions_offline", "broker", "partitions_offline", "Partitions without a leader: damaged files."),
    Counted("tpc_batches_appended_total", "plane", "appends", "Record batches appended."),
    Counted("tpc_appended_bytes_total", "plane", "append_bytes", "Bytes of record batches appended."),
    Counted("tpc_produce_in_c_total", "plane", "produces_taken", "Produce requests answered in C."),
    Counted("tpc_produce_in_python_total", "plane", "produce_fallbacks", "Produce requests left to Python."),
    Counted("tpc_produce_timeouts_total", "plane", "produces_timed_out", "Produce requests that timed out."),
    Counted("tpc_produce_errors_total", "plane", "partition_errors", "Partitions of Produce answered with an error."),
    Counted("tpc_produce_doubted_total", "plane", "answers_doubted", "Acknowledgements refused: nothing was there."),
    Counted("tpc_produce_waiting", "plane", "produces_pending", "Produce requests that wait for the disk."),
    Counted("tpc_producers", "plane", "producers", "Producers that partitions of this core know."),
    Counted("tpc_producers_forgotten_total", "plane", "producers_forgotten", "Producers that made room for others."),
    Counted("tpc_tail_bytes", "plane", "tail_bytes", "Bytes of records in memory."),
    Counted("tpc_tail_unwritten_batches", "plane", "appends_undurable", "Batches that are not on the disk yet."),
    Counted("tpc_fetch_in_c_total", "fetches", "taken", "Fetch requests answered in C."),
    Counted("tpc_fetch_waiting", "fetches", "parked_now", "Fetch requests that wait for records."),
    Counted("tpc_fetch_sessions", "fetches", "sessions", "Fetch sessions."),
    Counted("tpc_fetch_sessions_evicted_total", "fetches", "sessions_evicted", "Fetch sessions that made room."),
    Counted("tpc_fetch_sessions_refused_total", "fetches", "sessions_refused", "Fetch sessions without memory."),
    Counted("tpc_fetch_session_bytes", "fetches", "session_bytes", "Memory of fetch sessions."),
    Counted("tpc_fetch_waiting_bytes", "fetches", "waiting_bytes", "Memory of fetches that wait."),
    Counted("tpc_fetch_hurried_total", "fetches", "hurried", "Fetches that did not wait, for want of memory."),
    Counted("tpc_fetched_bytes_total", "fetches", "record_bytes", "Bytes of records that C put into answers."),
    Counted("tpc_fetched_from_segments_bytes_total", "fetches", "segment_bytes", "Of them, from segments."),
    Counted("tpc_journal_commits_total", "journal", "commits_durable", "Commits of the journal."),
    Counted("tpc_journal_commits_failed_total", "journal", "commits_failed", "Commits that failed."),
    Counted("tpc_journal_written_bytes_total", "journal", "bytes_written", "Bytes written to the journal."),
    Counted("tpc_journal_in_place_bytes_total", "journal", "in_place_bytes_written", "Bytes written in place."),
    Counted("tpc_journal_used_bytes", "journal", "blocks_used", "Bytes of the journal in use.", 4096),
    Counted("tpc_journal_bytes", "journal", "region_blocks", "Bytes of the journal.", 4096),
    Counted("tpc_journal_full_total", "journal", "refused_full", "Appends that found the journal full."),
    Counted("tpc_journal_paced_total", "journal", "commits_paced", "Commits followed by a pause: it was filling up."),
    Counted("tpc_journal_error", "journal", "error", "errno that stopped the journal; 0: it works."),
    Counted("tpc_checkpoints_total", "storage", "checkpoints", "Checkpoints, which give the journal back."),
    Counted("tpc_checkpoint_age_seconds", "storage", "checkpoint_age_ms", "Since the last checkpoint.", 1e-3),
    Counted("tpc_checkpoint_held_back", "storage", "checkpoint_held_back", "1: a failed partition holds it back."),
    Counted("tpc_checkpoint_syncs_total", "storage", "partitions_synced", "Partitions that checkpoints synced."),
    Counted("tpc_partitions_failed", "storage", "partitions_failed", "Partitions that wait to be written anew."),
    Counted("tpc_disk_full", "storage", "disk_full", "1: records are refused, because the disk is full."),
    Counted("tpc_disk_full_refusals_total", "storage", "disk_full_refusals", "Requests refused for a full disk."),
    Counted("tpc_partitions_released_total", "storage", "partitions_released", "Partitions moved to other cores."),
    Counted("tpc_partitions_adopted_total", "storage", "partitions_adopted", "Partitions that came from other cores."),
    Counted("tpc_moves_stopped_seconds_total", "storage", "moves_stopped_us", "Without appends, until released.", 1e-6),
    Counted("tpc_moves_adopting_seconds_total", "storage", "moves_adopting_us", "Until adoptions were durable.", 1e-6),
    Counted("tpc_compacted_partitions", "cleaning", "compacted_partitions_now", "Partitions to be compacted."),
    Counted("tpc_uncleanable_partitions", "cleaning", "uncleanable_now", "Partitions that cannot be compacted."),
    Counted("tpc_cleaner_lacking", "cleaning", "cleaner_lacking_now", "1: nothing is compacted: no cleaner comes up."),
    Counted("tpc_cleanings_under_way", "cleaning", "cleaning_now", "Cleanings of partitions that are under way."),
    Counted("tpc_cleanings_total", "cleaning", "cleanings", "Cleanings of partitions that came to their end."),
    Counted("tpc_cleanings_failed_total", "cleaning", "cleanings_failed", "Cleanings that failed."),
    Counted("tpc_cleaner_away_total", "cleaning", "cleaner_away", "Cleanings ended or not begun without a cleaner."),
    Counted("tpc_cleaning_seconds_total", "cleaning", "cleaning_ms", "Time that cleanings took.", 1e-3),
    Counted("tpc_cleaned_read_bytes_total", "cleaning", "cleaned_bytes_read", "Bytes that cleanings read."),
    Counted("tpc_cleaned_written_bytes_total", "cleaning", "cleaned_bytes_written", "Bytes that they wrote."),
    Counted("tpc_cleaned_saved_bytes_total", "cleaning", "cleaned_bytes_saved", "Bytes of disk that they gave back."),
    Counted("tpc_cleaned_records_total", "cleaning", "cleaned_records_read", "Records that they read."),
    Counted("tpc_cleaned_records_removed_total", "cleaning", "cleaned_records_removed", "Of them, removed."),
    Counted("tpc_segment_swaps_total", "cleaning", "swaps", "Times that cleaned segments took their place."),
    Counted("tpc_segment_swaps_locked_seconds_total", "cleaning", "swaps_locked_us", "Partitions locked by it.", 1e-6),
    Counted("tpc_segment_swap_locked_seconds_max", "cleaning", "swap_locked_us_max", "The longest of them.", 1e-6),
    Counted("tpc_dirty_bytes", "cleaning", "dirty_bytes_now", "Bytes of compacted partitions not cleaned yet."),
    Counted("tpc_clean_bytes", "cleaning", "clean_bytes_now", "Bytes of compacted partitions that were."),
    Counted("tpc_dirty_ratio_max", "cleaning", "dirty_permille_max_now", "Of the dirtiest partition.", 1e-3),
    Counted("tpc_unreadable_batches", "cleaning", "batches_unreadable_now", "Batches that cleanings leave alone."),
    Counted("tpc_moves_done_total", "broker", "moves_done", "Moves that this core has conducted."),
    Counted("tpc_moves_given_up_total", "broker", "moves_given_up", "Moves after which the partition stayed."),
    Counted("tpc_moves_cancelled_total", "broker", "moves_cancelled", "Moves between cores that were taken back."),
    Counted("tpc_coordinators_raised_total", "broker", "machines_raised", "Errors of coordinators, each loaded again."),
    Counted("tpc_transactional_ids", "transactions", "ids", "Transactional ids that this core coordinates."),
    Counted("tpc_transactions_open", "transactions", "open", "Transactions that are open."),
    Counted("tpc_transactions_ending", "transactions", "ending", "Transactions whose markers are being written."),
    Counted("tpc_transactions_committed_total", "transactions", "committed", "Transactions that were committed."),
    Counted("tpc_transactions_aborted_total", "transactions", "aborted", "Transactions that were aborted."),
    Counted("tpc_transactions_timed_out_total", "transactions", "timed_out", "Of them, those whose time was over."),
    Counted("tpc_transaction_markers", "transactions", "markers_owed", "Markers that are sent and not written yet."),
    Counted("tpc_transaction_markers_sending", "transactions", "markers_under_way", "Of them, those in a call now."),
    Counted("tpc_transaction_markers_written_total", "transactions", "markers_written", "Markers that were written."),
    Counted("tpc_transaction_markers_again_total", "transactions", "markers_sent_again", "Markers sent once more."),
    Counted("tpc_transaction_verifications_total", "transactions", "verifications", "Questions to coordinators."),
    Counted("tpc_logins_total", "authentication", "succeeded", "Logins of clients (SASL)."),
    Counted("tpc_logins_renewed_total", "authentication", "renewed", "Of them, again on the same connection."),
    Counted("tpc_logins_renewals_failed_total", "authentication", "renewals_failed", "Logins again that failed."),
    Counted("tpc_tls_handshakes_total", "connections", "handshakes", "TLS handshakes of clients."),
    Counted("tpc_tls_handshakes_put_off_total", "connections", "handshakes_put_off", "Their steps that waited a turn."),
    Counted("tpc_logins_failed_total", "authentication", "failed", "Logins of clients that failed."),
    Counted("tpc_forwarded_produce_total", "forwards", "produces", "Produce requests with parts for other cores."),
    Counted("tpc_forwarded_fetch_total", "forwards", "fetches", "Fetch requests with parts for other cores."),
    Counted("tpc_forwarded_parts_total", "forwards", "parts", "What was sent to other cores of them."),
    Counted("tpc_forwarding", "forwards", "under_way", "Requests that wait for other cores."),
    Counted("tpc_forwarded_unanswered_total", "forwards", "not_available", "Parts whose core could not be asked."),
    Counted("tpc_links", "links", "links_up", "Links to and from other cores."),
    Counted("tpc_links_lost_total", "links", "lost", "Links that ended."),
    Counted("tpc_links_served_total", "links", "served", "Requests of other cores that came here."),
    Counted("tpc_links_held_bytes", "links", "held_bytes", "Of them, not answered yet."),
    Counted("tpc_links_pauses_total", "links", "pauses", "Times that a link was too far ahead."),
    Counted("tpc_authorization_refusals_total", "broker", "refused", "Resources that clients named and may not use."),
    Counted("tpc_quota_muted_connections", "quotas", "muted", "Connections that take no requests: above a quota."),
    Counted("tpc_quota_produce_throttled_total", "quotas", "produce_throttled", "Produces above a quota."),
    Counted("tpc_quota_fetch_throttled_total", "quotas", "fetch_throttled", "Fetches above a quota, answered empty."),
    Counted("tpc_quota_request_throttled_total", "quotas", "request_throttled", "Requests above a quota of time."),
    Counted("tpc_quota_connections_refused_total", "quotas", "connection_throttled", "Connections above a quota."),
    Counted("tpc_quota_produce_throttled_seconds_total", "quotas", "produce_throttled_ms", "Told to producers.", 1e-3),
    Counted("tpc_quota_fetch_throttled_seconds_total", "quotas", "fetch_throttled_ms", "Told to consumers.", 1e-3),
    Counted("tpc_quota_request_throttled_seconds_total", "quotas", "request_throttled_ms", "Told for time.", 1e-3),
    Counted("tpc_wrong_core_total", "broker", "asked_of_wrong_core", "Requests for what another core owns."),
    Counted("tpc_forwarded_total", "broker", "requests_forwarded", "Requests forwarded to another core."),
    Counted("tpc_datagrams_received_total", "datagrams", "received", "Datagrams that arrived."),
    Counted("tpc_datagrams_appended_total", "datagrams", "appended", "Records that were appended from datagrams."),
    Counted("tpc_datagrams_acknowledged_total", "datagrams", "acknowledged", "Datagrams that were acknowledged."),
    Counted("tpc_datagrams_refused_total", "datagrams", "refused", "Datagrams that were answered with an error."),
    Counted("tpc_datagrams_malformed_total", "datagrams", "malformed", "Datagrams without a header that can be."),
    Counted("tpc_datagrams_forwarded_total", "datagrams", "forwarded", "Datagrams sent on to another core."),
    Counted("tpc_datagrams_dropped_total", "datagrams", "kernel_drops", "Datagrams that a full socket dropped."),
    Counted("tpc_loop_kernel_seconds_total", "ring", "wait_ns", "Time of the core in the kernel, waiting.", NS),
    Counted("tpc_loop_c_seconds_total", "ring", "work_ns", "Time of the core in C.", NS),
    Counted("tpc_loop_python_seconds_total", "ring", "python_ns", "Time of the core in Python.", NS),
    Counted("tpc_loop_stalls_total", "ring", "stalls", "Turns in which Python held the core up."),
    Counted("tpc_ring_overflows_total", "ring", "overflows", "Completions that did not fit into the ring."),
)
OF_LISTENERS: Final = (
    ("tpc_listener_connections", "connections", "Connections that are open, by listener."),
    ("tpc_listener_connections_opened_total", "opened", "Connections that were accepted, by listener."),
    ("tpc_listener_connections_refused_total", "refused", "Connections refused above a limit of them, by listener."),
    ("tpc_listener_requests_total", "requests", "Requests that arrived, by listener."),
    ("tpc_listener_received_bytes_total", "received_bytes", "Bytes received from clients, by listener."),
    ("tpc_listener_sent_bytes_total", "sent_bytes", "Bytes sent to clients, by listener."),
)
REASONS: Final = (
    ("tpc_connections_closed_total", "closed", "Connections closed, by reason."),
    ("tpc_fetch_in_python_total", "fetch_fallbacks", "Fetch requests left to Python, by reason."),
)
QUEUES: Final = (
    ("tpc_queue_cpu_seconds_total", "runtime_ns", NS, "CPU time that was charged to a queue of tasks."),
    ("tpc_queue_selections_total", "selections", 1, "Turns of the loop that ran a queue's tasks."),
    ("tpc_queue_longest_slice_seconds", "slice_ns_max", NS, "The longest that a queue's tasks had the core."),
    ("tpc_queue_waiting", "waiting_now", 1, "Tasks that could run and wait for their queue's turn."),
)
SPANS: Final = (
    ("tpc_journal_commit_seconds", "commit_spans", "Commits of the journal, until they were on the disk."),
    ("tpc_python_turn_seconds", "python_spans", "How long Python had a core between two visits of C."),
)


class CoreMetrics:
    """One look at the cores, as a collector: to be registered and rendered once."""

    def __init__(
        self,
        cores: list[CoreStatus],
        data: Path,
        listeners: Sequence[dict[str, Any]] = (),
        backend: ChosenBackend = ON_IO_URING,
    ) -> None:
        self._backend = backend
        self._cores = cores
        self._listeners = listeners
        self._told = [(str(core["core"]), core["counters"]) for core in cores if "counters" in core]
        self._data = data

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("tpc_build", "Which release this is.", {"version": __version__})
        told = {"backend": self._backend.name, "reason": self._backend.reason}
        yield InfoMetricFamily("tpc_backend", "What carries out system calls, and why it is not io_uring.", told)
        yield from self._of_cores()
        yield from cluster_metrics(cluster_of(self._cores))
        yield from replica_metrics([(core, counters["replicas"]) for core, counters in self._told])
        yield from self._of_disk()
        yield from self._of_scrub()
        yield from self._of_steering()
        yield from self._of_listeners()
        for row in COUNTED:
            family = _family(row.name, row.explanation, ["core"])
            for core, counters in self._told:
                numbers: dict[str, int] = counters[row.part]  # type: ignore[literal-required]
                family.add_metric([core], numbers[row.field] * row.scale)
            yield family
        for name, part, explanation in REASONS:
            family = _family(name, explanation, ["core", "reason"])
            for core, counters in self._told:
                for reason, count in counters[part].items():  # type: ignore[literal-required]
                    family.add_metric([core, reason], count)
            yield family
        yield from telemetry_metrics([(core, counters["telemetry"]) for core, counters in self._told])
        yield from self._queues()
        yield from self._spans()
        yield self._latencies()

    def _of_cores(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("tpc_core_up", "1: the core's process answers clients.", labels=["core"])
        seconds = GaugeMetricFamily("tpc_core_up_seconds", "For how long it does.", labels=["core"], unit="seconds")
        restarts = CounterMetricFamily("tpc_core_restarts", "Times that a core had to be restarted.", labels=["core"])
        for core in self._cores:
            label = [str(core["core"])]
            up.add_metric(label, int(core["ready"] and "counters" in core))
            seconds.add_metric(label, core["up_ms"] / 1000)
            restarts.add_metric(label, core["restarts"])
        yield from (up, seconds, restarts)

    def _of_disk(self) -> Iterator[Metric]:
        found = disk_of(self._data)
        free = GaugeMetricFamily("tpc_disk_free_bytes", "Of the data directory's file system, for the broker.")
        free.add_metric([], found.free_bytes)
        left = GaugeMetricFamily("tpc_disk_left_bytes", "Of it, what clients' records may still take.")
        left.add_metric([], found.left_bytes)
        size = GaugeMetricFamily("tpc_disk_bytes", "Size of the data directory's file system.")
        size.add_metric([], found.total_bytes)
        yield from (free, left, size)

    def _of_steering(self) -> Iterator[Metric]:
        """Without samples where no listener is steered."""
        placed = CounterMetricFamily(
            "tpc_steering_placed", "Connections, or datagrams, that the kernel placed.", labels=["listener", "core"]
        )
        astray = CounterMetricFamily(
            "tpc_steering_fallbacks", "Those that it placed elsewhere, by reason.", labels=["listener", "reason"]
        )
        for listener in self._listeners:
            name, steering = listener["name"], listener["steering"]
            if steering is None:
                continue
            for core, count in enumerate(steering["selected"]):
                placed.add_metric([name, str(core)], count)
            astray.add_metric([name, "down"], steering["fallback_down"])
            astray.add_metric([name, "kernel"], steering["fallback_kernel"])
            for reason in ("unowned", "malformed"):  # of datagrams
                if f"miss_{reason}" in steering:
                    astray.add_metric([name, reason], steering[f"miss_{reason}"])
        yield from (placed, astray)

    def _of_listeners(self) -> Iterator[Metric]:
        for name, field, explanation in OF_LISTENERS:
            family = _family(name, explanation, ["listener", "core"])
            for core, counters in self._told:
                for listener, numbers in zip(self._listeners, counters["listeners"], strict=False):
                    family.add_metric([listener["name"], core], numbers[field])
            yield family

    def _of_scrub(self) -> Iterator[Metric]:
        """Without samples before the first scrub."""
        damaged = GaugeMetricFamily("tpc_scrub_damaged", "Stretches of stored files that a scrub found damaged.")
        ended = GaugeMetricFamily("tpc_scrub_finished_timestamp_seconds", "When the last scrub came to its end.")
        checked = GaugeMetricFamily("tpc_scrub_checked_bytes", "What it checked, or has checked so far.")
        total = GaugeMetricFamily("tpc_scrub_bytes", "What there is to check for it.")
        report = read_report(self._data)
        if report is not None:
            damaged.add_metric([], report.damaged_count)
            checked.add_metric([], report.checked_bytes)
            total.add_metric([], report.total_bytes)
            if report.state == FINISHED:
                ended.add_metric([], report.ended_ms / 1000)
        yield from (damaged, ended, checked, total)

    def _queues(self) -> Iterator[Metric]:
        for name, field, scale, explanation in QUEUES:
            family = _family(name, explanation, ["core", "queue"])
            for core, counters in self._told:
                for queue, numbers in counters["queues"].items():
                    family.add_metric([core, queue], numbers[field] * scale)
            yield family

    def _spans(self) -> Iterator[Metric]:
        for name, part, explanation in SPANS:
            family = HistogramMetricFamily(name, explanation, labels=["core"])
            for core, counters in self._told:
                family.add_metric([core], _buckets(counters[part]), None)  # type: ignore[literal-required]
            yield family

    def _latencies(self) -> Metric:
        family = HistogramMetricFamily(
            "tpc_request_seconds",
            "From the arrival of a whole request until its answer was ready to be sent. A Fetch may wait for records.",
            labels=["core", "api"],
        )
        for core, counters in self._told:
            for api, latency in counters["latencies"].items():
                family.add_metric([core, api], _buckets(latency["spans"]), latency["sum_ns"] / NS_PER_S)
        return family


def _family(name: str, explanation: str, labels: list[str]) -> Any:
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), explanation, labels=labels)
    return GaugeMetricFamily(name, explanation, labels=labels)


def _buckets(spans: list[int]) -> list[tuple[str, float]]:
    """Cumulative, by upper bound in seconds: spans[i] are times of less than 2^i us, the last one all longer ones."""
    found, seen = [], 0
    for place, count in enumerate(spans[:-1]):
        seen += count
        found.append((repr(2**place / 1e6), float(seen)))
    return [*found, ("+Inf", float(seen + spans[-1]))]
