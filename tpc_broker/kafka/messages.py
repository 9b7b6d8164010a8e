"""Every message class as an attribute: ``messages.MetadataResponse``, ``messages.OffsetCommitKey``, ….

Made on first use; nested structures are attributes of their message:
``messages.MetadataResponse.MetadataResponseTopic(name="a")``.
"""

from typing import Any

from .errors import UnsupportedVersionError
from .message import message_class


def __getattr__(name: str) -> Any:
    try:
        class_ = message_class(name)
    except UnsupportedVersionError as error:
        raise AttributeError(str(error)) from None
    globals()[name] = class_
    return class_
