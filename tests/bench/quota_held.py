"""Whether a client at ten times its quota is held to it, and what a bystander sees of that: figures for a decision.

    .venv/bin/python -m tests.bench.quota_held

Three rounds against one broker with one core, each with a bystander that sends a small record every 5 ms: alone, beside
a client that sends ten times the quota with none set, and beside the same with the quota. Produces are of 50 kB.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker
from tests.support.connection_bench import frame_of, read_exactly
from tests.support.plane_bench import produce_body, records_of
from tests.support.raw_client import RawConnection
from tests.support.waiting import PATIENCE_S
from tpc_broker.cli.main import main as tpc

QUOTA = 1_000_000
SECONDS = 33.0
"""Three times the windows over which a quota counts."""
WARM_S = 16.0
"""The first eleven seconds' worth comes at once, and again eleven seconds later: counted is from between two such."""


def frame(client_id: str, value: bytes) -> bytes:
    body = produce_body([("t", 0, records_of(1, value=value))])
    return frame_of(body, api_key=0, api_version=7, client_id=client_id)


def answered(connection: RawConnection) -> None:
    read_exactly(connection.socket, int.from_bytes(read_exactly(connection.socket, 4), "big"))


def flood(broker: TpcBroker, until_s: float, counted_from_s: float) -> float:
    """Ten times the quota, one request at a time; bytes a second that were acknowledged."""
    sent, frame_bytes = 0, frame("heavy", bytes(50_000))
    pause_s = len(frame_bytes) / (10 * QUOTA)
    with RawConnection(broker.host, broker.ports[0]) as heavy:
        due_s = time.monotonic()
        while time.monotonic() < until_s:
            heavy.socket.sendall(frame_bytes)
            answered(heavy)
            sent += len(frame_bytes) * (time.monotonic() >= counted_from_s)
            due_s = max(due_s + pause_s, time.monotonic() - 0.1)
            time.sleep(max(0.0, due_s - time.monotonic()))
    return sent / (until_s - counted_from_s)


def bystander(broker: TpcBroker, until_s: float) -> list[float]:
    """Times of its requests, in ms, sorted."""
    times, one = [], frame("light", b"x" * 100)
    with RawConnection(broker.host, broker.ports[0]) as light:
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            light.socket.sendall(one)
            answered(light)
            times.append((time.monotonic() - began_s) * 1000)
            time.sleep(0.005)
    return sorted(times)


def measure(broker: TpcBroker, *, floods: bool) -> tuple[float, list[float]]:
    began_s = time.monotonic()
    until_s = began_s + WARM_S + SECONDS
    rates: list[float] = []
    heavy = threading.Thread(target=lambda: rates.append(flood(broker, until_s, began_s + WARM_S)))
    if floods:
        heavy.start()
    times = bystander(broker, until_s)
    if floods:
        heavy.join()
    return (rates[0] if rates else 0.0), times


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        broker = TpcBroker(Path(folder), cores_count=1)
        broker.start()
        try:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            for made in admin.create_topics([NewTopic("t", 1, 1)]).values():
                made.result(PATIENCE_S)
            del admin  # or it looks for the broker when that is gone
            for name, floods, quota in (("alone", False, 0), ("no quota", True, 0), ("quota", True, QUOTA)):
                if quota:
                    words = ["quota", "set", "--client-id", "heavy", f"producer_byte_rate={quota}"]
                    CliRunner().invoke(tpc, [*words, "--bootstrap", broker.bootstrap], catch_exceptions=False)
                rate, times = measure(broker, floods=floods)
                share = f", {100 * rate / QUOTA:.1f} % of the quota" if floods else ""
                at = {part: times[int(len(times) * part / 100)] for part in (50, 99)}
                print(f"{name}: {rate / 1e6:.3f} MB/s{share}; bystander p50 {at[50]:.2f} ms, p99 {at[99]:.2f} ms")
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
