"""Brokers with a listener where clients log in by token, ours and Kafka's; the issuer is `tests.auth.token_maker`."""

from __future__ import annotations

from tests.auth.token_maker import AUDIENCE, ISSUER
from tests.support.sasl_brokers import MODULE, SaslBroker, SaslKafka


def _settings(url: str) -> dict[str, str]:
    return {
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
    }


class OAuthBroker(SaslBroker):
    """With a file of keys, or another place; `LOGIN` takes tokens too."""

    url = ""

    def launch(self) -> None:
        self.overrides = {
            **self.overrides,
            "listener.name.login.sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256",
            **_settings(self.url or f"file://{self.folder / 'keys.json'}"),
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000",
        }
        super().launch()


class OAuthKafka(SaslKafka):
    """With a file of keys. Its JVM has to be told that it may be read: `java_options`."""

    @property
    def url(self) -> str:
        return f"file://{self.folder / 'keys.json'}"

    @property
    def java_options(self) -> str:
        return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.url}"

    def _properties(self) -> dict[str, str]:
        of_login = "listener.name.login.oauthbearer.sasl"
        return super()._properties() | _settings(self.url) | {
            "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256",
            f"{of_login}.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
            f"{of_login}.server.callback.handler.class": f"{MODULE}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        }  # fmt: skip
