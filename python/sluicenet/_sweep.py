"""All variants of a scenario, as many at a time as there are cores."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

import pyarrow as pa

from . import _native
from ._errors import Interrupted
from ._progress import Bar, fraction
from ._result import Result
from ._run import Existing, execute, existing_policy
from ._source import Odd, Source, read, warn
from ._table import Table, rows_html

_LOOK_INTERVAL_S = 0.1
"""How often the waiting thread looks for Ctrl-C and moves the bar."""


Setting = str | bool | int | float
"""A value of an axis."""

_INT64 = range(-(2**63), 2**63)
_REAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


class Cell(NamedTuple):
    """One run of a sweep: what it was run with, and what came out.

    Values are bool, int or float where all values of their key in this sweep are, and text otherwise, as ``"20 KB"``.
    """

    settings: dict[str, Setting]
    result: Result


def typed(axes: Sequence[Mapping[str, str]]) -> list[dict[str, Setting]]:
    """The axes of all runs of a sweep, whose values records have as text, with the values they stand for."""
    names = list(dict.fromkeys(name for run in axes for name in run))
    converters = {name: _converter([run[name] for run in axes if name in run]) for name in names}
    return [{name: converters[name](value) for name, value in run.items()} for run in axes]


def _converter(values: Sequence[str]) -> Callable[[str], Setting]:
    """What makes one type of all these texts, so that a column has one."""

    def boolean(text: str) -> bool:
        return {"true": True, "false": False}[text]

    def whole(text: str) -> int:
        if (number := int(text)) not in _INT64 or str(number) != text:
            raise ValueError(text)
        return number

    def real(text: str) -> float:
        # "nan" and "007" are words here, and a whole number beyond 64 bits would lose its end.
        if not _REAL.fullmatch(text) or (text.lstrip("-").isdigit() and int(text) not in _INT64):
            raise ValueError(text)
        return float(text)

    for convert in (boolean, whole, real):
        try:
            for text in values:
                convert(text)
        except (KeyError, ValueError):
            continue
        return convert
    return str


class SweepTable(Table):
    """One table of all runs, with a column for each setting in front."""

    def __init__(self, name: str, cells: Sequence[Cell], table: Callable[[Result], pa.Table]) -> None:
        """`table` takes its part from a result."""
        super().__init__(name)
        self._cells = cells
        self._of = table

    def _load(self) -> pa.Table:
        parts = [_with_settings(self._of(cell.result), cell.settings) for cell in self._cells]
        return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})


def _with_settings(table: pa.Table, settings: Mapping[str, Setting]) -> pa.Table:
    for place, (name, value) in enumerate(settings.items()):
        # Seeds are any 64 bits.
        scalar = pa.scalar(value, pa.uint64()) if name == "seed" else pa.scalar(value)
        column: pa.Array[Any] = pa.repeat(scalar, table.num_rows)
        # A table may have a column of the same name, as `priority`: the setting is told apart.
        name = f"{name}_setting" if name in table.column_names else name
        table = table.add_column(place, pa.field(name, column.type), column)
    return table


class Sweep(Sequence[Cell]):
    """The runs of a sweep in the order of the scenario: ``for settings, result in sweep``.

    Attributes:
        path: The directory; each run has a folder there.
    """

    def __init__(self, path: Path, cells: Sequence[Cell]) -> None:
        """See `sweep`."""
        self.path = path
        self._cells = tuple(cells)

    @overload
    def __getitem__(self, index: int) -> Cell: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Cell]: ...
    def __getitem__(self, index: int | slice) -> Cell | Sequence[Cell]:
        """A run by its place."""
        return self._cells[index]

    def __len__(self) -> int:
        """How many runs."""
        return len(self._cells)

    @property
    def failed(self) -> list[Cell]:
        """The runs that failed."""
        return [cell for cell in self if cell.result.status.startswith("failed")]

    @cached_property
    def summary(self) -> Table:
        """A row a run: its settings and its summary."""

        def row(result: Result) -> pa.Table:
            skipped = ("seed", "drops_by_reason", "messages")
            return pa.Table.from_pylist([{k: v for k, v in result.summary.items() if k not in skipped}])

        return SweepTable("summary", self, row)

    @cached_property
    def flows(self) -> Table:
        """The flows of all runs."""
        return SweepTable("flows", self, lambda r: r.flows.to_arrow())

    @cached_property
    def queries(self) -> Table:
        """The queries of all runs."""
        return SweepTable("queries", self, lambda r: r.queries.to_arrow())

    @cached_property
    def ports(self) -> Table:
        """The ports of all runs."""
        return SweepTable("ports", self, lambda r: r.ports.to_arrow())

    @cached_property
    def drops(self) -> Table:
        """The drops of all runs."""
        return SweepTable("drops", self, lambda r: r.drops.to_arrow())

    @cached_property
    def marks(self) -> Table:
        """The marks of all runs."""
        return SweepTable("marks", self, lambda r: r.marks.to_arrow())

    @cached_property
    def limiters(self) -> Table:
        """The sampled rate limiters of all runs."""
        return SweepTable("limiters", self, lambda r: r.limiters.to_arrow())

    @cached_property
    def estimates(self) -> Table:
        """The sampled estimates of bumps, of all runs."""
        return SweepTable("estimates", self, lambda r: r.estimates.to_arrow())

    @cached_property
    def bumps(self) -> Table:
        """The virtual queues of bumps, of all runs."""
        return SweepTable("bumps", self, lambda r: r.bumps.to_arrow())

    @cached_property
    def pauses(self) -> Table:
        """The pauses of all runs."""
        return SweepTable("pauses", self, lambda r: r.pauses.to_arrow())

    @cached_property
    def queues(self) -> Table:
        """The sampled queues of all runs."""
        return SweepTable("queues", self, lambda r: r.queues.to_arrow())

    @cached_property
    def tcp(self) -> Table:
        """The sampled TCP connections of all runs."""
        return SweepTable("tcp", self, lambda r: r.tcp.to_arrow())

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the HTML report, to ``report.html`` in the sweep where no path is given, and returns its path."""
        target = self.path / "report.html" if path is None else Path(path)
        _native.report([cell.result.path for cell in self], target, None)
        return target

    def __repr__(self) -> str:
        """A line a run."""
        lines = [f"<sluicenet.Sweep of {len(self)} runs in {self.path}"]
        for settings, result in self:
            s = result.summary
            mean = "-" if s["mean_us"] is None else f"{s['mean_us']:,.1f} us"
            label = " ".join(f"{k}={v}" for k, v in settings.items())
            unfinished = f", {s['unfinished']:,} unfinished" if s["unfinished"] else ""
            counts = f"{s['timeouts']:,} timeouts, {s['drops']:,} drops"
            lines.append(f"  {label}: mean {mean}{unfinished}, {counts}, {s['status']}")
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        """The summaries, for notebooks."""
        return rows_html(self.summary.to_arrow(), f"{len(self)} runs in {self.path}")


