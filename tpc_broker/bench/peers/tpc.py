"""tpc-broker, from this source tree."""

from __future__ import annotations

import compileall
import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import tpc_broker
from tpc_broker import __version__
from tpc_broker.bench.peers.kafka_like import KafkaLikePeer
from tpc_broker.bench.server import PeerUnavailable, Server, free_ports
from tpc_broker.engine.backend import choose_backend
from tpc_broker.engine.ring import Backend
from tpc_broker.options import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Sequence


def cores_options(count: int, *, shares_cpus: bool = False) -> list[str]:
    """Of `serve`."""
    return ["--cores", str(count), *(["--oversubscribe"] if shares_cpus or count > len(usable_cpus()) else [])]


class TpcPeer(KafkaLikePeer):
    """`durable` is the default of every topic; `relaxed` answers before the journal's write has ended; `plain` is
    durable, without io_uring. Where the host refuses io_uring all of them do without; the report names the backend.
    """

    name: ClassVar[str] = "tpc"
    modes: ClassVar[dict[str, bool]] = {"durable": True, "relaxed": False, "plain": True}
    cores_count: ClassVar[int] = 1
    """Of all brokers this bench starts: on a machine of two CPUs the generator needs the other one."""

    shares_cpus: ClassVar[bool] = False
    """With other brokers, as those of other peers do; else each core is pinned to its CPU."""

    environment: ClassVar[dict[str, str]] = {}
    """Of the broker's processes, besides this one's."""

    def start(self) -> None:
        if self.mode == "plain" and choose_backend().name == Backend.PLAIN:
            raise PeerUnavailable("there is no io_uring here, so 'tpc durable' does without it")
        self.port = self.port or free_ports(self.cores_count)
        self.server = self.node(self.folder, self.port)
        self.server.start(range(self.port, self.port + self.cores_count))

    def node(self, folder: Path, port: int, *more: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Server:
        """A broker that is to listen there. `prefix`: what stands before its command."""
        _compile_once()
        command = [sys.executable, "-m", "tpc_broker.process.main", "serve", "--data", str(folder / "data")]
        place = ["--listen", f"{host}:{port}", *cores_options(self.cores_count, shares_cpus=self.shares_cpus)]
        backend = ["--backend", "plain" if self.mode == "plain" else "auto"]
        return Server([*prefix, *command, *place, *backend, *more], folder / "tpc.log", self.environment, host)

    def topic_settings(self) -> dict[str, str]:
        return {"durability": "relaxed"} if self.mode == "relaxed" else {}

    def remark(self) -> str:
        """The backend, and how the journals are written: each core tries what there is at its start, and noise may
        mislead it.
        """
        said = (self.folder / "tpc.log").read_text()
        backends = [f"backend {name}" for name in re.findall(r"the backend is (\w+)", said)]
        modes = re.findall(r"journal mode (\w+)", said)
        return ", ".join([*backends, *(f"journal {mode}" for mode in modes)])

    def version(self) -> str:
        return __version__


@functools.cache
def _compile_once() -> None:
    """Byte code beside the sources, as an installation has it: PYTHONDONTWRITEBYTECODE would have every start compile
    all that it imports.
    """
    compileall.compile_dir(Path(tpc_broker.__file__).parent, quiet=1)
