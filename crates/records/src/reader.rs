//! Reading of rows from disk.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::column::Columns;
use super::error::RecordError;
use super::files::{self, MANIFEST};
use super::manifest::{Manifest, Status, sha256_hex};
use super::part;
use super::tables::{QueryRow, Row, TableSpec};

/// Every row of a table.
///
/// Temporary files are ignored. The result of a killed run reads up to its last complete part. These are errors that
/// name the file: a part missing from a complete result, a gap, or a part with contents of another table.
pub fn read<R: Row>(dir: &Path) -> Result<Vec<R>, RecordError> {
    let mut rows = Vec::new();
    for part in read_parts::<R>(dir)? {
        rows.extend(part?);
    }
    Ok(rows)
}

/// The rows of a table a part at a time, for tables that do not fit into memory.
pub fn read_parts<R: Row>(dir: &Path) -> Result<impl Iterator<Item = Result<Vec<R>, RecordError>>, RecordError> {
    Ok(parts(dir, R::TABLE)?.into_iter().map(|file| {
        let part = file.decode()?;
        let row = |index| {
            part.row(index).map_err(|column| {
                let name = R::TABLE.columns[column].name;
                RecordError::corrupt(&file.path, format!("row {index}: {name} is out of range or absent"))
            })
        };
        (0..part.rows).map(row).collect()
    }))
}

/// The time from which flows count: the end of the warm-up. If the warm-up is a number of queries, the start of the
/// first query after it.
pub fn measured_from(dir: &Path) -> Result<u64, RecordError> {
    let warmup = Manifest::read(dir)?.run.warmup_ps;
    let queries: Vec<QueryRow> = read(dir)?;
    if !queries.iter().any(|q| q.warmup) {
        return Ok(warmup);
    }
    let first = queries.iter().filter(|q| !q.warmup).map(|q| q.start_ps).min().unwrap_or(0);
    Ok(warmup.max(first))
}

/// A part on disk.
pub(super) struct PartFile {
    table: &'static TableSpec,
    path: PathBuf,
    /// The SHA-256 from the manifest; absent if the run was killed before writing it.
    pub sha256: Option<String>,
}

/// The parts of a table, checked against the manifest.
pub(super) fn parts(dir: &Path, table: &'static TableSpec) -> Result<Vec<PartFile>, RecordError> {
    let paths = files::parts(dir, table.name)?;
    let manifest = match Manifest::read(dir) {
        Ok(manifest) => manifest,
        // Parts without a manifest are readable: a user may have copied only these.
        Err(RecordError::Io { source, .. }) if source.kind() == ErrorKind::NotFound && !paths.is_empty() => {
            Manifest::default()
        }
        Err(error) => return Err(error),
    };
    let listed: Vec<_> = manifest.parts.iter().filter(|p| p.table == table.name).collect();
    if manifest.status == Status::Complete && listed.len() != paths.len() {
        let detail = format!("lists {} parts of table {}, found {}", listed.len(), table.name, paths.len());
        return Err(RecordError::corrupt(&dir.join(MANIFEST), detail));
    }
    let part = |path: PathBuf| {
        let listed = listed.iter().find(|p| path.ends_with(&p.file));
        PartFile { table, path, sha256: listed.map(|p| p.sha256.clone()) }
    };
    Ok(paths.into_iter().map(part).collect())
}

impl PartFile {
    /// Reads the part.
    pub fn decode(&self) -> Result<Columns, RecordError> {
        let bytes = std::fs::read(&self.path).map_err(RecordError::io(&self.path, "read"))?;
        if self.sha256.as_ref().is_some_and(|expected| *expected != sha256_hex(&bytes)) {
            return Err(RecordError::corrupt(&self.path, "damaged: its SHA-256 is not the one in the manifest"));
        }
        part::decode(self.table, bytes)
            .map_err(|e| RecordError::corrupt(&self.path, format!("not a readable part: {e}")))
    }
}
