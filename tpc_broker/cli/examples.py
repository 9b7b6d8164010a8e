"""Examples at the end of commands' help. Those that need more words have them in their own docstrings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

Examples = dict[str, tuple[str, ...]]
"""By command, such as `topic create`; what stands behind two blanks is a remark."""

TPC: Final[Examples] = {
    "topic create": (
        "tpc topic create orders --partitions 6 --replication-factor 3",
        "tpc topic create logs --config retention.ms=86400000 --config max.message.bytes=2000000",
    ),
    "topic list": ("tpc topic list --internal",),
    "topic describe": ("tpc topic describe orders --json",),
    "topic delete": ("tpc topic delete orders",),
    "topic alter": (
        "tpc topic alter orders --partitions 12",
        "tpc topic alter orders --config retention.ms=86400000 --unset segment.bytes --dry-run",
    ),
    "group list": ("tpc group list --state Stable",),
    "group describe": (
        "tpc group describe readers              committed offsets, log ends, lag",
        "tpc group describe readers --members    who is assigned what",
        "tpc group describe --all --watch        again and again, until Ctrl-C",
    ),
    "group delete": ("tpc group delete readers",),
    "acl list": (
        "tpc acl list                                 all rules",
        "tpc acl list --topic orders --pattern match  whatever covers that topic",
    ),
    "acl add": (
        "tpc acl add --allow-principal User:alice --consumer --topic orders --group billing",
        "tpc acl add --allow-principal User:shop --producer --topic shop. --pattern prefixed",
        "tpc acl add --deny-principal User:* --operation DELETE --topic orders",
    ),
    "acl remove": (
        "tpc acl remove --allow-principal User:alice --operation READ --topic orders",
        "tpc acl remove --topic orders --yes          all rules on just that name",
    ),
    "user list": ("tpc user list",),
    "user add": (
        "tpc user add alice                             asks for the password",
        "tpc user add alice --password-file alice.txt",
    ),
    "user password": ("tpc user password alice",),
    "user delete": ("tpc user delete alice", "tpc user delete alice --mechanism SCRAM-SHA-256"),
    "quota list": ("tpc quota list", "tpc quota list --user alice"),
    "quota set": (
        "tpc quota set --user alice producer_byte_rate=1000000 consumer_byte_rate=2000000",
        "tpc quota set --any-user --any-client-id request_percentage=50",
        "tpc quota set --any-ip connection_creation_rate=20",
    ),
    "quota remove": ("tpc quota remove --user alice consumer_byte_rate", "tpc quota remove --user alice"),
    "info": ("tpc info --bootstrap broker.example:9092", "tpc info --apis"),
    "cluster": ("tpc cluster --json",),
    "cluster start": ("tpc cluster start --nodes 3 --data ./cluster",),
    "cluster moves list": ("tpc cluster moves list --json",),
    "cluster moves pause": ("tpc cluster moves pause",),
    "cluster moves resume": ("tpc cluster moves resume",),
    "cluster moves cancel": ("tpc cluster moves cancel orders-0 orders-1", "tpc cluster moves cancel --all"),
    "cluster level": (
        "tpc cluster level              where the cluster is, and what its nodes speak",
        "tpc cluster level --raise 7    after an upgrade of all nodes; there is no way back",
    ),
    "partition place": ("tpc partition place orders-0 orders-1 --nodes 2,3,1",),
    "partition elect": ("tpc partition elect orders-0", "tpc partition elect --all"),
    "partition sizes": ("tpc partition sizes orders",),
    "topic offsets": ("tpc topic offsets orders", "tpc topic offsets orders --at 2026-11-21T08:00:00Z"),
    "partition move": ("tpc partition move orders-0 orders-1 --core 1",),
    "partition balance": ("tpc partition balance --dry-run", "tpc partition balance"),
    "partition moves": ("tpc partition moves --json",),
    "profile list": ("tpc profile list --json",),
    "profile remove": ("tpc profile remove prod",),
    "bench spark": ("tpc bench spark --part read --rows 1000000",),
    "bench": ("tpc bench --minutes 10 --output results",),
}
_SECURED: Final = "--cluster-secret cluster.key"
TPC_BROKER: Final[Examples] = {
    "serve": (
        "tpc-broker serve --data /var/lib/tpc-broker --config broker.properties --admin 9644",
        "tpc-broker serve --listen 0.0.0.0:9092 --advertise broker.example:9092 --cores 4",
        "tpc-broker serve --cluster 10.0.0.1:9192 --seeds 10.0.0.1:9192,10.0.0.2:9192 --node-id 1 " + _SECURED,
    ),
    "doctor": ("tpc-broker doctor --data /var/lib/tpc-broker",),
    "check-config": (
        "tpc-broker check-config --config broker.properties --cores 4",
        "tpc-broker check-config --cluster 10.0.0.1:9192 --seeds 10.0.0.1:9192,10.0.0.2:9192 --node-id 1 " + _SECURED,
    ),
    "status": (
        "tpc-broker status --data /var/lib/tpc-broker",
        "tpc-broker status --data /var/lib/tpc-broker --watch --interval 1",
    ),
    "steering": ("tpc-broker steering --data /var/lib/tpc-broker",),
    "repair": (
        "tpc-broker repair --data /var/lib/tpc-broker                        what is offline, and why",
        "tpc-broker repair --data /var/lib/tpc-broker --partition orders-0   what could be brought back",
        "tpc-broker repair --data /var/lib/tpc-broker --all --apply          does it where nothing is lost",
    ),
    "user add": (
        "tpc-broker user add admin --data /var/lib/tpc-broker                             asks for the password",
        "tpc-broker user add admin --data /var/lib/tpc-broker --password-file admin.txt",
    ),
    "scrub": ("tpc-broker scrub --data /var/lib/tpc-broker --rate 50M",),
    "backup": ("tpc-broker backup /backup/monday --data /var/lib/tpc-broker",),
    "restore": ("tpc-broker restore /backup/monday --data /var/lib/restored",),
    "dump": ("tpc-broker dump /var/lib/tpc-broker/topics/orders-0/00000000000000000000.log --records",),
    "bundle": ("tpc-broker bundle --data /var/lib/tpc-broker --config broker.properties --out bundle.tar.gz",),
}


def add_examples(main: click.Group, examples: Mapping[str, tuple[str, ...]]) -> None:
    for path, lines in examples.items():
        command: click.Command = main
        for name in path.split():
            assert isinstance(command, click.Group), path
            command = command.commands[name]
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
