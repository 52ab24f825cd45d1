"""The HTML report of results."""

from __future__ import annotations

import os
from pathlib import Path

from . import _native
from ._errors import RecordError
from ._load import cells
from ._result import Result
from ._sweep import Sweep


def report(
    of: Result | Sweep | str | os.PathLike[str], path: str | os.PathLike[str] | None = None, *, title: str | None = None
) -> Path:
    """Writes the HTML report of a run or a sweep: one file, nothing fetched.

    Args:
        of: A result, a sweep, or the directory of either.
        path: Where to write it; ``report.html`` in the directory where absent.
        title: Its title; the scenario's name where absent.

    Returns:
        Where it is.

    Raises:
        RecordError: There is no result, or it cannot be read.
    """
    root = of.path if isinstance(of, Result | Sweep) else Path(of)
    dirs = [cell.result.path for cell in of] if isinstance(of, Sweep) else _results(root)
    target = root / "report.html" if path is None else Path(path)
    _native.report(dirs, target, title)
    return target


def _results(root: Path) -> list[Path]:
    """The results in a directory: itself, or those one folder down."""
    found = [root] if _native.is_result(root) else cells(root)
    if not found:
        raise RecordError(f"{root}: holds no result: no manifest.json of sluicenet's, here or one folder down", root)
    return found
