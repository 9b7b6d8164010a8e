"""Who may do what: users that log in by SCRAM, rules of access, and quotas."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from tpc_broker.client import acls, quotas, users
from tpc_broker.client.acls import AclFilter
from tpc_broker.client.users import NewCredential

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Mapping

    from tpc_broker.client.acls import Acl
    from tpc_broker.client.admin.asking import Asker
    from tpc_broker.client.quotas import ClientQuota, Entity
    from tpc_broker.client.users import User

SALT_BYTES: Final = 24
ITERATIONS: Final = 8192
"""As many as Kafka takes are 4,096 to 16,384."""


class Users:
    """`client.admin.users`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def describe(self, *names: str) -> list[User]:
        """Those of these names that there are, or all; by name."""
        return await self._asker.any_broker(users.to_describe(names))

    async def set(
        self, name: str, password: str, *, mechanism: str = "SCRAM-SHA-512", iterations: int = ITERATIONS
    ) -> None:
        """Make a user, or another password of one. The password does not leave the client: it is hashed here, which
        takes some ms. ``iterations``: 4096 to 16384. `ValueError` for a mechanism there is not, `RefusedError`.
        """
        wanted = NewCredential(name, mechanism, password, secrets.token_bytes(SALT_BYTES), iterations)
        await self._asker.controller(users.to_set(wanted))

    async def delete(self, name: str, *, mechanisms: Iterable[str] = users.MECHANISMS) -> bool:
        """The user's passwords, those of these mechanisms. False: there was none."""
        found = [await self._asker.controller(users.to_delete(name, mechanism)) for mechanism in mechanisms]
        return any(found)


class Acls:
    """`client.admin.acls`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def list(self, wanted: AclFilter | None = None) -> builtins.list[Acl]:
        """The rules that are meant, or all; in order. `ValueError` for a word that is none of Kafka's."""
        return await self._asker.any_broker(acls.to_list(wanted or AclFilter()))

    async def add(self, *rules: Acl) -> None:
        """What is there already stays. `RefusedError` names the first that the broker does not take; others may be
        there.
        """
        await self._asker.controller(acls.to_add(rules))

    async def remove(self, *filters: AclFilter) -> builtins.list[Acl]:
        """Those that were there, in order."""
        return await self._asker.controller(acls.to_remove(filters))


class Quotas:
    """`client.admin.quotas`. An entity is types (`user`, `client-id`, `ip`) with names, None for whoever has no quota
    of its own.
    """

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def describe(self, entity: Entity | None = None) -> list[ClientQuota]:
        """Those that name all of these types with these names, and perhaps others too; without any, all there are."""
        return await self._asker.any_broker(quotas.to_describe(entity or {}))

    async def alter(self, entity: Entity, changes: Mapping[str, float | None], *, validate_only: bool = False) -> None:
        """Set, or where the value is None, remove; all of it or nothing. `quotas.QUOTAS` explains the names."""
        await self._asker.controller(quotas.to_alter(entity, changes, validate_only=validate_only))
