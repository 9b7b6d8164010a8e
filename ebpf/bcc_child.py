"""Compile and load the program by bcc, in a process of its own: `python bcc_child.py SOCKET_FD SOURCE NAME=FD…`.

bcc brings all of LLVM with it, and is installed for the system's Python only: the supervisor shall have neither. Maps
come as descriptors; the program's goes back over the Unix socket. What went wrong is the last line on standard error.
"""

import os
import socket
import sys
from pathlib import Path

SK_REUSEPORT = 21  # bcc's Python knows no name for this type


def main() -> None:
    from bcc import BPF  # noqa: PLC0415 (an installation without it says so in one line)

    reply_fd, source, *maps = sys.argv[1:]
    flags = [f"-D{name}_FD={descriptor}" for name, _equals, descriptor in (each.partition("=") for each in maps)]
    flags += ["-DSTEER_BCC", "-Wno-macro-redefined"]
    made = BPF(text=Path(source).read_text(encoding="utf-8"), cflags=flags)
    program = made.load_func("steer", SK_REUSEPORT)
    with socket.socket(fileno=int(reply_fd)) as reply:
        socket.send_fds(reply, [b"\0"], [program.fd])


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.stderr.write(f"\n{type(error).__name__}: {str(error) or 'no reason'}\n")
        os._exit(1)
