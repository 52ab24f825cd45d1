#!/usr/bin/env python3
"""The speed of the switch in two builds, measured in alternating turns: medians, and ratios of neighbouring runs.

As root: scripts/paired.py BEFORE AFTER [--turns N], with two programs `sluicenet`. The output is a table in Markdown.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
MEASURES: list[tuple[str, str, Callable[[Figures], float]]] = [
    ("ports --seconds 0.5", "M frames/s", lambda f: f["mpps"]),
    ("ports --ports 8 --size 1514 --seconds 0.5", "M frames/s", lambda f: f["mpps"]),
    ("ports --kind vhost-user --seconds 0.5", "M frames/s", lambda f: f["mpps"]),
    ("latency --seconds 0.5", "us, median round trip", lambda f: f["p50_us"]),
    ("tcp --seconds 1 --turns 1", "Gb/s with offload", lambda f: f["offload"]["gbps"]),
    ("overload --switch ours --seconds 1.5", "k datagrams/s received", lambda f: f["received_kpps"]),
]
"""Command of `sluicenet bench`, its unit, and its figure."""


def run(program: Path, command: str) -> Figures | None:
    """The figures of a command; nothing if it could not measure."""
    done = subprocess.run([program, "bench", *command.split(), "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{program} bench {command}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", default="", help="commands that begin so")
    arguments = parser.parse_args()
    print(
        "| `sluicenet bench` | unit | before | after | ratio, median | lowest to highest |\n|---|---|---|---|---|---|"
    )
    for command, unit, figure in MEASURES:
        if not command.startswith(arguments.only):
            continue
        pairs: list[tuple[float, float]] = []
        for turn in range(arguments.turns):
            order = [arguments.before, arguments.after]
            # Neither is always the first one.
            found = [run(program, command) for program in (order if turn % 2 == 0 else order[::-1])]
            if turn % 2 == 1:
                found.reverse()
            if found[0] is not None and found[1] is not None:
                pairs.append((figure(found[0]), figure(found[1])))
        if not pairs:
            print(f"| `{command}` | {unit} | | | failed | |", flush=True)
            continue
        before, after = (statistics.median(values) for values in zip(*pairs, strict=True))
        ratios = sorted(b / a for a, b in pairs)
        middle = statistics.median(ratios)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"| `{command}` | {unit} | {before:.2f} | {after:.2f} | {middle:.3f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
