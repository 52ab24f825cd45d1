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

SCENARIO = "scenarios/alfares2012/table-3-1.toml"
HOSTS, POD, EDGE = 16, 4, 2
ROUTINGS = ("hierarchical", "two-level", "flow-classifier", "flow-scheduler")
# Within so many standard deviations of a single permutation the mean of five is, in 95 % of all cases.
OF_FIVE = 1.96 / 5**0.5

Pairs = list[tuple[int, int]]


def with_itself(rng: random.Random) -> Pairs:
    """Who draws itself sends to itself, which no link holds up."""
    to = list(range(HOSTS))
    rng.shuffle(to)
    return list(enumerate(to))


def or_anybody(subnet: float, pod: float) -> Callable[[random.Random], Pairs]:
    """Staggered: who draws one that is taken takes another of that place, or anybody."""

    def draw(rng: random.Random) -> Pairs:
        while (pairs := attempt(rng)) is None:
            pass
        return pairs

    def attempt(rng: random.Random) -> Pairs | None:
        free, pairs = set(range(HOSTS)), []
        for src in rng.sample(range(HOSTS), HOSTS):
            if free == {src}:
                return None
            where = rng.random()
            size = EDGE if where < subnet else POD if where < subnet + pod else HOSTS
            inner = {EDGE: 1, POD: EDGE, HOSTS: POD}[size]
            place = [dst for dst in sorted(free) if dst // size == src // size and dst // inner != src // inner]
            dst = rng.choice(place or sorted(free - {src}))
            pairs.append((src, dst))
            free.remove(dst)
        return pairs

    return draw


def by_position(rng: random.Random) -> Pairs:
    """Edge switches of one position to two pods that are drawn for it, and those of these two to each other."""
    pods = rng.sample(range(HOSTS // POD), HOSTS // POD)
    pairs = []
    for position, two in enumerate((pods[:2], pods[2:])):
        rest = rng.sample([pod for pod in pods if pod not in two], 2)
        for to, senders in ((two[0], [rest[0], two[1]]), (two[1], [rest[1], two[0]])):
            for edge, sender in enumerate(rng.sample(senders, 2)):
                ids = rng.sample(range(EDGE), EDGE)
                pairs += [
                    (sender * POD + position * EDGE + h, to * POD + edge * EDGE + id_) for h, id_ in enumerate(ids)
                ]
    return sorted(pairs)


def exchanged(to: Callable[[int, int], int]) -> Callable[[random.Random], Pairs]:
    """Host h of edge switch s to host s of edge switch h, in the pod that `to` says of pod and h: nothing is drawn."""

    def draw(_: random.Random) -> Pairs:
        places = [(src // POD, src // EDGE % EDGE, src % EDGE) for src in range(HOSTS)]
        return [(src, to(p, h) % (HOSTS // POD) * POD + h * EDGE + s) for src, (p, s, h) in enumerate(places)]

    return draw


def delivered(routing: str, seed: int, *settings: str) -> float:
    """Mb/s of payload."""
    command = ["target/release/sluicenet", "run", SCENARIO, "--level", "flow", "--json"]
    for setting in (f"topology.routing={routing}", f"scenario.seed={seed}", *settings):
        command += ["--set", setting]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout)["streams"]["total_mbps"])


def main() -> None:
    """Prints the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    line = delivered("two-level", 1, "workload.0.pattern=stride(1)") / HOSTS
    # By a pattern of a scenario, or by drawing pairs.
    readings: list[tuple[str, str | Callable[[random.Random], Pairs]]] = [
        ("random, to another", "random"),
        ("random, itself among all", with_itself),
        ("staggered(0.5, 0.3), again", "staggered(0.5, 0.3)"),
        ("staggered(0.5, 0.3), anybody", or_anybody(0.5, 0.3)),
        ("staggered(0.2, 0.3), again", "staggered(0.2, 0.3)"),
        ("staggered(0.2, 0.3), anybody", or_anybody(0.2, 0.3)),
        ("inter-pod incoming", "inter-pod-incoming"),
        ("inter-pod incoming, position", by_position),
        ("inter-pod incoming, exchanged", exchanged(lambda p, h: p - 1 - h)),
        ("same-ID outgoing", "same-id-outgoing"),
        ("same-ID outgoing, exchanged", exchanged(lambda p, _: p + 1)),
    ]
    print(f"{count} permutations: the mean, and (±) within what of it the mean of five is in 95 % of all cases\n")
    print("".ljust(30), *(routing.rjust(16) for routing in ROUTINGS))
    with tempfile.TemporaryDirectory() as folder:
        for name, reading in readings:
            rng = random.Random(1)
            # What is set for each permutation, and how many of it send to themselves.
            drawn: list[tuple[list[str], int]] = []
            for n in range(count):
                if isinstance(reading, str):
                    drawn.append(([f"workload.0.pattern={reading}"], 0))
                    continue
                pairs = reading(rng)
                others = [f"{src} {dst}\n" for src, dst in pairs if src != dst]
                file = Path(folder, f"{n}.txt")
                file.write_text("".join(others))
                drawn.append((["workload.0.pattern=file", f"workload.0.file={file}"], HOSTS - len(others)))
            cells = []
            for routing in ROUTINGS:
                runs = [(delivered(routing, 1 + n, *settings), own) for n, (settings, own) in enumerate(drawn)]
                percent = [100 * (mbps / line + own) / HOSTS for mbps, own in runs]
                cells.append(f"{fmean(percent):.1f} (± {OF_FIVE * stdev(percent):.1f})".rjust(16))
            print(name.ljust(30), *cells, flush=True)


if __name__ == "__main__":
    main()
