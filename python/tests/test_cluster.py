"""Sweeps on executors: the same bytes as in this process, whatever becomes of workers."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pytest
from conftest import parquet

import sluicenet as sn
from sluicenet import _native, _work

AXES = '\n[sweep]\n"tcp.congestion" = ["newreno", "cubic"]\n"workload.0.rounds" = [2, 9]\n'
LONGER = '\n[sweep]\n"tcp.congestion" = ["newreno", "cubic"]\n"workload.0.rounds" = [2, 150]\n'
WAIT_S = 60.0
T = TypeVar("T")


@pytest.fixture
def swept(incast: Path) -> str:
    """The incast under two congestion controls, short and long."""
    return incast.read_text() + AXES


@pytest.fixture
def processes() -> Iterator[ProcessPoolExecutor]:
    """Two workers; the threads of this process are no part of them."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


def same(a: sn.Sweep, b: sn.Sweep) -> None:
    """Every byte that is not about the machine."""
    assert [c.settings for c in a] == [c.settings for c in b]
    for (_, x), (_, y) in zip(a, b, strict=True):
        assert parquet(x.path) == parquet(y.path)
    for name in ("summary.json", "cells.parquet"):
        assert (a.path / name).read_bytes() == (b.path / name).read_bytes()
    assert a.report().read_text() == b.report().read_text()
    assert sorted(p.name for p in a.path.iterdir()) == sorted(p.name for p in b.path.iterdir())


def test_an_executor_gives_the_same_bytes(swept: str, processes: ProcessPoolExecutor, tmp_path: Path) -> None:
    here = sn.sweep(swept, out=tmp_path / "here", seeds=[1, 2])
    same(here, sn.sweep(swept, out=tmp_path / "shared", seeds=[1, 2], executor=processes))
    same(here, sn.sweep(swept, out=tmp_path / "columns", seeds=[1, 2], executor=processes, shared=False))
    table = pl.read_parquet(tmp_path / "here" / "cells.parquet")
    assert table.columns[:4] == ["congestion", "rounds", "seed", "folder"]
    assert table.select("congestion", "rounds", "seed").rows() == [
        (congestion, rounds, seed) for congestion in ("newreno", "cubic") for rounds in (2, 9) for seed in (1, 2)
    ]
    assert table["mean_us"].to_list() == [c.result.summary["mean_us"] for c in here]
    assert table["drops"].to_list() == [c.result.summary["drops"] for c in here]


class Recorder(ThreadPoolExecutor):
    """Keeps the cells in the order in which they began, and may lose one."""

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(1)
        self.began: list[int] = []
        self._before = before

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:  # noqa: ANN401
        def one() -> T:
            index: int = args[2]
            self.began.append(index)
            self._before(index)
            return fn(*args, **kwargs)

        return super().submit(one)


def test_long_runs_start_first_and_complete_ones_are_kept(swept: str, tmp_path: Path) -> None:
    executor = Recorder()
    first = sn.sweep(swept, out=tmp_path, executor=executor)
    assert executor.began == [1, 3, 0, 2]
    manifest = first[2].result.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete"', '"running"'))
    sn.sweep(swept, out=tmp_path, executor=executor)
    assert executor.began[4:] == [2]
    with pytest.raises(sn.RecordError, match="already holds"):
        sn.sweep(swept, out=tmp_path, executor=executor, resume=False)
    sn.sweep(swept, out=tmp_path, executor=executor, force=True)
    assert len(executor.began) == 9


def test_a_run_whose_worker_died_runs_again_a_few_times(swept: str, tmp_path: Path) -> None:
    deaths = {1: 2, 3: 3}

    def die(index: int) -> None:
        if deaths.get(index, 0) > 0:
            deaths[index] -= 1
            raise OSError("worker died")

    executor = Recorder(die)
    with pytest.raises(
        sn.ClusterError, match=r"rounds=9: its worker died in every try \(OSError: worker died\)"
    ) as told:
        sn.sweep(swept, out=tmp_path, executor=executor)
    assert "3 of 4 runs are complete" in str(told.value)
    assert told.value.result is not None
    assert [c.settings["rounds"] for c in told.value.result] == [2, 9, 2]
    assert sorted(executor.began) == [0, 1, 1, 1, 2, 3, 3, 3]
    # The same call goes on.
    assert len(sn.sweep(swept, out=tmp_path, executor=executor)) == 4


