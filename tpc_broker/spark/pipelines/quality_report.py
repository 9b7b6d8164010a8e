"""The answers of `quality` as one HTML file with its pictures inside."""

import base64
import datetime as dt
import html
import io
from collections.abc import Callable, Iterable
from typing import Any, Final

from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.quality import PartitionQuality, QualityResult

HEADINGS: Final = (
    "topic", "partition", "records", "MB", "offsets", "missing", "gaps", "doubled", "repeated", "null keys",
    "tombstones", "late", "most late", "first", "last",
)  # fmt: skip
_ALARMING: Final = ("missing", "gaps", "doubled", "repeated", "late")
_SERIES_MAX: Final = 12
_SERIES_COLOURS: Final = (
    "#1f4e79", "#3b6ea5", "#6c9bc9", "#a9c7e5", "#1b6b5c", "#3d9482", "#77bcae", "#b5ddd4", "#7a4b12", "#b07a32",
    "#d6a863", "#eed3a6",
)  # fmt: skip
_STYLE: Final = """
    body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 1280px; margin: 2rem auto; padding: 0 1rem }
    h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } p.small { color: #5b6775; font-size: .85rem }
    table { border-collapse: collapse; font-size: .8rem } th { text-align: right; color: #5b6775; font-weight: 600 }
    th, td { padding: .25rem .4rem; border-bottom: 1px solid #e3e8ee; vertical-align: bottom }
    td { white-space: nowrap } td:nth-last-child(-n+2) { white-space: normal; min-width: 5rem }
    td { text-align: right; font-variant-numeric: tabular-nums } td:first-child, th:first-child { text-align: left }
    td.alarm { color: #b3261e; font-weight: 600 } div.wide { overflow-x: auto } img { max-width: 100%; height: auto }
"""


def table_rows(result: QualityResult) -> list[tuple[str, ...]]:
    """One row a partition, cells under `HEADINGS`."""
    return [_cells(row) for row in result.partitions]


def _cells(row: PartitionQuality) -> tuple[str, ...]:
    return (
        row.topic, str(row.partition), f"{row.records:,}", f"{row.size_bytes / 1e6:,.1f}",
        f"{row.first_offset}..{row.last_offset}", f"{row.missing:,}", f"{row.gaps:,}", f"{row.doubled:,}",
        f"{row.repeated:,}", f"{row.null_keys:,}", f"{row.tombstones:,}", f"{row.late:,}", _duration(row.latest_ms),
        _time(row.first_time_ms), _time(row.last_time_ms),
    )  # fmt: skip


def to_html(result: QualityResult, source: str) -> str:
    """The whole report. `PipelineError` where matplotlib is missing."""
    records = sum(row.records for row in result.partitions)
    facts = f"{records:,} records in {len(result.partitions)} partitions of {source}"
    made = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    pictures = "".join(f"<h2>{html.escape(title)}</h2>\n{_image(draw)}\n" for title, draw in _pictures(result))
    return (
        f"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>Quality of {html.escape(source)}</title>"
        f"<style>{_STYLE}</style></head><body>\n<h1>Quality of {html.escape(source)}</h1>\n"
        f"<p>{html.escape(facts)}; made {made}.</p>\n<div class='wide'>{_table(result)}</div>\n"
        "<p class='small'>missing: offsets between the first and the last that are not there (compaction and the "
        "markers of transactions leave some too); doubled: the same offset twice; repeated: key, value and time as in "
        f"an earlier record; late: more than {result.late_seconds:g} s older than a record before it.</p>\n"
        f"{pictures}</body></html>\n"
    )


