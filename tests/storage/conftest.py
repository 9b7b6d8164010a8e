"""What all tests of storage have in common."""

import pytest

from tpc_broker.storage.segments import segments


@pytest.fixture
def index_lag():
    """Entries that are left unwritten, and by how many more some partitions differ. Segments are small here: with the
    broker's own their indexes would be written only when they are sealed. Modules that compare files have their own.
    """
    return 2, 3


@pytest.fixture(autouse=True)
def _short_index_lag(monkeypatch, index_lag):
    entries, spread = index_lag
    monkeypatch.setattr(segments, "INDEX_LAG_ENTRIES", entries)
    monkeypatch.setattr(segments, "INDEX_LAG_SPREAD", spread)
