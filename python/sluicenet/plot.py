"""Small plots of results; matplotlib comes with ``pip install 'sluicenet[plot]'``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from . import _native
from ._extras import need
from ._result import Result
from ._sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    # A label, times in picoseconds, values.
    _Course = tuple[str, Sequence[float], Sequence[float]]

_PS_PER_MS = 1e9
_FEW_POINTS = 8
"""Curves with fewer points show them."""
_DECADE = 10.0
_SHORT_AXIS = 50.0
"""A logarithmic axis of a smaller ratio has too few powers of ten to read."""
_MANY_LINES = 2
"""A legend of more lines would cover the curves."""
_LEGEND_CHARS = 84
"""How long the lines of a legend above a figure may be, of which each name takes its letters and its sample."""
_SAMPLE_CHARS = 5
# Okabe and Ito's colours, which most people can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#333333")


def cdf(*results: Result | Sweep, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """The share of queries (of flows, where there are none) that completed within a time, a line a result.

    Args:
        *results: Results, or sweeps, of which each run is a line.
        labels: What to call them; by what tells them apart where absent.
        ax: Where to draw; a new figure where absent.
    """
    ax = _axes(ax, 4.0)
    found, names = _named(results, labels)
    for i, (result, name) in enumerate(zip(found, names, strict=True)):
        times_ms, _ = _times_ms(result)
        if len(times_ms) == 0:
            continue
        shares = [(k + 1) / len(times_ms) for k in range(len(times_ms))]
        line = ("-", "--", ":")[i // len(_COLOURS) % 3]
        x, y = [times_ms[0], *times_ms], [0.0, *shares]
        ax.step(x, y, where="post", color=_COLOURS[i % len(_COLOURS)], linestyle=line, linewidth=1.6, label=name)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda ms, _: f"{ms:g}")
    ax.set_ylim(0, 1.01)
    ax.set_xlabel("completion time (ms)")
    ax.set_ylabel(f"share of {_unit(found)}")
    if len(found) > 1:
        ax.legend(frameon=False, fontsize="small")
    return _plain(ax)


def completion(*results: Result | Sweep, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Completion times side by side, a row a result: median to 99th percentile, the mean, and the 99.9th.

    Args:
        *results: Results, or sweeps, of which each run is a row.
        labels: What to call them; by what tells them apart where absent.
        ax: Where to draw; a new figure where absent.
    """
    found, names = _named(results, labels)
    ax = _axes(ax, 1.4 + 0.34 * len(found))
    first = True
    for i, result in enumerate(found):
        s: dict[str, Any] = dict(result.summary)
        if s["mean_us"] is None:
            continue
        at = {key: s[f"{key}_us"] / 1e3 for key in ("mean", "p50", "p99", "p999")}
        label = (lambda text: text) if first else (lambda _: "_")
        ax.plot(
            [at["p50"], at["p99"]],
            [i, i],
            color="#56b4e9",
            linewidth=7,
            alpha=0.7,
            solid_capstyle="butt",
            label=label("median to p99"),
        )
        ax.plot(at["mean"], i, "o", color="#d55e00", markersize=6, label=label("mean"))
        ax.plot(at["p999"], i, "|", color="#333333", markersize=12, markeredgewidth=1.8, label=label("p99.9"))
        first = False
    ax.set_yticks(range(len(found)), names)
    ax.set_ylim(len(found) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.set_xlabel(f"completion time of {_unit(found)} (ms)")
    ax.legend(frameon=False, fontsize="small", ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return _plain(ax)


def slowdown(*results: Result | Sweep, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Slowdown by flow size: median, 99th and 99.9th percentile, a colour a result.

    Slowdown is a flow's completion time over that of the same flow in an empty network. Each point is a bucket of 5 %
    of the flows by size, as in the scripts of HPCC, at its largest flow. Flows that began in the warm-up are left out.

    Args:
        *results: Results, or sweeps. Runs of a sweep that differ in their seed alone are one result.
        labels: What to call them; by what tells them apart where absent.
        ax: Where to draw; a new figure where absent.

    Raises:
        ValueError: A result has no flows that finished, or did not record them.
    """
    found, names = _configurations(results, labels)
    ax = _axes(ax, 4.0)
    styles = (("median", ":", 3), ("p99", "-", 5), ("p99.9", "--", 6))
    for i, (seeds, name) in enumerate(zip(found, names, strict=True)):
        buckets = _native.slowdown_by_size([seed.path for seed in seeds])
        if not buckets:
            raise ValueError(f"{name}: no flow has finished; set record.flows, or let it run longer")
        sizes = [bucket[1] for bucket in buckets]
        marker = "o" if len(buckets) < _FEW_POINTS else None
        for of, line, place in styles:
            values = [bucket[place] for bucket in buckets]
            colour = _COLOURS[i % len(_COLOURS)]
            label = " ".join([name, of]) if len(found) > 1 else of
            width = 1.8 if of == "p99" else 1.2
            ax.plot(
                sizes, values, color=colour, linestyle=line, linewidth=width, marker=marker, markersize=3.5, label=label
            )
    ax.set_xscale("log")
    ax.set_yscale("log")
    _mark(ax.xaxis, ax.get_xlim(), _size)
    _mark(ax.yaxis, ax.get_ylim(), lambda times: f"{times:g}x")
    ax.set_xlabel("flow size")
    ax.set_ylabel("slowdown")
    _legend(ax, len(found) * len(styles), columns=min(3, len(found)) if len(found) > 1 else 3)
    ax.grid(axis="y", color="#dddddd", linewidth=0.6)
    return _plain(ax)


def throughput(*results: Result | Sweep, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """The payload of all flows together over time, a line a result, in 160 intervals.

    A flow's bytes are spread evenly over the time that it took; those of a flow without an end over its intervals.

    Args:
        *results: Results, or sweeps, of which each run is a line.
        labels: What to call them; by what tells them apart where absent.
        ax: Where to draw; a new figure where absent.

    Raises:
        ValueError: A result has no flows.
    """
    found, names = _named(results, labels)
    courses: list[_Course] = []
    for result, name in zip(found, names, strict=True):
        times_ps, gbps = _native.payload_over_time(result.path)
        if not gbps:
            raise ValueError(f"{name}: no flow was recorded; set record.flows")
        courses.append((name, times_ps, gbps))
    return _courses(courses, "payload (Gb/s)", ax)


def pauses(*results: Result | Sweep, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """How many outputs PFC pauses held over time, a line a result: the average in each of 160 intervals.

    Args:
        *results: Results, or sweeps, of which each run is a line.
        labels: What to call them; by what tells them apart where absent.
        ax: Where to draw; a new figure where absent.

    Raises:
        ValueError: No result has a pause.
    """
    found, names = _named(results, labels)
    courses: list[_Course] = [
        (name, *_native.paused_over_time(result.path)) for result, name in zip(found, names, strict=True)
    ]
    if all(max(values) == 0 for _, _, values in courses):
        raise ValueError("there was no pause; pauses need pfc.enabled, and record.pauses")
    return _courses(courses, "paused outputs", ax)


def queues(
    *results: Result | Sweep, labels: Sequence[str] | None = None, most: int = 8, ax: Axes | None = None
) -> Axes:
    """The bytes in recorded queues over time, a line a queue that ever held a frame.

    The scenario records them (``record.queues``), best at a few ports (``record.queue_ports``). The table ``marks``
    names the ports with marks and notifications, ``ports`` those with long queues.

    Args:
        *results: Results, or sweeps, of which each run has its lines.
        labels: What to call the results; by what tells them apart where absent.
        most: How many lines to draw: those of the queues that were longest.
        ax: Where to draw; a new figure where absent.

    Raises:
        ValueError: A result has no samples of queues.
    """
    found, names = _named(results, labels)
    courses: list[_Course] = []
    for result, name in zip(found, names, strict=True):
        rows: Any = result.queues.to_arrow()
        if rows.num_rows == 0:
            raise ValueError(f"{name}: no queue was recorded; set record.queues, and record.queue_ports for some ports")
        used = rows.filter(pc.greater(rows["bytes"], pa.scalar(0, rows["bytes"].type)))
        ports = sorted(set(zip(used["node"].to_pylist(), used["port"].to_pylist(), strict=True)))
        for node, port in ports:
            of_port = rows.filter(pc.and_(pc.equal(rows["node"], node), pc.equal(rows["port"], port)))
            own = f"{node} port {port}"
            label = f"{name}, {own}" if len(found) > 1 and len(ports) > 1 else own if len(ports) > 1 else name
            times, sizes = of_port["time_ps"].to_pylist(), of_port["bytes"].to_pylist()
            courses.append((label, times, [size / 1e3 for size in sizes]))
    longest = sorted(range(len(courses)), key=lambda i: -max(courses[i][2]))[:most]
    note = f"the {most} longest of {len(courses)} queues" if len(courses) > most else None
    return _courses([courses[i] for i in sorted(longest)], "queue (KB)", ax, note)


def limiters(result: Result, ax: Axes | None = None) -> Axes:
    """The rates of rate limiters over time, a line a limiter. The scenario records them (``record.limiters``).

    Args:
        result: The result of a run.
        ax: Where to draw; a new figure where absent.

    Raises:
        ValueError: The result has no samples of limiters.
    """
    lines: dict[tuple[int, int, int | None], tuple[list[int], list[float]]] = {}
    if result.limiters.to_arrow().num_rows == 0:
        raise ValueError("no rate limiter was sampled; set record.limiters, and see whether there are limiters at all")
    for row in result.limiters.to_arrow().to_pylist():
        times, rates = lines.setdefault((row["host"], row["queue"], row["path"]), ([], []))
        times.append(row["time_ps"])
        rates.append(row["rate_bps"] / 1e9)
    courses: list[_Course] = []
    for host, queue, path in sorted(lines, key=lambda key: (key[0], key[1], -1 if key[2] is None else key[2])):
        label = f"host {host} to {queue}" + ("" if path is None else f", path {path}")
        courses.append((label, *lines[host, queue, path]))
    return _courses(courses, "rate (Gb/s)", ax)


def streams(*results: Result | Sweep, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """The payload of flows without an end over time, a line a result: all flows together.

    Args:
        *results: Results, or sweeps, of which each run is a line.
        labels: What to call them; by what tells them apart where absent.
        ax: Where to draw; a new figure where absent.

    Raises:
        ValueError: A result has no flows without an end, or their rates over time are not recorded.
    """
    found, names = _named(results, labels)
    courses: list[_Course] = []
    for result, name in zip(found, names, strict=True):
        of = result.streams
        each = [stream.get("course_mbps") for stream in of.get("each", [])]
        if not each:
            raise ValueError(f"{name}: there is no flow without an end")
        if not all(each):
            raise ValueError(f"{name}: the rates over time are not recorded; set scenario.duration")
        total = [sum(at) / 1e3 for at in zip(*each, strict=True)]
        middle_ps = [(k + 0.5) * of["interval_ms"] * _PS_PER_MS for k in range(len(total))]
        courses.append((name, middle_ps, total))
    return _courses(courses, "payload (Gb/s)", ax)


def _configurations(
    results: Sequence[Result | Sweep], labels: Sequence[str] | None
) -> tuple[list[list[Result]], list[str]]:
    """The results, seeds of one configuration of a sweep together, and their names."""
    groups: dict[object, list[Result]] = {}
    for number, r in enumerate(results):
        cells = [(c.settings, c.result) for c in r] if isinstance(r, Sweep) else [({}, r)]
        for settings, result in cells:
            key = tuple((k, v) for k, v in settings.items() if k != "seed")
            groups.setdefault((number, key), []).append(result)
    found = list(groups.values())
    if labels is not None and len(labels) != len(found):
        raise ValueError(f"{len(labels)} labels for {len(found)} configurations")
    return found, list(labels) if labels is not None else _named([seeds[0] for seeds in found], None)[1]


def _size(size: float) -> str:
    """Bytes as scenarios spell them."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size:g} B"


def _mark(axis: Any, limits: tuple[float, float], name: Callable[[float], str]) -> None:  # noqa: ANN401 - matplotlib may be absent
    """Marks a logarithmic axis: powers of ten, on a short one 2 and 5 between them, within a decade even steps."""
    ratio = limits[1] / max(limits[0], 1e-9)
    if ratio < _DECADE:
        ticker: Any = need("matplotlib.ticker", "plot")
        axis.set_major_locator(ticker.MaxNLocator(5, steps=(1, 2, 5, 10), min_n_ticks=3))
        axis.set_minor_locator(ticker.NullLocator())

    def minor(value: float, _: object) -> str:
        return name(value) if ratio < _SHORT_AXIS and f"{value:.0e}"[0] in "25" else ""

    axis.set_major_formatter(lambda value, _: name(value))
    axis.set_minor_formatter(minor)


def _legend(ax: Axes, lines: int, title: str | None = None, columns: int = 3) -> None:
    """A legend inside, or above where there are many lines."""
    of: dict[str, Any] = {"title": title, "title_fontsize": "small", "alignment": "left"}
    if lines > _MANY_LINES:
        longest = max(len(label) for label in ax.get_legend_handles_labels()[1])
        columns = max(1, min(columns, _LEGEND_CHARS // (longest + _SAMPLE_CHARS)))
        ax.legend(frameon=False, fontsize="x-small", ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), **of)
    elif lines > 1 or title is not None:
        ax.legend(framealpha=0.85, edgecolor="none", fontsize="small", **of)


def _courses(courses: list[_Course], what: str, ax: Axes | None, note: str | None = None) -> Axes:
    ax = _axes(ax, 3.2)
    for i, (label, times_ps, values) in enumerate(courses):
        colour, line = _COLOURS[i % len(_COLOURS)], ("-", "--", ":")[i // len(_COLOURS) % 3]
        times_ms = [ps / _PS_PER_MS for ps in times_ps]
        ax.plot(times_ms, values, color=colour, linestyle=line, linewidth=1.0, label=label)
    ax.set_xlabel("time (ms)")
    ax.set_ylabel(what)
    ax.set_ylim(bottom=0)
    _legend(ax, len(courses), note)
    return _plain(ax)


def _axes(ax: Axes | None, height: float) -> Axes:
    if ax is not None:
        return ax
    pyplot: Any = need("matplotlib.pyplot", "plot")
    made: Axes = pyplot.subplots(figsize=(6.4, height), layout="constrained")[1]
    return made


def _plain(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def _named(results: Sequence[Result | Sweep], labels: Sequence[str] | None) -> tuple[list[Result], list[str]]:
    found: list[Result] = []
    settings: list[dict[str, str]] = []
    for r in results:
        cells = [(c.settings, c.result) for c in r] if isinstance(r, Sweep) else [(dict(r.manifest["axes"]), r)]
        for of_cell, result in cells:
            found.append(result)
            seed = str(result.manifest["seed"])
            texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in of_cell.items()}
            settings.append({"scenario": str(result.manifest["scenario"]), **texts, "seed": seed})
    if labels is not None:
        if len(labels) != len(found):
            raise ValueError(f"{len(labels)} labels for {len(found)} results")
        return found, list(labels)
    # Only what differs tells them apart.
    keys = list(dict.fromkeys(k for s in settings for k in s))
    varied = [k for k in keys if len({s.get(k) for s in settings}) > 1]
    names = [" ".join(_called(k, s[k]) for k in varied if k in s) for s in settings]
    return found, [name or s["scenario"] for name, s in zip(names, settings, strict=True)]


def _called(key: str, value: str) -> str:
    """A setting in a legend: a number or a truth says nothing without its key."""
    return value if isinstance(_native.typed([value])[0], str) else f"{key} {value}"


def _times_ms(result: Result) -> tuple[list[float], str]:
    """Completion times of queries after the warm-up, or else of flows, in ascending order."""
    queries = result.queries.to_arrow()
    measured = queries.filter(pc.invert(queries["warmup"]))
    is_queries = measured.num_rows > 0
    times_ps = measured["completion_ps"] if is_queries else result.flows.to_arrow()["fct_ps"]
    times_ms = pc.divide(pc.cast(pc.drop_null(times_ps), pa.float64()), _PS_PER_MS)
    return sorted(t for t in times_ms.to_pylist() if t is not None), "queries" if is_queries else "flows"


def _unit(results: Sequence[Result]) -> str:
    return " and ".join(sorted({str(r.summary["of"]) for r in results})) or "queries"