def test_a_killed_pool_is_an_error_and_keeps_what_is_complete(
    incast: Path, long: dict[str, Any], processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    rounds = '"workload.0.rounds" = [2, 100000000]\n'
    endless = incast.read_text() + "\n[sweep]\n" + rounds
    out = tmp_path / "out"

    def kill_one_of_them() -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < WAIT_S and not (out / "rounds=2" / "summary.json").exists():
            time.sleep(0.05)
        os.kill(next(iter(processes._processes)), signal.SIGKILL)

    thread = threading.Thread(target=kill_one_of_them)
    thread.start()
    with pytest.raises(sn.ClusterError, match=r"ProcessPoolExecutor is gone: .*; 1 of 2 runs are complete in .*/out"):
        sn.sweep(endless, out=out, executor=processes)
    thread.join()
    table = pl.read_parquet(out / "cells.parquet")
    assert table["rounds"].to_list() == [2]
    for process in list((processes._processes or {}).values()):
        process.kill()


def test_another_version_is_refused_by_its_worker(
    swept: str, processes: ProcessPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A build of another commit has the same version.
    for other in ("0.0.9 (build 0123456789ab)", f"{sn.__version__} (build 0123456789ab)"):
        monkeypatch.setattr(_work, "build", lambda other=other: other)
        has = rf"worker .* \(process \d+\) has sluicenet {sn.__version__} \(build [0-9a-f]{{12}}\)"
        with pytest.raises(sn.ClusterError, match=rf"{has}, and this sweep is of sluicenet {re.escape(other)}"):
            sn.sweep(swept, out=tmp_path, executor=processes)


def test_a_build_is_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = _work.build()
    other = tmp_path / "native.so"
    other.write_bytes(Path(_native.__file__).read_bytes() + b"\0")
    monkeypatch.setattr(_native, "__file__", str(other))
    assert _work.build.__wrapped__() != mine
    assert mine.startswith(f"{sn.__version__} (build ")


def test_a_sweep_goes_on_in_its_own_folder_only(swept: str, tmp_path: Path) -> None:
    sn.sweep(swept, out=tmp_path)
    with pytest.raises(sn.RecordError, match=r"another scenario: workload\.0\.bytes is \d+ B there and 2000 B here"):
        sn.sweep(swept, out=tmp_path, overrides={"workload.0.bytes": "2 KB"})
    with pytest.raises(sn.RecordError, match=r"congestion=cubic,rounds=2: the result of a run that this sweep does"):
        sn.sweep(swept.replace("[2, 9]", "[9]"), out=tmp_path)


def test_a_result_of_another_version_is_refused_by_its_folder(swept: str, tmp_path: Path) -> None:
    first = sn.sweep(swept, out=tmp_path)
    manifest = first[1].result.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"{sn.__version__}"', '"0.0.9"'))
    for executor in (None, Recorder()):
        with pytest.raises(sn.RecordError, match=r"rounds=9.*of sluicenet 0\.0\.9, and this is"):
            sn.sweep(swept, out=tmp_path, executor=executor)
    assert len(sn.sweep(swept, out=tmp_path, force=True)) == 4


def test_two_sweeps_do_not_share_a_folder(swept: str, tmp_path: Path) -> None:
    told: list[str] = []

    def other(_: int) -> None:
        with pytest.raises(sn.RecordError) as e:
            sn.sweep(swept, out=tmp_path)
        told.append(str(e.value))

    sn.sweep(swept, out=tmp_path, executor=Recorder(other))
    assert told[0] == f"{tmp_path}: another run or sweep is writing its results here; give another directory, or wait"


def test_a_folder_that_workers_do_not_see(swept: str, tmp_path: Path) -> None:
    def hide(_: int) -> None:
        for mark in tmp_path.glob(".sweep-*"):
            mark.unlink()

    with pytest.raises(sn.ClusterError, match=f"does not see {tmp_path}: give a folder .*shared=False"):
        sn.sweep(swept, out=tmp_path, executor=Recorder(hide))


def test_a_folder_that_takes_no_more_is_an_error_with_the_file(swept: str, tmp_path: Path) -> None:
    first = sn.sweep(swept, out=tmp_path)
    shutil.rmtree(first[1].result.path)
    before = {cell.result.path: parquet(cell.result.path) for cell in first if cell is not first[1]}
    told = pytest.raises(sn.RecordError, match=r"congestion=newreno,rounds=9/.*: cannot write: .*File too large")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=take_little) as pool, told:
        sn.sweep(swept, out=tmp_path, executor=pool)
    assert {path: parquet(path) for path in before} == before
    assert len(sn.sweep(swept, out=tmp_path)) == 4


def take_little() -> None:
    """No file of this process gets longer than this, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))


def test_input_files_travel_with_the_runs(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("1000 0\n1000 50\n20000 100\n")
    scenario = tmp_path / "poisson.toml"
    scenario.write_text(
        '[scenario]\nname = "poisson"\nparameters = "plain"\nduration = "200 us"\n'
        '[topology]\nkind = "single-switch"\nhosts = 4\n[[workload]]\nkind = "poisson"\ncdf = "sizes.txt"\n'
        'load = 0.5\n[sweep]\n"workload.0.load" = [0.1, 0.5]\n'
    )
    here = sn.sweep(scenario, out=tmp_path / "here")
    # No worker reads the file.
    there = sn.sweep(scenario, out=tmp_path / "there", executor=Recorder(lambda _: sizes.unlink(missing_ok=True)))
    assert not sizes.exists()
    same(here, there)
    assert there[0].result.manifest["inputs"][0]["name"] == "sizes.txt"


def test_what_is_no_executor_is_refused(swept: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"executor: a Dask client, the module ray, .* not str"):
        sn.sweep(swept, out=tmp_path, executor="ray")
    with pytest.raises(ValueError, match="workers: an executor has its own"):
        sn.sweep(swept, out=tmp_path, executor=Recorder(), workers=2)
    assert not any(tmp_path.glob("*/flows-*"))


def test_on_dask_a_worker_dies_and_its_run_is_made_elsewhere(incast: Path, tmp_path: Path) -> None:
    swept = incast.read_text() + LONGER
    distributed = pytest.importorskip("distributed", reason="needs Dask: pip install 'sluicenet[dask]'")
    here = sn.sweep(swept, out=tmp_path / "here", seeds=[1, 2])
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        killer = Killer(tmp_path / "there", lambda: next(iter(client.run(os.getpid).values())))
        same(here, sn.sweep(swept, out=tmp_path / "there", seeds=[1, 2], executor=client))
        killer.join()
        assert killer.complete < len(here)
        same(here, sn.sweep(swept, out=tmp_path / "columns", seeds=[1, 2], executor=client, shared=False))


def test_on_ray_a_worker_dies_and_its_run_is_made_elsewhere(incast: Path, tmp_path: Path) -> None:
    swept = incast.read_text() + LONGER
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'sluicenet[ray]'")
    here = sn.sweep(swept, out=tmp_path / "here", seeds=[1, 2])
    context = ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        killer = Killer(tmp_path / "there", ray_worker)
        same(here, sn.sweep(swept, out=tmp_path / "there", seeds=[1, 2], executor=ray))
        killer.join()
        assert killer.complete < len(here)
        same(here, sn.sweep(swept, out=tmp_path / "columns", seeds=[1, 2], executor=context, shared=False))
    finally:
        ray.shutdown()


def ray_worker() -> int:
    """The process that runs a cell: Ray names processes after their task."""
    found = [p for p in Path("/proc").glob("[0-9]*/cmdline") if p.read_bytes().startswith(b"ray::sluicenet")]
    return int(found[0].parent.name)


class Killer(threading.Thread):
    """Kills a worker when a first run is complete."""

    def __init__(self, out: Path, worker: Callable[[], int]) -> None:
        super().__init__()
        self._out = out
        self._worker = worker
        self.start()

    def run(self) -> None:
        """Waits for the run."""
        begun = time.monotonic()
        while time.monotonic() - begun < WAIT_S and self._complete() == 0:
            time.sleep(0.005)
        os.kill(self._worker(), signal.SIGKILL)
        self.complete = self._complete()

    def _complete(self) -> int:
        return len(list(self._out.glob("*/summary.json")))
