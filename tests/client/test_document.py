"""The programs of docs/client.md run, on both loops, and print what stands below them."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import anyio
import pytest

from tests.support.both_loops import on_loops_in_turn
from tests.support.schema_registry import fake_registry
from tests.support.tls_proxy import Proxy, server_context
from tpc_broker.client import Client, GroupSettings, connect
from tpc_broker.client.codecs import Registry

PAGE: Final = Path(__file__).parents[2] / "docs" / "client.md"
TOPICS: Final = ("orders", "events", "jobs", "jobs.dead", "invoices", "readings", "temperatures", "quiet")
GROUPS: Final = ("billing", "workers", "biller", "biller-1", "charts")
NUMBERS: Final = itertools.count()


class Example(NamedTuple):
    title: str
    code: str
    line: int
    printed: str | None
    """None: what it prints is not told."""


def examples() -> Iterator[Example]:
    text = PAGE.read_text()
    for found in re.finditer(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL):
        title = re.findall(r"^## (.*)", text[: found.start()], re.MULTILINE)[-1]
        yield Example(title, found[1], text[: found.start(1)].count("\n"), found[2])


EXAMPLES: Final = list(examples())


def in_its_own_words(text: str, names: tuple[str, ...], suffix: str, form: str) -> str:
    """With topics and groups of this run's own."""
    for name in names:
        text = re.sub(form.format(re.escape(name)), rf"\g<1>{name}{suffix}\g<2>", text)
    return text


@asynccontextmanager
async def surroundings(example: Example, suffix: str, broker: Any, certificates: Path) -> AsyncIterator[str]:
    """What the program expects to be there, and the program with the addresses of that."""
    code = in_its_own_words(example.code, TOPICS + GROUPS, suffix, '("){}(")')
    with ExitStack() as stack:
        address = broker.bootstrap
        if "TlsSettings" in code:
            proxy = Proxy(server_context(certificates), {"cashier": "a secret"})
            stack.callback(proxy.close)
            proxy.connect_to(*broker.bootstrap.split(":"))
            address = proxy.address
        if "Registry(" in code:
            registry = stack.enter_context(fake_registry())
            code = code.replace("http://localhost:8081", registry.address)
        async with connect(broker.bootstrap) as client:
            for name in TOPICS:
                if f'"{name}{suffix}"' in code and f'topics.create("{name}' not in code:
                    await client.admin.topics.create(name + suffix, partitions=2)
        yield code.replace("localhost:9092", address)


def loaded(example: Example, code: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[[], Any], list[str]]:
    """The program's `main`, and where what it prints comes."""
    assert code.endswith("\n\nanyio.run(main)\n"), f"{example.title}: it is no whole program"
    module, lines = ModuleType("example_of_the_page"), []
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(anyio, "run", lambda _main: None)
    module.__dict__["print"] = lambda *words: lines.append(" ".join(map(str, words)))
    exec(compile("\n" * example.line + code, str(PAGE), "exec"), module.__dict__)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__dict__["main"], lines


@on_loops_in_turn("example", EXAMPLES, ids=lambda example: f"{example.title} (line {example.line})")
async def test_the_programs_of_the_page(
    example: Example, shared_broker: Any, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = f"-of-page-{next(NUMBERS)}"
    async with surroundings(example, suffix, shared_broker, certificates) as code:
        main, lines = loaded(example, code, monkeypatch)
        monkeypatch.chdir(certificates)
        await main()
    if example.printed is not None:
        expected = in_its_own_words(example.printed, TOPICS, suffix, "(^|\n){}(-| )")
        assert "".join(f"{line}\n" for line in lines) == expected


def test_there_is_a_program_for_each_chapter() -> None:
    chapters = re.findall(r"^## (\d+\..*)", PAGE.read_text(), re.MULTILINE)
    assert len(chapters) >= 10
    assert {example.title for example in EXAMPLES} == set(chapters)


@pytest.mark.parametrize("of", [connect, Client.read, GroupSettings, Registry], ids=lambda of: of.__qualname__)
def test_the_tables_have_all_settings_and_their_defaults(of: Callable[..., Any]) -> None:
    title = {connect: "connect", Client.read: "client.read"}.get(of, of.__name__)
    chapter = PAGE.read_text().partition(f"\n### `{title}(")[2].partition("\n#")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", chapter, re.MULTILINE))
    given = {name: repr(each.default) for name, each in inspect.signature(of).parameters.items()}
    for first in ("self", "bootstrap", "topics", "group" if of is GroupSettings else "", "address"):
        given.pop(first, None)
    assert told == {name: default.replace("'", '"') for name, default in given.items()}
