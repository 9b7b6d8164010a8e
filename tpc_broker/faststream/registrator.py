"""``subscriber`` and ``publisher``, of brokers and routers alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection

from tpc_broker.client.values import Record
from tpc_broker.faststream.batches import TpcBatchSubscriber
from tpc_broker.faststream.config import (
    Order,
    ReadOptions,
    TpcBrokerConfig,
    TpcPublisherConfig,
    TpcPublisherSpecificationConfig,
    TpcSubscriberConfig,
    TpcSubscriberSpecificationConfig,
)
from tpc_broker.faststream.publisher import TpcPublisher, TpcPublisherSpecification
from tpc_broker.faststream.subscriber import TpcSubscriber, TpcSubscriberSpecification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fast_depends.dependencies import Dependant
    from faststream import AckPolicy
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable

    from tpc_broker.client.consumer.starts import StartLike
    from tpc_broker.client.membership.settings import GroupSettings


BATCH_RECORDS: Final = 500


class TpcRegistrator(Registrator[Record, TpcBrokerConfig]):
    def subscriber(  # type: ignore[override,unused-ignore]  # noqa: PLR0913  (each is a setting of its own)
        self,
        *topics: str,
        group: str | GroupSettings | None = None,
        start: StartLike = "earliest",
        concurrency: int = 1,
        order: Order = "key",
        retries: int | None = None,
        retry_seconds: float = 0.5,
        dead_letter: str | None = None,
        batch: bool = False,
        max_records: int = BATCH_RECORDS,
        read: ReadOptions | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> TpcSubscriber:
        """A handler of topics' records: ``@broker.subscriber("orders", group="billing")``.

        ``group``: partitions are divided among its members, and what is finished is committed; without one all
        partitions are read from ``start`` on ("earliest", "latest", an `Offset`, a datetime, ms since 1970), which is
        also where a group begins that has committed nothing.

        ``concurrency``: so many records are handled at once, of one key one after the other (``order="key"``), or of
        one partition, or in no order ("none").

        A record that is nacked is handled again after ``retry_seconds``, which double each time up to a minute;
        ``retries`` times at most (None: until it is not), and then goes to ``dead_letter``, as one that is rejected
        does. Without ``dead_letter`` a rejected record is finished. With ``batch`` the handler gets a list, of up to
        ``max_records`` that are there of one partition, and all of this holds for them as a whole; ``concurrency`` is
        of how many partitions at once, and ``order`` that of each. ``ack_policy``: what an exception means, and when
        a record is finished (`tpc_broker.faststream`). ``read``: further options of `Client.read`.

        `ValueError`: there is no topic, or ``retries`` without ``dead_letter``. The other parameters are FastStream's.
        """
        calls, outer = CallsCollection[Any](), cast("TpcBrokerConfig", self.config)
        made = (TpcBatchSubscriber if batch else TpcSubscriber)(
            TpcSubscriberConfig(
                topics=topics, group=group, start=start, concurrency=concurrency, order=order, retries=retries,
                retry_seconds=retry_seconds, dead_letter=dead_letter, max_records=max_records, read=read or {},
                no_reply=no_reply, _outer_config=outer, _ack_policy=ack_policy,
            ),
            TpcSubscriberSpecification(
                outer,
                TpcSubscriberSpecificationConfig(
                    topics=topics, title_=title, description_=description, include_in_schema=include_in_schema
                ),
                calls,
            ),
            calls,
        )  # fmt: skip
        super().subscriber(made, persistent=persistent)
        made.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, codec_=codec, dependencies_=dependencies
        )
        return made

    def publisher(  # type: ignore[override,unused-ignore]  # noqa: PLR0913  (each is a setting of its own)
        self,
        topic: str,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> TpcPublisher:
        """What a handler returns is sent to ``topic``: ``@broker.publisher("invoices")`` over the handler. Also an
        object with ``publish``. `TpcResponse` says more than a body: its own key, headers, time stamp.
        """
        outer = cast("TpcBrokerConfig", self.config)  # it composes those of a broker and its routers
        made = TpcPublisher(
            TpcPublisherConfig(
                topic=topic, key=key, partition=partition, headers=headers or {}, reply_to=reply_to,
                _outer_config=outer,
            ),
            TpcPublisherSpecification(
                _outer_config=outer,
                specification_config=TpcPublisherSpecificationConfig(
                    topic=topic, schema_=schema, title_=title, description_=description,
                    include_in_schema=include_in_schema,
                ),
            ),
        )  # fmt: skip
        super().publisher(made, persistent=persistent)
        return made
