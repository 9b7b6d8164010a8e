"""Users and their SCRAM credentials: made, changed, described and deleted. Each scenario takes its users away again."""

from __future__ import annotations

import hashlib

from tests.integration.differential.dialogue import Dialogue, scenario

SHA_256, SHA_512 = 1, 2
_SALTED = {SHA_256: hashlib.sha256(b"p").digest(), SHA_512: hashlib.sha512(b"p").digest()}


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, object]:
    return {"Name": name, "Mechanism": mechanism}


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096, **others: object) -> dict[str, object]:
    salted = _SALTED.get(mechanism, b"p")
    return {
        "Name": name, "Mechanism": mechanism, "Iterations": iterations, "Salt": b"salt", "SaltedPassword": salted,
        **others,
    }  # fmt: skip


def alter(d: Dialogue, *upsertions: dict[str, object], without: tuple[dict[str, object], ...] = ()) -> None:
    d.anywhere.ask("AlterUserScramCredentials", 0, {"Deletions": list(without), "Upsertions": list(upsertions)})


def describe(d: Dialogue, *names: str) -> None:
    d.anywhere.ask("DescribeUserScramCredentials", 0, {"Users": [{"Name": name} for name in names]})


def described_all(d: Dialogue) -> None:
    d.anywhere.ask("DescribeUserScramCredentials", 0, {"Users": None})


@scenario
def users_come_and_go(d: Dialogue) -> None:
    one, two = f"{d.prefix}-1", f"{d.prefix}-2"
    alter(d, upsertion(one), upsertion(two, SHA_512, 16_384))
    described_all(d)
    alter(d, upsertion(one, SHA_512, 5000))
    describe(d, one)
    describe(d, two, one)
    describe(d, one, one, two, "absent")
    describe(d)
    alter(d, upsertion(one, iterations=4097))
    describe(d, one)
    alter(d, without=(deletion(one),))
    describe(d, one)
    alter(d, without=(deletion(one),))
    alter(d, without=(deletion(one, SHA_512), deletion(two, SHA_512)))
    describe(d, one, two)
    described_all(d)


@scenario
def several_changes_of_a_user_at_once(d: Dialogue) -> None:
    there, gone, other = f"{d.prefix}-1", f"{d.prefix}-2", f"{d.prefix}-3"
    alter(d, upsertion(there))
    alter(d, upsertion(there, SHA_512), without=(deletion(there),))
    alter(d, upsertion(there), without=(deletion(there),))
    alter(d, upsertion(there), without=(deletion(there, SHA_512),))
    alter(d, upsertion(there), without=(deletion(there), deletion(there)))
    alter(d, upsertion(gone), without=(deletion(gone),))
    alter(d, upsertion(gone), upsertion(gone, SHA_512))
    alter(d, upsertion(gone), upsertion(gone), upsertion(gone))
    alter(d, upsertion(gone, 7), upsertion(gone))
    alter(d, upsertion(gone), upsertion(gone, 7))
    alter(d, upsertion(gone), upsertion(other, SHA_512), upsertion(gone, iterations=1))
    alter(d, without=(deletion(there), deletion(there)))
    alter(d, without=(deletion(there), deletion(there, SHA_512)))
    alter(d, without=(deletion(there, 7), deletion(there)))
    alter(d, without=(deletion(there), deletion(there, 7)))
    alter(d, without=(deletion(""), deletion(there)))
    describe(d, there, gone, other)
    alter(d, without=(deletion(there), deletion(other, SHA_512)))
    described_all(d)


@scenario
def odd_credentials(d: Dialogue) -> None:
    name = d.prefix
    alter(d, upsertion(name, Salt=b""))
    describe(d, name)
    alter(d, without=(deletion(name),))
    alter(d, upsertion(name, SaltedPassword=b""))
    alter(d, upsertion(name, SaltedPassword=b""), upsertion(f"{name}-2"), without=(deletion("absent"),))
    describe(d, name, f"{name}-2")
    alter(d, without=(deletion(f"{name}-2"),))
    alter(d, upsertion(name, SaltedPassword=b"short"))
    alter(d, without=(deletion(name),))
    alter(d, upsertion(name, SHA_512, SaltedPassword=b"x" * 1000, Salt=b"y" * 200))
    alter(d, without=(deletion(name, SHA_512),))
    for odd in ("größe", "a b", "a,b=c", "CN=a,O=b", "*", "<default>"):
        alter(d, upsertion(f"{name}{odd}"))
        describe(d, f"{name}{odd}")
        alter(d, without=(deletion(f"{name}{odd}"),))
    for iterations in (4095, 16_385, 0, -1, 2**31 - 1):
        alter(d, upsertion(name, iterations=iterations))
    for mechanism in (0, 3, -1, -128):
        alter(d, upsertion(name, mechanism), without=(deletion("absent", mechanism),))
    described_all(d)


@scenario
def users_that_are_not_there(d: Dialogue) -> None:
    described_all(d)
    for names in ("", "a", "ba", "aa", "bacba"):
        describe(d, *names)
    describe(d, "")


@scenario
def changes_of_users_that_are_refused(d: Dialogue) -> None:
    d.anywhere.ask("AlterUserScramCredentials", 0, {})
    for name in ("a", ""):
        for mechanism in (SHA_256, SHA_512, 0, 3, -1):
            alter(d, without=(deletion(name, mechanism),))
            alter(d, without=(deletion(name, mechanism), deletion(name, mechanism)))
    alter(d, upsertion(""))
    alter(d, upsertion("a", 3, 1))
    alter(d, upsertion("a", SaltedPassword=b""), upsertion("a"))
    alter(d, upsertion("a", SaltedPassword=b"", iterations=1))
    described_all(d)
