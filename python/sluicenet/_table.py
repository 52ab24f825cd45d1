"""Tables of results, as Arrow: from there they go to polars and pandas without a copy."""

from __future__ import annotations

import hashlib
import html
import json
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import _native
from ._errors import RecordError
from ._extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    import polars as pl

_KINDS: dict[str, pa.DataType] = {
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
}
HEAD_ROWS = 8
"""Rows shown of a table."""


def layout(name: str) -> pa.Schema:
    """The columns of a table as they are published."""
    columns = dict(_native.tables())[name]
    return pa.schema([pa.field(column, _KINDS[kind], nullable) for column, kind, nullable in columns])


class Table:
    """A table of a result, read when it is first needed.

    polars, pandas, DuckDB and whatever else speaks Arrow's C stream takes it as it is, as ``pl.DataFrame(table)``.
    """

    def __init__(self, name: str) -> None:
        """Tables come from a `Result` or a `Sweep`."""
        self.name = name

    def _load(self) -> pa.Table:
        raise NotImplementedError

    def _head(self) -> pa.Table:
        return self.to_arrow().slice(0, HEAD_ROWS)

    @cached_property
    def _arrow(self) -> pa.Table:
        return self._load()

    @property
    def columns(self) -> list[str]:
        """Names of the columns, the unit last: ``start_ps``, ``tx_bytes``."""
        return self._head().column_names

    def __len__(self) -> int:
        """How many rows."""
        return self.to_arrow().num_rows

    def to_arrow(self) -> pa.Table:
        """The table of pyarrow; read once, then shared by all that came from it."""
        return self._arrow

    def to_polars(self) -> pl.DataFrame:
        """A frame of polars on the same memory; for text it adds an index of its own."""
        frame: pl.DataFrame = need("polars", "polars").from_arrow(self.to_arrow(), rechunk=False)
        return frame

    def to_pandas(self) -> pd.DataFrame:
        """A frame of pandas on the same memory: its columns are Arrow's, so that whole numbers with gaps stay whole."""
        pandas = need("pandas", "pandas")
        frame: pd.DataFrame = self.to_arrow().to_pandas(types_mapper=pandas.ArrowDtype)
        return frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's C stream interface."""
        arrow: Any = self.to_arrow()
        stream: object = arrow.__arrow_c_stream__(requested_schema)
        return stream

    def __repr__(self) -> str:
        """Size and columns."""
        return f"<sluicenet.Table {self.name}: {len(self):,} rows of {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """The first rows, for notebooks."""
        return rows_html(self._head(), f"{self.name}: {len(self):,} rows")


class PartsTable(Table):
    """A table in the parts that a run wrote."""

    def __init__(self, directory: Path, name: str, keep: object) -> None:
        """`keep` holds a temporary directory as long as the table may read from it."""
        super().__init__(name)
        self._directory = directory
        self._keep = keep

    def _load(self) -> pa.Table:
        parts = [_read(path, sha256) for path, sha256 in self._parts()]
        return pa.concat_tables(parts) if parts else layout(self.name).empty_table()

    def _head(self) -> pa.Table:
        if "_arrow" in self.__dict__:
            return super()._head()
        for path, _ in self._parts():
            file = _opened(path)
            for batch in file.iter_batches(batch_size=HEAD_ROWS):
                return pa.Table.from_batches([batch])
        return layout(self.name).empty_table()

    def __len__(self) -> int:
        """How many rows, from the files' ends alone."""
        if "_arrow" in self.__dict__:
            return super().__len__()
        return sum(_opened(path).metadata.num_rows for path, _ in self._parts())

    def _parts(self) -> Iterator[tuple[Path, str | None]]:
        """The complete parts in order, each with the checksum that the manifest has of it."""
        names = re.compile(re.escape(self.name) + r"-(\d{5,})\.parquet")
        found = {int(m[1]): p for p in self._directory.iterdir() if (m := names.fullmatch(p.name))}
        manifest = read_json(self._directory / "manifest.json")
        listed = {part["file"]: part["sha256"] for part in manifest["parts"] if part["table"] == self.name}
        for file in listed:
            if self._directory / file not in found.values():
                raise RecordError(f"{self._directory / file}: this part is missing", self._directory / file)
        for number, path in enumerate(found[n] for n in sorted(found)):
            if number not in found:
                raise RecordError(f"{path}: an earlier part is missing", path)
            yield path, listed.get(path.name)


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as e:
        raise RecordError(f"{path}: {e}", path) from e


def _read(path: Path, sha256: str | None) -> pa.Table:
    try:
        content = path.read_bytes()
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise RecordError(f"{path}: damaged: its checksum is not that of the manifest", path)
        return pq.read_table(pa.BufferReader(content))
    except pa.ArrowInvalid as e:
        raise RecordError(f"{path}: {e}", path) from e


def read_json(path: Path) -> dict[str, Any]:
    """A file of a result that holds an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise RecordError(f"{path}: missing: {path.parent} holds no result", path) from e
    except (OSError, ValueError, RecursionError) as e:
        raise RecordError(f"{path}: {e}", path) from e
    if not isinstance(found, dict):
        raise RecordError(f"{path}: holds no object", path)
    return found


def rows_html(rows: pa.Table, caption: str) -> str:
    """A table as HTML, numbers to the right."""

    def cell(value: object) -> str:
        if value is None:
            return "<td></td>"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"<td style='text-align:left'>{html.escape(str(value))}</td>"
        return f"<td style='text-align:right'>{format(value, '.4g' if isinstance(value, float) else 'd')}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows.column_names)
    body = "".join("<tr>" + "".join(map(cell, row.values())) + "</tr>" for row in rows.to_pylist())
    return (
        f"<div style='overflow-x:auto'><table class='sluicenet'><caption>{html.escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
