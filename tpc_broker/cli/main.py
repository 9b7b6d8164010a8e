"""``tpc``: topics, produce, consume, bench, pipelines."""

from __future__ import annotations

import sys

import click

from tpc_broker import __version__
from tpc_broker.cli.acls import acl
from tpc_broker.cli.bench import bench
from tpc_broker.cli.cluster import cluster
from tpc_broker.cli.completion import completion
from tpc_broker.cli.configs import config
from tpc_broker.cli.connection import CommandGroup
from tpc_broker.cli.consume import consume
from tpc_broker.cli.examples import TPC, add_examples
from tpc_broker.cli.groups import group
from tpc_broker.cli.info import info
from tpc_broker.cli.nodes import node
from tpc_broker.cli.partitions import partition
from tpc_broker.cli.pipeline import pipeline
from tpc_broker.cli.produce import produce
from tpc_broker.cli.profiles import profile
from tpc_broker.cli.quotas import quota
from tpc_broker.cli.send import send
from tpc_broker.cli.topics import topic
from tpc_broker.cli.transactions import txn
from tpc_broker.cli.users import user


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpc")
def main() -> None:
    """Client and administration of tpc-broker, and of any other broker that speaks the Kafka protocol."""


main.add_command(topic)
main.add_command(group)
main.add_command(txn)
main.add_command(acl)
main.add_command(partition)
main.add_command(config)
main.add_command(user)
main.add_command(quota)
main.add_command(info)
main.add_command(cluster)
main.add_command(node)
main.add_command(profile)
main.add_command(completion)
main.add_command(produce)
main.add_command(send)
main.add_command(consume)
main.add_command(bench)
main.add_command(pipeline)
add_examples(main, TPC)

if __name__ == "__main__":
    sys.exit(main())
