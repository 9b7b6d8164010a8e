"""``tpc consume`` where a stored record has another value than its checksum says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Tpc
from tests.support.broker_process import TpcBroker
from tpc_broker.cli import connection


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tpc]:
    """At a broker of its own, because another start has to forget what it has in memory. `damaged` has three batches of
    a record each; the second one's value was replaced by one that is as long.
    """
    connection.leave_interrupts_alone()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    broker = TpcBroker(tmp_path / "broker", cores_count=1)
    broker.start()
    try:
        run = Tpc(broker)
        run("topic", "create", "damaged", "--partitions", "1")
        for value in ("sound", "to be hurt", "behind it"):
            run("produce", "damaged", stdin=f"{value}\n")
        broker.stop()
        segment = broker.data_folder / "topics" / "damaged-0" / f"{0:020d}.log"
        data = segment.read_bytes()
        assert data.count(b"to be hurt") == 1
        segment.write_bytes(data.replace(b"to be hurt", b"was broken"))
        broker.start()
        yield run
    finally:
        broker.kill()


def test_a_damaged_record_ends_the_command_with_its_place_and_is_not_printed(run: Tpc) -> None:
    """Unless who asks wants it all the same."""
    for options in ((), ("--group", "damaged")):
        out, said = run.run("consume", "damaged", "--from", "earliest", "--exit-at-end", *options, code=1)
        assert out == "sound\n"
        assert said.startswith("tpc: damaged-0, offset 1: the record batch there is damaged and is not printed (")
        assert said.count("\n") == 1
    assert run.values("damaged", "--from", "2", "--exit-at-end") == ["behind it"]
    unchecked = run.values("damaged", "--from", "earliest", "--exit-at-end", "-X", "check.crcs=false")
    assert unchecked == ["sound", "was broken", "behind it"]
