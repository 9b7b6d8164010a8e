"""Makes the manual pages from the commands' own help: ``.venv/bin/python tools/generate_manual.py``.

One page a program, with a section for each command: `man tpc` is searched as one text. Options that most commands have
stand once at the end. `tests/tidy/test_manual.py` compares what is committed with what this makes; the pages are
installed with the package (`share/man/man1`).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from tpc_broker import __version__
from tpc_broker.cli.main import main as tpc
from tpc_broker.process.main import main as tpc_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = Path(__file__).parent.parent / "packaging" / "man"
SHARED_MIN: Final = 8
"""Commands that have an option, for it to stand at the end."""
AS_IT_IS: Final = "\b"
"""Begins a paragraph whose lines click leaves as they are."""

TPC_EXITS: Final = (
    ("0", "done"),
    ("1", "the broker refused it, or something failed here"),
    ("2", "the command line is wrong; nothing was asked of the broker"),
    ("3", "no broker answers, or not in time"),
    ("4", "the topic, partition or group is not there"),
    ("5", "not in this state: the group has members, the topic exists already"),
    ("6", "not let in: certificate, password or authorization"),
    ("130", "interrupted"),
)
BROKER_EXITS: Final = (
    ("0", "done; of serve: drained after SIGTERM"),
    ("1", "something failed, or scrub found damage"),
    ("2", "a wrong command line or configuration, or a host where it cannot run; one line says why"),
    ("130", "interrupted"),
)


class Program(NamedTuple):
    name: str
    command: click.Group
    summary: str
    exits: tuple[tuple[str, str], ...]
    other: str


PROGRAMS: Final = (
    Program("tpc", tpc, "client and administration of tpc-broker and other Kafka brokers", TPC_EXITS, "tpc-broker"),
    Program("tpc-broker", tpc_broker, "a durable message broker that speaks the Kafka protocol", BROKER_EXITS, "tpc"),
)


def escaped(text: str) -> str:
    """As roff takes for text: no line begins a request."""
    found = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    return re.sub(r"^(?=[.'])", r"\\&", found, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    """Of a docstring or an epilogue; those that are examples keep their lines."""
    for paragraph in re.split(r"\n[ \t]*\n", text.replace(f"{AS_IT_IS}\n", f"\n\n{AS_IT_IS}").strip("\n")):
        if not paragraph.strip(f" \n{AS_IT_IS}"):
            continue
        if paragraph.lstrip().startswith(AS_IT_IS):
            yield f".PP\n.nf\n{escaped(paragraph.replace(AS_IT_IS, '').strip(chr(10)))}\n.fi\n"
        else:
            yield f".PP\n{escaped(' '.join(paragraph.split()))}\n"


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """In the order of the alphabet, a group before its own."""
    yield path, command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from commands(f"{path} {name}", command.commands[name])


def records(path: str, command: click.Command) -> list[tuple[str, str]]:
    """What each option is called and what it means."""
    context = click.Context(command, info_name=path)
    found = [one.get_help_record(context) for one in command.get_params(context) if isinstance(one, click.Option)]
    return [record for record in found if record is not None]


def option(record: tuple[str, str]) -> str:
    names, meaning = record
    return f".TP\n.B {escaped(names)}\n{escaped(' '.join(meaning.split()))}\n"


def section(path: str, command: click.Command, shared: set[tuple[str, str]]) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    text = [f".SS {escaped(path)} {escaped(usage)}\n"]
    text += paragraphs((command.help or "").replace("\f", ""))
    text += [option(record) for record in records(path, command) if record not in shared]
    text += paragraphs(command.epilog or "")
    return "".join(text)


def page(program: Program) -> str:
    every = dict(commands(program.name, program.command))
    counted = Counter(record for path, command in every.items() for record in records(path, command))
    shared = {record for record, count in counted.items() if count >= SHARED_MIN}
    text = [
        '.\\" Made by tools/generate_manual.py: change what it is made from.\n',
        f'.TH {program.name.upper()} 1 "" "tpc\\-broker {__version__}" "tpc\\-broker"\n',
        f".SH NAME\n{escaped(program.name)} \\- {escaped(program.summary)}\n",
        f".SH SYNOPSIS\n.B {escaped(program.name)}\n.I COMMAND\n[OPTIONS] [ARGUMENTS]\n.SH DESCRIPTION\n",
        *paragraphs(program.command.help or ""),
        *(option(record) for record in records(program.name, program.command) if record not in shared),
        ".SH COMMANDS\n",
        *(section(path, command, shared) for path, command in every.items() if path != program.name),
        ".SH OPTIONS OF MOST COMMANDS\n",
        *(option(record) for record in counted if record in shared),
        ".SH EXIT STATUS\n",
        *(f".TP\n.B {code}\n{escaped(meaning)}\n" for code, meaning in program.exits),
        f".SH SEE ALSO\n.BR {escaped(program.other)} (1)\n",
    ]
    return "".join(text)


def manual() -> dict[Path, str]:
    return {FOLDER / f"{program.name}.1": page(program) for program in PROGRAMS}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in manual().items():
        path.write_text(text, encoding="utf-8")
