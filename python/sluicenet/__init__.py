"""Datacenter networks that hold packets back instead of dropping them, simulated packet by packet.

    import sluicenet as sn

    r = sn.run("scenario.toml", seed=7)
    r.summary["mean_us"]
    r.flows.to_polars()

Times in tables are whole picoseconds, in columns named ``*_ps``; those of a summary are microseconds.
"""

import json
from typing import Any

from . import _native, export, plot
from ._compare import Diff, diff
from ._errors import ClusterError, Interrupted, RecordError, RunError, ScenarioError, ScenarioWarning, SluicenetError
from ._load import load
from ._report import report
from ._result import Result, Summary
from ._run import run
from ._source import validate
from ._sweep import Cell, Sweep, sweep
from ._table import Table

__version__ = _native.__version__

__all__ = [
    "Cell",
    "ClusterError",
    "Diff",
    "Interrupted",
    "RecordError",
    "Result",
    "RunError",
    "ScenarioError",
    "ScenarioWarning",
    "SluicenetError",
    "Summary",
    "Sweep",
    "Table",
    "__version__",
    "diff",
    "export",
    "load",
    "plot",
    "report",
    "run",
    "schema",
    "sweep",
    "validate",
]

# Tracebacks and pickles name them as users import them.
for _public in (ClusterError, Interrupted, RecordError, RunError, ScenarioError, ScenarioWarning, SluicenetError):
    _public.__module__ = __name__


def schema() -> dict[str, Any]:
    """The JSON schema of scenario files, for editors that check and complete TOML."""
    found: dict[str, Any] = json.loads(_native.schema())
    return found
