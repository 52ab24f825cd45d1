"""The time of a sweep with two workers in this process, on Ray and on Dask: sweep_clusters.py [RUNS].

Run it with the package, `ray` and `distributed` installed, on two cores that do nothing else. A cluster is started
before its sweep and is not part of the time. Each run takes about a second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sluicenet as sn

SCENARIO: dict[str, Any] = {
    "scenario": {"name": "sweep-clusters", "parameters": "plain"},
    "topology": {"kind": "single-switch", "hosts": 9, "link_rate": "10 Gb/s"},
    "workload": [{"kind": "incast", "senders": 8, "receiver": 8, "bytes": "20 KB", "rounds": 100}],
}
WORKERS = 2
RUN_S = 1.0
"""What a run is to take."""


def rounds() -> int:
    """As many as a run of a second has on this machine."""
    with tempfile.TemporaryDirectory() as out:
        overrides = {"workload.0.rounds": 2_000}
        log = sn.run(SCENARIO, out=Path(out) / "run", overrides=overrides, progress=False).log
    return max(1, round(2_000 * RUN_S / (log or {})["wall_seconds"]))


def timed(name: str, runs: int, overrides: dict[str, object], **where: object) -> float:
    """Prints and returns the seconds of a sweep."""
    with tempfile.TemporaryDirectory() as out:
        begun = time.monotonic()
        sweep = sn.sweep(SCENARIO, out=Path(out), seeds=range(runs), overrides=overrides, progress=False, **where)
        took_s = time.monotonic() - begun
        each_s = sum(cell.result.log["wall_seconds"] for cell in sweep if cell.result.log) / len(sweep)
    print(f"{name:12} {len(sweep)} runs in {took_s:6.2f} s, {each_s:.3f} s each", flush=True)
    return took_s


def on_ray(go: Callable[[object], float]) -> float:
    """On a new Ray cluster of this machine."""
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, logging_level="error")
    try:
        return go(ray)
    finally:
        ray.shutdown()


def on_dask(go: Callable[[object], float]) -> float:
    """On a new Dask cluster of this machine."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        return go(client)


def main() -> None:
    """One sweep after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, nargs="?", default=40)
    runs = parser.parse_args().runs
    overrides: dict[str, object] = {"workload.0.rounds": rounds()}
    here = timed("this process", runs, overrides, workers=WORKERS)
    for name, on in (("Ray", on_ray), ("Dask", on_dask)):
        took_s = on(lambda executor, name=name: timed(name, runs, overrides, executor=executor))
        print(f"{name:12} {100 * (took_s / here - 1):+.1f} %", flush=True)


if __name__ == "__main__":
    main()
