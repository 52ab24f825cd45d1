#!/usr/bin/env python3
"""The figures of docs/results/bump-real.md: the numbers on the terminal, the picture as SVG.

usage: plot_testbed_bump.py (5-10|5-11|5-14|5-15|5-16|5-17) RESULT.json... > PLOT.svg

RESULT.json is the output of `sluicenet testbed bump --json` for that figure in scenarios/alfares2012/testbed.
Several results are in one picture.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

MTU = 1538
"""Bytes of a full frame on the wire."""

Cell = dict[str, Any]


def say(*cells: object) -> None:
    """A line of the table on the terminal."""
    print(*(f"{cell:>14}" if isinstance(cell, str) else f"{cell:>14.4g}" for cell in cells), file=sys.stderr)


def quantile(values: list[float], p: float) -> float:
    """A quantile of sorted values, 0 where there are none."""
    return values[min(int(p * len(values)), len(values) - 1)] if values else 0.0


def errors(estimate: Cell) -> list[float]:
    """The distances of the estimate from the queue, where the queue is not empty, in order."""
    return sorted(abs(queue - guess) for _, queue, guess in estimate["course"] if queue > 0)


def cdf(ax: Axes, values: list[float], label: str, unit: float = 1.0) -> None:
    """A cumulative distribution."""
    points = [k / 500 for k in range(501)]
    ax.plot([quantile(values, p) / unit for p in points], points, label=label)
    ax.set_ylabel("share of the samples")


def figure_5_10(cells: list[Cell]) -> None:
    """A virtual queue beside the true queue, and the distribution of their distance."""
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    estimate = cells[0]["queues"][0]["estimates"][0]
    part = [point for point in estimate["course"] if 6_000_000 <= point[0] < 16_000_000]
    for column, label in ((1, "queue of the switch"), (2, "virtual queue")):
        left.plot([p[0] / 1e6 for p in part], [p[column] / 1e3 for p in part], label=label, linewidth=0.8)
    left.set_xlabel("time (s)")
    left.set_ylabel("bytes (KB)")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize="small")
    cdf(right, errors(estimate), "", MTU)
    right.set_xlabel("distance (frames of 1,538 B)")
    say("samples", "median", "95 %", "99 %", "within 2 MTU")
    figures = [estimate[key] for key in ("samples", "p50_bytes", "p95_bytes", "p99_bytes")]
    say(*map(float, figures), estimate["within_frames"][1])


def figure_5_11(cells: list[Cell]) -> None:
    """The distance of estimates from the queue, by the time that a packet waits for its update."""
    ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    say("wait", "bump", "samples", "median", "90 %", "within 2 MTU", "within 3 MTU")
    for cell in cells:
        wait = cell["variant"].split("=")[-1]
        for estimate in cell["queues"][0]["estimates"]:
            figures = [float(estimate[key]) for key in ("samples", "p50_bytes", "p90_bytes")]
            say(wait, str(estimate["bump"]), *figures, *estimate["within_frames"][1:])
            error = errors(estimate)
            if estimate["bump"] == 2:
                cdf(ax, error, f"updates within {wait}", MTU)
            elif estimate["bump"] == 0 and cell is cells[0]:
                cdf(ax, error, "in sync", MTU)
    ax.set_xlabel("distance from the queue (frames of 1,538 B)")
    ax.set_xlim(0, 12)
    ax.legend(frameon=False, fontsize="small")


def named(cell: Cell) -> str:
    """A short name for the marks of a variant."""
    if "red" in cell["variant"]:
        return f"RED, max_p {cell['variant'].split('max_probability=')[-1].strip(' }]')}"
    marks = "marks" if "kind" in cell["variant"] else "no marks"
    return f"{(cell['congestion'] or 'udp').split()[0].upper()}, {marks}"


def figure_5_14(cells: list[Cell]) -> None:
    """The queue of drop-tail and of RED."""
    ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    say("run", "median KB", "99 % KB", "longest KB", "Mb/s", "marked", "lost")
    for cell in cells:
        queue = cell["queues"][0]
        name = "drop-tail" if "red" not in cell["variant"] else named(cell)
        kb = [queue[key] / 1e3 for key in ("p50_bytes", "p99_bytes", "max_bytes")]
        lost = sum(cell["fabric"]["dropped"].values())
        say(name, *kb, cell["streams"]["total_mbps"], float(cell["bumps"][0]["marked"]), float(lost))
        cdf(ax, sorted(point[1] for point in queue["estimates"][0]["course"]), name, 1e3)
    ax.set_xlabel("queue (KB)")
    ax.legend(frameon=False, fontsize="small")


def reacting(cells: list[Cell]) -> list[Cell]:
    """The variants without those of DCTCP that nobody marks: it has nothing to react to then."""
    return [cell for cell in cells if named(cell) != "DCTCP, no marks"]


def figure_5_15(cells: list[Cell]) -> None:
    """The response times of short requests beside elephants."""
    cells = reacting(cells)
    ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    say("run", "requests", "median ms", "99 % ms", "simulated", "99 % ms", "elephants")
    for cell in cells:
        times = sorted(cell["query_ms"])
        simulated = (cell.get("simulated") or {}).get("queries") or {"p50_us": 0.0, "p99_us": 0.0}
        both = [simulated[key] / 1e3 for key in ("p50_us", "p99_us")]
        total = cell["streams"]["total_mbps"]
        say(named(cell), float(len(times)), quantile(times, 0.5), quantile(times, 0.99), *both, total)
        cdf(ax, times, named(cell))
    ax.set_xlabel("response time (ms)")
    ax.set_xscale("log")
    ax.legend(frameon=False, fontsize="small")


def jain(rates: list[float]) -> float:
    """Jain's index of fairness."""
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


