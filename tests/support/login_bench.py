"""How many logins a second one core takes, by the CPU time that its process has had: the clients' own is not in it.

    python -m tests.support.login_bench [LOGINS]

Each login is a connection of its own: opened, ApiVersions, SaslHandshake, what the mechanism says, closed.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from tests.support.sasl_brokers import HELLO, MECHANISMS, LoginLine, SaslBroker, make_users

derive = lru_cache(maxsize=16)(hashlib.pbkdf2_hmac)


def measure(broker: SaslBroker, mechanism: str, logins: int, password: str | None = None) -> tuple[float, float]:
    """Logins a second: of the core's CPU time, and of the clock (the client's work included)."""
    core = broker.core_process(0)
    before, began = core.cpu_times(), time.monotonic()
    for number in range(logins):
        with LoginLine(broker) as line:
            line.raw.ask("ApiVersions", 3, HELLO)
            answer = line.log_in("alice", None if password is None else f"{password}{number}", mechanism)
            assert bool(answer["ErrorCode"]) == (password is not None)
    took, after = time.monotonic() - began, core.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return logins / spent, logins / took


def main(logins: int) -> None:
    hashlib.pbkdf2_hmac = derive  # type: ignore[assignment]  # the client's derivation, once
    with tempfile.TemporaryDirectory() as folder:
        broker = SaslBroker(Path(folder), 1, {"connection.failed.authentication.delay.ms": "0"})
        broker.start()
        try:
            make_users(broker.bootstrap)
            for mechanism in MECHANISMS:
                measure(broker, mechanism, 50)
                print(f"{mechanism}: {measure(broker, mechanism, logins)[0]:.0f} logins a CPU second of the core")
                wrong = measure(broker, mechanism, logins // 4, "wrong")[0]
                print(f"{mechanism}: {wrong:.0f} failed ones")
        finally:
            broker.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
