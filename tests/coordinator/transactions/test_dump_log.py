"""Kafka's own `kafka-dump-log --transaction-log-decoder` reads what the coordinator writes, in both versions."""

import json
import re

import pytest

from tests.coordinator.transactions.places import in_state
from tests.coordinator.transactions.scenario import A
from tests.support.kafka_peer import PeerUnavailable, run_tool
from tpc_broker.coordinator.transactions.records import read_transaction, read_transaction_key
from tpc_broker.coordinator.transactions.states import STATUS, State
from tpc_broker.kafka.records import Record, build_batch

pytestmark = pytest.mark.kafka


def written():
    """Records of all states, of clients of both versions, at each level; ids that were forgotten."""
    records = []
    for level in (0, 1, 2):
        for version in (0, 2):
            for state in State:
                s, p = in_state(state, version, level)
                if state is State.COMPLETE_COMMIT:
                    s.add(p, A, client_version=version)
                    s.hold_markers = True
                    s.init()
                s.hold = False
                s.settle()
                records += s.log
    return records


def test_the_decoder_shows_every_record(tmp_path):
    records = written()
    path = tmp_path / "00000000000000000000.log"
    offset = 0
    with path.open("wb") as file:
        for key, value in records:
            batch = bytearray(build_batch([Record(value, key, 1_700_000_000_000)]))
            batch[:8] = offset.to_bytes(8, "big")
            file.write(batch)
            offset += 1
    try:
        done = run_tool("dump-log", "--transaction-log-decoder", "--files", str(path))
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    assert done.stderr.strip() == ""
    shown = re.findall(r"^\| offset: (\d+) .* key: (\{.*\}) payload: (.*)$", done.stdout, re.MULTILINE)
    assert len(shown) == len(records), done.stdout[:3_000]
    for (_offset, key, payload), (key_bytes, value) in zip(shown, records, strict=True):
        assert json.loads(key)["data"] == {"transactionalId": read_transaction_key(key_bytes)}
        if value is None:
            assert payload == "<DELETE>"
            continue
        told, meant = json.loads(payload), read_transaction(value)
        data = told["data"]
        assert told["version"] == str(value[1])
        assert (data["producerId"], data["producerEpoch"]) == (meant.producer_id, meant.producer_epoch)
        assert data["transactionStatus"] == STATUS[meant.state]
        assert data["transactionTimeoutMs"] == meant.timeout_ms
        assert data["transactionStartTimestampMs"] == meant.start_ms
        assert data["transactionLastUpdateTimestampMs"] == meant.last_update_ms
        assert data.get("previousProducerId", -1) == meant.previous_producer_id
        assert data.get("clientTransactionVersion", 0) == meant.client_version
        partitions = data["transactionPartitions"]
        assert (partitions is None) == (meant.state is State.EMPTY)
        assert [(one["topic"], index) for one in partitions or () for index in one["partitionIds"]] == list(
            meant.partitions
        )
