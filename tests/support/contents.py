"""Bytes for payloads and files: they do not compress, and are the same in each run."""

from random import Random


def content(size: int) -> bytes:
    return Random(size).randbytes(size)
