"""What the data plane is told of a partition."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tpc_broker.metadata.settings import load_settings
from tpc_broker.storage.segments.leader_partition import partition_params


def files(**changes):
    facts = {
        "topic": "t", "key": None, "leader_epoch": 3, "log_start_offset": 1, "written_end_offset": 9, **changes,
    }  # fmt: skip
    return SimpleNamespace(**facts)


def config(**overrides):
    return load_settings().topic_config({name.replace("_", "."): value for name, value in overrides.items()})


@pytest.mark.parametrize("is_internal", [False, True])
def test_an_internal_partition_is_durable_and_its_keys_are_the_brokers(is_internal):
    asked = config(durability="relaxed", cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    params = partition_params(files(), asked, is_internal=is_internal)
    assert (params.is_relaxed, params.is_compacted) == (not is_internal, not is_internal)
    assert params.log_append_time
    assert (params.log_start_offset, params.log_end_offset) == (1, 9)
