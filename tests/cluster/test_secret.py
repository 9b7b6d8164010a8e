"""Proofs, seals, and what was received already."""

from __future__ import annotations

import random

import pytest

from tpc_broker.cluster.secret import WINDOW, ClusterSecret, Opener, ReplayWindow, Sealer, SecretError, Stamp

SECRET = ClusterSecret((b"0123456789abcdef",))
OTHER = ClusterSecret((b"0123456789abcdeg",))
ONE, TWO = b"1" * 32, b"2" * 32


def test_a_proof_is_good_for_one_connection_and_one_side():
    mac = SECRET.proof(ONE, TWO, of_dialler=True)
    assert SECRET.proven_by(mac, ONE, TWO, of_dialler=True)
    assert not SECRET.proven_by(mac, ONE, TWO, of_dialler=False), "reflected"
    assert not SECRET.proven_by(mac, TWO, ONE, of_dialler=True)
    assert not SECRET.proven_by(mac, ONE, b"3" * 32, of_dialler=True), "replayed"
    assert not OTHER.proven_by(mac, ONE, TWO, of_dialler=True)


def test_a_datagram_of_another_secret_is_none():
    sealed = SECRET.seal(Stamp(1, 2, 3, 4), b"content")
    assert SECRET.unseal(sealed) == (Stamp(1, 2, 3, 4), b"content")
    assert OTHER.unseal(sealed) is None
    assert SECRET.unseal(b"") is None
    for position in range(len(sealed)):
        assert SECRET.unseal(sealed[:position] + bytes([sealed[position] ^ 1]) + sealed[position + 1 :]) is None
        assert SECRET.unseal(sealed[:position]) is None


def test_a_datagram_is_taken_once():
    strangers = []
    sealer, opener = Sealer(SECRET, 1, 2, 3), Opener(SECRET, lambda: strangers.append(1))
    first = sealer.seal(b"a")
    assert opener.open(first) == b"a"
    assert opener.open(first) is None
    assert opener.open(sealer.seal(b"b")) == b"b"
    assert not strangers
    assert opener.open(Sealer(OTHER, 1, 2, 3).seal(b"c")) is None
    assert strangers


def test_what_is_refused_is_not_even_remembered():
    opener = Opener(SECRET, lambda: None, lambda stamp: stamp.incarnation == 2)
    assert opener.open(Sealer(SECRET, 1, 2, 3).seal(b"removed")) is None
    assert opener.open(Sealer(SECRET, 1, 3, 3).seal(b"another directory")) == b"another directory"


def test_an_earlier_life_is_over():
    window = ReplayWindow()
    assert window.take(Stamp(1, 9, 100, 1))
    assert window.take(Stamp(1, 9, 101, 1))
    assert not window.take(Stamp(1, 9, 100, 2))
    assert window.take(Stamp(1, 10, 7, 1)), "another data directory counts for itself"


@pytest.mark.parametrize("seed", range(20))
def test_in_any_order_each_is_taken_once_and_what_is_far_behind_never(seed):
    chooser, window, taken, highest = random.Random(seed), ReplayWindow(), set(), 0
    for _ in range(3_000):
        number = max(1, highest + chooser.randint(-WINDOW - 50, 60))
        expected = number not in taken and number > highest - WINDOW
        assert window.take(Stamp(1, 1, 1, number)) == expected, (number, highest)
        taken.add(number)
        highest = max(highest, number)


def test_what_is_very_far_behind_costs_nothing():
    """A bit of its own for it would be in two exbibytes."""
    window = ReplayWindow()
    assert window.take(Stamp(1, 9, 100, 2**64 - 1))
    assert not window.take(Stamp(1, 9, 100, 1))


def test_memory_is_bounded():
    window = ReplayWindow(senders_max=4)
    for incarnation in range(100):
        window.take(Stamp(1, incarnation, 1, 1))
    assert len(window._lives) == 4


@pytest.mark.parametrize("text", [b"", b"short", b" " * 40, b"x" * 2_000])
def test_a_secret_has_bounds(text):
    with pytest.raises(SecretError, match="16 to 1024 are allowed"):
        ClusterSecret.from_text(text)


def test_white_space_around_a_secret_does_not_count():
    assert ClusterSecret.from_text(b"  0123456789abcdef\n") == SECRET
