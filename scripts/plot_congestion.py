#!/usr/bin/env python3
"""The pictures of docs/results about congestion management, from the results of the commands there.

usage: plot_congestion.py (2-4|2-12|2-13|2-21|dctcp) DIR > PLOT.svg

DIR is the result of the run or the sweep of that figure, with seed 1. For dctcp it is the JSON that
`testbed pa --simulate --json` prints.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import sluicenet as sn


def cell(root: Path, **wanted: str) -> sn.Result:
    """The run of a sweep with these settings."""
    for manifest in sorted(root.rglob("manifest.json")):
        result = sn.load(manifest.parent)
        if not isinstance(result, sn.Result):
            continue
        axes = {key.split(".")[-1]: str(value) for key, value in result.manifest["axes"]}
        if all(axes.get(key) == value for key, value in wanted.items()) and result.manifest["seed"] == 1:
            return result
    sys.exit(f"{root} has no run with {wanted} and seed 1")


def figure_2_4(root: Path) -> None:
    """The payload of three priorities."""
    each = cell(root).streams
    ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    for name, flows in {"high: strict": (2, 4), "medium: 60 %": (1, 3), "low: 40 %": (0,)}.items():
        courses = [each["each"][flow]["course_mbps"] for flow in flows]
        gbps = [sum(at) / 1e3 for at in zip(*courses, strict=True)]
        ax.plot([(k + 0.5) * each["interval_ms"] for k in range(len(gbps))], gbps, label=name)
    ax.set_xlabel("time (ms)")
    ax.set_ylabel("payload (Gb/s)")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize="small")


def figure_dctcp(file: Path) -> None:
    """Queries by the length of answers, between the kernels of guests and simulated."""
    ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    sizes = [int(cell["variant"].removeprefix("response=").split()[0]) for cell in cells]
    ax.plot(sizes, [cell["figures"]["mean_ms"] for cell in cells], "o-", label="guests: Linux's DCTCP")
    ax.plot(sizes, [cell["simulated"]["mean_ms"] for cell in cells], "s--", label="simulated")
    ax.set_xlabel("answer of each of 7 workers (KB)")
    ax.set_ylabel("mean time of a query (ms)")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize="small")


def figure_2_12(root: Path) -> None:
    """The queue of base and of RED, with and without PFC."""
    _, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for ax, management in zip(axes, ("base", "red"), strict=True):
        runs = [cell(root, congestion_management=management, enabled=pfc) for pfc in ("false", "true")]
        sn.plot.queues(*runs, labels=["no PFC", "PFC"], ax=ax)
        ax.set_title(management, fontsize="medium")
        ax.set_xlim(90, 400)


def figure_2_13(root: Path) -> None:
    """The queue and the limiters of QCN 66."""
    _, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    runs = [cell(root, congestion_management="qcn-66", enabled=pfc) for pfc in ("false", "true")]
    sn.plot.queues(*runs, labels=["no PFC", "PFC"], ax=axes[0])
    sn.plot.limiters(runs[0], ax=axes[1])
    axes[1].set_title("limiters without PFC", fontsize="medium")
    axes[0].set_title("QCN 66", fontsize="medium")
    for ax in axes:
        ax.set_xlim(90, 400)


def figure_2_21(root: Path) -> None:
    """Throughput and queues, for each routing."""
    routings = ("d-mod-k", "random", "switch-ar", "r3c2")
    _, axes = plt.subplots(2, 4, figsize=(12, 5), layout="constrained", sharex=True, sharey="row")
    for (above, below), routing in zip(axes.T, routings, strict=True):
        run = cell(root, routing=routing)
        sn.plot.streams(run, ax=above)
        above.axhline(9, color="#888888", linestyle="--", linewidth=0.8)
        above.set_title(routing, fontsize="medium")
        sn.plot.queues(run, ax=below)
        if routing != routings[-1] and below.get_legend() is not None:
            below.get_legend().remove()


def main() -> None:
    """Draws a figure as SVG."""
    figures = {"dctcp": figure_dctcp, "2-4": figure_2_4, "2-12": figure_2_12, "2-13": figure_2_13, "2-21": figure_2_21}
    if len(sys.argv) != 3 or sys.argv[1] not in figures:
        sys.exit(__doc__)
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sluicenet", "path.simplify_threshold": 0.8})
    figures[sys.argv[1]](Path(sys.argv[2]))
    plt.savefig(sys.stdout.buffer, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
