"""What listeners with TLS have of the settings ssl.*, and what is refused."""

import pytest

from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.metadata.describe import describe_broker
from tpc_broker.metadata.listener_settings import plan_listeners
from tpc_broker.metadata.settings import listener_settings, load_settings
from tpc_broker.metadata.ssl_settings import ListenerSsl, ssl_of_listeners

STORE = "ssl.keystore.location=/k.pem"


def of_listeners(text: str, *listen: str) -> dict[int, ListenerSsl]:
    given = listener_settings(text, ())
    listeners = plan_listeners(listen or ("SSL://h:1000",), (), given, 1)
    return ssl_of_listeners(listeners, load_settings(text).settings, given)


def test_listeners_without_tls_have_none() -> None:
    assert of_listeners("", "PLAINTEXT://h:1", "SASL_PLAINTEXT://h:2") == {}


def test_what_is_said_of_all_and_of_one() -> None:
    text = f"""{STORE}
listener.security.protocol.map=A:SSL,B:SASL_SSL,C:PLAINTEXT
listener.name.a.ssl.client.auth=REQUIRED
listener.name.A.ssl.truststore.location=/t.pem
listener.name.b.ssl.keystore.location=/b.pem
ssl.enabled.protocols=TLSv1.3
"""
    found = of_listeners(text, "A://h:1", "C://h:2", "B://h:3")
    assert list(found) == [0, 2]
    assert [found[0][name] for name in ("keystore.location", "client.auth", "truststore.location")] == [
        "/k.pem", "required", "/t.pem",
    ]  # fmt: skip
    assert [found[2][name] for name in ("keystore.location", "client.auth")] == ["/b.pem", "none"]
    assert found[0]["enabled.protocols"] == ("TLSv1.3",)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "listener SSL: TLS needs a certificate and its key: give ssl.keystore.location"),
        ("ssl.keystore.key=x", "TLS needs a certificate and its key"),
        (f"{STORE}\nssl.keystore.key=x", "give one of both"),
        (f"{STORE}\nssl.client.auth=required", "needs the authorities of clients' certificates"),
        (f"{STORE}\nssl.truststore.location=/a\nssl.truststore.certificates=b", "give one of both"),
        (f"{STORE}\nssl.client.auth=maybe", "String must be one of: none, requested, required"),
        (f"{STORE}\nssl.enabled.protocols=TLSv1.1", "String must be one of: TLSv1.3, TLSv1.2"),
        (f"{STORE}\nssl.keystore.type=JKS", "keytool -importkeystore"),
        (f"{STORE}\nssl.keystore.type=PKCS12", "openssl pkcs12 -in FILE -nodes"),
        (f"{STORE}\nssl.truststore.type=jks", "Only PEM is read"),
        (f"{STORE}\nssl.keystore.password=x", "the password of the key in it is ssl.key.password"),
        (f"{STORE}\nssl.principal.mapping.rules=RULE:a", "does not begin with RULE"),
        (f"{STORE}\nssl.principal.source=cn", "subject, uri-san, dns-san"),
        (f"{STORE}\nlistener.name.other.ssl.client.auth=none", "there is no listener OTHER"),
        (f"{STORE}\nlistener.name.ssl.ssl.client.auth=maybe", "line 2: listener.name.ssl.ssl.client.auth: Invalid"),
        (f"{STORE}\nlistener.name.ssl.ssl.no.such=1", "Unknown broker config name: listener.name.ssl.ssl.no.such"),
    ],
)
def test_what_is_refused(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of_listeners(text)
    assert part in str(refused.value)


def test_what_belongs_to_a_listener_without_tls_is_refused() -> None:
    with pytest.raises(ConfigError, match="listener A has no TLS: its security protocol is PLAINTEXT"):
        of_listeners("listener.name.a.ssl.client.auth=none", "A://h:1")


def test_keys_and_passwords_are_shown_to_nobody() -> None:
    text = "ssl.keystore.key=SECRET\nssl.key.password=SECRET\nssl.keystore.certificate.chain=chain"
    configuration = load_settings(text)
    shown = {entry.name: entry.value for entry in describe_broker(configuration)}
    assert shown["ssl.keystore.key"] is shown["ssl.key.password"] is None
    assert shown["ssl.keystore.certificate.chain"] == "chain"
    assert "SECRET" not in repr(of_listeners(text))
