"""How many connections a core takes where the process may have few descriptors: files can be opened all the same."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.raw_client import Closed, RawConnection
from tests.support.waiting import eventually
from tpc_broker import limits
from tpc_broker.engine.connection_bounds import connection_limits, connections_bound
from tpc_broker.metadata.settings import load_settings
from tpc_broker.storage.segments.files import FILE_DESCRIPTORS_MAX, most_open_files


@contextlib.contextmanager
def descriptors_max(count):
    bound = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, bound[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, bound)


@pytest.mark.parametrize("descriptors", [16, 256, 1024, 4096, 20_000, 65_536, 1 << 20])
def test_what_is_left_for_files_and_the_core_itself(descriptors):
    connections = connections_bound(descriptors)
    assert min(descriptors // 4, limits.CONNECTIONS_MAX) <= connections <= limits.CONNECTIONS_MAX
    files = FILE_DESCRIPTORS_MAX * most_open_files(descriptors)
    assert descriptors - connections >= min(descriptors // 2, files + limits.DESCRIPTORS_KEPT)


def test_without_a_limit_of_descriptors_the_other_bound_stands():
    assert connections_bound(resource.RLIM_INFINITY) == connections_bound(1 << 20) == limits.CONNECTIONS_MAX


@pytest.mark.parametrize(("setting", "told"), [(19_999, logging.WARNING), (2**31 - 1, logging.INFO), (100, None)])
def test_a_setting_that_cannot_be_had_is_told(setting, told, caplog):
    caplog.set_level(logging.INFO)
    settings = load_settings("", (f"max.connections={setting}",)).settings
    with descriptors_max(1024):
        found = connection_limits(settings).connections_max
    assert found == min(setting, connections_bound(1024))
    assert [record.levelno for record in caplog.records if "max.connections" in record.message] == [told] * bool(told)


@pytest.mark.parametrize("stored", [0, limits.CONNECTIONS_MIN - 1])
def test_a_stored_limit_that_would_lock_everybody_out_is_not_obeyed(stored, caplog):
    settings = load_settings().altered({"max.connections": str(stored)}, {}).settings
    assert connection_limits(settings).connections_max == limits.CONNECTIONS_MIN
    told = [record.levelno for record in caplog.records if f"not {stored} (max.connections)" in record.message]
    assert told == [logging.WARNING]
    with descriptors_max(32):
        assert connection_limits(settings).connections_max == connections_bound(32) < limits.CONNECTIONS_MIN


def answers(broker, core):
    """Whether a connection to that core is taken; an open one that answers."""
    connection = RawConnection(broker.host, broker.ports[core])
    try:
        connection.ask("ApiVersions", 0)
    except Closed:
        connection.close()
        return None
    return connection


def fill(broker, core, opened, held=0):
    """As many more connections as it takes, beside those that it holds; how many those are."""
    before = len(opened)
    eventually(lambda: broker.counters()[core]["connections"]["connections"] == held, "all others are closed")
    while (connection := answers(broker, core)) is not None:
        opened.append(connection)
        assert len(opened) - before < 100
    return len(opened) - before


def alter(connection, name, value):
    change = {"Name": name, "ConfigOperation": 1 if value is None else 0, "Value": value}
    asked = {"Resources": [{"ResourceType": 4, "ResourceName": "", "Configs": [change]}]}
    (told,) = connection.ask("IncrementalAlterConfigs", 1, asked)["Responses"]
    return told["ErrorCode"], told["ErrorMessage"]


def test_a_limit_altered_while_running_acts_at_once_on_all_cores_and_after_a_restart(tmp_path):
    broker = TpcBroker(tmp_path, cores_count=2)
    broker.start()
    before, opened = [], []
    try:
        before += [answers(broker, core) for core in (0, 1) for _ in range(15)]
        assert alter(before[0], "max.connections", "12") == (0, None)
        assert [answers(broker, core) for core in (0, 1)] == [None, None]
        for connection in before:
            connection.ask("ApiVersions", 0)  # those above it stay
        assert alter(before[0], "max.connections", "18") == (0, None)
        assert [fill(broker, core, opened, 15) for core in (0, 1)] == [3, 3]
        assert alter(before[0], "max.connections", "12") == (0, None)
        for connection in (*before, *opened):
            connection.close()
        broker.restart()
        before[:], opened[:] = [], []
        assert [fill(broker, core, opened) for core in (0, 1)] == [12, 12]
        assert alter(opened[0], "max.connections", None) == (0, None)
        opened += [answers(broker, core) for core in (0, 1)]
        assert None not in opened
    finally:
        for connection in (*before, *opened):
            connection.close()
        broker.kill()


def test_clients_do_not_keep_a_core_from_its_files(tmp_path):
    """More of them than it may have descriptors; nothing can be accepted any more where they have all of those."""
    broker = TpcBroker(tmp_path, cores_count=1)
    broker.prefix = ["prlimit", "--nofile=600"]
    broker.start()
    clients = []
    try:
        with RawConnection(broker.host, broker.ports[0]) as bystander:
            bystander.ask("ApiVersions", 0)
            clients += [socket.create_connection((broker.host, broker.ports[0])) for _ in range(700)]

            def all_are_seen() -> bool:
                counted = broker.counters()[0]["connections"]
                return counted["opened"] + counted["refused"] > len(clients)

            eventually(all_are_seen, "all are taken or refused")
            topic = {"Name": "t", "NumPartitions": 20, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
            wanted = {"Topics": [topic], "timeoutMs": 30_000, "validateOnly": False}
            assert [one["ErrorCode"] for one in bystander.ask("CreateTopics", 5, wanted)["Topics"]] == [0]
    finally:
        for client in clients:
            client.close()
        broker.kill()
