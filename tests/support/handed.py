"""What goes over with few producers as with too many for an entry of the journal."""

from tpc_broker.storage.recovery import handed_producers


def hand_producers_in_files(monkeypatch):
    monkeypatch.setattr(handed_producers, "PRODUCERS_IN_ENTRY_MAX", -1)
    monkeypatch.setattr(handed_producers.HandedProducers, "may_write", True)
