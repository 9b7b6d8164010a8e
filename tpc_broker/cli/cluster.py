"""``tpc cluster``: the nodes of a cluster and how they are; ``tpc cluster start``: a local one, for trying out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tpc_broker.cli.cluster_facts import MOVE_COLUMNS, cluster_facts, move_rows
from tpc_broker.cli.connection import CommandGroup, common_options, fail, print_json, print_table
from tpc_broker.cli.health import health
from tpc_broker.cli.level import level
from tpc_broker.cli.moves import moves

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = ("Node", "State", "Cores", "Rack", "Metadata", "Leads", "Replicas", "Address", "Version")
LOOPBACK: Final = "127.0.0.1"
NODES_MAX: Final = 9
PORTS_A_NODE: Final = 10
CLUSTER_PORTS_FROM: Final = 100
"""Above the first port for clients."""
STOP_S: Final = 30.0
RESTART_S: Final = 5.0
READY_S: Final = 120.0


@click.group(cls=CommandGroup, invoke_without_command=True)
@common_options
@click.pass_context
def cluster(context: click.Context, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Nodes of the cluster: alive or suspected, cores, racks, versions, leaders, and replicas on their way."""
    if context.invoked_subcommand is not None:
        return
    answer, facts = cluster_facts(bootstrap)
    if as_json:
        print_json(facts)
        return
    controller = "nobody" if facts["controller"] is None else f"node {facts['controller']}"
    print_table(("", ""), [
        ("Cluster", answer.cluster_id),
        ("Metadata led by", f"{controller}, as node {facts['asked']} knows"),
        ("Partitions", f"{facts['partitions']} ({facts['partitions_without_leader']} without a leader)"),
    ])  # fmt: skip
    names = ("cores", "rack", "metadata", "leads", "replicas", "address", "version")
    rows = facts["nodes"]
    print_table(COLUMNS, [(row["node"], state_of(row), *(row[name] for name in names)) for row in rows])
    if facts["moves"]:
        print_table(MOVE_COLUMNS, move_rows(facts["moves"]))


def state_of(row: dict[str, Any]) -> str:
    """Of a node; one of an earlier release does not know whether its disk is full."""
    return f"{row['state']}, full" if row.get("full") else str(row["state"])


cluster.add_command(moves)
cluster.add_command(level)
cluster.add_command(health)


@cluster.command()
@click.option("--nodes", type=click.IntRange(2, NODES_MAX), default=3, show_default=True, help="How many.")
@click.option("--data", default="./cluster", show_default=True, help="Directory of all nodes' data and logs.")
@click.option("--port", type=click.IntRange(1, 60_000), default=9092, show_default=True, help="Of the first node.")
@click.option("--cores", type=click.IntRange(1, PORTS_A_NODE), default=1, show_default=True, help="Of each node.")
def start(nodes: int, data: str, port: int, cores: int) -> None:
    """Start a local cluster for trying out, in the foreground until Ctrl-C; with the same --data it goes on as it was.
    A node that is killed is started again after a few seconds.

    Node N has the ports from PORT + 10 (N - 1) on for clients, and those 100 above for other nodes.
    """
    folder = Path(data).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    commands = node_commands(nodes, folder, port, cores)
    ends = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else it is to go on without its terminal (nohup)
        ends.append(signal.SIGHUP)
    for end in ends:
        signal.signal(end, lambda _number, _frame: sys.exit(0))
    addresses = [(LOOPBACK, port + PORTS_A_NODE * number) for number in range(nodes)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands, start=1):
            started.append(_start_node(command, folder / f"node{number}.log"))
        _wait_ready(started, addresses, folder)
        bootstrap = ",".join(f"{host}:{each}" for host, each in addresses)
        click.echo(f"{nodes} nodes are ready: --bootstrap {bootstrap}; data and logs in {folder}")
        click.echo(f"See them: tpc cluster --bootstrap {LOOPBACK}:{port}; stop them: Ctrl-C")
        _keep_running(started, commands, folder)
    except KeyboardInterrupt:
        pass
    finally:
        for end in ends:  # it is ending
            signal.signal(end, signal.SIG_IGN)
        _stop(started)


def node_commands(nodes: int, folder: Path, port: int, cores: int) -> list[list[str]]:
    """How each node is started."""
    cluster_port = port + CLUSTER_PORTS_FROM
    seeds = ",".join(f"{LOOPBACK}:{cluster_port + PORTS_A_NODE * number}" for number in range(nodes))
    return [
        [
            sys.executable, "-m", "tpc_broker.process.main", "serve", "--data", str(folder / f"node{number + 1}"),
            "--listen", f"{LOOPBACK}:{port + PORTS_A_NODE * number}", "--cores", str(cores), "--oversubscribe",
            "--node-id", str(number + 1), "--cluster", f"{LOOPBACK}:{cluster_port + PORTS_A_NODE * number}",
            "--seeds", seeds, "--rack", f"rack{number + 1}",
        ]
        for number in range(nodes)
    ]  # fmt: skip


def _start_node(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C comes to this command alone, which stops all in order."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def _wait_ready(started: Sequence[subprocess.Popen[bytes]], addresses: Sequence[tuple[str, int]], folder: Path) -> None:
    """Until every node accepts clients: a node that waits for others does not listen to them yet."""
    waiting, give_up_s = set(range(len(started))), time.monotonic() + READY_S
    while waiting:
        _check_alive(started, folder)
        waiting -= {number for number in waiting if _answers(addresses[number])}
        if time.monotonic() > give_up_s:
            fail(f"nodes {sorted(number + 1 for number in waiting)} are not ready; their logs are in {folder}")
        time.sleep(0.1)


def _answers(address: tuple[str, int]) -> bool:
    """Whether a broker answers ApiVersions there."""
    request = b"\0\x12\0\0\0\0\0\x07\xff\xff"
    try:
        with socket.create_connection(address, timeout=1) as peer:
            peer.sendall(len(request).to_bytes(4, "big") + request)
            return len(peer.recv(8, socket.MSG_WAITALL)) == 8
    except OSError:
        return False


def _check_alive(started: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    for number, process in enumerate(started, start=1):
        if process.poll() is not None:
            log = folder / f"node{number}.log"
            lines = log.read_text(errors="replace").splitlines()
            fail(f"node {number} ended ({log}): {lines[-1] if lines else 'without a word'}")


def _keep_running(started: list[subprocess.Popen[bytes]], commands: Sequence[Sequence[str]], folder: Path) -> None:
    """For ever; a node that was killed is started again, a little later, so that one sees what its absence does."""
    ended: dict[int, float] = {}
    while True:
        time.sleep(0.2)
        for number, process in enumerate(started):
            if process.poll() is None:
                continue
            if number not in ended:
                ended[number] = time.monotonic()
                click.echo(f"node {number + 1} ended; it is started again in {RESTART_S:g} s")
            elif time.monotonic() - ended[number] >= RESTART_S:
                del ended[number]
                started[number] = _start_node(commands[number], folder / f"node{number + 1}.log")


def _stop(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """All at once, in an orderly way; who takes too long is killed with its cores."""
    for process in started:
        if process.poll() is None:
            process.terminate()
    give_up_s = time.monotonic() + STOP_S
    for process in started:
        try:
            process.wait(max(0.1, give_up_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
