"""API versions, header versions and error codes against what Apache Kafka says (tools/FactsReferee.java)."""

import json
from pathlib import Path

import pytest

from tpc_broker.kafka import ApiKey, ErrorCode, UnsupportedVersionError, api, apis
from tpc_broker.kafka.api_keys import advertised_versions, request_header_version, response_header_version

FACTS = json.loads((Path(__file__).parent / "golden" / "facts.json").read_text())


def test_apis_and_stable_versions():
    theirs = {key: [version for version, _, _ in headers] for key, _, headers in FACTS["apis"] if headers}
    ours = {key: list(range(facts.first_version, facts.last_version + 1)) for key, facts in apis().items()}
    assert {key: versions for key, versions in ours.items() if versions} == theirs


def test_names():
    names = {key: name for key, name, _ in FACTS["apis"]}
    for key in ApiKey:
        assert names[key] == key.name
        assert api(key).name.upper() == key.name.replace("_", "")


def test_header_versions():
    for key, _, headers in FACTS["apis"]:
        for version, request, response in headers:
            assert (request_header_version(key, version), response_header_version(key, version)) == (request, response)


def test_error_codes():
    assert [(code.value, code.name, code.is_retriable) for code in ErrorCode] == [tuple(row) for row in FACTS["errors"]]


def test_produce_is_advertised_from_0():
    assert advertised_versions(ApiKey.PRODUCE) == (0, 13)
    assert advertised_versions(ApiKey.FETCH) == (4, 18)
    with pytest.raises(UnsupportedVersionError):
        api(4)
