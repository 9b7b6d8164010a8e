"""The judge of what members of a group did sees what it is there to see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.group_story import Story

A_HAS_IT = [["a", "given", [["t", 0]]], ["a", "handled", "t", 0, 0], ["a", "handled", "t", 0, 1]]
GIVEN_BACK = [*A_HAS_IT, ["a", "committed", [["t", 0, 2]]], ["a", "back", [["t", 0]]], ["b", "given", [["t", 0]]]]


def story(path: Path, lines: list[list]) -> Story:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Story(path, {})


def test_a_partition_that_is_handed_over(tmp_path):
    told = story(tmp_path / "story", [*GIVEN_BACK, ["b", "handled", "t", 0, 2]])
    assert told.owned() == {"b": {("t", 0)}}
    told.check_positions()


@pytest.mark.parametrize("end", ["left", "killed"])
def test_who_has_ended_has_nothing(tmp_path, end):
    told = story(tmp_path / "story", [*A_HAS_IT, ["a", end], ["b", "given", [["t", 0]]], ["b", "handled", "t", 0, 0]])
    assert told.owned() == {"b": {("t", 0)}}
    told.check_positions()


def test_two_have_a_partition(tmp_path):
    with pytest.raises(AssertionError, match="is given to b"):
        story(tmp_path / "story", [*A_HAS_IT, ["b", "given", [["t", 0]]]]).owned()


def test_one_goes_on_with_what_it_gave_back(tmp_path):
    with pytest.raises(AssertionError, match="has not"):
        story(tmp_path / "story", [*GIVEN_BACK, ["b", "handled", "t", 0, 2], ["a", "handled", "t", 0, 3]]).owned()


def test_what_is_handled_again_is_told_with_what_was_not_committed(tmp_path):
    refused = ["a", "not committed", "REBALANCE_IN_PROGRESS"]
    told = story(tmp_path / "story", [*A_HAS_IT, refused, ["a", "back", [["t", 0]]], ["b", "given", [["t", 0]]]])
    told.check_once()
    again = story(tmp_path / "again", [*A_HAS_IT, refused, ["b", "handled", "t", 0, 1]])
    with pytest.raises(AssertionError, match=r"1 records.*REBALANCE_IN_PROGRESS"):
        again.check_once()


@pytest.mark.parametrize(
    "wrong",
    [
        [*A_HAS_IT, ["a", "handled", "t", 0, 3]],
        [*GIVEN_BACK, ["b", "handled", "t", 0, 3]],
        [*GIVEN_BACK, ["b", "handled", "t", 0, 1]],
        [*GIVEN_BACK, ["a", "committed", [["t", 0, 1]]]],
    ],
    ids=["left out", "left out by the next", "committed and handled again", "commit that goes back"],
)
def test_wrong_positions(tmp_path, wrong):
    with pytest.raises(AssertionError):
        story(tmp_path / "story", wrong).check_positions()
