"""The errors of the wire codec: one family, so that a connection handler catches one name.

`DecodeError` is the peer's fault and closes the connection; `EncodeError` is ours or a caller's; an
`UnsupportedVersionError` is answered with Kafka's error 35 where the protocol allows an answer.
"""


class CodecError(ValueError):
    """What every error of this package is."""


class UnsupportedVersionError(CodecError):
    """There is no such message, or the message has no such version."""


class _MessageError(CodecError):
    def __init__(self, reason: str, message: str = "", version: int = -1, path: str = "", position: int = -1) -> None:
        where = f"{message} v{version}" if message else ""
        if path:
            where += f", {path}" if where else path
        if position >= 0:
            where += f", byte {position}" if where else f"byte {position}"
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.message = message
        self.version = version
        self.path = path
        self.position = position


class DecodeError(_MessageError):
    """The bytes are not what they claim to be. ``position`` is the byte where reading stopped, -1 if unknown."""


class EncodeError(_MessageError):
    """The message cannot be written: out of range, null where it is not allowed, or a version without the field."""


class Refused(CodecError):  # noqa: N818 - internal signal, turned into one of the above with its place
    """Raised inside generated code; carries only the reason."""