def _table(result: QualityResult) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in HEADINGS)
    body = "".join(
        "<tr>" + "".join(_cell(name, text) for name, text in zip(HEADINGS, cells, strict=True)) + "</tr>\n"
        for cells in table_rows(result)
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _cell(name: str, text: str) -> str:
    alarm = " class='alarm'" if name in _ALARMING and text != "0" else ""
    return f"<td{alarm}>{html.escape(text)}</td>"


def _pictures(result: QualityResult) -> Iterable[tuple[str, Callable[[Any], None]]]:
    if not result.partitions:
        return
    yield "Records over time", lambda axes: _over_time(axes, result)
    if any(row.late for row in result.partitions):
        yield "Late records over time", lambda axes: _late_over_time(axes, result)
        yield "How late", lambda axes: _by_power(axes, result.by_lateness, "older than a record before by up to", "s")
    yield "Records by partition", lambda axes: _by_partition(axes, result)
    yield "Sizes", lambda axes: _by_power(axes, result.by_size, "key and value together, up to", "bytes")


def _image(draw: Callable[[Any], None]) -> str:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only the report needs it
    except ModuleNotFoundError as error:
        raise PipelineError(f"{error}; the report needs the extra: pip install 'tpc-broker[spark]'") from None
    figure = Figure(figsize=(10.5, 3.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e8ee")
    axes.set_axisbelow(True)
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return f"<img alt='' src='data:image/png;base64,{base64.b64encode(target.getvalue()).decode()}'>"


def _over_time(axes: Any, result: QualityResult) -> None:
    """Stacked by partition; where there are too many, by topic."""
    times = sorted({row[0] for row in result.by_time})
    place = {begin: number for number, begin in enumerate(times)}
    by_partition = len(result.partitions) <= _SERIES_MAX
    series: dict[str, list[int]] = {}
    for begin, topic, partition, records, _late in result.by_time:
        name = f"{topic}-{partition}" if by_partition else topic
        series.setdefault(name, [0] * len(times))[place[begin]] += records
    bottom = [0] * len(times)
    for number, (name, counts) in enumerate(sorted(series.items())):
        colour = _SERIES_COLOURS[number % len(_SERIES_COLOURS)]
        axes.bar(_instants(times), counts, bottom=bottom, width=_width(result), align="edge", color=colour, label=name)
        bottom = [below + count for below, count in zip(bottom, counts, strict=True)]
    _label_times(axes)
    axes.set_ylabel(f"records per {_duration(result.bucket_ms)}")
    axes.legend(fontsize="small", reverse=True, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _late_over_time(axes: Any, result: QualityResult) -> None:
    late: dict[int, int] = {}
    for begin, _topic, _partition, _records, count in result.by_time:
        late[begin] = late.get(begin, 0) + count
    times = sorted(late)
    axes.bar(_instants(times), [late[begin] for begin in times], width=_width(result), align="edge", color="#b3261e")
    _label_times(axes)
    axes.set_ylabel(f"late per {_duration(result.bucket_ms)}")


def _by_partition(axes: Any, result: QualityResult) -> None:
    names = [f"{row.topic}-{row.partition}" for row in result.partitions]
    axes.bar(range(len(names)), [row.records for row in result.partitions], color="#3b6ea5")
    if len(names) <= 2 * _SERIES_MAX:
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize="small")
    axes.set_ylabel("records")


def _by_power(axes: Any, counts: Iterable[tuple[int, int]], what: str, unit: str) -> None:
    known = dict(counts)
    powers = range(min(known), max(known) + 1)
    axes.bar(range(len(powers)), [known.get(power, 0) for power in powers], color="#3b6ea5")
    axes.set_xticks(range(len(powers)), [f"{2**power:,}" for power in powers], fontsize="small")
    axes.set_xlabel(f"{what} … {unit}")
    axes.set_ylabel("records")


def _label_times(axes: Any) -> None:
    """A day where it begins, else hours and minutes."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415 - only the report needs it

    locator = AutoDateLocator(tz=dt.UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=dt.UTC))  # type: ignore[no-untyped-call]


def _instants(times_ms: list[int]) -> list[dt.datetime]:
    return [dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC) for time_ms in times_ms]


def _width(result: QualityResult) -> dt.timedelta:
    return dt.timedelta(milliseconds=result.bucket_ms)


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return ""
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _duration(ms: int | None) -> str:
    if not ms:
        return "0 s"
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
