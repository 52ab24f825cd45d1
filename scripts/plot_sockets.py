#!/usr/bin/env python3
"""Processor seconds a gigabyte against the receiver's sleep, as `sluicenet bench sockets --delay US,...` prints them.

usage: sluicenet bench sockets --delay US,... --json | plot_sockets.py > PLOT.svg
"""

import json
import sys

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 20, 50
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf"]
NAMES = {
    "tcp": "TCP",
    "tcp-offload": "TCP, offloads",
    "tcplight": "TCPlight",
    "udp": "UDP",
    "lossy": "Lossy",
    "pfc": "PFC",
    "zfabric": "zFabric",
}


def main() -> None:
    """Reads figures, writes an SVG."""
    pairs = [p for p in json.load(sys.stdin)["pairs"] if p["placement"] == "servers"]
    delays = sorted({p["delay_us"] for p in pairs})
    stacks = list(dict.fromkeys((p["guest"], p["hypervisor"]) for p in pairs))
    top = max(p["cpu_s_per_gb"]["max"] for p in pairs) * 1.05
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100) if top / s <= 8)

    def x(delay: int) -> float:
        # Steps of one width: sleeps are from microseconds to milliseconds.
        return LEFT + (WIDTH - LEFT - RIGHT) * delays.index(delay) / max(len(delays) - 1, 1)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / top

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in range(0, int(top) + 1, step):
        out.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for delay in delays:
        out.append(f'<text x="{x(delay):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{delay:,}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">us of sleep after every 100 frames</text>')
    turned = f'transform="translate(16 {HEIGHT / 2}) rotate(-90)"'
    out.append(f'<text {turned} text-anchor="middle">processor seconds a gigabyte</text>')
    for n, stack in enumerate(stacks):
        own = {p["delay_us"]: p["cpu_s_per_gb"] for p in pairs if (p["guest"], p["hypervisor"]) == stack}
        line = " ".join(f"{x(delay):.1f},{y(own[delay]['median']):.1f}" for delay in delays)
        colour = COLOURS[n % len(COLOURS)]
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for delay in delays:
            ends = f"M{x(delay):.1f} {y(own[delay]['min']):.1f}V{y(own[delay]['max']):.1f}"
            out.append(f'<path d="{ends}" stroke="{colour}"/>')
        at = TOP + 20 * n + 10
        out.append(f'<path d="M{WIDTH - RIGHT + 15} {at}h24" stroke="{colour}" stroke-width="2"/>')
        label = " + ".join(NAMES[word] for word in stack)
        out.append(f'<text x="{WIDTH - RIGHT + 45}" y="{at + 4}">{label}</text>')
    print("\n".join([*out, "</svg>"]))


if __name__ == "__main__":
    main()
