//! A table whose columns are known only when it is written, as one Parquet file: a row for each run of a sweep, a column for
//! each setting.

use super::error::RecordError;
use super::files::write_file;
use super::part::sheet_bytes;
use std::path::Path;

/// A column: its name, and a value or nothing for each row.
#[derive(Clone, Debug, PartialEq)]
pub struct SheetColumn {
    /// The name; no two columns have the same.
    pub name: String,
    /// The values, one a row.
    pub values: SheetValues,
}

/// The values of a column, with their type.
#[derive(Clone, Debug, PartialEq)]
pub enum SheetValues {
    /// True or false.
    Bool(Vec<Option<bool>>),
    /// Whole numbers with a sign.
    Int(Vec<Option<i64>>),
    /// Whole numbers from 0.
    Count(Vec<Option<u64>>),
    /// Real numbers.
    Real(Vec<Option<f64>>),
    /// Text.
    Text(Vec<Option<String>>),
}

impl SheetValues {
    /// How many rows.
    pub fn len(&self) -> usize {
        match self {
            SheetValues::Bool(v) => v.len(),
            SheetValues::Int(v) => v.len(),
            SheetValues::Count(v) => v.len(),
            SheetValues::Real(v) => v.len(),
            SheetValues::Text(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Writes the columns, all of the same length, to `path`. The same columns give the same bytes.
///
/// # Errors
/// The file cannot be written.
pub fn write_sheet(path: &Path, columns: &[SheetColumn]) -> Result<(), RecordError> {
    let rows = columns.first().map_or(0, |column| column.values.len());
    assert!(columns.iter().all(|column| column.values.len() == rows), "every column has a value for each row");
    let bytes = sheet_bytes(columns).map_err(|e| RecordError::corrupt(path, e))?;
    write_file(path, &bytes)
}
