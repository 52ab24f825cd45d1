#!/usr/bin/env python3
"""How many times as fast queries are as over a base, by the length of their answers.

Reads what `sluicenet testbed pa --simulate --json` prints.

usage: plot_queries.py NAME=FILE... [--base TITLE=FILE,...]... > PLOT.svg

Files of one NAME are one line, solid between real sockets and dashed simulated; each --base is a panel of its own.
"""

import json
import math
import re
import sys
from pathlib import Path

PANEL, HEIGHT = 380, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 170, 34, 50
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf"]
SEGMENT = 1394  # bytes of a full segment of TCP under the overlay

Line = dict[int, tuple[float, float]]


def read(files: str) -> Line:
    """Mean completion times, real and simulated, by the segments of an answer."""
    line: Line = {}
    for name in files.split(","):
        for cell in json.loads(Path(name).read_text(encoding="utf-8"))["cells"]:
            found = re.search(r"response=(\d+) B", cell["variant"])
            if found is None:
                sys.exit(f"{name}: a variant that does not say its response: {cell['variant']}")
            means = (cell["figures"]["mean_ms"], cell["simulated"]["mean_ms"])
            line[int(found[1]) // SEGMENT] = means
    return line


def main() -> None:
    """Reads figures, writes an SVG."""
    lines: dict[str, Line] = {}
    bases: dict[str, Line] = {}
    into = lines
    for word in sys.argv[1:]:
        if word == "--base":
            into = bases
            continue
        name, _, files = word.partition("=")
        into.setdefault(name, {}).update(read(files))
        into = lines
    if not lines or not bases:
        sys.exit(__doc__)
    sizes = sorted({size for base in bases.values() for size in base})
    gains = [
        base[size][world] / line[size][world]
        for base in bases.values()
        for line in lines.values()
        for size in base
        if size in line
        for world in (0, 1)
    ]
    low = min(0.5, *gains)
    high = max(16.0, *gains)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 7, 10, 14, 20, 50, 100, 200, 500) if low <= t <= high]

    def place(value: float, least: float, most: float) -> float:
        return (math.log(value) - math.log(least)) / (math.log(most) - math.log(least))

    width = LEFT + len(bases) * PANEL + RIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-size="12" '
        'font-family="sans-serif">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    down = HEIGHT - TOP - BOTTOM
    for panel, (title, base) in enumerate(bases.items()):
        left = LEFT + panel * PANEL
        span = PANEL - 30

        def x(size: int, left: int = left, span: int = span) -> float:
            return left + span * place(size, sizes[0], sizes[-1])

        def y(gain: float) -> float:
            return HEIGHT - BOTTOM - down * place(gain, low, high)

        out.append(f'<text x="{left + span / 2}" y="18" text-anchor="middle">{title}</text>')
        for tick in ticks:
            colour = "#888" if tick in (1, 7, 14) else "#ddd"
            out.append(f'<path d="M{left} {y(tick):.1f}H{left + span}" stroke="{colour}"/>')
            if panel == 0:
                out.append(f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for size in sizes:
            out.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{size}</text>')
        out.append(f'<text x="{left + span / 2}" y="{HEIGHT - 10}" text-anchor="middle">segments of an answer</text>')
        for n, line in enumerate(lines.values()):
            colour = COLOURS[n % len(COLOURS)]
            for world, dashes in ((0, ""), (1, ' stroke-dasharray="5 4"')):
                points = [(x(s), y(base[s][world] / line[s][world])) for s in sizes if s in base and s in line]
                path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
                out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
                if world == 0:
                    out.extend(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points)
    for n, name in enumerate(lines):
        at = TOP + 10 + 20 * n
        colour = COLOURS[n % len(COLOURS)]
        edge = width - RIGHT
        out.append(f'<path d="M{edge} {at}H{edge + 24}" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{edge + 30}" y="{at + 4}">{name}</text>')
    at = TOP + 10 + 20 * len(lines)
    out.append(f'<text x="{width - RIGHT}" y="{at + 4}">dashed: simulated</text>')
    turned = f'transform="translate(16 {HEIGHT / 2}) rotate(-90)"'
    out.append(f'<text {turned} text-anchor="middle">times as fast as TCP over tunnels of TCP</text>')
    print("\n".join([*out, "</svg>"]))


if __name__ == "__main__":
    main()
