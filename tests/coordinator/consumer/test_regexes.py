"""Patterns of consumer groups: what is one, what it matches, and what is refused before it costs anything."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.coordinator.consumer import regexes

NAMES = ["a", "a.b", "a-b", "ab", "abc", "__consumer_offsets", "é", "Z" * 249]


def matched(pattern, names=NAMES):
    return [name for part in regexes.matches(pattern, names) for name in part]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a"]),
        ("", []),
        ("a|ab", ["a", "ab"]),
        ("a.*", ["a", "a.b", "a-b", "ab", "abc"]),
        (r"a\.b", ["a.b"]),
        ("(?i)AB?", ["a", "ab"]),
        (r"\pL", ["a", "é"]),
        (".", ["a", "é"]),
        ("^ab$", ["ab"]),
        ("b", []),
        ("Z{249}", ["Z" * 249]),
        (r"\Qa.b\E", ["a.b"]),
        (".*", NAMES),
    ],
)
def test_a_name_is_matched_as_a_whole_internal_topics_too(pattern, expected):
    assert regexes.fault_of(pattern) is None
    assert matched(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(", "missing )"),
        ("[z-a]", "invalid character class range"),
        ("(?=a)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{1001}", "invalid repetition size"),
        (r"\pL{1000}", "pattern too large - compile failed"),
        ("a" * 4097, "it is longer than 4096 bytes"),
        ("é" * 2049, "it is longer than 4096 bytes"),
    ],
)
def test_what_is_no_pattern_is_said_in_words_that_do_not_repeat_it(pattern, words):
    assert regexes.fault_of(pattern) == words
    assert matched(pattern) == []


def test_the_longest_pattern_and_one_that_hangs_elsewhere_are_matched():
    assert regexes.fault_of("a" * 4096) is None
    assert matched("(x+x+)+y", ["x" * 249]) == []
    assert matched("(a?){200}a{200}", ["a" * 200, "a" * 199]) == ["a" * 200]


def test_the_larger_a_pattern_the_fewer_names_are_matched_at_once():
    names = [f"topic{number}" for number in range(10_000)]
    large = "|".join(f".*t{number}.*" for number in range(350))
    assert len(list(regexes.matches("t.*", names))) < 10
    assert len(list(regexes.matches(large, names))) > 500


@given(st.text(max_size=20), st.lists(st.text(max_size=8), max_size=5))
def test_whatever_a_client_sends_is_a_pattern_or_has_words(pattern, names):
    """A lone surrogate has no bytes; it comes from no client, and harms nothing."""
    fault = regexes.fault_of(pattern)
    found = matched(pattern, [name.encode(errors="replace").decode() for name in names])
    assert not found or fault is None


@given(st.from_regex(r"\A[ab.*+?()|]{0,8}\Z"), st.lists(st.from_regex(r"\A[ab.]{0,6}\Z"), max_size=5))
def test_where_both_languages_have_a_pattern_they_agree(pattern, names):
    try:
        expected = [name for name in names if re.fullmatch(pattern, name)]
    except re.error:
        return
    if regexes.fault_of(pattern) is None:
        assert matched(pattern, names) == expected
