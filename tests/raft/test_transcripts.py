"""The transcripts are what the machines do: see `tests.raft.transcript` for how to read and rewrite them."""

from __future__ import annotations

import os

import pytest

from tests.raft.transcript import play, transcripts


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_a_transcript_is_what_happens(path):
    text = path.read_text()
    now = play(text)
    if os.environ.get("TPC_REWRITE_TRANSCRIPTS"):
        path.write_text(now)
    assert now == text, "TPC_REWRITE_TRANSCRIPTS=1 writes what happens now into the file; look at the difference"


def test_there_is_one_for_each_chapter():
    wanted = "elections two_empty_terms conflicting_logs journal_fails joint_configuration transfer learners"
    assert set(wanted.split()) <= {path.stem for path in transcripts()}
