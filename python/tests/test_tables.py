"""Tables: the same rows, and the same memory, in pyarrow, polars and pandas."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import sluicenet as sn

TABLES = [
    *("flows", "queries", "ports", "drops", "pauses", "queues", "tcp", "marks"),
    *("limiters", "estimates", "bumps", "storms"),
]


@pytest.mark.parametrize("name", TABLES)
def test_all_libraries_see_the_same_rows(result: sn.Result, name: str) -> None:
    table: sn.Table = getattr(result, name)
    arrow, polars, pandas = table.to_arrow(), table.to_polars(), table.to_pandas()
    assert table.columns == arrow.column_names == polars.columns == list(pandas.columns)
    assert len(table) == arrow.num_rows == len(polars) == len(pandas)
    rows = arrow.to_pylist()
    assert polars.to_dicts() == rows
    assert pa.Table.from_pandas(pandas, preserve_index=False).to_pylist() == rows


def test_times_are_whole_picoseconds(result: sn.Result) -> None:
    frame = result.flows.to_pandas()
    assert frame["fct_ps"].dtype == pd.ArrowDtype(pa.uint64())
    assert result.flows.to_polars()["fct_ps"].dtype == pl.UInt64
    assert {c for c in result.flows.columns if c.endswith("_us")} == set()


def test_memory_is_shared_not_copied(result: sn.Result) -> None:
    column = result.queues.to_arrow()["bytes"].chunk(0)
    # Without leave to copy, each library gives its own memory or raises.
    address = column.to_numpy(zero_copy_only=True).ctypes.data
    assert result.queues.to_polars()["bytes"].to_numpy(allow_copy=False).ctypes.data == address
    assert pl.DataFrame(result.queues)["bytes"].to_numpy(allow_copy=False).ctypes.data == address
    values = pa.array(result.queues.to_pandas()["bytes"]).buffers()[1]
    assert values is not None
    assert values.address == address


def test_tables_speak_the_arrow_stream(result: sn.Result) -> None:
    assert pa.table(result.flows).equals(result.flows.to_arrow())
    assert pl.DataFrame(result.flows).equals(result.flows.to_polars())


def test_parts_are_read_in_order(incast: Path, result: sn.Result) -> None:
    parts = sn.run(incast, overrides={"record.part_rows": 1000})
    assert len(list(parts.path.glob("queues-*.parquet"))) > 10
    assert parts.queues.to_arrow().equals(result.queues.to_arrow())
    assert len(parts.queues) == len(result.queues)


def test_a_missing_or_damaged_part_is_an_error_that_names_it(result: sn.Result, tmp_path: Path) -> None:
    broken = tmp_path / "result"
    shutil.copytree(result.path, broken)
    part = broken / "flows-00000.parquet"
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes(content)
    with pytest.raises(sn.RecordError, match=r"flows-00000\.parquet: damaged"):
        sn.load(broken).flows.to_arrow()
    part.write_bytes(content[:50])
    with pytest.raises(sn.RecordError, match=r"flows-00000\.parquet"):
        len(sn.load(broken).flows)
    part.unlink()
    with pytest.raises(sn.RecordError, match=r"flows-00000\.parquet: this part is missing"):
        sn.load(broken).flows.to_arrow()


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"status": "comp', "7", "\x00"])
def test_a_manifest_that_is_none_is_named(result: sn.Result, tmp_path: Path, text: str) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(result.path, damaged)
    (damaged / "manifest.json").write_text(text)
    with pytest.raises(sn.RecordError, match=r"manifest\.json"):
        sn.load(damaged)


def test_a_killed_run_reads_as_far_as_it_came(result: sn.Result, tmp_path: Path) -> None:
    # What a kill leaves: no manifest entry for the newest part, no part at all of some tables, a file half-written.
    killed = tmp_path / "result"
    killed.mkdir()
    shutil.copy(result.path / "queues-00000.parquet", killed)
    (killed / "flows-00000.parquet.tmp").write_bytes(b"PAR1")
    manifest = (result.path / "manifest.json").read_text()
    start, end = manifest.index('"parts": ['), manifest.rindex("]")
    (killed / "manifest.json").write_text(
        manifest[:start].replace("complete", "running") + '"parts": [' + manifest[end:]
    )
    with pytest.warns(UserWarning, match="was killed"):
        loaded = sn.load(killed)
    assert isinstance(loaded, sn.Result)
    assert loaded.status == "running"
    assert len(loaded.queues.to_arrow()) == len(result.queues)
    assert loaded.flows.to_arrow().schema.names == result.flows.columns
    assert len(loaded.flows) == 0


def test_what_is_no_result_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(sn.RecordError, match="holds no result"):
        sn.load(tmp_path)
    with pytest.raises(sn.RecordError, match="holds no result"):
        sn.report(tmp_path)


def test_a_library_that_is_absent_is_named_with_its_extra(result: sn.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(ImportError, match=r"pip install 'sluicenet\[polars\]'"):
        result.flows.to_polars()
