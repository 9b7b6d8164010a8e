"""The states of a partition's files: every step is one of the table, and deleted files never come back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.errors import StorageFailedError
from tpc_broker.storage.segments.files_life import CHANGES, TRANSITIONS, Change, FilesLife, FilesState

STEPS = {
    "fail": lambda life: life.fail("a reason", pages_in_doubt=True),
    "fail for want of space": lambda life: life.fail("no space", pages_in_doubt=False),
    "begin_rewrite": FilesLife.begin_rewrite,
    "end_rewrite": FilesLife.end_rewrite,
    "release": FilesLife.release,
    "delete": FilesLife.delete,
}


@given(st.lists(st.sampled_from(sorted(STEPS))))
def test_whatever_happens_the_table_is_kept(names):
    life, has_failed = FilesLife(), False
    for name in names:
        before, reason = life.state, life.failed
        try:
            STEPS[name](life)
        except StorageFailedError:
            assert life.state is before, "a refusal changes nothing"
        except AssertionError:
            assert name in ("begin_rewrite", "release")
            may = {"begin_rewrite": FilesState.FAILED, "release": FilesState.OPEN}
            assert before is not may[name], "only what has failed is written anew, only what is open is released"
            assert life.state is before
        assert life.state is before or life.state in TRANSITIONS[before]
        has_failed = life.state in (FilesState.FAILED, FilesState.DELETING)
        assert (life.failed is not None) == has_failed
        if reason is not None and has_failed:
            assert life.failed == reason, "the first reason counts"
        for change in Change:
            if change in CHANGES[life.state]:
                life.check(change)
            else:
                with pytest.raises(StorageFailedError):
                    life.check(change)
    if "delete" in names:
        assert life.state is FilesState.DELETING


def test_every_transition_of_the_table_happens():
    seen = set()
    for names in itertools.product(STEPS, repeat=4):
        life = FilesLife()
        for name in names:
            before = life.state
            try:
                STEPS[name](life)
            except (StorageFailedError, AssertionError):
                break
            if life.state is not before:
                seen.add((before, life.state))
    assert seen == {(before, after) for before, all_after in TRANSITIONS.items() for after in all_after}


def test_a_rewrite_that_ends_when_the_files_have_failed_again_or_are_deleted_opens_nothing():
    for interrupt in ("fail", "delete"):
        life = FilesLife()
        life.fail("first", pages_in_doubt=True)
        life.begin_rewrite()
        STEPS[interrupt](life)
        with pytest.raises(StorageFailedError):
            life.end_rewrite()
        assert CHANGES[life.state] == frozenset()


def test_only_the_replay_writes_while_files_are_written_anew():
    assert CHANGES[FilesState.REWRITING] == {Change.WRITE}
    life = FilesLife()
    life.fail("first", pages_in_doubt=True)
    life.begin_rewrite()
    assert (life.failed, life.pages_in_doubt) == (None, False)
    with pytest.raises(StorageFailedError):
        life.check_open()
    life.end_rewrite()
    life.check_open()
