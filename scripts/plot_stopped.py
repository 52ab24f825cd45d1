#!/usr/bin/env python3
"""The picture of stopped receivers in docs/results/switch.md, as SVG; its numbers on the terminal.

usage: plot_stopped.py RESULT.json > PLOT.svg

RESULT.json is the output of `sluicenet bench stopped --json`.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt


def main() -> None:
    """Draws the ratio of the rate of others over the number of stopped receivers."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    cells = json.loads(Path(sys.argv[1]).read_text())
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sluicenet"})
    _, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    places = list(range(len(cells)))
    ratios = [100 * cell["ratio"] for cell in cells]
    below = [100 * (cell["ratio"] - cell["ratio_least"]) for cell in cells]
    above = [100 * (cell["ratio_most"] - cell["ratio"]) for cell in cells]
    ax.bar(places, ratios, width=0.5, yerr=[below, above], capsize=4, color="#7aa6c2")
    ax.axhline(95, color="#b03030", linewidth=1, linestyle="--", label="95 %")
    ax.axhline(100, color="black", linewidth=0.6)
    for place, ratio, cell in zip(places, ratios, cells, strict=True):
        ax.text(place, 45, f"{ratio:.1f} %", ha="center")
        print(f"{cell['receivers']:4} stopped {ratio:6.1f} %", file=sys.stderr)
    ax.set_xticks(places, [str(cell["receivers"]) for cell in cells])
    ax.set(xlabel="stopped receivers", ylabel="rate of others (% of that without)", ylim=(0, 145))
    ax.legend(frameon=False, loc="upper right")
    plt.savefig(sys.stdout.buffer, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
