"""One moment of all cores, as the backup fixes it: cores that are told here what to say."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack

import pytest

from tests.support.waiting import PATIENCE_S
from tpc_broker import limits
from tpc_broker.operations.backup_cores import HeldCores, JournalEnd
from tpc_broker.operations.backup_hold import PACKET_BYTES, abstract_name


class Core:
    """It is frozen once, `late_s` after it was asked, and says how long it stood still."""

    def __init__(self, number: int, name: str, late_s: float, **said: float) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.connect(name)
        self.number, self.late_s, self.said = number, late_s, said
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        self.send(kind="held", core=self.number)
        assert self.heard() == "freeze"
        threading.Event().wait(self.late_s)
        self.send(kind="frozen", block=self.number, sequence=7)
        assert self.heard() == "go"
        self.send(kind="went", in_time=True, **self.said)

    def send(self, **fields: object) -> None:
        self.connection.send(json.dumps(fields).encode())

    def heard(self) -> str:
        return str(json.loads(self.connection.recv(PACKET_BYTES))["kind"])

    def close(self) -> None:
        self.thread.join(PATIENCE_S)
        self.connection.close()


@pytest.fixture
def held(tmp_path, monkeypatch):
    """Cores with what each says; none is given up for what the machine holds up."""
    monkeypatch.setattr(limits, "BACKUP_FREEZE_MS", 60_000)
    with ExitStack() as cleanup:

        def make(*said: dict[str, float], late_s: float = 0.0) -> HeldCores:
            listening = cleanup.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            name = abstract_name(str(tmp_path))
            listening.bind(name)
            listening.listen()
            for number, one in enumerate(said):
                cleanup.callback(Core(number, name, late_s, **one).close)
            cores = HeldCores(listening, len(said))
            cleanup.callback(cores.close)
            cores.connect()
            cores.wait_held()
            return cores

        yield make


def test_that_cores_come_late_to_it_is_not_told_as_standing_still(held):
    cores = held({"stood_still_ms": 3.5}, {"stood_still_ms": 12.25}, {"stood_still_ms": 8.0}, late_s=0.1)
    assert cores.fix_moment() == {number: JournalEnd(number, 7) for number in range(3)}
    assert cores.stood_still_ms == 12.25


def test_of_a_core_that_does_not_say_it_is_all_that_it_may_be(held):
    cores = held({"stood_still_ms": 3.5}, {}, late_s=0.1)
    cores.fix_moment()
    assert cores.stood_still_ms >= 100
