"""Opens results again."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

from . import _native
from ._result import Result
from ._sweep import Cell, Sweep, typed


def load(path: str | os.PathLike[str]) -> Result | Sweep:
    """The result in a directory, of `run`; or the runs in it, of `sweep`, ``sluicenet sweep`` or ``sluicenet demo``.

    A run that was killed left what was flushed: a warning says so, as it does where the run is still under way.

    Raises:
        RecordError: There is none, or its manifest cannot be read.
    """
    root = Path(path)
    if not _native.is_result(root) and (found := cells(root)):
        results = [_opened(p) for p in found]
        axes = typed([dict(r.manifest["axes"]) for r in results])
        cells_of = zip(axes, results, strict=True)
        return Sweep(root, [Cell({**run, "seed": r.manifest["seed"]}, r) for run, r in cells_of])
    return _opened(root)


def cells(root: Path) -> list[Path]:
    """The results one folder down: in the order of the sweep where it is known, by name otherwise, numbers by size."""
    known = _order(root)

    def place(p: Path) -> tuple[int, list[tuple[bool, float, str]]]:
        parts = re.split(r"(\d+(?:\.\d+)?)", p.name)
        # Every second part is a number.
        natural = [(i % 2 == 0, float(part) if i % 2 else 0.0, part) for i, part in enumerate(parts)]
        return known.index(p.name) if p.name in known else len(known), natural

    return sorted((m.parent for m in root.glob("*/manifest.json") if _native.is_result(m.parent)), key=place)


def _opened(path: Path) -> Result:
    result = Result(path)
    if result.status == "running":
        warnings.warn(f"{result.path}: still runs, or was killed: this is what was flushed", stacklevel=3)
    return result


def _order(root: Path) -> list[str]:
    """The folders as ``sluicenet sweep`` names them in its summary."""
    try:
        return [str(run["folder"]) for run in json.loads((root / "summary.json").read_text())["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
