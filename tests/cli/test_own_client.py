"""Settings of librdkafka that the project's own client obeys as well, and those that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Tpc
from tpc_broker.cli.own_client import security_settings
from tpc_broker.client.security import SecuritySettings, TlsSettings


@pytest.mark.parametrize("protocol", ["ssl", "SASL_SSL"])
def test_certificates_and_a_key_are_taken_as_text_or_from_files(tmp_path: Path, protocol: str) -> None:
    (tmp_path / "ca").write_text("a")
    base = {"security.protocol": protocol, "sasl.mechanism": "PLAIN", "ssl.certificate.pem": "c", "ssl.key.pem": "k"}
    for authority in ({"ssl.ca.pem": "a"}, {"ssl.ca.location": str(tmp_path / "ca")}):
        tls = security_settings({**base, **authority}).tls
        assert tls == TlsSettings(trusted="a", certificates="c", private_key="k")


def test_what_cannot_be_trusted_is_not_replaced_by_the_system_s_certificates(command: Tpc) -> None:
    tls = ("-X", "security.protocol=sasl_ssl", "-X", "sasl.mechanism=PLAIN")
    said = command.error("config", "get", "topic", "t", *tls, "-X", "ssl.ca.pem=none", code=6)
    assert "the certificates or the key for TLS cannot be used" in said


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("ssl.crl.location=/a", "ssl.crl.location: this command does not have it; it has ssl.ca.location, ssl.ca.pem,"),
        ("ssl.keystore.location=/a", "ssl.keystore.location: this command does not have it"),
        ("SSL.ca.pem=text", "SSL.ca.pem: this command does not have it"),
        ("ssl.keystore.password=hush", "ssl.keystore.password: this command does not have it"),
        ("sasl.oauthbearer.config=hush", "sasl.oauthbearer.config: this command does not have it; it has sasl.mech"),
        ("ssl.ca.pem=", "ssl.ca.pem: it is empty"),
        ("ssl.ca.location=", "ssl.ca.location: it is empty"),
    ],
)
def test_what_the_own_client_does_not_have_is_refused_by_name(command: Tpc, setting: str, told: str) -> None:
    tls = ("-X", "security.protocol=sasl_ssl", "-X", "sasl.mechanism=PLAIN")
    said = command.error("config", "get", "topic", "t", *tls, "-X", setting, code=2)
    assert said.startswith(f"tpc: -X {told}")
    assert "hush" not in said


def test_one_certificate_is_not_given_twice(command: Tpc) -> None:
    both = ("-X", "security.protocol=ssl", "-X", "ssl.ca.pem=a", "-X", "ssl.ca.location=b")
    said = command.error("config", "get", "topic", "t", *both, code=2)
    assert said == "tpc: -X ssl.ca.pem and -X ssl.ca.location exclude each other"


def test_settings_of_what_is_not_in_use_do_not_matter() -> None:
    assert security_settings({"ssl.crl.location": "/a", "sasl.oauthbearer.config": "b"}) == SecuritySettings()
