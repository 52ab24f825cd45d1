"""Results in the formats of other tools, for their scripts and viewers.

    sn.export.hpcc(result)                        # the files of HPCC's simulator
    sn.export.htsim(result)                       # htsim's log of flows
    sn.export.perfetto(result, "trace.pftrace")   # for ui.perfetto.dev

A file has its name when all of it is written. Records that lack something raise a ``RecordError``, which names the
setting of the scenario that records it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from . import _native
from ._result import Result, directory

__all__ = ["hpcc", "htsim", "perfetto"]


def hpcc(
    of: Result | str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    only: Sequence[Literal["fct", "pfc", "qlen"]] = ("fct", "pfc", "qlen"),
    flows: str | os.PathLike[str] | None = None,
    partial: bool = False,
) -> list[Path]:
    """Writes the files of HPCC's simulator: completion times, pauses and lengths of queues.

    Args:
        of: A result, or its directory.
        folder: Where to put ``hpcc-fct.txt``, ``hpcc-pfc.txt`` and ``hpcc-qlen.txt``; in the result where absent.
        only: Only these files.
        flows: The flow file that the run's flows are from: they get its destination ports.
        partial: Whether the records of a run that did not end are good enough.

    Returns:
        The files.

    Raises:
        RecordError: No complete run, or records that lack something.
        ScenarioError: A flow file of other flows, or none.
    """
    root = directory(of)
    return _native.export_hpcc(root, root if folder is None else folder, list(only), flows, partial)


def htsim(
    of: Result | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    matrix: str | os.PathLike[str] | None = None,
    partial: bool = False,
) -> Path:
    """Writes htsim's log of flows.

    Args:
        of: A result, or its directory.
        path: Where to write it; ``htsim-flows.txt`` in the result where absent.
        matrix: The connection matrix that the run's flows are from: they get its ids.
        partial: Whether the records of a run that did not end are good enough.

    Returns:
        Where it is.

    Raises:
        RecordError: No complete run, or records that lack something.
        ScenarioError: A connection matrix of other flows, or none.
    """
    root = directory(of)
    target = root / "htsim-flows.txt" if path is None else Path(path)
    _native.export_htsim(root, target, matrix, partial)
    return target


def perfetto(of: Result | str | os.PathLike[str], path: str | os.PathLike[str], *, partial: bool = False) -> Path:
    """Writes a trace of pauses and queues for Perfetto, and returns its path.

    Raises:
        RecordError: No complete run (without ``partial``), or records with neither pauses nor lengths of queues.
    """
    target = Path(path)
    _native.export_perfetto(directory(of), target, partial)
    return target
