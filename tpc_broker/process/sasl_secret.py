"""The secret by which a broker answers for users that it does not have (`auth.scram.stand_in`): the same for all nodes
of a cluster, and after every start, or an answer that changes would tell who is not there.

In a cluster it is made of the cluster's secret. A node alone has a file of its own in the data directory.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Final

from tpc_broker.engine.durable_files import replace_file
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.options import ClusterOptions

SECRET_FILE: Final = "sasl.secret"  # noqa: S105  (the name of the file)
SECRET_BYTES: Final = 32
_PURPOSE: Final = b"tpc-broker: users that are not there"


def make_secret(data: Path) -> None:
    """Unless it is there. OSError."""
    path = data / SECRET_FILE
    if not path.exists():
        previous = os.umask(0o077)
        try:
            replace_file(path, os.urandom(SECRET_BYTES))
        finally:
            os.umask(previous)


def read_sasl_secret(data: Path, cluster: ClusterOptions | None) -> bytes:
    """StartError when it is not there, or is none."""
    if cluster is not None:
        from tpc_broker.node.membership.options import read_secret  # noqa: PLC0415 (a node alone needs none of it)

        keys = read_secret(cluster.secret_path).keys
        if keys:
            return hmac.digest(keys[0], _PURPOSE, hashlib.sha256)
    path = data / SECRET_FILE
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    if len(secret) != SECRET_BYTES:
        raise StartError(f"{path} is damaged: it has {len(secret)} bytes, not {SECRET_BYTES}; remove it")
    return secret
