"""Passwords of users, for commands: asked for on the terminal, or read from a file; never on the command line, where
others see them. And how they are kept, as the same options everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

PASSWORD_BYTES_MAX: Final = 1024
ITERATIONS_MIN, ITERATIONS, ITERATIONS_MAX = 4096, 8192, 16_384
"""The bounds are those of `auth.credentials`, which commands need not load; what is not given is twice the least."""
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
STANDARD_INPUT: Final = "-"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class PasswordError(Exception):
    """There is none, or none that can be used; the text does not hold it."""


def password_option(command: _Command) -> _Command:
    return click.option(
        "--password-file", default=None, metavar="FILE",
        help="Its one line is the password; - is standard input. Default: it is asked for on the terminal.",
    )(command)  # fmt: skip


def credential_options(command: _Command) -> _Command:
    """`mechanisms` and `iterations`."""
    return mechanism_option(
        click.option(
            "--iterations", type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS, show_default=True,
            metavar="N", help="How often the password is hashed: what each login costs, and each guess.",
        )(command)
    )  # fmt: skip


def mechanism_option(command: _Command) -> _Command:
    return click.option(
        "--mechanism", "mechanisms", multiple=True, type=click.Choice(list(MECHANISMS), case_sensitive=False),
        help="Only this one. Repeatable.",
    )(command)  # fmt: skip


def read_password(file: str | None, user: str) -> str:
    """The password of a user, as `password_option` says. PasswordError: there is none."""
    if file is None:
        if not sys.stdin.isatty():
            raise PasswordError("there is no terminal to ask for the password on: give --password-file FILE, or -")
        asked: str = click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
        return _checked(asked.encode())
    if file == STANDARD_INPUT:
        return _checked(sys.stdin.buffer.read(PASSWORD_BYTES_MAX + 3))
    try:
        with Path(file).open("rb") as opened:
            return _checked(opened.read(PASSWORD_BYTES_MAX + 3))
    except OSError as error:
        raise PasswordError(f"{file}: {error.strerror or error}") from None


def _checked(data: bytes) -> str:
    """One line end behind it is not part of it."""
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    try:
        password = line.decode()
    except UnicodeDecodeError:
        raise PasswordError("the password is not UTF-8") from None
    if not password:
        raise PasswordError("the password is empty")
    if len(line) > PASSWORD_BYTES_MAX:
        raise PasswordError(f"the password is longer than {PASSWORD_BYTES_MAX} bytes")
    if any(letter in password for letter in "\n\r\0"):
        raise PasswordError("the password has more than one line, or a NUL")
    return password
