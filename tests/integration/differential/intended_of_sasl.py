"""Where logins differ from Kafka's on purpose."""

from __future__ import annotations

from tests.integration.differential.intended import Intended

INTENDED_OF_SASL: list[Intended] = [
    Intended(
        "nobody-is-answered-without-a-login",
        "After SaslHandshake Kafka answers any request with an empty answer, or an error, before it closes; here "
        "nothing but what a login consists of is read.",
        api="Metadata",
        scenario="what-comes-behind-a-handshake",
        ours="<connection closed>",
    ),
]
