"""``tpc-broker status``: what a running broker counts, by core.

The supervisor listens on the Unix socket ``status.sock`` in the data directory, which only the broker's user may use.
Who connects gets one JSON object and the end of the stream. The supervisor asks the cores over their control channels
when somebody connects, and never otherwise: a broker that nobody looks at does nothing for this.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypedDict

import trio

from tpc_broker import limits
from tpc_broker.engine.backend import described
from tpc_broker.options import ON_IO_URING, ChosenBackend, StartError
from tpc_broker.storage.recovery.scrub_report import read_report, report_lines, report_of
from tpc_broker.telemetry.cluster_report import cluster_lines
from tpc_broker.telemetry.health import cluster_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from tpc_broker.telemetry.counters import CoreCounters, CoreStatus

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "status.sock"
CONTROL_NAME: Final = "control.sock"
_PATIENCE_S: Final = 5.0
_RETRY_S: Final = 0.1
LISTENER_COUNTS: Final = ("connections", "opened", "refused", "requests", "received_bytes", "sent_bytes")


class BrokerStatus(TypedDict):
    """What the socket gives."""

    pid: int
    """Of the supervisor."""
    cores: list[CoreStatus]
    listeners: list[dict[str, Any]]
    """See `ListeningSockets.report`."""
    backend: dict[str, str]
    """Of all cores' rings: `name`, the `reason` why it is not io_uring, and what can `mend` that."""
    open_doors: list[str]
    """What the start has warned of: which listeners take everybody, or take passwords without TLS."""
    scrub: dict[str, Any] | None
    """Of the last scrub, or of the one that is under way: fields of `ScrubReport`."""


# -- the supervisor's side ---------------------------------------------------------------------------------------------


@contextmanager
def socket_address(data: Path, name: str = SOCKET_NAME) -> Iterator[str]:
    """A path to the socket that is short enough for sockaddr_un, however long the directory's is."""
    folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)


def bind_status(data: Path, name: str = SOCKET_NAME) -> socket.socket | None:
    """The listening socket, in a data directory that is locked by us; None, and a line in the log, where its file
    system has no sockets. One that a killed broker left behind is replaced.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (data / name).unlink(missing_ok=True)
        with socket_address(data, name) as address:
            listener.bind(address)
        (data / name).chmod(0o600)
        listener.listen(limits.STATUS_BACKLOG)
    except OSError as error:
        listener.close()
        log.warning("no %s in %s (%s): commands beside the broker will not find it", name, data, error)
        return None
    return listener


async def serve_status(
    data: Path,
    look: Callable[[], Awaitable[list[CoreStatus]]],
    listeners: Callable[[], list[dict[str, Any]]] = list,
    backend: ChosenBackend = ON_IO_URING,
    open_doors: Sequence[str] = (),
) -> None:
    """Answer one after the other, until cancelled."""

    async def answer(_peer: trio.SocketStream) -> bytes:
        scrubbed = read_report(data)
        status = BrokerStatus(
            pid=os.getpid(), cores=await look(), listeners=listeners(),
            backend=backend._asdict(), open_doors=list(open_doors),
            scrub=None if scrubbed is None else scrubbed.as_json(),
        )  # fmt: skip
        return json.dumps(status).encode()

    await _serve_on(data, SOCKET_NAME, answer)


async def serve_control(data: Path, control: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Who connects to `control.sock` sends one JSON object in one line, and gets one. `control` answers it; ValueError
    from it becomes `{"error": …}`.
    """

    async def answer(peer: trio.SocketStream) -> bytes:
        try:
            told = await control(_object_of(await _request_line(peer)))
        except (ValueError, RecursionError) as error:
            told = {"error": str(error)}
        return json.dumps(told).encode()

    await _serve_on(data, CONTROL_NAME, answer)


def _object_of(line: bytes) -> dict[str, Any]:
    found = json.loads(line)
    if isinstance(found, dict):
        return found
    raise ValueError("expected a JSON object")


