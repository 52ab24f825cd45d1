"""Table 3.1 (Al-Fares 2012) by other readings of its patterns: how much hangs on what the text leaves open.

permutations.py [N]: N permutations of each reading, through target/release/sluicenet at the flow level.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTS, POD, EDGE = 16, 4, 2
ROUTINGS = ("hierarchical", "two-level", "flow-classifier", "flow-scheduler")
# Within so many standard deviations of a single permutation the mean of five is, in 95 % of all cases.
OF_FIVE = 1.96 / 5**0.5

Pairs = list[tuple[int, int]]


def derangement(rng: random.Random) -> Pairs:
    """Nobody sends to itself: `random` of a scenario."""
    while True:
        pairs = with_itself(rng)
        if all(src != dst for src, dst in pairs):
            return pairs


def with_itself(rng: random.Random) -> Pairs:
    """Who draws itself sends to itself, which no link holds up."""
    to = list(range(HOSTS))
    rng.shuffle(to)
    return list(enumerate(to))


def staggered(subnet: float, pod: float, *, again: bool) -> Callable[[random.Random], Pairs]:
    """Who draws one that is taken draws place and receiver again, as a scenario's; or takes another, or anybody."""

    def draw(rng: random.Random) -> Pairs:
        while (pairs := attempt(rng)) is None:
            pass
        return pairs

    def attempt(rng: random.Random) -> Pairs | None:
        free, pairs = set(range(HOSTS)), []
        for src in rng.sample(range(HOSTS), HOSTS):
            if free == {src}:
                return None
            dst = src
            while dst == src or dst not in free:
                where = rng.random()
                size = EDGE if where < subnet else POD if where < subnet + pod else HOSTS
                inner = {EDGE: 1, POD: EDGE, HOSTS: POD}[size]
                place = [dst for dst in range(HOSTS) if dst // size == src // size and dst // inner != src // inner]
                if again:
                    dst = rng.choice(place)
                else:
                    dst = rng.choice([dst for dst in place if dst in free] or sorted(free - {src}))
            pairs.append((src, dst))
            free.remove(dst)
        return pairs

    return draw


def delivered(pairs: Pairs, routing: str, seed: int) -> float:
    """Mb/s of payload, of those who do not send to themselves."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pairs.txt")
        file.write_text("".join(f"{src} {dst}\n" for src, dst in pairs if src != dst))
        scenario = Path(folder, "scenario.toml")
        scenario.write_text(
            f'''
scenario = {{ level = "flow", duration = "1 s", warmup = "600 ms", seed = {seed} }}
topology = {{ kind = "fat-tree", k = 4, link_rate = "96 Mb/s", routing = "{routing}" }}
control = {{ period = "100 ms" }}
workload = [{{ kind = "permutation", pattern = "file", file = "pairs.txt", transport = "udp", rate = "96 Mb/s" }}]
'''
        )
        command = ["target/release/sluicenet", "run", str(scenario), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout)["streams"]["total_mbps"])


def cell(values: list[float]) -> str:
    """A mean, and within what of it the mean of five is in 95 % of all cases."""
    return f"{fmean(values):.1f} (± {OF_FIVE * stdev(values):.1f})".rjust(16)


def main() -> None:
    """Prints the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    line = delivered([(src, (src + 1) % HOSTS) for src in range(HOSTS)], "two-level", 1) / HOSTS
    readings: list[tuple[str, Callable[[random.Random], Pairs]]] = [
        ("random, to another", derangement),
        ("random, itself among all", with_itself),
        ("staggered(0.5, 0.3), again", staggered(0.5, 0.3, again=True)),
        ("staggered(0.5, 0.3), anybody", staggered(0.5, 0.3, again=False)),
        ("staggered(0.2, 0.3), again", staggered(0.2, 0.3, again=True)),
        ("staggered(0.2, 0.3), anybody", staggered(0.2, 0.3, again=False)),
    ]
    print(f"{count} permutations: the mean, and (±) within what of it the mean of five is in 95 % of all cases\n")
    print("".ljust(30), *(routing.rjust(16) for routing in ROUTINGS))
    for name, draw in readings:
        rng = random.Random(1)
        drawn = [draw(rng) for _ in range(count)]
        own = [sum(src == dst for src, dst in pairs) for pairs in drawn]
        cells = []
        for routing in ROUTINGS:
            sent = [delivered(pairs, routing, seed) for seed, pairs in enumerate(drawn)]
            cells.append(cell([100 * (mbps / line + n) / HOSTS for mbps, n in zip(sent, own, strict=True)]))
        print(name.ljust(30), *cells, flush=True)


if __name__ == "__main__":
    main()
