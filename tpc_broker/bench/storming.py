"""A thousand clients that connect at once, with TLS or a login, beside one that is connected and sends all the time.

A storm is as sudden as one process can make it: its clients are connected, and their first words made, before one of
them says a word. The next one comes when all of the last were let in, until the bystander's time is over. Clients
compute as much as the broker does, on the same machine.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.bench.bars import STORM_LOGINS_P99, STORM_TLS_P99
from tpc_broker.bench.idling import descriptors_max
from tpc_broker.bench.kafka_requests import produce_request, record_batch
from tpc_broker.bench.load import KAFKA_PRODUCE, Connection, LoadFailed, LoadResult, Plan, RunningLoad, run_load
from tpc_broker.bench.measured import Round
from tpc_broker.bench.securing import LoginTpc, TlsTpc, make_user, scram_machine
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.protocol import decode_response_frame, encode_request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tpc_broker.bench.measured import Stage, Workload

    Talk = Generator[bytes, bytes, bytes]
    """Says something, is sent what came back. It returns its last words when it is let in."""

CROWD: Final = 1000
_BYSTANDER_PER_S: Final = 200.0
_PATIENCE_S: Final = 60.0
_RECEIVE_BYTES: Final = 65536


class _SafeTpc(TlsTpc, LoginTpc):
    """With a listener of each kind."""


def _tls(context: ssl.SSLContext) -> Talk:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            incoming.write((yield outgoing.read()))
        else:
            return outgoing.read()


def _login(number: int) -> Talk:
    machine = scram_machine(number)
    yield from _asked(ApiKey.SASL_HANDSHAKE, 1, messages.SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    message: bytes | None = machine.first()
    while message is not None:
        asked = messages.SaslAuthenticateRequest(auth_bytes=message)
        answer = yield from _asked(ApiKey.SASL_AUTHENTICATE, 2, asked)
        message = machine.next(bytes(answer.auth_bytes))
    return b""


def _asked(key: ApiKey, version: int, message: Any) -> Generator[bytes, bytes, Any]:
    """The answer. LoadFailed: it was refused."""
    heard = yield b"".join(encode_request_frame(key, version, 1, None, message))
    while len(heard) < 4 or len(heard) < 4 + int.from_bytes(heard[:4]):
        heard += yield b""
    _correlation_id, answer = decode_response_frame(key, version, heard[4:])
    if answer.error_code:
        raise LoadFailed(f"a login was refused with error {answer.error_code}")
    return answer


def storm(port: int, talks: list[Talk]) -> float:
    """Seconds until all were let in. LoadFailed: one was not."""
    poll = select.epoll()
    clients: dict[int, tuple[socket.socket, Talk]] = {}
    try:
        for talk in talks:
            client = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
            client.setblocking(False)  # noqa: FBT003 (the name of the method says it)
            clients[client.fileno()] = client, talk
            poll.register(client, select.EPOLLIN)
        words = [(client, next(talk)) for client, talk in clients.values()]
        begun_s = time.monotonic()
        for client, first in words:
            client.sendall(first)
        waiting = len(talks)
        while waiting:
            ready = poll.poll(_PATIENCE_S)
            if not ready:
                raise LoadFailed(f"{waiting} of {len(talks)} clients were not let in within {_PATIENCE_S:g} s")
            for number, _events in ready:
                waiting -= _attend(*clients[number], poll)
        return time.monotonic() - begun_s
    finally:
        poll.close()
        for client, _talk in clients.values():
            client.close()


def _attend(client: socket.socket, talk: Talk, poll: select.epoll) -> bool:
    """Whether it is let in now."""
    data = client.recv(_RECEIVE_BYTES)
    if not data:
        raise LoadFailed("a client of the storm was closed before it was let in")
    try:
        client.sendall(talk.send(data))
    except StopIteration as end:
        client.sendall(end.value)
        poll.unregister(client)
        return True
    return False


def connect_storm(workload: Workload, stage: Stage) -> Round:
    """The bystander alone, beside storms of TLS and beside storms of logins. Figures are its p99 in ms."""
    if descriptors_max() < 2 * workload.count:
        raise LoadFailed(f"{workload.count} connections need a higher limit of open files (ulimit -Hn)")
    stage.peer = peer = _SafeTpc(stage.peer.folder / "storms", stage.peer.mode)
    peer.folder.mkdir(parents=True, exist_ok=True)
    peer.start()
    make_user(peer)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # whoever answers, it is this bench's own
    address = peer.create_topic("bystander", 1)[0]
    request = produce_request("bystander", 0, record_batch(1, workload.shape.value_bytes))
    plan = Plan(
        KAFKA_PRODUCE, [Connection(*address, [request])], depth=8, rate=_BYSTANDER_PER_S,
        warm_up_s=stage.extent.warm_up, measure_s=stage.extent.measured,
    )  # fmt: skip
    alone = run_load(plan)
    tls, tls_s = _beside(plan, lambda _begun: storm(peer.tls_port, [_tls(context) for _ in range(workload.count)]))
    logins, logins_s = _beside(
        plan, lambda begun: storm(peer.login_port, [_login(begun << 32 | one) for one in range(workload.count)])
    )
    extra = {
        "bystander p99 ms alone": _p99_ms(alone),
        STORM_TLS_P99: _p99_ms(tls),
        STORM_LOGINS_P99: _p99_ms(logins),
        "s until all have TLS": round(tls_s, 3),
        "s until all are logged in": round(logins_s, 3),
    }
    return Round(resident_mib=round(stage.server.resident_bytes() / 2**20, 1), extra=extra)


def _beside(plan: Plan, make_storm: Callable[[int], float]) -> tuple[LoadResult, float]:
    """Storms one behind the other while the load runs, at least one; and the mean time of them in seconds."""
    until_s, times = time.monotonic() + plan.warm_up_s + plan.measure_s, list[float]()
    with RunningLoad(plan) as running:
        while not times or time.monotonic() < until_s:
            times.append(make_storm(len(times)))
        return running.result(), sum(times) / len(times)


def _p99_ms(found: LoadResult) -> float:
    return round(found.histogram.percentiles_us()["99"] / 1000, 3)
