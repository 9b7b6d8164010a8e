"""Who may read what is stored: nobody but the broker's user, or also a group where the service was told so."""

from __future__ import annotations

import stat
from contextlib import suppress

import pytest
from confluent_kafka import Producer

from tests.support.waiting import PATIENCE_S
from tpc_broker.engine.data_directory import closed_to_others

GROUP_AND_OTHERS = 0o077


def modes_below(folder):
    """Of the folder and all in it, but for sockets, links and what goes while it is looked at."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                found[str(path)] = stat.S_IMODE(mode)
    return found


def test_what_a_broker_stores_is_its_users_alone(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"secret")
    assert producer.flush(PATIENCE_S) == 0
    modes = modes_below(broker.data_folder)
    assert any(path.endswith(".log") for path in modes)
    assert {path: oct(mode) for path, mode in modes.items() if mode & GROUP_AND_OTHERS} == {}


@pytest.mark.parametrize(
    ("given", "used"), [(0o022, 0o077), (0, 0o077), (0o027, 0o027), (0o007, 0o007), (0o077, 0o077), (0o026, 0o077)]
)
def test_a_umask_that_keeps_others_out_is_kept(given, used):
    assert closed_to_others(given) == used
