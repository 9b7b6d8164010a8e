"""``tpc``: topics, produce, consume, bench, pipelines."""

from __future__ import annotations

import sys

import click

from tpc_broker import __version__
from tpc_broker.cli.bench import bench
from tpc_broker.cli.consume import consume
from tpc_broker.cli.pipeline import pipeline
from tpc_broker.cli.produce import produce
from tpc_broker.cli.topics import topic


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpc")
def main() -> None:
    """Client and administration of tpc-broker, and of any other broker that speaks the Kafka protocol."""


main.add_command(topic)
main.add_command(produce)
main.add_command(consume)
main.add_command(bench)
main.add_command(pipeline)

if __name__ == "__main__":
    sys.exit(main())
