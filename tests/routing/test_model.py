"""Identifiers and their conversions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.model import (
    CORES_PER_NODE_MAX,
    NODE_ID_MAX,
    CoreId,
    NodeId,
    broker_id_of,
    coordinator_partition,
    core_of,
    java_string_hash,
    node_of,
)


# Values printed by java.lang.String.hashCode.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("console-consumer", -648006740),
        ("é", 233),
        ("😀", 1772899),
    ],
)
def test_the_string_hash_is_javas(text, value):
    assert java_string_hash(text) == value


def test_the_least_hash_still_gives_a_partition():
    assert coordinator_partition("polygenelubricants", 50) == 0


@given(st.text(), st.integers(1, 200))
def test_every_group_has_a_coordinator_partition(group, partitions):
    assert 0 <= coordinator_partition(group, partitions) < partitions


@given(st.integers(0, NODE_ID_MAX), st.integers(0, CORES_PER_NODE_MAX - 1))
def test_a_broker_id_names_one_core_of_one_node_and_fits_the_wire(node, core):
    broker = broker_id_of(NodeId(node), CoreId(core))
    assert (node_of(broker), core_of(broker)) == (node, core)
    assert 0 <= broker < 2**31
