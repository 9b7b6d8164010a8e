"""What the check of bank transfers finds: one thing is made wrong at a time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.support.bank import Ledger, Leg, Told, View, committed_legs, request_name, transfer_between

A, B, C = "teller-1/a", "teller-1/b", "teller-2/c"
R0, R1 = request_name(3, 0, "x"), request_name(3, 1, "y")


def good() -> tuple[Ledger, dict[int, list[tuple[int, Leg]]]]:
    final = {
        0: [(0, Leg(A, 2, -5)), (2, Leg(B, 3, -7)), (9, Leg(R0, 2, 1))],
        1: [(4, Leg(A, 2, 5)), (7, Leg(B, 3, 3)), (9, Leg(R1, 2, -2))],
        2: [(0, Leg(B, 3, 4)), (5, Leg(R0, 2, -1)), (8, Leg(R1, 2, 2))],
    }  # fmt: skip
    told = dict.fromkeys((A, B, R0), Told.COMMITTED) | {R1: Told.ASKED, C: Told.ABORTED, "teller-4/d": Told.ASKED}
    views = [
        View("r", 0, 0, 3, final[0][:2]), View("r", 0, 1, 9, final[0][1:2]), View("r", 1, 4, 10, list(final[1])),
    ]  # fmt: skip
    return Ledger(told, views), final


def test_what_is_right_is_right():
    ledger, final = good()
    assert ledger.problems(final, {3: 2}) == []


def lose(ledger, final):
    for statement in final.values():
        statement[:] = [each for each in statement if each[1].transfer != A]
    ledger.views.clear()


def tear(ledger, final):
    final[2].pop(0)


def double(_ledger, final):
    final[2].insert(1, (1, final[2][0][1]))


def invent(_ledger, final):
    final[0].append((12, Leg("teller-9/z", 2, 1)))
    final[1].append((12, Leg("teller-9/z", 2, -1)))


def change(_ledger, final):
    final[2][0] = (0, replace(final[2][0][1], amount=5))


def abort_in_vain(ledger, _final):
    ledger.note(B, Told.ABORTED)


def forget(ledger, _final):
    ledger.note(B, Told.BEGUN)


def show_too_much(ledger, _final):
    ledger.views.append(View("r", 0, 0, 2, [(0, Leg(A, 2, -5)), (1, Leg(C, 2, 9))]))


def show_too_little(ledger, _final):
    ledger.views.append(View("r", 0, 0, 3, [(0, Leg(A, 2, -5))]))


def do_a_request_again(ledger, final):
    again = request_name(3, 0, "z")
    final[0].append((13, Leg(again, 2, 1)))
    final[1].append((13, Leg(again, 2, -1)))
    ledger.note(again, Told.COMMITTED)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lose, [f"{A}: lost, its commit was acknowledged"]),
        (tear, [f"{B}: torn, 2 legs of 3", "all accounts sum up to -4"]),
        (double, [f"{B}: twice in an account", "all accounts sum up to 4"]),
        (invent, ["teller-9/z: nobody has begun it"]),
        (change, [f"{B}: sums up to 1", "all accounts sum up to 1"]),
        (abort_in_vain, [f"{B}: aborted, and there"]),
        (forget, [f"{B}: begun, and there"]),
        (show_too_much, ["r: account 0 [0, 2): 4 and not -5; shown too much [(1, "]),
        (show_too_little, ["r: account 0 [0, 3): -5 and not -12; shown too much [], not shown [(2, "]),
        (do_a_request_again, ["request (3, 0) was done 2 times"]),
    ],
)
def test_what_is_wrong_is_named(spoil, said):
    ledger, final = good()
    spoil(ledger, final)
    found = ledger.problems(final, {3: 2})
    assert len(found) == len(said), found
    for each, begins in zip(found, said, strict=True):
        assert each.startswith(begins)


@pytest.mark.parametrize(
    ("committed", "said"), [(3, "offset 3 is committed, and not done are [2]"), (1, "only offset 1 is committed")]
)
def test_requests_are_done_up_to_the_committed_offset(committed, said):
    ledger, final = good()
    (found,) = ledger.problems(final, {3: committed})
    assert said in found


def test_legs_of_a_transfer_sum_up_to_nothing_in_different_accounts():
    chance = Random(1)
    for accounts in (2, 3, 6):
        for _ in range(50):
            legs = transfer_between("t", accounts, chance)
            assert sum(leg.amount for leg in legs.values()) == 0
            assert {leg.legs for leg in legs.values()} == {len(legs)}
            assert set(legs) <= set(range(accounts))


def test_aborted_records_are_left_out_as_a_consumer_does():
    """Also of a transaction whose first records are not among those that were fetched."""
    legs = {offset: Leg(str(offset), 2, 1) for offset in (5, 6, 8, 9, 11)}
    records = [(offset, 7 if offset in (5, 8, 11) else 8, leg.encode(3)) for offset, leg in legs.items()]
    aborted, aborts = [(7, 5), (8, 2), (7, 11)], [(7, 8), (10, 7), (12, 7)]
    assert committed_legs(records, aborted, aborts) == [(9, legs[9])]
    assert committed_legs(records[2:], [(8, 2)], [(7, 8)]) == [(offset, legs[offset]) for offset in (8, 9, 11)]
