"""Each command's help, or its group's, has an example of it, and each example is a command line that is taken."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from tpc_broker.cli.main import main as tpc
from tpc_broker.process.main import main as tpc_broker

PROGRAMS = {"tpc": tpc, "tpc-broker": tpc_broker}


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from commands(f"{path} {name}", each)


EVERY = {path: command for name, main in PROGRAMS.items() for path, command in commands(name, main)}


def examples(path: str) -> list[str]:
    """Command lines in a command's help: from the program's name on, without remarks, other programs, redirection."""
    text = EVERY[path].get_help(click.Context(EVERY[path], info_name=path, terminal_width=400, max_content_width=400))
    lines = [line.partition("Usage: ")[0].strip() for line in re.sub(r" \\\n *", " ", text).splitlines()]
    found = [re.search(r"(?:^|[|:] )(tpc(?:-broker)? .*)", line) for line in lines]
    return [re.split(r"  +| [|<>] ", one[1])[0] for one in found if one]


LEAVES = [path for path, command in EVERY.items() if not isinstance(command, click.Group)]


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_has_an_example(path: str) -> None:
    group = path.rpartition(" ")[0]
    assert any(line == path or line.startswith(f"{path} ") for line in examples(path) + examples(group)), path


ALL_EXAMPLES = sorted({line for path in EVERY for line in examples(path)})


@pytest.mark.parametrize("line", ALL_EXAMPLES)
def test_an_example_is_taken(line: str) -> None:
    """By the parser of options, and with a value for each argument; what they may be is the command's own affair."""
    program, *words = shlex.split(line)
    command: click.Command = PROGRAMS[program]
    context = click.Context(command, info_name=program)
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
        context = click.Context(command, parent=context)
    values, left, _order = command.make_parser(context).parse_args(list(words))
    assert left == []
    assert not isinstance(command, click.Group) or command.invoke_without_command, line
    missing = [
        one.name for one in command.params
        if one.required and values.get(one.name or "") in (None, ()) and one.get_default(context) is None
    ]  # fmt: skip
    assert missing == [], line


def test_there_are_examples() -> None:
    assert len(ALL_EXAMPLES) > len(LEAVES)
