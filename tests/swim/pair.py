"""One machine under the test's own hands: it answers what the others would say."""

from __future__ import annotations

import random
import uuid

from tpc_broker.model import NodeId
from tpc_broker.swim.codec import SwimCodec
from tpc_broker.swim.machine import Swim
from tpc_broker.swim.model import Address, Change, Kind, Message, NodeInfo, Sender, Settings, State, Update

CODEC = SwimCodec("tests")
SETTINGS = Settings()


def address_of(node: int) -> Address:
    return Address(f"10.0.0.{node}", 7_000)


def info_of(node: int, boot: int = 1, **more) -> NodeInfo:
    return NodeInfo(address=address_of(node), boot_id=uuid.UUID(int=1_000 * boot + node), **more)


def alive(node: int, incarnation: int = 0, boot: int = 1) -> Update:
    return Update(NodeId(node), incarnation, State.ALIVE, NodeId(node), info_of(node, boot))


def claim(state: State, node: int, incarnation: int = 0, source: int = 2) -> Update:
    return Update(NodeId(node), incarnation, state, NodeId(source))


class One:
    """Node 1; the others are in its table from the start, and do nothing that the test does not say."""

    def __init__(self, *others: int, seeds: tuple[int, ...] = (), seed: int = 1, settings: Settings = SETTINGS) -> None:
        self.now_ms = 0
        self.machine = Swim(
            NodeId(1),
            info_of(1),
            below=random.Random(seed).randrange,
            update_bytes=CODEC.update_bytes,
            header_bytes=CODEC.header_bytes,
            now_ms=0,
            seeds=[address_of(node) for node in seeds],
            settings=settings,
        )
        self.machine.merge([alive(node) for node in others], 0)
        self.sent: list[tuple[Address, Message]] = []
        self.events = []
        self.exchanges: list[Address] = []
        self.take()
        self.events.clear()

    def take(self) -> list[tuple[Address, Message]]:
        ready = self.machine.ready()
        self.sent += ready.datagrams
        self.events += [(event.change, event.node) for event in ready.events]
        self.exchanges += ready.exchanges
        for _address, message in ready.datagrams:
            assert CODEC.decode(CODEC.encode(message)) == message
        return ready.datagrams

    def hear(self, node: int, kind: Kind, sequence: int = 0, subject: int | None = 1, *updates: Update, **more) -> list:
        sender = Sender(NodeId(node), more.pop("incarnation", 0), info_of(node, more.pop("boot", 1)).boot_id)
        message = Message(kind, sender, sequence, None if subject is None else NodeId(subject), updates=updates, **more)
        self.machine.receive(address_of(node), message, self.now_ms)
        return self.take()

    def tell(self, *updates: Update) -> list:
        """News by way of an answer that nobody waits for."""
        return self.hear(9, Kind.ACK, 0, 9, *updates)

    def run(self, until_ms: int, *answering: int) -> None:
        """Serves all deadlines; nodes in `answering` answer pings for them at once."""
        while (deadline_ms := self.machine.next_deadline_ms()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.machine.on_deadline(self.now_ms)
            self._answer(answering)
        self.now_ms = until_ms

    def _answer(self, answering: tuple[int, ...]) -> None:
        for _address, message in self.take():
            if message.kind is Kind.PING and message.subject in answering:
                self.hear(message.subject, Kind.ACK, message.sequence, message.subject)

    def state(self, node: int) -> State | None:
        member = self.machine.members.get(NodeId(node))
        return None if member is None else member.state

    def pings(self, kind: Kind = Kind.PING) -> list[tuple[Address, Message]]:
        return [(address, message) for address, message in self.sent if message.kind is kind]

    def happened(self, change: Change, node: int) -> bool:
        return (change, node) in self.events
