"""What a request costs: a 100-byte echo over loopback, one CPU for the server and the other for the load.

    python -m tpc_broker.bench.echo [--rounds 5] [--seconds 2] [--connections 64] [--bytes 100]

Each round measures every server once, so that a slow minute of the machine meets all of them; the table shows medians
over the rounds and the ratio to trio on epoll. Needs the source tree, a C compiler and Linux 6.1 (the load
generator's ring).

- `epoll`: trio as it comes, one task per connection on `trio.SocketStream`.
- `epoll-raw`: the same on `trio.socket`, without the stream's locks.
- `ring-poll`: `epoll`'s code under :func:`tpc_broker.engine.trio_ring.run`: readiness by the ring, system calls by
Python.
- `ring-c`: answered in C inside the wait (native/bench/echo_answer.c).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from tpc_broker import _ring
from tpc_broker._ring import ffi
from tpc_broker.engine import trio_ring

SOURCES: Final = Path(__file__).resolve().parents[2] / "native"
SERVER_CPU: Final = 0
LOAD_CPU: Final = 1


async def echo(stream: trio.abc.Stream) -> None:
    async with stream:
        while data := await stream.receive_some():
            await stream.send_all(data)


async def serve_epoll(listening: socket.socket) -> None:
    await trio.serve_listeners(echo, [trio.SocketListener(trio.socket.from_stdlib_socket(listening))])


async def serve_epoll_raw(listening: socket.socket) -> None:
    async def echo_raw(connected: trio.socket.SocketType) -> None:
        with connected:
            while data := await connected.recv(65536):
                while data:
                    data = data[await connected.send(data) :]

    listener = trio.socket.from_stdlib_socket(listening)
    async with trio.open_nursery() as nursery:
        while True:
            connected, _ = await listener.accept()
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nursery.start_soon(echo_raw, connected)


async def serve_ring_c(listening: socket.socket, library_path: str) -> None:
    ctypes.CDLL(_ring.__file__, mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(library_path)
    ring = trio_ring.current_ring()
    if error := library.echo_answer_start(ctypes.c_void_p(int(ffi.cast("uintptr_t", ring.pointer)))):
        raise OSError(-error, os.strerror(-error))
    listener = trio.socket.from_stdlib_socket(listening)
    while True:
        connected, _ = await listener.accept()
        library.echo_answer_connection(connected.detach())


def serve(name: str, descriptor: int, library_path: str) -> None:
    """Serve until killed."""
    os.sched_setaffinity(0, {SERVER_CPU})
    listening = socket.socket(fileno=descriptor)
    match name:
        case "epoll":
            trio.run(serve_epoll, listening)
        case "epoll-raw":
            trio.run(serve_epoll_raw, listening)
        case "ring-poll":
            trio_ring.run(serve_epoll, listening)
        case "ring-c":
            trio_ring.run(partial(serve_ring_c, listening, library_path))


SERVERS: Final = ("epoll", "epoll-raw", "ring-poll", "ring-c")


def build(folder: Path) -> tuple[Path, Path]:
    """Compile the load generator and the C answerer into `folder`."""
    load, answer = folder / "echo_load", folder / "echo_answer.so"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    flags = ["-O3", "-std=gnu11", "-Wall", "-Wextra", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, SOURCES / "bench/echo_load.c", "-o", load, "-luring"], check=True)
    subprocess.run(
        [compiler, *flags, "-shared", "-fPIC", SOURCES / "bench/echo_answer.c", "-o", answer, "-luring"], check=True
    )
    return load, answer


class Round(NamedTuple):
    """What one server did in one round."""

    answers_per_s: float
    cpu_us: float
    """CPU time of the server per answer."""
    median_us: float
    p99_us: float


def cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def wait_until_it_answers(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as probe:
        probe.sendall(b"x")
        probe.recv(1)


def measure(name: str, load: Path, answer: Path, options: argparse.Namespace) -> Round:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        listening.set_inheritable(True)
        port = listening.getsockname()[1]
        command = [sys.executable, "-m", "tpc_broker.bench.echo", "--serve", name, str(listening.fileno()), str(answer)]
        server = subprocess.Popen(command, pass_fds=[listening.fileno()])
        try:
            wait_until_it_answers(port)
            before_ns = cpu_ns(server.pid)
            numbers = [port, options.connections, options.bytes, 200, int(options.seconds * 1000)]
            output = subprocess.run(
                ["taskset", "-c", str(LOAD_CPU), load, "127.0.0.1", *map(str, numbers)],
                check=True,
                capture_output=True,
                text=True,
                timeout=options.seconds + 30,
            ).stdout
            used_ns = cpu_ns(server.pid) - before_ns
        finally:
            server.kill()
            server.wait()
    answers, elapsed_ns, median_ns, p99_ns, all_answers = map(int, output.split())
    return Round(answers / elapsed_ns * 1e9, used_ns / all_answers / 1000, median_ns / 1000, p99_ns / 1000)


def show(results: dict[str, list[Round]]) -> None:
    medians = {
        name: Round(*(statistics.median(column) for column in zip(*rounds, strict=True)))
        for name, rounds in results.items()
    }
    base = next(iter(medians.values()))
    print(f"{'server':<12} {'answers/s':>10}  ratio {'best':>10}  CPU µs  ratio  p50 µs  p99 µs")
    for name, median in medians.items():
        best = max(one.answers_per_s for one in results[name])
        rate = median.answers_per_s
        columns = [
            f"{name:<12} {rate:>10,.0f} {rate / base.answers_per_s:>6.2f} {best:>10,.0f} {median.cpu_us:>7.1f}",
            f"{base.cpu_us / median.cpu_us:>6.2f} {median.median_us:>7.0f} {median.p99_us:>7.0f}",
        ]
        print(" ".join(columns))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tpc_broker.bench.echo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--only", default=",".join(SERVERS), help="servers to measure, by name, separated by commas")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], int(options.serve[1]), options.serve[2])
        return
    names = options.only.split(",")
    results: dict[str, list[Round]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        load, answer = build(Path(folder))
        for _ in range(options.rounds):
            for name in names:
                results[name].append(measure(name, load, answer, options))
    show(results)


if __name__ == "__main__":
    main()
