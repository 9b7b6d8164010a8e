"""``--admin HOST:PORT``: metrics, health and counters over HTTP, from the supervisor.

It answers GET and HEAD of `/metrics`, `/live`, `/ready` and `/debug`, one request a connection, to a bounded number of
connections at a time. Nothing can be changed through it, and it knows no passwords: it listens on loopback where no
host is given. h11 reads what comes and writes what goes; the cores are asked only when somebody asks.
"""

from __future__ import annotations

import json
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import h11
import trio
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from tpc_broker import __version__, limits
from tpc_broker.options import ON_IO_URING, ChosenBackend, StartError
from tpc_broker.telemetry.health import disk_of, health_of
from tpc_broker.telemetry.metrics import CoreMetrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tpc_broker.engine.handed_sockets import HandedSockets
    from tpc_broker.options import AdminAddress
    from tpc_broker.telemetry.counters import CoreStatus

log = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 8192
_PATIENCE_S: Final = 10.0
JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
PATHS: Final = ("/metrics", "/live", "/ready", "/debug")


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


def bind_admin(address: AdminAddress, handed: HandedSockets) -> socket.socket:
    """The listening socket, that of an earlier life if it is there; StartError names the address."""
    kept = handed.take(*address)
    if kept is not None:
        return kept
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        family, kind, protocol, _name, place = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
            bound.listen(limits.ADMIN_CONNECTIONS_MAX)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise StartError(f"--admin {address.host}:{address.port}: cannot listen there: {error.strerror}") from error
    return bound


# Rule: Whoever looks at the broker never ends it. No metric has a label whose values clients choose, or one that names
# another node. Ready is only who can answer and write. See also tpc_broker/telemetry/metrics.py,
# tpc_broker/telemetry/cluster_metrics.py, tpc_broker/telemetry/health.py. Held by tests/telemetry/test_admin.py,
# tests/cluster/test_counters.py.
class AdminServer:
    """`look` asks the cores; `is_draining` is asked whether the broker is about to end, and `listeners` who was placed
    where (`ListeningSockets.report`).
    """

    def __init__(
        self,
        data: Path,
        look: Callable[[], Awaitable[list[CoreStatus]]],
        is_draining: Callable[[], bool],
        listeners: Callable[[], list[dict[str, Any]]] = list,
        backend: ChosenBackend = ON_IO_URING,
    ) -> None:
        self._data = data
        self._look = look
        self._is_draining = is_draining
        self._listeners = listeners
        self._backend = backend

    async def serve(self, listening: socket.socket) -> None:
        """Until cancelled. More clients at a time than are allowed wait in the backlog."""
        room = trio.CapacityLimiter(limits.ADMIN_CONNECTIONS_MAX)
        with trio.socket.from_stdlib_socket(listening) as accepting:
            async with trio.open_nursery() as nursery:
                while True:
                    await room.acquire_on_behalf_of(token := object())
                    try:
                        peer, _address = await accepting.accept()
                    except OSError:  # out of descriptors, say: the broker goes on, and so does this
                        room.release_on_behalf_of(token)
                        await trio.sleep(0.1)
                        continue
                    nursery.start_soon(self._converse, peer, room, token)

    async def _converse(self, peer: trio.socket.SocketType, room: trio.CapacityLimiter, token: object) -> None:
        try:
            with peer, trio.move_on_after(_PATIENCE_S), suppress(trio.BrokenResourceError, OSError):
                await self._answer_one(trio.SocketStream(peer))
        except Exception:  # whoever looks at the broker must never be its end
            log.exception("the admin endpoint failed to answer")
        finally:
            room.release_on_behalf_of(token)

    async def _answer_one(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            request = await _request(connection, stream)
            if request is None:
                return
            answer = await self._answer(request)
        except h11.RemoteProtocolError as error:
            answer = Answer(error.error_status_hint, TEXT, f"{error}\n".encode())
            request = None
        if connection.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Server", f"tpc-broker/{__version__}"),
            ("Connection", "close"),
        ]
        out = connection.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        if request is None or request.method != b"HEAD":
            out += connection.send(h11.Data(data=answer.body)) or b""
        await stream.send_all(out)

    async def _answer(self, request: h11.Request) -> Answer:
        path = urlsplit(request.target.decode("ascii")).path
        if path not in PATHS:
            return Answer(404, TEXT, f"there is no {path}; there are {', '.join(PATHS)}\n".encode())
        if request.method not in {b"GET", b"HEAD"}:
            return Answer(405, TEXT, b"only GET and HEAD\n")
        if path == "/live":  # a supervisor that answers lives; a core that hangs is its own business to restart
            return Answer(200, TEXT, b"live\n")
        cores = await self._look()
        if path == "/metrics":
            return self._metrics(cores, request)
        if path == "/ready":
            health = health_of(cores, is_draining=self._is_draining(), disk=disk_of(self._data))
            told = {"ready": health.is_ready, "reasons": health.reasons, "warnings": health.warnings}
            return Answer(200 if health.is_ready else 503, JSON, json.dumps(told).encode() + b"\n")
        debug = {"version": __version__, "cores": cores, "listeners": self._listeners(),
                 "backend": self._backend._asdict()}  # fmt: skip
        return Answer(200, JSON, json.dumps(debug).encode() + b"\n")

    def _metrics(self, cores: list[CoreStatus], request: h11.Request) -> Answer:
        accept = next((value.decode("latin-1") for name, value in request.headers if name == b"accept"), "")
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry()
        registry.register(cast("Any", CoreMetrics(cores, self._data, self._listeners(), self._backend)))
        return Answer(200, content_type, encode(registry))


async def _request(connection: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
    """The request's head; None: the client went."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None
