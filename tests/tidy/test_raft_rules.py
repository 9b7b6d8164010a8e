"""What code, tests and documents cite as `raft-rules N.N` is a section of docs/raft-rules.md."""

import re
from pathlib import Path

from tests.simulator import c_mutants_journal, c_mutants_replication
from tests.simulator.raft_mutants import MUTANTS
from tests.support.tiers import is_gate_module
from tests.tidy.test_tidy import ROOT, c_sources, sources

CITED = re.compile(r"raft-rules\s+(?:[#*]\s+)?((?:\d+(?:\.\d)?(?:-|, | and )?)+)")
"""A citation may go on behind the margin, and name several sections."""
NAMED = 2
"""A module, and a test in it."""


def sections() -> set[str]:
    page = (ROOT / "docs" / "raft-rules.md").read_text()
    return set(re.findall(r"^##+ (\d+(?:\.\d)?)[. ]", page, re.MULTILINE))


def cited(path: Path) -> list[str]:
    return [number for found in CITED.findall(path.read_text()) for number in re.findall(r"\d+(?:\.\d)?", found)]


def test_each_rule_of_replication_that_is_cited_is_there() -> None:
    known = sections()
    assert {str(number) for number in range(11)} <= known
    paths = [*sources(), *c_sources(), *(ROOT / "docs" / "decisions").glob("*.md")]
    of_each = {path: cited(path) for path in paths if path != Path(__file__)}
    assert sum(map(len, of_each.values())) > 50
    missing = [f"{path.relative_to(ROOT)}: {n}" for path, numbers in of_each.items() for n in numbers if n not in known]
    assert missing == []


def test_each_mutant_breaks_a_rule_that_is_there() -> None:
    known = sections()
    assert [mutant.name for mutant in MUTANTS if mutant.rule.rstrip("abcd") not in known] == []


def test_each_fault_planted_in_c_breaks_a_rule_that_is_there_and_names_a_test_of_the_gate() -> None:
    """`tests/simulator/test_c_mutants.py` runs them; that the C has what they change is seen here."""
    mutants = (*c_mutants_replication.MUTANTS, *c_mutants_journal.MUTANTS)
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    texts = {mutant.name: mutant.text() for mutant in mutants}  # or it says which text is not there once
    assert len(set(texts.values())) == len(mutants), "two are the same"
    known, rules = sections(), (ROOT / "docs" / "rules.md").read_text()
    assert [one.name for one in mutants if one.rule not in known and f"- {one.rule}" not in rules] == []
    tests = [one.caught_by.split("::") for one in mutants]
    missing = [name for name in tests if len(name) != NAMED or not is_gate_module(ROOT / "tests" / name[0])]
    assert missing == []


def test_citations_are_found_as_they_are_written(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("raft-rules 3.2-3.4, 5; thesis 4\n/* as in (raft-rules\n * 7.3), raft-rules 10: */ raft-rules 6.1")
    assert cited(text) == ["3.2", "3.4", "5", "7.3", "10", "6.1"]
