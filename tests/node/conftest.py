"""Cores of several nodes that drive a replicated partition."""

import pytest

from tests.support.replica_cores import ReplicaCores


@pytest.fixture
def make_cores(tmp_path):
    """Cores of several nodes that drive a replicated partition; they end with the test, also with one that failed."""
    all_made = []

    def make(count=3, settings=None, **how):
        all_made.append(ReplicaCores(tmp_path, count, settings, **how))
        return all_made[-1]

    yield make
    for made in all_made:
        made.shut()


@pytest.fixture
def carried(make_cores):
    """Three such cores, carried by C at all of them."""
    made = make_cores(is_carried=True)
    made.leader()
    made.until(lambda: all(node.is_carried() for node in made.up()))
    return made
