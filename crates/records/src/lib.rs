//! Results on disk. A line belongs here when it knows a column of a result.
//!
//! The result of a run on disk: tables as Parquet parts, a manifest, and statistics computed from the tables.
//!
//! A result directory holds `<table>-00000.parquet`, `<table>-00001.parquet`, ... for every table of [`tables`], each
//! part complete and readable on its own. It also holds `manifest.json` (the description of the run; byte-identical for
//! the same scenario and seed) and `run.json` (about the machine that ran it; never compared).
//!
//! ```
//! use sluicenet_records::{Options, QueryRow, RecordWriter, RunInfo, Status, read};
//! # let dir = std::env::temp_dir().join(format!("sluicenet-doc-{}", std::process::id()));
//! let mut records = RecordWriter::create(&dir, RunInfo::default(), Options::default())?;
//! records.write(&[QueryRow { query_id: 1, completion_ps: Some(1_500_000), ..QueryRow::default() }])?;
//! records.finish(Status::Complete)?;
//! assert_eq!(read::<QueryRow>(&dir)?.len(), 1);
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok::<(), sluicenet_records::RecordError>(())
//! ```
#![forbid(unsafe_code)]

mod column;
mod diff;
mod error;
mod files;
mod manifest;
mod new_file;
mod part;
mod profile;
mod reader;
mod sheet;
pub mod stats;
pub mod tables;
#[cfg(test)]
mod tests;
pub mod text;
mod value;
mod writer;

pub use diff::{ColumnDelta, Diff, FirstDifference, TableDiff, diff};
pub use error::RecordError;
pub use files::write_file;
pub use files::{
    CAPTURE, CELLS, Existing, Found, Lock, SUMMARY, Sharing, check_same_sweep, claim, claim_sweep, lock,
    remove_other_runs,
};
pub use manifest::{Input, Manifest, PartInfo, RunInfo, RunLog, Status, peak_rss_bytes, sha256_hex};
pub use new_file::NewFile;
pub use profile::{FOLDED, PROFILE, Profile, StageShare};
pub use reader::{Rows, Source, measured_from, read, rows};
pub use sheet::{SheetColumn, SheetValues, write_sheet};
pub use tables::{
    BumpRow, DropRow, EstimateRow, FlowRow, LimiterRow, MarkRow, PauseRow, PortRow, QueryRow, QueueRow, StormRow,
    TcpRow,
};
pub use value::{Cell, Kind, Text, Value};
pub use writer::{LastParts, Options, RecordWriter};
