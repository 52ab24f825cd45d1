"""One run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Literal

from . import _native
from ._errors import Interrupted, RunError
from ._progress import Bar
from ._result import Result, Scratch
from ._source import Odd, Source, read, warn

Existing = Literal["refuse", "resume", "force"]
Tick = Callable[[int, int | None, int, int, int], object]


def run(
    scenario: Source,
    *,
    out: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    threads: int = 1,
    overrides: Mapping[str, object] | None = None,
    progress: bool | None = None,
    resume: bool = False,
    force: bool = False,
) -> Result:
    """Runs a scenario, without holding the interpreter lock.

    Ctrl-C stops it at the end of an epoch (half a millisecond of simulated time); what was recorded so far is readable.

    Args:
        scenario: A file's path, TOML text (of more than one line), or a dict of sections.
        out: Where to put records; where absent, a temporary directory that lasts as long as the result.
        seed: The seed, in place of the scenario's.
        threads: Threads; the result is the same, byte by byte, on any number of them.
        overrides: Values by dotted key, as ``{"tcp.congestion": "cubic", "workload.0.queries": 20}``.
        progress: Whether to show progress; where absent, in terminals and notebooks.
        resume: Keep a complete result of the same scenario and seed in `out`, replace an incomplete one.
        force: Replace whatever result is in `out`.

    Raises:
        ScenarioError: The scenario cannot be used; says file, line, column and what to do.
        RecordError: Records cannot be written, or `out` holds another result.
        RunError: The run failed: a deadlock, or a loss where none may be; has the result.
        Interrupted: Ctrl-C, as a KeyboardInterrupt that has the result.
    """
    loaded = read(scenario, overrides, seed)
    warn(loaded.warnings, stacklevel=2)
    existing = existing_policy(resume, force)
    if out is None and existing != "refuse":
        raise ValueError(f"{existing} is about a result in `out`, and there is no `out`")
    if (variants := len(loaded.variants(None))) > 1:
        text = f"{loaded.name} has {variants} variants, and its base alone is run: sluicenet.sweep runs all"
        warnings.warn(text, stacklevel=2)
    keep = Scratch() if out is None else None
    target = keep.path if keep is not None else os.fspath(out or ".")
    with Bar(loaded.name, progress) as bar:
        tick = bar.tick if bar.visible else None
        result, odd = execute(loaded.job(), target, keep, threads, existing, _native.Stop(), tick)
        if result.status == "complete":
            bar.finish()
    warn(odd, stacklevel=2)
    if result.status.startswith("failed"):
        raise RunError(f"{loaded.name}: {result.status}; its records: {result.path}", result)
    return result


def existing_policy(resume: bool, force: bool) -> Existing:
    """What to do with results that are there."""
    if resume and force:
        raise ValueError("resume keeps results and force replaces them: choose one")
    return "resume" if resume else "force" if force else "refuse"


def execute(
    job: _native.Job,
    out: str | os.PathLike[str],
    keep: object,
    threads: int,
    existing: Existing,
    stop: _native.Stop,
    tick: Tick | None,
) -> tuple[Result, list[Odd]]:
    """Runs a job to its end, to Ctrl-C, or to `stop`; its result and the warnings of its build."""
    if threads < 1:
        raise ValueError(f"threads: at least 1, not {threads}")
    try:
        odd = job.run(out, threads=threads, existing=existing, stop=stop, tick=tick)
    except KeyboardInterrupt:
        # Raised after the records were closed.
        result = Result(out, keep)
        lasts = "" if keep is None else ", as long as this exception's `result`"
        raise Interrupted(f"{result.status}; what was recorded up to there: {result.path}{lasts}", result) from None
    return Result(out, keep), odd or []
