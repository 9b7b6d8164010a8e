"""Hosts as network namespaces: each set of them has a subnet of its own. Making them is for tests/cluster."""

import shutil

import pytest

from tpc_broker.bench import hosts
from tpc_broker.bench.hosts import Hosts

pytestmark = pytest.mark.skipif(shutil.which("ip") is None, reason="ip is not installed (Debian: iproute2)")


def test_no_two_have_the_same_subnet_and_one_that_is_gone_leaves_its_own():
    made = [Hosts(3) for _ in range(5)]
    addresses = [one.client_address(1) for one in made]
    assert len(set(addresses)) == 5
    assert [one.client_address(1) for one in made] == addresses, "and keep it"
    freed = made.pop(2).cluster_address(1)
    assert freed in {one.cluster_address(1) for one in [Hosts(3) for _ in range(3)]}


def test_a_subnet_that_a_bridge_of_others_still_has_is_not_taken(monkeypatch):
    first = Hosts(1).client_address(0)
    monkeypatch.setattr(hosts, "_is_in_use", lambda subnet: subnet == f"{first}/24")
    assert Hosts(1).client_address(0) != first
