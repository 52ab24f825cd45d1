#!/usr/bin/env python3
"""The pictures of docs/results/xco.md and xco-real.md, as SVG; their numbers on the terminal.

usage: plot_xco.py 27 DIR... > PLOT.svg
       plot_xco.py 19 RESULT.json > PLOT.svg

DIR is the sweep of scenarios/rajanna2012/fig-27.toml for one number of machines. RESULT.json is the output of
`sluicenet testbed xco --migrate --simulate --json` for scenarios/rajanna2012/testbed/fig-19.toml.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import sluicenet as sn

PAYLOAD = 1472
"""Bytes of UDP's payload in a full frame."""


def lost_percent(result: sn.Result) -> float:
    """Lost frames in percent of those sent."""
    received = result.streams["total_mbps"] * result.summary["simulated_us"] / 8 / PAYLOAD
    return float(100 * result.summary["drops"] / (result.summary["drops"] + received))


def figure_27(roots: list[str]) -> None:
    """Losses, and the rates of all flows, over the number of machines."""
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    found: dict[str, dict[int, sn.Result]] = {"without XCo": {}, "with XCo": {}}
    for root in roots:
        for manifest in sorted(Path(root).rglob("manifest.json")):
            result = sn.load(manifest.parent)
            if isinstance(result, sn.Result):
                is_on = dict(result.manifest["axes"])["enabled"] == "true"
                found["with XCo" if is_on else "without XCo"][2 * result.streams["count"]] = result
    for name, by_machines in found.items():
        machines = sorted(by_machines)
        lost = [lost_percent(by_machines[n]) for n in machines]
        for n, percent in zip(machines, lost, strict=True):
            print(f"{name:>12} {n:6} machines {percent:6.2f} % lost", file=sys.stderr)
        left.plot(machines, lost, marker="o", label=name)
        rates = sorted(flow["mbps"] for flow in by_machines[machines[-1]].streams["each"])
        right.plot(range(len(rates)), rates, label=name)
    left.set(xlabel="machines", ylabel="lost frames (%)", ylim=(-3, 103), xlim=(0, None))
    right.set(xlabel=f"{len(rates)} flows of {machines[-1]} machines, sorted", ylabel="payload (Mb/s)", ylim=(0, None))
    left.legend(frameon=False)
    right.legend(frameon=False)


def figure_19(names: list[str]) -> None:
    """The time of a migration beside other flows."""
    cells = json.loads(Path(names[0]).read_text())["cells"]
    ax = plt.subplots(figsize=(6.4, 3), layout="constrained")[1]
    beside: list[str] = []
    bars: dict[str, list[float]] = {}
    limit = max(cell["measured_s"] for cell in cells)
    for cell in cells:
        coordination = "without XCo" if cell["coordination"] == "without XCo" else "with XCo"
        label = cell["variant"].split(",")[0]
        if label not in beside:
            beside.append(label)
        for world, times in (("real", cell.get("finite")), ("simulated", (cell.get("simulated") or {}).get("finite"))):
            took = times["max_ms"] / 1e3 if times and times["count"] else limit
            bars.setdefault(f"{coordination}, {world}", []).append(took)
            print(f"{label:>24} {coordination:>12} {world:>10} {took:7.1f} s", file=sys.stderr)
    for k, (name, took) in enumerate(bars.items()):
        ax.bar([i + 0.2 * (k - 1.5) for i in range(len(took))], took, 0.19, label=name)
    ax.set_xticks(range(len(beside)), beside)
    ax.set(ylabel="time of the migration (s)")
    ax.legend(frameon=False, fontsize="small")


def main() -> None:
    """Draws a figure as SVG."""
    figures = {"27": figure_27, "19": figure_19}
    if len(sys.argv) < 3 or sys.argv[1] not in figures:
        sys.exit(__doc__)
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sluicenet"})
    figures[sys.argv[1]](sys.argv[2:])
    plt.savefig(sys.stdout.buffer, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
