//! Tables that a scenario shows of its variants.

use crate::error::Result;
use crate::setting::{Kind, Section, Setting};
use crate::sweep::Shown;
use crate::tree::{Node, Value};
use crate::{choices, settings};

choices! {
    /// The figure of a run that a table shows.
    pub enum Figure {
        /// The rate of all endless flows together, in percent of the capacity of the links of all hosts.
        Bandwidth = "bandwidth",
        /// The rate of flows that ended: the sum of their bytes over their times, in GB/s.
        Goodput = "goodput",
        /// The mean time of queries, or of flows where there are none, in ms.
        Mean = "mean",
        /// The longest of these, in ms.
        Longest = "longest",
        /// Frames dropped, in percent of those that guests sent.
        Loss = "loss",
    }
}

impl Figure {
    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Bandwidth | Figure::Loss => "%",
            Figure::Goodput => "GB/s",
            Figure::Mean | Figure::Longest => "ms",
        }
    }
}

/// What a table's rows or columns are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableAxis {
    /// The swept key.
    pub key: String,
    /// Its values as variants name them, each once: those of the sweep, or the one that an override fixes it to.
    pub values: Vec<String>,
    /// Whether it is fixed: variants do not name its value then.
    pub is_fixed: bool,
}

settings! {
    /// what `run` shows of all variants of the sweep, beside what a source says
    #[derive(PartialEq)]
    pub struct Table in "table" (s, axes: &[Shown]) {
        /// the title
        title: String = String::new(),
        /// the figure of a run that is shown: in percent, GB/s, ms, ms and percent
        figure: Figure,
        /// the swept key of the columns
        let columns: String,
        /// the swept key of the rows; default one row
        let rows: Option<String>,
        /// Its rows; one row where absent.
        field rows: Option<TableAxis> = match &rows {
            Some(key) => Some(axis(s, "rows", key, axes)?.axis.clone()),
            None => None,
        },
        /// Its columns.
        field columns: TableAxis = axis(s, "columns", &columns, axes)?.axis.clone(),
        /// the source's numbers, row by row; "" for none
        source: Vec<Vec<Option<f64>>> as (Kind::Matrix) = source(s, rows.as_ref(), &columns, axes)?,
    }
}

/// The axis of this key.
fn axis<'a>(s: &Section<'_>, name: &str, key: &str, axes: &'a [Shown]) -> Result<&'a Shown> {
    axes.iter().find(|shown| shown.axis.key == key).ok_or_else(|| {
        let shown: String = key.chars().take(60).collect();
        let keys: Vec<&str> = axes.iter().map(|shown| shown.axis.key.as_str()).collect();
        s.error(name, format!("`{shown}` is not varied by this scenario")).expected(keys.join(", "))
    })
}

/// Rows and columns of a source's table.
const CELLS_MAX: usize = 256;
/// Numbers of a source.
const CELL: core::ops::RangeInclusive<f64> = 0.0..=1e12;

/// The source's numbers for the axes as they are. If an override shortens or fixes an axis, the file's numbers are cut
/// to the values that are left. A value that the file does not have has no number.
fn source(
    s: &Section<'_>,
    rows: Option<&TableAxis>,
    columns: &TableAxis,
    axes: &[Shown],
) -> Result<Vec<Vec<Option<f64>>>> {
    if rows.is_some_and(|rows| rows.key == columns.key) {
        return Err(s.error("rows", "rows and columns are the same axis"));
    }
    let of = |axis: &TableAxis| axes.iter().find(|shown| shown.axis.key == axis.key);
    let (Some(node), Some(columns)) = (s.get("source"), of(columns)) else { return Ok(Vec::new()) };
    let rows = rows.and_then(of);
    let Value::List(lines) = &node.value else { return Err(s.wrong(node, "a list of lists of numbers")) };
    let mut source: Vec<Vec<Option<f64>>> = Vec::new();
    // The file's is of the file's axes; one set on top of it is of the axes as they are now.
    let of_file = !node.span.is_override();
    let length = |shown: &Shown| if of_file { shown.in_file } else { shown.axis.values.len() };
    let (height, width) = (rows.map_or(1, length), length(columns));
    if lines.len() != height || height > CELLS_MAX || width > CELLS_MAX {
        return Err(s.error("source", format!("{} rows where the sweep has {height}", lines.len())));
    }
    for line in lines {
        let Value::List(cells) = &line.value else { return Err(s.wrong(line, "a list of numbers")) };
        if cells.len() != width {
            let message = format!("{} numbers where the sweep has {width} columns", cells.len());
            return Err(s.doc.error(line.span, message));
        }
        let cell = |node: &Node| match &node.value {
            Value::Text(t) if t.is_empty() => Ok(None),
            _ => f64::read(s, "source", node, &CELL).map(Some),
        };
        source.push(cells.iter().map(cell).collect::<Result<_>>()?);
    }
    if of_file {
        let at = |row: Option<usize>, column: Option<usize>| source.get(row?)?.get(column?).copied().flatten();
        let line = |row| columns.indices.iter().map(|&column| at(row, column)).collect();
        source = match rows {
            None => vec![line(Some(0))],
            Some(rows) => rows.indices.iter().map(|&row| line(row)).collect(),
        };
    }
    Ok(source)
}
