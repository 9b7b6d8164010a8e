"""Users by the real handlers, on cores in memory."""

from __future__ import annotations

import hashlib
import logging

from tests.support.memory_node import running_node
from tpc_broker.auth.credentials import ScramMechanism, credential_of_password
from tpc_broker.kafka import messages
from tpc_broker.model import CoreId

ALTER = messages.AlterUserScramCredentialsRequest
DESCRIBE = messages.DescribeUserScramCredentialsRequest
SALT, SALTED = b"a-salt-of-anna", hashlib.pbkdf2_hmac("sha256", b"pencil", b"a-salt-of-anna", 4096)


def upsertion(name, mechanism=1, **others):
    fields = {"iterations": 4096, "salt": SALT, "salted_password": SALTED, **others}
    return ALTER.ScramCredentialUpsertion(name=name, mechanism=mechanism, **fields)


def deletion(name, mechanism=1):
    return ALTER.ScramCredentialDeletion(name=name, mechanism=mechanism)


async def described(node, *names, core=0):
    users = [DESCRIBE.UserName(name=name) for name in names] if names else None
    found = await node.ask(core, DESCRIBE(users=users), 0)
    assert (found.error_code, found.error_message) == (0, "")
    return [
        (one.user, one.error_code, [(each.mechanism, each.iterations) for each in one.credential_infos])
        for one in found.results
    ]


async def altered(node, *upsertions, without=(), core=0):
    found = await node.ask(core, ALTER(deletions=list(without), upsertions=list(upsertions)), 0)
    return {one.user: (one.error_code, one.error_message) for one in found.results}


async def test_a_user_is_made_at_any_core_known_at_every_core_and_there_after_a_restart(autojump_clock):
    credential = credential_of_password(ScramMechanism.SCRAM_SHA_256, "pencil", SALT, 4096)
    async with running_node(cores=2) as node:
        assert await described(node) == []
        assert await altered(node, upsertion("anna"), upsertion("bert", 2, iterations=5000), core=1) == {
            "anna": (0, None), "bert": (0, None),
        }  # fmt: skip
        for core in (0, 1):
            assert await described(node, core=core) == [("anna", 0, [(1, 4096)]), ("bert", 0, [(2, 5000)])]
            kept = node[CoreId(core)].view.image.scram_users
            assert kept["anna", ScramMechanism.SCRAM_SHA_256] == credential
        assert await altered(node, upsertion("anna", 2)) == {"anna": (0, None)}
        await node.restart(0)
        await node.restart(1)
        for core in (0, 1):
            assert await described(node, "anna", core=core) == [("anna", 0, [(1, 4096), (2, 4096)])]
            assert node[CoreId(core)].view.image.scram_users["anna", ScramMechanism.SCRAM_SHA_256] == credential
        assert await altered(node, without=[deletion("anna"), deletion("bert", 2)]) == {
            "anna": (0, None), "bert": (0, None),
        }  # fmt: skip
        await node.restart(0)
        assert await described(node) == [("anna", 0, [(2, 4096)])]


async def test_who_is_named_twice_or_not_there_is_told_so(autojump_clock):
    async with running_node(cores=1) as node:
        await altered(node, upsertion("anna"))
        assert await described(node, "bert", "anna", "bert", "carla") == [
            ("anna", 0, [(1, 4096)]), ("bert", 92, []), ("carla", 91, []),
        ]  # fmt: skip
        found = await node.ask(0, DESCRIBE(users=[DESCRIBE.UserName(name=name) for name in "bab"]), 0)
        assert [one.error_message for one in found.results] == [
            "Attempt to describe a user credential that does not exist: a",
            "Cannot describe SCRAM credentials for the same user twice in a single request: b",
        ]
        assert await altered(
            node, upsertion("twice"), upsertion("twice", 2), upsertion("few", iterations=1), upsertion("odd", 3),
            upsertion("many", iterations=16_385), upsertion(""), without=[deletion("gone")],
        ) == {
            "twice": (92, "A user credential cannot be altered twice in the same request"),
            "few": (93, "Too few iterations"),
            "many": (93, "Too many iterations"),
            "odd": (33, "Unknown SCRAM mechanism"),
            "": (93, "Username must not be empty"),
            "gone": (91, "Attempt to delete a user credential that does not exist"),
        }  # fmt: skip
        assert await described(node) == [("anna", 0, [(1, 4096)])]


async def test_neither_log_nor_answer_holds_a_secret(autojump_clock, caplog):
    caplog.set_level(logging.DEBUG)
    async with running_node(cores=2) as node:
        await altered(node, upsertion("anna"), core=1)
        (credential,) = node[CoreId(0)].view.image.scram_users.values()
        shown = caplog.text + repr(node[CoreId(0)].view.image) + repr(await node.ask(1, DESCRIBE(users=None), 0))
        for secret in (SALT, SALTED, credential.stored_key, credential.server_key):
            assert repr(secret)[2:-1] not in shown