def figure_5_16(cells: list[Cell]) -> None:
    """The rates of five flows that begin one after the other, and how equal they are; kernel beside simulator."""
    cells = reacting(cells)
    _, axes = plt.subplots(
        2, len(cells), figsize=(3.4 * len(cells), 4.6), layout="constrained", sharex=True, sharey=True
    )
    say("run", "world", "Jain, 1 s", "least", "Mb/s of all")
    for (above, below), cell in zip(axes.T, cells, strict=True):
        simulated = (cell.get("simulated") or {}).get("streams")
        for ax, world, streams in ((above, "real sockets", cell["streams"]), (below, "simulated", simulated)):
            if not streams:
                continue
            step = streams["interval_ms"] / 1e3
            courses = [stream["course_mbps"] for stream in streams["each"]]
            for course in courses:
                ax.plot([(k + 0.5) * step for k in range(len(course))], course, linewidth=0.8)
            # All five send in the last fifth; its first two seconds are left to the last one to grow.
            first = round(34 / step)
            each = [jain([course[k] for course in courses]) for k in range(first, len(courses[0]))]
            total = sum(sum(course[first:]) for course in courses) / len(each)
            say(named(cell), world, sum(each) / len(each), min(each), total)
            ax.set_title(f"{named(cell)}, {world}", fontsize="medium")
            ax.set_ylabel("payload (Mb/s)")
        below.set_xlabel("time (s)")


def figure_5_17(cells: list[Cell]) -> None:
    """The rates of three UDP flows and the virtual queue of the congestion point."""
    _, axes = plt.subplots(2, len(cells), figsize=(4.5 * len(cells), 4.5), layout="constrained", sharex=True)
    say("run", "longest KB", "true KB", "above 40 KB", "after 1 s", "Mb/s 30 to 40 s", "lost behind")
    for (above, below), cell in zip(axes.T, cells, strict=True):
        name = "QCN" if "kind" in cell["variant"] else "without QCN"
        streams = cell["streams"]
        step = streams["interval_ms"] / 1e3
        courses = [stream["course_mbps"] for stream in streams["each"]]
        for course in courses:
            above.plot([(k + 0.5) * step for k in range(len(course))], course, linewidth=0.8)
        above.set_title(name, fontsize="medium")
        queue = cell["queues"][0]
        samples = queue["estimates"][-1]["course"]
        below.plot([p[0] / 1e6 for p in samples], [p[2] / 1e3 for p in samples], linewidth=0.5)
        below.set_xlabel("time (s)")
        settled = [p[2] for p in samples if p[0] % 10_000_000 > 1_000_000]
        window = range(round(30 / step), round(40 / step))
        total = sum(course[k] for course in courses for k in window) / len(window)
        above_40 = sum(p[2] > 40_000 for p in samples) / len(samples)
        longest = max(p[2] for p in samples) / 1e3
        lost = sum(cell["fabric"]["dropped"].values())
        say(name, longest, queue["max_bytes"] / 1e3, above_40, max(settled) / 1e3, total, float(lost))
    axes[0][0].set_ylabel("payload (Mb/s)")
    axes[1][0].set_ylabel("virtual queue (KB)")


FIGURES: dict[str, Callable[[list[Cell]], None]] = {
    "5-10": figure_5_10,
    "5-11": figure_5_11,
    "5-14": figure_5_14,
    "5-15": figure_5_15,
    "5-16": figure_5_16,
    "5-17": figure_5_17,
}


def main() -> None:
    """Draws a figure as SVG."""
    if len(sys.argv) < 3 or sys.argv[1] not in FIGURES:
        sys.exit(__doc__)
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sluicenet", "path.simplify_threshold": 0.8})
    FIGURES[sys.argv[1]]([cell for name in sys.argv[2:] for cell in json.loads(Path(name).read_text())["cells"]])
    plt.savefig(sys.stdout.buffer, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