def sweep(
    scenario: Source,
    *,
    out: str | os.PathLike[str],
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    threads: int = 1,
    overrides: Mapping[str, object] | None = None,
    resume: bool = True,
    force: bool = False,
    progress: bool | None = None,
) -> Sweep:
    """Runs every variant of a scenario's ``[sweep]``, with each of the seeds; each is a run by itself.

    After Ctrl-C or a kill the same call goes on where it was: complete runs are kept. A run that fails stops no other;
    a warning says so, and `Sweep.failed` has them. What all come to is in ``summary.json``, as ``sluicenet sweep``
    writes it: the runs in their order, and the configurations with their seeds together.

    Args:
        scenario: A file's path, TOML text (of more than one line), or a dict of sections.
        out: Where to put the results: a folder each, named as ``sluicenet sweep`` names them.
        seeds: Seeds to run every variant with; where absent, the scenario's own.
        workers: Runs at a time; where absent, as many as there are cores. The results are the same.
        threads: Threads of each run.
        overrides: Values by dotted key, as ``{"tcp.congestion": "cubic"}``.
        resume: Keep complete runs of an earlier sweep, replace incomplete ones.
        force: Replace all runs of an earlier sweep.
        progress: Whether to show progress; where absent, in terminals and notebooks.

    Raises:
        ScenarioError: The scenario or a variant cannot be used, or its sweep varies what is given here as well.
        RecordError: Records cannot be written, or `out` or a folder there holds another result.
        Interrupted: Ctrl-C, as a KeyboardInterrupt that has the runs that are complete.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers: at least 1, not {workers}")
    if threads < 1:
        raise ValueError(f"threads: at least 1, not {threads}")
    loaded = read(scenario, overrides)
    warn(loaded.warnings, stacklevel=2)
    if seeds is not None:
        loaded.check_seeds()
    jobs = loaded.variants(None if seeds is None else list(dict.fromkeys(seeds)))
    existing = existing_policy(resume and not force, force)
    root = Path(out)
    _native.claim_sweep(root, loaded.name, existing)
    with Bar(loaded.name, progress) as bar:
        results, odd = _run_all(loaded.name, jobs, root, workers or max(1, _cores() // threads), threads, existing, bar)
        bar.finish()
    warn(odd, stacklevel=2)
    settings = _settings(jobs)
    done = Sweep(root, [Cell(settings[i], results[i]) for i in sorted(results)])
    if done.failed:
        text = f"{len(done.failed)} of {len(done)} runs failed; the first: {done.failed[0].result.status}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return done


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _settings(jobs: Sequence[_native.Job]) -> list[dict[str, Setting]]:
    axes = typed([dict(job.axes) for job in jobs])
    return [{**run, "seed": job.seed} for run, job in zip(axes, jobs, strict=True)]


def _folders(jobs: Sequence[_native.Job]) -> list[str]:
    """A folder a job, no two the same."""
    names: list[str] = []
    for job in jobs:
        names.append(job.folder if job.folder not in names else f"{job.folder}-{len(names)}")
    return names


def _run_all(
    name: str, jobs: Sequence[_native.Job], root: Path, workers: int, threads: int, existing: Existing, bar: Bar
) -> tuple[dict[int, Result], list[Odd]]:
    stop = _native.Stop()
    shares = [0.0] * len(jobs)
    folders = _folders(jobs)

    def one(index: int) -> tuple[Result, list[Odd]]:
        def tick(now_ps: int, until_ps: int | None, remaining: int, total: int, _hops: int) -> None:
            shares[index] = fraction(now_ps, until_ps, remaining, total)

        done = execute(jobs[index], root / folders[index], None, threads, existing, stop, tick)
        shares[index] = 1.0
        return done

    results: dict[int, Result] = {}
    odd: list[Odd] = []
    waiting: dict[Future[tuple[Result, list[Odd]]], int] = {}
    pool = ThreadPoolExecutor(workers, thread_name_prefix="sluicenet")

    def take(future: Future[tuple[Result, list[Odd]]]) -> None:
        results[waiting.pop(future)], found = future.result()
        odd.extend(w for w in found if w not in odd)

    try:
        waiting.update((pool.submit(one, i), i) for i in range(len(jobs)))
        while waiting:
            done, _ = wait(waiting, timeout=_LOOK_INTERVAL_S, return_when=FIRST_COMPLETED)
            for future in done:
                take(future)
            bar.set(sum(shares) / len(jobs), f"{len(results)} of {len(jobs)} runs")
    except KeyboardInterrupt:
        _end(pool, stop)
        for future in [f for f in waiting if not f.cancelled() and f.exception() is None]:
            take(future)
        complete = [i for i in sorted(results) if results[i].status == "complete"]
        _native.sweep_summary(root, name, [folders[i] for i in complete])
        text = f"{len(complete)} of {len(jobs)} runs are complete in {root}; the same call goes on from there"
        settings = _settings(jobs)
        cells = [Cell(settings[i], results[i]) for i in complete]
        raise Interrupted(text, Sweep(root, cells)) from None
    finally:
        _end(pool, stop)
    _native.sweep_summary(root, name, [folders[i] for i in sorted(results)])
    return results, odd


def _end(pool: ThreadPoolExecutor, stop: _native.Stop) -> None:
    """Lets runs stop at the end of their epoch, and starts no more."""
    stop.set()
    pool.shutdown(wait=True, cancel_futures=True)
