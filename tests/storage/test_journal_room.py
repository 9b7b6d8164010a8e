"""When what holds the journal's space back has to give way to others."""

from types import SimpleNamespace

import pytest

from tpc_broker.storage.ports import JournalUse
from tpc_broker.storage.upkeep.checkpoint_beginning import EARLIEST, LATEST
from tpc_broker.storage.upkeep.journal_room import is_lacking, is_pressed

REGION = 65_536


@pytest.mark.parametrize(
    ("checkpoint_at", "lacking_at"), [(1 / 8, 9 / 16), (EARLIEST, 11 / 16), (LATEST, 13 / 16)], ids=str
)
@pytest.mark.parametrize("is_refused", [False, True])
def test_it_lacks_half_of_what_a_checkpoint_leaves_or_what_somebody_was_refused(checkpoint_at, lacking_at, is_refused):
    for used in range(0, REGION + 1, 512):
        use = JournalUse(used, REGION, 0, int(checkpoint_at * REGION), is_refused)
        plane = SimpleNamespace(journal_use=lambda use=use: use)
        assert is_pressed(plane) == (used >= REGION // 2)
        assert is_lacking(plane) == (used >= (REGION // 2 if is_refused else lacking_at * REGION)), used
