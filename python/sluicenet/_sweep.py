"""All variants of a scenario, as many at a time as there are cores."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

import pyarrow as pa

from . import _cluster, _native
from ._errors import ClusterError, Interrupted
from ._progress import Bar, fraction
from ._result import Result
from ._run import Existing, execute, existing_policy
from ._source import Odd, Source, read, warn
from ._table import Table, rows_html
from ._work import Answer

_LOOK_INTERVAL_S = 0.1
"""How often the waiting thread looks for Ctrl-C and moves the bar."""


Setting = str | bool | int | float
"""A value of an axis."""


class Cell(NamedTuple):
    """One run of a sweep: what it was run with, and what came out.

    Values are bool, int or float where all values of their key in this sweep are, and text otherwise, as ``"20 KB"``.
    """

    settings: dict[str, Setting]
    result: Result


def typed(axes: Sequence[Mapping[str, str]]) -> list[dict[str, Setting]]:
    """The axes of all runs of a sweep, whose values records have as text, with the values they stand for."""
    names = list(dict.fromkeys(name for run in axes for name in run))
    columns: dict[str, Iterator[Setting]] = {
        name: iter(_native.typed([run[name] for run in axes if name in run])) for name in names
    }
    return [{name: next(columns[name]) for name in run} for run in axes]


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
    def storms(self) -> Table:
        """The storms that the PFC watchdogs of switches found, of all runs."""
        return SweepTable("storms", self, lambda r: r.storms.to_arrow())

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
    executor: object | None = None,
    shared: bool = True,
    overrides: Mapping[str, object] | None = None,
    resume: bool = True,
    force: bool = False,
    progress: bool | None = None,
) -> Sweep:
    """Runs every variant of a scenario's ``[sweep]``, with each of the seeds; each is a run by itself.

    After Ctrl-C or a kill the same call goes on where it was: complete runs are kept. A run that fails stops no other;
    a warning says so, and `Sweep.failed` has them. What all come to is in ``summary.json``, as ``sluicenet sweep``
    writes it: the runs in their order, and the configurations with their seeds together; ``cells.parquet`` is a table
    of all runs. Runs that are expected to take long start first.

    An `executor` runs them on a cluster, with the same bytes. A run whose worker died starts again on another, at most
    three times in all.

    Args:
        scenario: A file's path, TOML text (of more than one line), or a dict of sections.
        out: Where to put the results: a folder each, named as ``sluicenet sweep`` names them.
        seeds: Seeds to run every variant with; where absent, the scenario's own.
        workers: Runs at a time; where absent, as many as there are cores. The results are the same.
        threads: Threads of each run.
        executor: Where to run: a Dask client, the module ``ray`` after ``ray.init()``, what that returned, or an
            executor as those of `concurrent.futures`. Where absent, in this process.
        shared: Whether the executor's workers see `out`, as on a shared file system, and write there. Where they do
            not, their tables return as columns and this process writes them.
        overrides: Values by dotted key, as ``{"tcp.congestion": "cubic"}``.
        resume: Keep complete runs of an earlier sweep, replace incomplete ones.
        force: Replace all runs of an earlier sweep.
        progress: Whether to show progress; where absent, in terminals and notebooks.

    Raises:
        ScenarioError: The scenario or a variant cannot be used, or its sweep varies what is given here as well.
        RecordError: Records cannot be written, or `out` or a folder there holds another result.
        ClusterError: The executor's cluster is gone, a worker has another version or does not see `out`, or workers
            died too often; it has the runs that are complete.
        Interrupted: Ctrl-C, as a KeyboardInterrupt that has the runs that are complete.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers: at least 1, not {workers}")
    if workers is not None and executor is not None:
        raise ValueError("workers: an executor has its own")
    if threads < 1:
        raise ValueError(f"threads: at least 1, not {threads}")
    loaded = read(scenario, overrides)
    warn(loaded.warnings, stacklevel=2)
    if seeds is not None:
        loaded.check_seeds()
    chosen = None if seeds is None else list(dict.fromkeys(seeds))
    jobs = loaded.variants(chosen)
    existing = existing_policy(resume and not force, force)
    root = Path(out)
    claimed = _native.claim_sweep(root, loaded.name, jobs, existing)
    try:
        with Bar(loaded.name, progress) as bar:
            state = _State(loaded.name, jobs, root, bar)
            if executor is None:
                _run_here(state, workers or max(1, _cores() // threads), threads, existing)
            else:
                _run_there(state, executor, loaded, chosen, threads, existing, shared)
            bar.finish()
        state.save()
    finally:
        claimed.release()
    results, odd = state.results, state.odd
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


class _State:
    """How far a sweep is."""

    def __init__(self, name: str, jobs: Sequence[_native.Job], root: Path, bar: Bar) -> None:
        self.name = name
        self.jobs = jobs
        self.root = root
        self.bar = bar
        self.results: dict[int, Result] = {}
        self.odd: list[Odd] = []
        self.shares = [0.0] * len(jobs)
        self._work = sum(job.work for job in jobs)

    def take(self, index: int, result: Result, odd: Iterable[Odd]) -> None:
        """A run has ended."""
        self.results[index] = result
        self.shares[index] = 1.0
        self.odd.extend(w for w in odd if w not in self.odd)

    def show(self, note: str = "") -> None:
        """Moves the bar: by the work that runs are expected to be."""
        done = sum(share * job.work for share, job in zip(self.shares, self.jobs, strict=True)) / self._work
        self.bar.set(done, f"{len(self.results)} of {len(self.jobs)} runs{note}")

    def folder(self, index: int) -> Path:
        """Where a run's result is."""
        return self.root / self.jobs[index].folder

    def save(self, indices: Iterable[int] | None = None) -> None:
        """Writes the summary and the table of these runs; of all where absent."""
        folders = [self.jobs[i].folder for i in sorted(self.results if indices is None else indices)]
        _native.sweep_summary(self.root, self.name, folders)

    def stopped(self) -> tuple[str, Sweep]:
        """Keeps what is complete: in words, and as a sweep."""
        for i in [i for i in range(len(self.jobs)) if i not in self.results]:
            # Its worker may have been lost after it had written the result.
            if self.jobs[i].is_complete(self.folder(i)):
                self.take(i, Result(self.folder(i)), [])
        complete = [i for i in sorted(self.results) if self.results[i].status == "complete"]
        self.save(complete)
        text = f"{len(complete)} of {len(self.jobs)} runs are complete in {self.root}; the same call goes on from there"
        settings = _settings(self.jobs)
        return text, Sweep(self.root, [Cell(settings[i], self.results[i]) for i in complete])


def _run_here(state: _State, workers: int, threads: int, existing: Existing) -> None:
    """Runs all in threads of this process, which the interpreter's lock does not hold up."""
    stop = _native.Stop()

    def one(index: int) -> tuple[Result, list[Odd]]:
        def tick(now_ps: int, until_ps: int | None, remaining: int, total: int, _hops: int) -> None:
            state.shares[index] = fraction(now_ps, until_ps, remaining, total)

        return execute(state.jobs[index], state.folder(index), None, threads, existing, stop, tick)

    waiting: dict[Future[tuple[Result, list[Odd]]], int] = {}
    pool = ThreadPoolExecutor(workers, thread_name_prefix="sluicenet")
    try:
        waiting.update((pool.submit(one, i), i) for i in _native.longest_first(state.jobs))
        while waiting:
            done, _ = wait(waiting, timeout=_LOOK_INTERVAL_S, return_when=FIRST_COMPLETED)
            for future in done:
                state.take(waiting.pop(future), *future.result())
            state.show()
    except KeyboardInterrupt:
        _end(pool, stop)
        for future in [f for f in waiting if not f.cancelled() and f.exception() is None]:
            state.take(waiting.pop(future), *future.result())
        raise Interrupted(*state.stopped()) from None
    finally:
        _end(pool, stop)


def _run_there(
    state: _State,
    executor: object,
    loaded: _native.Scenario,
    seeds: list[int] | None,
    threads: int,
    existing: Existing,
    shared: bool,
) -> None:
    """Runs what is not complete on an executor."""
    todo: list[int] = []
    for i in _native.longest_first(state.jobs):
        if state.folder(i).exists() and state.jobs[i].claim(state.folder(i), existing):
            state.take(i, Result(state.folder(i)), [])
        else:
            todo.append(i)

    def done(index: int, answer: Answer) -> None:
        state.take(index, Result(state.folder(index)), answer.odd)

    def tick(workers: int | None) -> None:
        state.show("" if workers is None else f", {workers} workers")

    try:
        _cluster.run(executor, loaded, state.jobs, seeds, threads, state.root, todo, shared, done, tick)
    except KeyboardInterrupt:
        raise Interrupted(*state.stopped()) from None
    except ClusterError as e:
        text, complete = state.stopped()
        raise ClusterError(f"{e}; {text}", complete) from e


def _end(pool: ThreadPoolExecutor, stop: _native.Stop) -> None:
    """Lets runs stop at the end of their epoch, and starts no more."""
    stop.set()
    pool.shutdown(wait=True, cancel_futures=True)
