"""The rules that are easy to break: their comments have the form, docs/rules.md is collected from them, and what they
name exists (tools/collect_rules.py).
"""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "collect_rules.py"))
RULES = TOOL["collect"]()


def test_the_page_of_rules_is_what_the_sources_say() -> None:
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert page == TOOL["document"](RULES), "run: .venv/bin/python tools/collect_rules.py"


def test_each_rule_names_tests_and_files_that_exist() -> None:
    assert len(RULES) > 100
    missing = [
        f"{rule.file}: {path}"
        for rule in RULES
        for path in (*rule.tests, *rule.also, *([rule.why] if rule.why else []))
        if not (ROOT / path).exists()
    ]
    assert missing == []
    assert [f"{rule.file}: {rule.text}: no test" for rule in RULES if not rule.tests] == []


def test_rules_are_found_as_they_are_written() -> None:
    python = "# about\n# Rule: One holds\n# always. Why: docs/a.md. See also native/b.c, tpc_broker/c.py. Held by\n"
    python += "# tests/d/test_e.py (at\n# each step), tests/f.\n# more\nX = 1\n"
    c = "/* Rule: Two. Held by tests/d/test_e.py. */\nint f(void);\n/* Rule: Three\n * holds. Held by\n * tests/f. */\n"
    docstring = '"""Words.\n\nRule: Four. Held by tests/f.\n"""\n'
    first = TOOL["rules_of"]("x.py", python)[0]
    assert (first.text, first.why, first.also) == ("One holds always.", "docs/a.md", ("native/b.c", "tpc_broker/c.py"))
    assert first.held_by == "tests/d/test_e.py (at each step), tests/f"
    assert first.tests == ["tests/d/test_e.py", "tests/f"]
    assert [rule.text for rule in TOOL["rules_of"]("x.c", c)] == ["Two.", "Three holds."]
    assert [rule.text for rule in TOOL["rules_of"]("x.py", docstring)] == ["Four."]


@pytest.mark.parametrize("wrong", ["# Rule: Nobody holds it.\n", "/* Rule: Short. */\n/* Held by tests/f. */\n"])
def test_a_rule_that_has_not_the_form_is_refused(wrong: str) -> None:
    with pytest.raises(TOOL["RuleFormError"], match=r"^x:1: "):
        TOOL["rules_of"]("x", wrong)