async def _request_line(peer: trio.SocketStream) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = await peer.receive_some(limits.CONTROL_REQUEST_BYTES_MAX)
        line += part
        if not part or len(line) > limits.CONTROL_REQUEST_BYTES_MAX:
            raise ValueError(f"expected one line of at most {limits.CONTROL_REQUEST_BYTES_MAX} bytes")
    return line


async def _serve_on(data: Path, name: str, answer: Callable[[trio.SocketStream], Awaitable[bytes]]) -> None:
    """One after the other, until cancelled. Who does not wait for the answer gets none."""
    listener = bind_status(data, name)
    if listener is None:
        return
    try:
        with trio.socket.from_stdlib_socket(listener) as accepting:
            while True:
                try:
                    peer, _ = await accepting.accept()
                except OSError:  # out of descriptors, say: the broker goes on, and so does this
                    await trio.sleep(_RETRY_S)
                    continue
                with peer, trio.move_on_after(_PATIENCE_S), suppress(trio.BrokenResourceError):
                    stream = trio.SocketStream(peer)
                    await stream.send_all(await answer(stream))
    finally:
        (data / name).unlink(missing_ok=True)


# -- the command's side ------------------------------------------------------------------------------------------------


def read_status(data: Path) -> BrokerStatus:
    """StartError: one line, when no broker answers for this directory."""
    found: BrokerStatus = _ask(data, SOCKET_NAME, b"")
    return found


def ask_control(data: Path, request: dict[str, Any]) -> dict[str, Any]:
    """What the supervisor answers on `control.sock`. StartError: one line, when it does not, or refuses."""
    told: dict[str, Any] = _ask(data, CONTROL_NAME, json.dumps(request).encode() + b"\n")
    if "error" in told:
        raise StartError(str(told["error"]))
    return told


def _ask(data: Path, name: str, request: bytes) -> Any:
    answer = bytearray()
    try:
        with socket_address(data, name) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2 * _PATIENCE_S)
            connection.connect(address)
            if request:
                connection.sendall(request)
            while part := connection.recv(65536):
                answer += part
        return json.loads(answer)
    except (OSError, ValueError) as error:
        raise StartError(f"no broker answers for the data directory {data}: {error}") from error


