#!/usr/bin/env python3
"""The figures of docs/results/netbump.md: the numbers on the terminal, the picture as SVG.

usage: plot_netbump.py (5-10|5-11|5-12|5-13|5-14|5-15|5-16|5-17) DIR > PLOT.svg

DIR is the result of the run or the sweep of that figure, with seed 1.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import polars as pl
import sluicenet as sn
from matplotlib.axes import Axes

MTU = 1538
"""Bytes of a full frame on the wire."""


def runs(root: Path) -> dict[str, sn.Result]:
    """The runs of a sweep by their settings, or the run."""
    found = {}
    for manifest in sorted(root.rglob("manifest.json")):
        result = sn.load(manifest.parent)
        if isinstance(result, sn.Result):
            axes = [f"{key.split('.')[-1]} = {value}" for key, value in result.manifest["axes"]]
            found[", ".join(axes)] = result
    # 5 us before 10 us.
    numbers = {name: [float(n) for n in re.findall(r"[0-9.]+", name)] for name in found}
    ordered = dict(sorted(found.items(), key=lambda item: numbers[item[0]]))
    return ordered or sys.exit(f"{root} has no run")


def say(*cells: object) -> None:
    """A line of the table on the terminal."""
    print(*(f"{cell:>14}" if isinstance(cell, str) else f"{cell:>14.4g}" for cell in cells), file=sys.stderr)


def errors(result: sn.Result, after_ms: int = 0) -> dict[str, pl.Series]:
    """For each bump, the distance of its estimate from the queue, where the queue is not empty, in bytes."""
    queues = result.queues.to_polars().rename({"bytes": "queue"})
    queues = queues.filter((pl.col("queue") > 0) & (pl.col("time_ps") >= after_ms * 1_000_000_000))
    rows = result.estimates.to_polars().join(queues, on=["time_ps", "node", "port"])
    rows = rows.with_columns((pl.col("bytes").cast(pl.Int64) - pl.col("queue").cast(pl.Int64)).abs().alias("error"))
    return {bump: rows.filter(pl.col("bump") == bump)["error"] for bump in rows["bump"].unique().sort()}


def cdf(ax: Axes, values: pl.Series, label: str, unit: float = 1.0) -> None:
    """A cumulative distribution."""
    points = [k / 500 for k in range(501)]
    ax.plot([(values.quantile(p, "nearest") or 0) / unit for p in points], points, label=label)
    ax.set_ylabel("share of the samples")


def figure_5_10(root: Path) -> None:
    """A virtual queue beside the true queue, and the distribution of their distance."""
    (result,) = runs(root).values()
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    start = 1_000_000_000_000
    for table, label in ((result.queues, "queue of the switch"), (result.estimates, "virtual queue")):
        rows = table.to_polars().filter(pl.col("time_ps").is_between(start, start + 20_000_000_000))
        left.plot((rows["time_ps"] - start) / 1e9, rows["bytes"] / 1e3, label=label, linewidth=0.8)
    left.set_xlabel("time (ms)")
    left.set_ylabel("bytes (KB)")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize="small")
    (error,) = errors(result).values()
    cdf(right, error, "", MTU)
    right.set_xlabel("distance (frames of 1,538 B)")
    say("median", "95 %", "99 %", "within 2 MTU")
    say(*(error.quantile(p) or 0 for p in (0.5, 0.95, 0.99)), float((error <= 2 * MTU).mean()))


def figure_updates(root: Path) -> None:
    """The distance of estimates from the queue, by the delay or the size of updates.

    Samples begin when the flows have recovered from the losses of their first windows.
    """
    ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    say("run", "bump", "median", "90 %", "within 2 MTU", "within 3 MTU")
    for name, result in runs(root).items():
        for bump, error in errors(result, after_ms=300).items():
            within = [float((error <= k * MTU).mean()) for k in (2, 3)]
            say(name or "-", bump, error.quantile(0.5) or 0, error.quantile(0.9) or 0, *within)
        # The last bump knows a part by updates alone.
        cdf(ax, error, name or bump, MTU)
    ax.set_xlabel("distance from the queue (frames of 1,538 B)")
    ax.set_xlim(0, 12)
    ax.legend(frameon=False, fontsize="small")


def named(settings: str) -> str:
    """A short name for the settings of a run."""
    congestion = "DCTCP" if "dctcp" in settings.split(",")[0] else "CUBIC"
    return f"{congestion}, {'marks' if 'kind' in settings else 'no marks'}"


def figure_5_14(root: Path) -> None:
    """The queue of drop-tail and of RED."""
    ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    say("run", "median KB", "mean KB", "99 % KB")
    for name, result in runs(root).items():
        queue = result.queues.to_polars().filter(pl.col("time_ps") > 1_000_000_000_000)["bytes"]
        label = f"RED, max_p {name.split('max_probability=')[-1].strip(' }]')}" if "red" in name else "drop-tail"
        say(label, *((x or 0) / 1e3 for x in (queue.median(), queue.mean(), queue.quantile(0.99))))
        cdf(ax, queue, label, 1e3)
    ax.set_xlabel("queue (KB)")
    ax.legend(frameon=False, fontsize="small")


def figure_5_15(root: Path) -> None:
    """The response times of short requests beside elephants."""
    ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    say("run", "median us", "99 % us", "99.9 % us")
    for name, result in runs(root).items():
        times = result.queries.to_polars().filter(~pl.col("warmup"))["completion_ps"].drop_nulls() / 1e6
        say(named(name), *((times.quantile(p) or 0) for p in (0.5, 0.99, 0.999)))
        cdf(ax, times, named(name))
    ax.set_xlabel("response time (us)")
    ax.set_xscale("log")
    ax.legend(frameon=False, fontsize="small")


def jain(rates: list[float]) -> float:
    """Jain's index of fairness."""
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


