"""What a pipeline tells of itself where there is no terminal."""

import pytest

from tpc_broker.cli import progress


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ((300, 300, None), "archive: 300 of 300 rows"),
        ((300, None, 12), "archive: 300 rows, 12 behind"),
        ((300, 300, None, 270), "archive: 300 of 300 offsets, 270 rows written"),
    ],
)
def test_offsets_are_not_told_as_rows(monkeypatch, capsys, told, line):
    monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
    progress.RowsProgress("archive", None)(*told)
    assert capsys.readouterr().err == f"{line}\n"


def test_a_bar_says_both():
    with progress.Progress(progress._RowsColumn(), disable=True) as bar:
        show = progress.RowsProgress("replay", bar)
        show(300, 400, None, 270)
        assert progress._RowsColumn().render(bar.tasks[0]).plain.startswith("300 offsets")
        assert progress._RowsColumn().render(bar.tasks[0]).plain.endswith("270 rows written")
