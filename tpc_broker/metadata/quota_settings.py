"""Over which time quotas are counted."""

from __future__ import annotations

from dataclasses import dataclass

from tpc_broker.metadata.config_types import ConfigType, setting
from tpc_broker.metadata.ssl_settings import SslSettings

QUOTA_WINDOWS_MAX = 32
"""A client's windows are kept in memory that has a place for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings(SslSettings):
    """Kafka's."""

    quota_window_num: int = setting(
        "quota.window.num",
        ConfigType.INT,
        11,
        "Windows over which what a client uses is counted, the one under way included.",
        minimum=1,
        maximum=QUOTA_WINDOWS_MAX,
    )
    quota_window_size_seconds: int = setting(
        "quota.window.size.seconds", ConfigType.INT, 1, "Length of each of them.", minimum=1, maximum=3600
    )
    controller_quota_window_num: int = setting(
        "controller.quota.window.num",
        ConfigType.INT,
        11,
        "Windows whose changes of topics a client may make at once, when it has made none for as long.",
        minimum=1,
    )
    controller_quota_window_size_seconds: int = setting(
        "controller.quota.window.size.seconds", ConfigType.INT, 1, "Length of each of them.", minimum=1
    )
