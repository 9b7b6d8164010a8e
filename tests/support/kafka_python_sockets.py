"""The sockets of kafka-python, which it leaves to the collector in places: whichever test runs then would fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket
from typing import Any

import pytest
from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector


@contextmanager
def none_left_by_kafka_python() -> Iterator[None]:
    """Closes what kafka-python 3.0 leaves to the collector: the socket of a connection that is closed with something
    left to write when its loop has ended, and those of a client whose first connection fails.
    """
    sockets: list[socket] = []
    selectors: list[NetworkSelector] = []

    def make_socket(self: KafkaNetSocket, *asked: Any) -> socket:
        sockets.append(real_socket(self, *asked))
        return sockets[-1]

    def begin(self: NetworkSelector, *asked: Any, **named: Any) -> None:
        real_begin(self, *asked, **named)
        selectors.append(self)

    real_socket, real_begin = KafkaNetSocket.socket, NetworkSelector.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaNetSocket, "socket", make_socket)
        patch.setattr(NetworkSelector, "__init__", begin)
        yield
    pairs = [(one._wakeup_r, one._wakeup_w) for one in selectors]
    for each in itertools.chain(sockets, *pairs, (one._selector for one in selectors)):
        each.close()
