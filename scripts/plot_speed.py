#!/usr/bin/env python3
"""The picture of docs/results/speed.md, speed over hosts, as SVG; its numbers on the terminal.

usage: plot_speed.py docs/results/speed.toml docs/img/speed.svg
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

OURS, THEIRS = "#0072b2", ("#d55e00", "#009e73", "#a0508c")
"""Colours of sluicenet, and of the others in the order of the file."""


def simulator(series: dict[str, Any]) -> str:
    """The name of a series without its remark."""
    return str(series["name"]).split(",")[0]


def draw(ax: Axes, every: list[dict[str, Any]]) -> None:
    """Draws each series, its name at its last point, or above or below its only one.

    Figures per second of wall time are hollow.
    """
    others = dict.fromkeys(simulator(series) for series in every if simulator(series) != "sluicenet")
    colours = {"sluicenet": OURS, **dict(zip(others, THEIRS, strict=True))}
    for series in every:
        hosts, rates = zip(*series["points"], strict=True)
        colour = colours[simulator(series)]
        alone = len(hosts) == 1
        face = "white" if "per" in series else colour
        ax.plot(hosts, rates, marker="D" if alone else "o", color=colour, markerfacecolor=face)
        # A line of ours passes our lone point: the name goes below.
        above = -16 if simulator(series) == "sluicenet" else 8
        place = {"xytext": (0, above), "ha": "center"} if alone else {"xytext": (8, 0), "va": "center"}
        ax.annotate(series["name"], (hosts[-1], rates[-1]), textcoords="offset points", color=colour, **place)


def main() -> None:
    """Draws the picture, and prints each point."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    every = tomllib.loads(Path(sys.argv[1]).read_text())["series"]
    for series in every:
        for hosts, rate in series["points"]:
            per = series.get("per", "CPU second")
            print(f"{series['name']:>26} {hosts:7,} hosts {rate:7.3f} M per {per}")
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sluicenet"})
    _, ax = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    draw(ax, every)
    hosts = sorted({hosts for series in every for hosts, _ in series["points"]})
    ax.set(xscale="log", yscale="log", xlim=(11, 1e5), ylim=(0.1, 200))
    ax.set_xticks(hosts, [f"{n:,}" for n in hosts])
    ax.minorticks_off()
    ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    ax.set(xlabel="hosts", ylabel="million packet-hops per CPU second")
    ax.grid(axis="y", color="#dddddd")
    ax.spines[["top", "right"]].set_visible(False)
    plt.savefig(sys.argv[2], format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
