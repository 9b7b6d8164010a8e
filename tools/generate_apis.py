"""Makes `docs/apis.md` from the rows of the APIs: ``.venv/bin/python tools/generate_apis.py``.

`tests/tidy/test_api_rows.py` compares what is committed with what this makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpc_broker.broker.handlers.table import ROWS, offered_at
from tpc_broker.feature_levels import SPOKEN
from tpc_broker.kafka.api_keys import advertised_versions, api

if TYPE_CHECKING:
    from tpc_broker.broker.handlers.api_rows import ApiRow, Need
    from tpc_broker.kafka.api_keys import ApiKey

TARGET = Path(__file__).parent.parent / "docs" / "apis.md"
BEGINNING = """\
# The APIs that are answered

Made from `tpc_broker/broker/handlers/table.py` by `tools/generate_apis.py`: change the rows, then run it.

- *Core*: which one answers. On a listener that the cores share a request may come to any core, which sends it on, in
  parts where several answer. The controller's is core 0 of the node that leads the metadata.
- *Needs*: the operations on resources, of Kafka's ACLs, that a client must be allowed where there is an authorizer.
  Without one everybody is allowed everything.
- *Quota*: what a request uses up, as in Kafka; of those with one of their own the time counts, too.
- *First*: begun before the other requests of a turn, because a member's session ends when it is late.

| key | API | versions | core | needs | quota | first |
|---:|---|---|---|---|---|---|
"""


def page() -> str:
    return BEGINNING + "".join(_line(key, ROWS[key]) for key in offered_at(SPOKEN.highest))


def _line(key: ApiKey, row: ApiRow) -> str:
    first, last = advertised_versions(key)
    versions = str(last) if first == last else f"{first}-{last}"
    needs = "; ".join(map(_told, row.needs)) or f"nothing: {row.free_because}"
    is_first = "yes" if row.is_prompt else ""
    place, quota = row.place.served.value, row.throttle.value
    return f"| {key} | {api(key).name} | {versions} | {place} | {needs} | {quota} | {is_first} |\n"


def _told(need: Need) -> str:
    resource = need.resource.name.lower().replace("_", " ")
    return f"{need.operation.name} {resource}" + (f" ({need.when})" if need.when else "")


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