def figure_5_16(root: Path) -> None:
    """The rates of five flows that begin one after the other, and how equal they are."""
    found = {named(name): result for name, result in runs(root).items()}
    _, axes = plt.subplots(1, len(found), figsize=(3.2 * len(found), 3.2), layout="constrained", sharey=True)
    say("run", "Jain, 1 s", "least", "Mb/s of all")
    for ax, (name, result) in zip(axes, found.items(), strict=True):
        rows = result.tcp.to_polars().filter(pl.col("src_host") < 5).sort("time_ps")
        rows = rows.with_columns(
            (pl.col("time_ps") / 1e12).round().alias("second"),
            (pl.col("acked_bytes").diff().over("src_host") * 8 / 1e6).alias("mbps"),
        ).drop_nulls("mbps")
        for _, flow in rows.group_by("src_host", maintain_order=True):
            ax.plot(flow["second"] - 0.5, flow["mbps"], linewidth=0.8)
        # Five flows share the port from 100 s on; the first five seconds are left to the last one to grow.
        last = rows.filter(pl.col("second") > 105).group_by("second").agg(pl.col("mbps"))["mbps"].to_list()
        each = [jain(rates) for rates in last if len(rates) == 5]
        say(name, sum(each) / len(each), min(each), sum(map(sum, last)) / len(last))
        ax.set_title(name, fontsize="medium")
        ax.set_xlabel("time (s)")
    axes[0].set_ylabel("payload (Mb/s)")


def figure_5_17(root: Path) -> None:
    """The rates of three UDP flows and the virtual queue of the congestion point."""
    found = {"QCN" if "kind" in name else "without QCN": result for name, result in runs(root).items()}
    _, axes = plt.subplots(2, len(found), figsize=(4.5 * len(found), 4.5), layout="constrained", sharex=True)
    say(
        "run",
        "longest KB",
        "above 40 KB, ms",
        "after 1 s",
        "Mb/s 15 to 20 s",
        "Jain",
        "drops",
        "held back",
        "each, Mb/s",
    )
    for (above, below), (name, result) in zip(axes.T, found.items(), strict=True):
        streams = result.streams
        step = streams["interval_ms"] / 1e3
        courses = [stream["course_mbps"] for stream in streams["each"]]
        for course in courses:
            above.plot([(k + 0.5) * step for k in range(len(course))], course, linewidth=0.8)
        above.set_title(name, fontsize="medium")
        queue = result.estimates.to_polars().filter(pl.col("node") == "switch 1")
        queue = queue.filter(pl.col("bump") == queue["bump"].max())
        below.plot(queue["time_ps"] / 1e12, queue["bytes"] / 1e3, linewidth=0.5)
        below.set_xlabel("time (s)")
        settled = queue.filter(~(pl.col("time_ps") % 5_000_000_000_000).is_between(0, 1_000_000_000_000))
        drops = result.drops.to_polars()
        lost, policed = (
            float(drops.filter(pl.col("reason") == reason)["frames"].sum()) for reason in ("switch_buffer", "policed")
        )
        window = range(round(15 / step), round(20 / step))
        rates = [sum(course[k] for k in window) / len(window) for course in courses]
        long = float((queue["bytes"] > 40_000).sum())
        longest, after = ((of["bytes"].max() or 0) / 1e3 for of in (queue, settled))
        say(name, longest, long, after, sum(rates), jain(rates), lost, policed, *rates)
    axes[0][0].set_ylabel("payload (Mb/s)")
    axes[1][0].set_ylabel("virtual queue (KB)")


FIGURES: dict[str, Callable[[Path], None]] = {
    "5-10": figure_5_10,
    "5-11": figure_updates,
    "5-12": figure_updates,
    "5-13": figure_updates,
    "5-14": figure_5_14,
    "5-15": figure_5_15,
    "5-16": figure_5_16,
    "5-17": figure_5_17,
}


def main() -> None:
    """Draws a figure as SVG."""
    if len(sys.argv) != 3 or sys.argv[1] not in FIGURES:
        sys.exit(__doc__)
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sluicenet", "path.simplify_threshold": 0.8})
    FIGURES[sys.argv[1]](Path(sys.argv[2]))
    plt.savefig(sys.stdout.buffer, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
