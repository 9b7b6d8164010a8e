"""Kafka's error codes, which are part of the foundation, under the protocol's package."""

from tpc_broker.error_codes import ErrorCode

__all__ = ["ErrorCode"]
