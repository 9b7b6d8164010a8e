"""Passwords for commands: asked for on the terminal, or read from a file; never on the command line, where others see
them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

PASSWORD_BYTES_MAX: Final = 1024
STANDARD_INPUT: Final = "-"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class PasswordError(Exception):
    """There is none, or none that can be used; the text does not hold it."""


def password_option(command: _Command) -> _Command:
    return click.option(
        "--password-file", default=None, metavar="FILE",
        help="Its one line is the password; - is standard input. Default: it is asked for on the terminal.",
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
