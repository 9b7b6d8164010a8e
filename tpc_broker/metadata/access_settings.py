"""Settings of who may do what, by Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.auth.principals import USER, Principal
from tpc_broker.metadata.config_types import ConfigType, setting
from tpc_broker.metadata.group_config import GroupSettings

if TYPE_CHECKING:
    from tpc_broker.metadata.config_types import ConfigDefinition, ConfigValue

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _check_authorizer(definition: ConfigDefinition, value: ConfigValue) -> None:
    if value not in ("", STANDARD_AUTHORIZER):
        raise definition.refusal(value, f"There is one, which is built in: {STANDARD_AUTHORIZER}; or nothing, for none")


def _check_super_users(definition: ConfigDefinition, value: ConfigValue) -> None:
    for part in _parts(str(value)):
        principal = Principal.parsed(part)
        if principal is None or principal.kind != USER or not principal.is_whole:
            raise definition.refusal(part, "Expected User:NAME;User:NAME, each name exactly as it logs in")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings(GroupSettings):
    """Without an authorizer everybody may do everything."""

    authorizer_class_name: str = setting(
        "authorizer.class.name",
        ConfigType.STRING,
        "",
        f"`{STANDARD_AUTHORIZER}`: rules of access decide (`tpc acl`). Empty: everybody may do everything.",
        check=_check_authorizer,
    )
    super_users: str = setting(
        "super.users",
        ConfigType.STRING,
        "",
        "Who may do everything whatever the rules say, as User:NAME;User:NAME. With an authorizer.",
        check=_check_super_users,
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        default=False,
        doc="Whether everybody may do everything with what no rule is on. With an authorizer.",
    )

    @property
    def has_authorizer(self) -> bool:
        return bool(self.authorizer_class_name)

    @property
    def super_principals(self) -> frozenset[Principal]:
        return frozenset(filter(None, map(Principal.parsed, _parts(self.super_users))))
