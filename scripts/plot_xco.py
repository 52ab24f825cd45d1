#!/usr/bin/env python3
"""The picture of docs/results/xco.md, as SVG; its numbers on the terminal.

usage: plot_xco.py 27 DIR... > PLOT.svg

DIR is the sweep of scenarios/rajanna2012/fig-27.toml for one number of machines.
"""

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


def main() -> None:
    """Draws a figure as SVG."""
    if len(sys.argv) < 3 or sys.argv[1] != "27":
        sys.exit(__doc__)
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sluicenet"})
    figure_27(sys.argv[2:])
    plt.savefig(sys.stdout.buffer, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
