"""One cell of a sweep, run where an executor puts it."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from . import _native
from ._errors import ClusterError, SluicenetError
from ._result import Scratch
from ._source import Odd


@lru_cache(maxsize=1)
def build() -> str:
    """Version and build, which all workers of a sweep must have: builds of two commits may have the same version."""
    digest = hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()
    return f"{_native.__version__} (build {digest[:12]})"


@dataclass(frozen=True)
class Plan:
    """All that a worker needs to run any cell of a sweep."""

    source: str
    file: str
    folder: str
    overrides: list[str]
    inputs: list[tuple[str, bytes]]
    seeds: list[int] | None
    threads: int
    out: str | None
    """The sweep's folder, which workers share; None where results return."""

    def packed(self) -> bytes:
        """As bytes, the same for the same sweep."""
        return zlib.compress(pickle.dumps(self))


@dataclass(frozen=True)
class Answer:
    """What became of a cell."""

    worker: str
    odd: list[Odd] = field(default_factory=list)
    files: dict[str, bytes] | None = None
    """The files of the result by name, where no folder is shared."""
    error: SluicenetError | None = None
    """What would stop every other cell too, as a full disk."""


def cell(wanted: str, plan: bytes | str, index: int) -> Answer:
    """Runs a cell on a worker, for a sweep of this build; `plan` is a packed one, or a file in the sweep's folder."""
    worker = f"{socket.gethostname()} (process {os.getpid()})"
    if wanted != build():
        text = f"worker {worker} has sluicenet {build()}, and this sweep is of sluicenet {wanted}"
        return Answer(worker, error=ClusterError(f"{text}: install the same package everywhere"))
    if isinstance(plan, str) and not Path(plan).exists():
        text = f"worker {worker} does not see {Path(plan).parent}"
        return Answer(worker, error=ClusterError(f"{text}: give a folder that all workers share, or shared=False"))
    try:
        of, jobs = _opened(plan)
        return _run(worker, of, jobs[index])
    except SluicenetError as e:
        return Answer(worker, error=e)


@lru_cache(maxsize=1)
def _opened(plan: bytes | str) -> tuple[Plan, list[_native.Job]]:
    """The plan and its jobs: read once by each process."""
    packed = Path(plan).read_bytes() if isinstance(plan, str) else plan
    of: Plan = pickle.loads(zlib.decompress(packed))
    scenario = _native.Scenario.parse(of.source, of.file, of.folder, of.overrides, of.inputs)
    return of, scenario.variants(of.seeds)


def _run(worker: str, of: Plan, job: _native.Job) -> Answer:
    # An earlier try may have left a part of its records.
    if of.out is not None:
        odd = job.run(Path(of.out) / job.folder, threads=of.threads, existing="resume", stop=_native.Stop())
        return Answer(worker, odd or [])
    scratch = Scratch()
    path = scratch.path / "run"
    odd = job.run(path, threads=of.threads, existing="refuse", stop=_native.Stop())
    return Answer(worker, odd or [], {file.name: file.read_bytes() for file in sorted(path.iterdir())})
