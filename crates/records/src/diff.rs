//! Comparison of two results: whether they are the same, the first difference, and the differences of means.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::column::Columns;
use super::error::RecordError;
use super::reader::{PartFile, parts};
use super::tables::{RARE, TABLES, TableSpec};
use super::value::{Kind, Value};
use crate::text::percent_change;

/// The comparison of two result directories.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    /// The comparisons of tables, in the order of [`TABLES`].
    pub tables: Vec<TableDiff>,
}

impl Diff {
    /// Whether every row of every table is the same.
    pub fn is_identical(&self) -> bool {
        self.tables.iter().all(|table| table.first.is_none())
    }
}

/// The comparison of one table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableDiff {
    /// Name of the table.
    pub table: &'static str,
    /// Rows in the first and in the second result.
    pub rows: (u64, u64),
    /// The first difference; `None` when the tables are the same.
    pub first: Option<FirstDifference>,
    /// The columns whose means differ.
    pub columns: Vec<ColumnDelta>,
}

/// The first row in which two tables differ.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstDifference {
    /// Index of the row.
    pub row: u64,
    /// Column that differs first in that row.
    pub column: &'static str,
    /// The column's value in the first result; "no row" when this result has fewer rows.
    pub a: String,
    /// The column's value in the second result; "no row" when this result has fewer rows.
    pub b: String,
}

/// A numeric column whose mean over all rows differs. Means leave out nulls. Columns of numbers that are names, such as
/// hosts and ports, have no mean.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnDelta {
    /// Name of the column.
    pub column: &'static str,
    /// Mean in the first result.
    pub mean_a: f64,
    /// Mean in the second result.
    pub mean_b: f64,
}

/// Compares the tables of two result directories row by row; the cut of rows into parts does not matter.
pub fn diff(a: &Path, b: &Path) -> Result<Diff, RecordError> {
    let mut tables = Vec::new();
    for table in TABLES {
        let compared = diff_table(table, a, b)?;
        if table.index < RARE || compared.rows != (0, 0) {
            tables.push(compared);
        }
    }
    Ok(Diff { tables })
}

fn diff_table(table: &'static TableSpec, a: &Path, b: &Path) -> Result<TableDiff, RecordError> {
    let (mut a, mut b) = (Cursor::new(parts(a.into(), table)?), Cursor::new(parts(b.into(), table)?));
    let mut sums = vec![[Mean::default(); 2]; table.columns.len()];
    let mut rows = (0, 0);
    let mut first = None;
    loop {
        let (left, right) = (a.next()?, b.next()?);
        if left.is_none() && right.is_none() {
            break;
        }
        for (column, spec) in table.columns.iter().enumerate() {
            let left = left.map(|(part, row)| part.columns[column].get(row));
            let right = right.map(|(part, row)| part.columns[column].get(row));
            if spec.kind != Kind::Text && !is_name(spec.name) {
                sums[column][0].add(left);
                sums[column][1].add(right);
            }
            let same = left.zip(right).is_some_and(|(l, r)| l.is_identical(r));
            if !same && first.is_none() {
                let show = |v: Option<Value<'_>>| v.map_or("no row".into(), |v| v.to_string());
                first =
                    Some(FirstDifference { row: rows.0.max(rows.1), column: spec.name, a: show(left), b: show(right) });
            }
        }
        rows.0 += left.is_some() as u64;
        rows.1 += right.is_some() as u64;
    }
    let delta = |(spec, [a, b]): (&super::tables::ColumnSpec, &[Mean; 2])| {
        let (mean_a, mean_b) = (a.value(), b.value());
        (mean_a != mean_b).then_some(ColumnDelta { column: spec.name, mean_a, mean_b })
    };
    let columns =
        if first.is_some() { table.columns.iter().zip(&sums).filter_map(delta).collect() } else { Vec::new() };
    Ok(TableDiff { table: table.name, rows, first, columns })
}

/// Whether the numbers of a column are names, whose mean has no meaning.
fn is_name(column: &str) -> bool {
    column == "port"
        || ["_id", "_host", "_vm", "_port"].iter().any(|end| column.ends_with(end))
        || ["workload", "priority", "level"].contains(&column)
}

/// Walks the rows of a table over its parts.
struct Cursor {
    waiting: std::vec::IntoIter<PartFile>,
    part: Option<Arc<Columns>>,
    row: usize,
}

impl Cursor {
    fn new(parts: Vec<PartFile>) -> Cursor {
        Cursor { waiting: parts.into_iter(), part: None, row: 0 }
    }

    /// The part of the next row, and the row's index in the part.
    fn next(&mut self) -> Result<Option<(&Columns, usize)>, RecordError> {
        self.row += 1;
        while self.part.as_ref().is_none_or(|part| self.row >= part.rows) {
            let Some(file) = self.waiting.next() else { return Ok(None) };
            self.part = Some(file.decode()?);
            self.row = 0;
        }
        Ok(self.part.as_deref().map(|part| (part, self.row)))
    }
}

#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: Option<Value<'_>>) {
        if let Some(x) = value.and_then(Value::as_f64) {
            self.sum += x;
            self.count += 1;
        }
    }

    fn value(self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_identical() {
            let rows: u64 = self.tables.iter().map(|t| t.rows.0).sum();
            return writeln!(f, "identical: {rows} rows in {} tables", self.tables.len());
        }
        for table in &self.tables {
            let Some(first) = &table.first else {
                writeln!(f, "{}: identical, {} rows", table.table, table.rows.0)?;
                continue;
            };
            writeln!(f, "{}: {} rows, {} rows", table.table, table.rows.0, table.rows.1)?;
            writeln!(f, "  first difference: row {}, {}: {} -> {}", first.row, first.column, first.a, first.b)?;
            for c in &table.columns {
                let percent = 100.0 * (c.mean_b - c.mean_a) / c.mean_a;
                let change =
                    if percent.is_finite() { format!(" ({})", percent_change(percent)) } else { String::new() };
                writeln!(f, "  mean {}: {} -> {}{change}", c.column, c.mean_a, c.mean_b)?;
            }
        }
        Ok(())
    }
}
