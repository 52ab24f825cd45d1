"""The wheel in a notebook cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat: Any = pytest.importorskip("nbformat", reason="the notebook test needs nbformat, nbclient and ipykernel")
nbclient: Any = pytest.importorskip("nbclient", reason="the notebook test needs nbformat, nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="the notebook test needs nbformat, nbclient and ipykernel")


def html_of(cell: Any) -> str:  # noqa: ANN401 - nbformat's cells are dicts of anything
    return "".join(str(out.data.get("text/html", "")) for out in cell.outputs if "data" in out)


def test_a_cell_runs_and_shows_its_tables(incast: Path, tmp_path: Path) -> None:
    cells = [
        f"import sluicenet as sn\nr = sn.run({str(incast)!r}, seed=7)\nr",
        "r.flows",
        "r.queries.to_polars()",
        "r.flows.to_pandas()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    run, flows, polars, pandas = map(html_of, notebook.cells)
    assert "incast-4, seed 7" in run
    assert "<caption>flows: 80 rows</caption>" in flows
    assert "<th>fct_ps</th>" in flows
    assert "completion_ps" in polars
    assert "completion_ps" not in pandas
    assert "<table" in pandas


def test_progress_is_shown_in_a_cell(incast: Path, tmp_path: Path) -> None:
    code = (
        "import sluicenet as sn\n"
        "sn._progress._DELAY_S = 0.0\n"
        f"r = sn.run({str(incast)!r}, overrides={{'workload.0.rounds': 3000, 'record.queues': '1 ms'}})\n"
        "r.log['wall_seconds']"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    shown = "".join(out.get("text", "") + str(out.get("data", "")) for out in notebook.cells[0].outputs)
    assert "incast-4" in shown
    assert "ms simulated" in shown
    assert "100%" in shown
