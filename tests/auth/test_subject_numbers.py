"""Subjects by small numbers: never another's, and not more of them than there have to be."""

import pytest

from tpc_broker.auth.principals import ANONYMOUS, NOBODY, USER, Principal, Subject, SubjectNumbers


def subject(name, host="10.0.0.1"):
    return Subject(Principal(USER, name), host)


def test_a_subject_has_one_number_and_another_subject_has_another():
    numbers = SubjectNumbers(list, 100)
    some = [subject("alice"), subject("alice", "10.0.0.2"), subject("Alice"), Subject(ANONYMOUS, "10.0.0.1")]
    given = [numbers.number_of(each) for each in some]
    assert given == [1, 2, 3, 4]
    assert [numbers.number_of(each) for each in reversed(some)] == given[::-1]
    assert [numbers.subject_of(number) for number in given] == some


def test_nobody_has_no_number_and_no_number_is_somebodys_by_chance():
    numbers = SubjectNumbers(list, 100)
    with pytest.raises(ValueError, match="nobody"):
        numbers.number_of(NOBODY)
    assert {numbers.subject_of(number) for number in (-1, 0, 1, 2**32)} == {NOBODY}


def test_those_that_no_connection_has_are_forgotten_and_their_numbers_are_nobodys_for_good():
    open_now = [subject("kept")]
    numbers = SubjectNumbers(lambda: open_now, 10)
    kept = numbers.number_of(open_now[0])
    gone = [numbers.number_of(subject(f"gone-{index}")) for index in range(9)]
    assert len(numbers) == 10
    later = numbers.number_of(subject("later"))
    assert later == 11
    assert len(numbers) == 2
    assert numbers.number_of(open_now[0]) == kept
    assert {numbers.subject_of(number) for number in gone} == {NOBODY}
    again = numbers.number_of(subject("gone-0"))
    assert again == 12
    assert numbers.subject_of(again) == subject("gone-0")


def test_looking_for_those_to_forget_costs_little_when_all_are_in_use():
    looks, open_now = [], []

    def in_use():
        looks.append(len(open_now))
        return open_now

    numbers = SubjectNumbers(in_use, 10)
    for index in range(1000):
        open_now.append(subject(str(index)))
        numbers.number_of(open_now[-1])
    assert len(numbers) == 1000
    assert len(looks) < 10
