"""Names in certificates to those of principals, as Kafka's rules say."""

import pytest

from tpc_broker.auth.principal_mapping import MappingRuleError, NoPrincipalError, PrincipalMapping

DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"
KAFKAS = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "certified", "name"),
    [
        ("DEFAULT", DUKE, DUKE),
        ("", DUKE, DUKE),
        (KAFKAS, DUKE, "duke"),
        (KAFKAS, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (KAFKAS, "cn=duke,OU=SME", "DUKE"),
        (KAFKAS, "OU=JavaSoft,O=Sun Microsystems", "OU=JavaSoft,O=Sun Microsystems"),
        ("RULE:CN=(.*)/$1/", "CN=a", "a"),
        ("RULE:CN=(a)(b)?/$1-$2-$3/", "CN=a", "a--$3"),
        (r"RULE:(.*)/\$1$1/", "x", "$1x"),
        (r"RULE:a\/b/c\/d/", "a/b", "c/d"),
        ("RULE:(.)(.)/$2$1/U,DEFAULT", "ab", "BA"),
        ("RULE:CN=(.*),O=A/$1/,RULE:CN=(.*),O=B/$1@b/", "CN=x,O=B", "x@b"),
    ],
)
def test_the_first_rule_that_fits(rules: str, certified: str, name: str) -> None:
    assert PrincipalMapping(rules).name_of(certified) == name


def test_a_rule_has_to_fit_the_whole_name() -> None:
    """Attempt 55: or another authority's `CN=x,O=A,O=B` would do as well."""
    mapping = PrincipalMapping("RULE:CN=([a-z]+),O=A/$1/")
    for certified in ("CN=x,O=A,O=B", "OU=y,CN=x,O=A", "CN=x,O=AB", "CN=x,O=A\n"):
        with pytest.raises(NoPrincipalError, match="no rule"):
            mapping.name_of(certified)


def test_a_value_cannot_pretend_to_be_a_part() -> None:
    """Attempt 54: what comes escaped out of a certificate stays one value."""
    mapping = PrincipalMapping("RULE:CN=([^,\\\\]+),O=A/$1/")
    with pytest.raises(NoPrincipalError):
        mapping.name_of("CN=x,O=evil\\,CN\\=admin\\,O\\=A")


@pytest.mark.parametrize(
    ("rules", "certified", "reason"),
    [
        ("RULE:CN=(.*)/$1/", "CN=", "is empty"),
        ("DEFAULT", "", "is empty"),
        ("DEFAULT", "CN=a\nb", "control characters"),
        ("DEFAULT", "CN=a\x00b", "control characters"),
        ("DEFAULT", "CN=a\x85b", "control characters"),
        ("DEFAULT", "CN=" + "é" * 127, "over 255 bytes"),
    ],
)
def test_what_is_no_name(rules: str, certified: str, reason: str) -> None:
    with pytest.raises(NoPrincipalError, match=reason):
        PrincipalMapping(rules).name_of(certified)


def test_a_name_of_as_many_bytes_as_are_allowed() -> None:
    assert PrincipalMapping().name_of("CN=" + "é" * 126) == "CN=" + "é" * 126


@pytest.mark.parametrize(
    ("rules", "part"),
    [
        ("RULE:CN=(.*)/$1", "does not begin with RULE"),
        ("default", "does not begin with RULE"),
        ("RULE:a/b/X", "does not begin with RULE"),
        ("RULE:a/b/ RULE:c/d/", "does not begin with RULE"),
        ("RULE:CN=(/$1/", "is no expression of RE2"),
        (r"RULE:(a)\1/$1/", "is no expression of RE2"),
    ],
)
def test_rules_that_cannot_be_read(rules: str, part: str) -> None:
    with pytest.raises(MappingRuleError, match=part):
        PrincipalMapping(rules)


def test_a_pattern_that_would_take_java_years_takes_no_time() -> None:
    with pytest.raises(NoPrincipalError):
        PrincipalMapping("RULE:(a+)+b/$1/").name_of("a" * 200)
