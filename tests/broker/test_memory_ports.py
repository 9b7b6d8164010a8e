"""The ports in memory have all that the ports have."""

from __future__ import annotations

import inspect
import random

import pytest

from tests.support.memory_core import MemoryStorage
from tests.support.memory_node import MemoryClock, MemoryConnections
from tests.support.memory_plane import MemoryPlane
from tpc_broker.broker import fetch_port, ports
from tpc_broker.testing.fetches import MemoryFetch
from tpc_broker.testing.mailboxes import MemoryMailboxes
from tpc_broker.testing.surroundings import MemoryChance

PAIRS = [
    (ports.Clock, MemoryClock),
    (ports.Connections, MemoryConnections),
    (ports.Mailboxes, MemoryMailboxes),
    (ports.ProducePort, MemoryPlane),
    (ports.FetchPort, MemoryPlane),
    (ports.PreparedAnswers, MemoryPlane),
    (ports.Forwarding, MemoryPlane),
    (ports.GrantsPort, MemoryPlane),
    (fetch_port.Fetch, MemoryFetch),
    (ports.CoreStorage, MemoryStorage),
]


def own_methods(port):
    return [name for name, found in vars(port).items() if inspect.isfunction(found) and name[0] != "_"]


@pytest.mark.parametrize(("port", "memory"), PAIRS, ids=lambda one: one.__name__)
def test_the_port_in_memory_has_all_of_the_port(port, memory):
    methods = own_methods(port)
    assert methods
    assert not set(methods) - set(dir(memory))
    for name in methods:
        wanted, found = getattr(port, name), getattr(memory, name)
        assert len(inspect.signature(wanted).parameters) == len(inspect.signature(found).parameters), name
        assert inspect.iscoroutinefunction(wanted) == inspect.iscoroutinefunction(found), name


def test_chance_in_memory_has_all_of_chance():
    assert not set(own_methods(ports.Chance)) - set(dir(MemoryChance(random.Random(1))))