def status_report(status: BrokerStatus, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(status)
    lines = [line for core in status["cores"] for line in _core_lines(core)]
    backend = status.get("backend")  # an earlier release's broker does not tell
    if backend is not None:
        lines.append(f"backend: {described(ChosenBackend(**backend))}")
    lines += [f"listener {row['listener']}: {_of_listener(row)}" for row in listener_rows(status)]
    cluster = cluster_of(status["cores"])
    if cluster is not None:
        first, *rest = cluster_lines(cluster)
        lines += [first, *(f"  {line}" for line in rest)]
    scrubbed = status.get("scrub")  # an earlier release's broker does not tell
    if scrubbed is not None:
        first, *rest = report_lines(report_of(scrubbed))
        lines += [f"scrub: {first}", *rest]
    return "\n".join(lines)


def listener_rows(status: BrokerStatus) -> list[dict[str, Any]]:
    """What the cores together count of each listener for clients."""
    counted = [core["counters"].get("listeners", []) for core in status["cores"] if "counters" in core]
    return [
        {
            "listener": listener["name"], "mode": listener["mode"],
            **{name: sum(core[number][name] for core in counted if number < len(core)) for name in LISTENER_COUNTS},
        }
        for number, listener in enumerate(status.get("listeners", []))
        if any(number < len(core) for core in counted)
    ]  # fmt: skip


def _of_listener(row: dict[str, Any]) -> str:
    return (
        f"{row['mode']}, {_counted(row['connections'], 'connection')}, {row['opened']:,} opened, "
        f"{row['refused']:,} refused; {row['requests']:,} requests, {_bytes(row['received_bytes'])} in, "
        f"{_bytes(row['sent_bytes'])} out"
    )


def steering_report(status: BrokerStatus, *, as_json: bool) -> str:
    partitions = [core["counters"]["plane"]["partitions"] if "counters" in core else None for core in status["cores"]]
    if as_json:
        return json.dumps({"listeners": status["listeners"], "partitions": partitions})
    lines = [f"partitions by core: {_by_core(partitions)}"]
    for listener in status["listeners"]:
        addresses = list(dict.fromkeys(listener["addresses"]))
        lines.append(f"{listener['name']}: {listener['mode']} on {', '.join(addresses)}")
        steered = listener["steering"]
        if steered is None:
            continue
        what = "datagrams" if "owned" in steered else "connections"
        down = [str(core) for core, alive in enumerate(steered["alive"]) if not alive]
        lines += [
            f"  placed by {steered['placement']}, loaded by {steered['loader']}"
            + (f"; down: core {', '.join(down)}" if down else ""),
            f"  {what} placed, by core: {_by_core(steered['selected'])}",
            f"  fallbacks: {steered['fallback_down']:,} to the next core, {steered['fallback_kernel']:,} to the kernel",
        ]
        if "owned" in steered:
            lines.append(f"  partitions in the map, by core: {_by_core(steered['owned'])}")
            lines.append(f"  without an owner: {steered['miss_unowned']:,}; no header: {steered['miss_malformed']:,}")
        if steered["runs_measured"]:
            mean_ns = steered["runs_measured_ns"] / steered["runs_measured"]
            lines.append(f"  {mean_ns:,.0f} ns a decision, of {steered['runs_measured']:,} that were measured")
    return "\n".join(lines)


def _by_core(numbers: Sequence[int | None]) -> str:
    return " ".join("?" if number is None else f"{number:,}" for number in numbers)


def _core_lines(core: CoreStatus) -> list[str]:
    head = f"core {core['core']}: "
    if core["pid"] is None:
        return [f"{head}down, {_counted(core['restarts'], 'restart')}"]
    counters = core.get("counters")
    state = f"up for {_duration(core['up_ms'])}" if core["ready"] else "starting"
    if counters is None and core["ready"]:
        state += f", no answer within {limits.STATUS_ANSWER_MS} ms"
    head += f"pid {core['pid']}, {state}, {_counted(core['restarts'], 'restart')}"
    return [head, *(f"  {name:<13}{text}" for name, text in _sections(counters))] if counters else [head]


def _sections(counters: CoreCounters) -> list[tuple[str, str]]:
    return [*_of_requests(counters), *_of_storage(counters), ("loop", _of_loop(counters)), *_of_queues(counters)]


def _of_requests(counters: CoreCounters) -> list[tuple[str, str]]:
    connections, plane, fetches = counters["connections"], counters["plane"], counters["fetches"]
    broker = counters["broker"]
    left = {reason: count for reason, count in counters["fetch_fallbacks"].items() if count}
    reasons = f" ({', '.join(f'{reason} {count:,}' for reason, count in sorted(left.items()))})" if left else ""
    clients = (
        f"{_counted(connections['connections'], 'connection')}, {connections['refused']:,} refused; "
        f"{_bytes(connections['received_bytes'])} in, {_bytes(connections['sent_bytes'])} out; "
        f"{connections['requests_unanswered']:,} requests unanswered now; "
        f"{broker['asked_of_wrong_core']:,} asked of the wrong core, {broker['requests_forwarded']:,} forwarded"
    )
    produce = (
        f"{plane['produces_taken']:,} answered in C, {plane['produce_fallbacks']:,} left to Python; "
        f"{plane['partition_errors']:,} refused, {plane['duplicates']:,} duplicates, "
        f"{plane['produces_timed_out']:,} timed out; {plane['produces_pending']:,} waiting now"
    )
    fetch = (
        f"{fetches['taken']:,} answered in C, {sum(left.values()):,} left to Python{reasons}; "
        f"{fetches['parked_now']:,} waiting now, {fetches['timed_out']:,} waited in vain, "
        f"{fetches['hurried']:,} did not wait for want of memory"
    )
    sessions = (
        f"{fetches['sessions']:,} of {_counted(fetches['session_partitions'], 'partition')}, "
        f"{fetches['sessions_evicted']:,} evicted, {_bytes(fetches['session_bytes'])}; "
        f"{fetches['sessions_refused']:,} refused for want of memory"
    )
    sections = [("clients", clients), *_of_links(counters), *_of_datagrams(counters)]
    sections += [("produce", produce), *_of_transactions(counters), ("fetch", fetch), ("sessions", sessions)]
    return sections


def _of_transactions(counters: CoreCounters) -> list[tuple[str, str]]:
    found = counters.get("transactions")  # an earlier release's broker does not tell
    if not found or not any(found.values()):
        return []
    text = (
        f"{found['open']:,} open of {_counted(found['ids'], 'id')}, {found['ending']:,} ending with "
        f"{_counted(found['markers_owed'], 'marker')} to be written; {found['committed']:,} committed, "
        f"{found['aborted']:,} aborted, {found['timed_out']:,} of them out of time; "
        f"{found['markers_written']:,} markers written, {found['markers_sent_again']:,} sent again; "
        f"{_counted(found['verifications'], 'question')} to coordinators"
    )
    return [("transactions", text)]


def _of_links(counters: CoreCounters) -> list[tuple[str, str]]:
    links, forwards = counters["links"], counters["forwards"]
    if not links["links_up"]:
        return []
    text = (
        f"{forwards['produces']:,} Produce and {forwards['fetches']:,} Fetch sent to other cores in "
        f"{forwards['parts']:,} parts, {forwards['under_way']:,} under way now, {forwards['not_available']:,} "
        f"partitions without an answer; {links['served']:,} answered for other cores, "
        f"{_bytes(links['held_bytes'])} of them unanswered now"
    )
    return [("links", text)]


def _of_datagrams(counters: CoreCounters) -> list[tuple[str, str]]:
    found = counters["datagrams"]
    if not (found["received"] or found["forwarded_here"] or found["kernel_drops"]):
        return []
    not_taken = ("malformed", "oversized", "unknown", "unowned", "invalid", "without_room", "failed")
    why = ", ".join(f"{found[name]:,} {name.replace('_', ' ')}" for name in not_taken if found[name])
    text = (
        f"{found['received']:,} received ({_bytes(found['received_bytes'])}) and {found['kernel_drops']:,} dropped by "
        f"the kernel; {found['appended']:,} records appended in {_counted(found['batches'], 'batch', 'es')}, "
        f"{found['acknowledged']:,} acknowledged; {found['forwarded']:,} sent on to other cores, "
        f"{found['forwarded_here']:,} came from them; not taken: {why or 'none'}"
    )
    return [("datagrams", text)]


def _of_storage(counters: CoreCounters) -> list[tuple[str, str]]:
    plane, fetches, journal = counters["plane"], counters["fetches"], counters["journal"]
    failed = f"; failed: {os.strerror(journal['error'])}" if journal["error"] else ""
    partitions = (
        f"{plane['partitions']:,}; {_counted(plane['appends'], 'batch', 'es')}, {_bytes(plane['append_bytes'])} "
        f"appended; {_bytes(fetches['record_bytes'])} fetched, {_bytes(fetches['segment_bytes'])} of it from segments"
    )
    commits = (
        f"{_counted(journal['commits_durable'], 'commit')}{_within(counters['commit_spans'])}, "
        f"{_bytes(journal['bytes_written'])} written, "
        f"{journal['blocks_used'] / max(1, journal['region_blocks']):.0%} in use{failed}"
    )
    memory = (
        f"{_bytes(counters['connections']['budget_bytes_used'])} of the budget; {_bytes(plane['tail_bytes'])} of "
        f"records, {_bytes(plane['tail_clean_bytes'])} of them written behind"
    )
    return [
        ("partitions", partitions), *_of_replicas(counters), *_of_cleaning(counters), ("journal", commits),
        ("memory", memory),
    ]  # fmt: skip


def _of_cleaning(counters: CoreCounters) -> list[tuple[str, str]]:
    found = counters.get("cleaning")  # an earlier release's broker does not tell
    if not found or not any(found.values()):
        return []
    text = (
        f"{_counted(found['compacted_partitions_now'], 'compacted partition')}, "
        f"{_bytes(found['dirty_bytes_now'])} dirty and {_bytes(found['clean_bytes_now'])} clean, "
        f"{found['dirty_permille_max_now'] / 1000:.0%} dirty at most; {_counted(found['cleanings'], 'cleaning')}, "
        f"{found['cleanings_failed']:,} failed, {_bytes(found['cleaned_bytes_read'])} read, "
        f"{_bytes(found['cleaned_bytes_written'])} written, {_bytes(found['cleaned_bytes_saved'])} saved"
    )
    if found["batches_unreadable_now"]:
        text += f"; {_counted(found['batches_unreadable_now'], 'batch', 'es')} cannot be read and stay"
    under_way = [f"{name} ({_bytes(done)} so far)" for name, done in counters["cleanings_under_way"].items()]
    if under_way:
        text += f"; now {', '.join(under_way)}"
    lines = [("compaction", text)]
    if counters.get("no_cleaner"):
        lines.append(("no cleaner", counters["no_cleaner"]))
    return lines + [("uncleanable", f"{name}: {why}") for name, why in counters["uncleanable"].items()]


def _of_replicas(counters: CoreCounters) -> list[tuple[str, str]]:
    found = counters.get("replicas")  # an earlier release's broker does not tell
    if not found:
        return []
    text = (
        f"{found['leader']:,} led, {found['follower']:,} followed, {found['candidate'] + found['pre_candidate']:,} in "
        f"elections; {found['leaderless']:,} without a leader, {found['under_replicated']:,} of those led lack "
        f"replicas, {found['refusing']:,} refuse records; {found['uncommitted_records']:,} records not committed; "
        f"commits: {found['commits']:,}, elections begun: {found['elections']:,}, won: {found['elections_won']:,}; "
        f"links: {found['links_up']:,} of {found['links_wanted']:,}, {_bytes(found['sent_bytes'])} out, "
        f"{_bytes(found['received_bytes'])} in"
    )
    return [("replicas", text)]


def _of_loop(counters: CoreCounters) -> str:
    ring = counters["ring"]
    whole_ns = max(1, ring["wait_ns"] + ring["work_ns"] + ring["python_ns"])
    return (
        f"{ring['wait_ns'] / whole_ns:.0%} in the kernel, {ring['work_ns'] / whole_ns:.0%} in C, "
        f"{ring['python_ns'] / whole_ns:.0%} in Python; {_counted(ring['stalls'], 'stall')}, the longest turn of "
        f"Python {ring['stall_ns_max'] / 1e6:.0f} ms"
    )


def _of_queues(counters: CoreCounters) -> list[tuple[str, str]]:
    """A line each; the first one has the section's name."""
    lines = [
        f"{name}, {_counted(queue['shares'], 'share')}: {queue['runtime_ns'] / 1e9:,.3f} s in "
        f"{_counted(queue['selections'], 'selection')}, longest slice {queue['slice_ns_max'] / 1e6:,.1f} ms, "
        f"{queue['waiting_now']:,} waiting now"
        for name, queue in counters["queues"].items()
    ]
    return [("" if number else "queues", line) for number, line in enumerate(lines)]


def _within(spans: list[int]) -> str:
    """Such as `, 99 % within 256 us`; spans by powers of two of 1 us."""
    seen = 0
    for place, count in enumerate(spans[:-1]):
        seen += count
        if seen and seen >= 0.99 * sum(spans):
            return f", 99 % within {2**place:,} us"
    return f", over 1 % longer than {2 ** (len(spans) - 2):,} us" if sum(spans) else ""


def _counted(number: int, what: str, ending: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else ending}"


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"


def _duration(milliseconds: int) -> str:
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
