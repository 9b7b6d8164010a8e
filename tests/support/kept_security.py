"""A user, rules of access and a quota that are made once and have to be there later: asked for by `tpc`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.support.cluster_nodes import run_tpc
from tpc_broker.metadata.access_settings import STANDARD_AUTHORIZER

ACCESS: Final = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
"""Settings with which rules can be made and seen; they change nothing for whoever is everybody."""
NOTHING: Final[dict[str, list[Any]]] = {"acl": [], "user": [], "quota": []}


def keep_security(bootstrap: str, folder: Path) -> None:
    """One rule is removed again, and of one user one mechanism. `folder`: for a file that is needed meanwhile."""
    password = folder / "password"
    password.write_text("kept")

    def tpc(*words: str) -> None:
        code, said = run_tpc(*words, "--bootstrap", bootstrap)
        assert code == 0, said

    alice = "--allow-principal", "User:alice"
    tpc("acl", "add", *alice, "--consumer", "--topic", "events", "--group", "gr\u00fc", "--pattern", "prefixed")
    tpc("acl", "add", "--deny-principal", "User:*", "--host", "10.0.0.1", "--operation", "ALL", "--topic", "events")
    tpc("acl", "add", *alice, "--topic", "deleted", "--operation", "READ")
    tpc("acl", "remove", *alice, "--topic", "deleted", "--operation", "READ")
    tpc("user", "add", "alice", "--password-file", str(password), "--iterations", "4096")
    tpc("user", "delete", "alice", "--mechanism", "SCRAM-SHA-256")
    tpc("quota", "set", "--user", "alice", "producer_byte_rate=1000000", "consumer_byte_rate=2000000")
    tpc("quota", "remove", "--user", "alice", "consumer_byte_rate")
    tpc("quota", "set", "--any-ip", "connection_creation_rate=10000")


def told_of_kept_security(bootstrap: str) -> dict[str, list[Any]]:
    found = {}
    for what in NOTHING:
        code, said = run_tpc(what, "list", "--json", "--bootstrap", bootstrap)
        assert code == 0, said
        found[what] = json.loads(said)
    return found
