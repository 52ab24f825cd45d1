//! Reading of rows from disk.

use std::io::ErrorKind;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::column::Columns;
use super::error::RecordError;
use super::files::{self, MANIFEST};
use super::manifest::{Manifest, Status, sha256_hex};
use super::part;
use super::tables::{QueryRow, Row, TableSpec};
use super::writer::LastParts;

/// A result to read: its directory, and what the process that wrote it still has in memory.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The directory.
    pub dir: &'a Path,
    last: Option<&'a LastParts>,
}

impl<'a> Source<'a> {
    /// A result that this process has just written.
    pub fn written(dir: &'a Path, last: &'a LastParts) -> Source<'a> {
        Source { dir, last: Some(last) }
    }
}

impl<'a> From<&'a Path> for Source<'a> {
    fn from(dir: &'a Path) -> Source<'a> {
        Source { dir, last: None }
    }
}

impl<'a> From<&'a PathBuf> for Source<'a> {
    fn from(dir: &'a PathBuf) -> Source<'a> {
        Source { dir, last: None }
    }
}

/// Every row of a table.
///
/// Temporary files are ignored. The result of a killed run reads up to its last complete part. These are errors that
/// name the file: a part missing from a complete result, a gap, or a part with contents of another table.
pub fn read<'a, R: Row>(source: impl Into<Source<'a>>) -> Result<Vec<R>, RecordError> {
    rows(source)?.collect()
}

/// The rows of a table one by one, for tables that do not fit into memory: at any time it holds one part.
pub fn rows<'a, R: Row>(source: impl Into<Source<'a>>) -> Result<Rows<R>, RecordError> {
    Ok(Rows { waiting: parts(source.into(), R::TABLE)?.into_iter(), part: None, index: 0, row: PhantomData })
}

/// The rows of a table, a part after the other.
pub struct Rows<R> {
    waiting: std::vec::IntoIter<PartFile>,
    part: Option<(PartFile, Arc<Columns>)>,
    /// The next row of the part.
    index: usize,
    row: PhantomData<R>,
}

impl<R: Row> Iterator for Rows<R> {
    type Item = Result<R, RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Result<R, RecordError>> {
        loop {
            if let Some((file, part)) = &self.part
                && self.index < part.rows
            {
                let index = self.index;
                self.index += 1;
                return Some(part.row(index).map_err(|column| file.lacks::<R>(index, column)));
            }
            let file = self.waiting.next()?;
            self.index = 0;
            match file.decode() {
                Ok(part) => self.part = Some((file, part)),
                Err(error) => {
                    self.part = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The time from which flows count: the end of the warm-up. If the warm-up is a number of queries, the start of the
/// first query after it.
pub fn measured_from<'a>(source: impl Into<Source<'a>>) -> Result<u64, RecordError> {
    measured_from_source(source.into())
}

/// Not generic: it is compiled with the optimisation of this crate, not with that of its caller.
fn measured_from_source(source: Source<'_>) -> Result<u64, RecordError> {
    let warmup = Manifest::read(source.dir)?.run.warmup_ps;
    let queries: Vec<QueryRow> = read(source)?;
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
    /// Its rows, if they are in memory.
    rows: Option<Arc<Columns>>,
}

/// The parts of a table, checked against the manifest.
pub(super) fn parts(Source { dir, last }: Source<'_>, table: &'static TableSpec) -> Result<Vec<PartFile>, RecordError> {
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
        let in_memory = last.and_then(|last| last.0.iter().find(|(file, _)| path.ends_with(file)));
        let rows = in_memory.map(|(_, rows)| rows.clone());
        PartFile { table, path, sha256: listed.map(|p| p.sha256.clone()), rows }
    };
    Ok(paths.into_iter().map(part).collect())
}

impl PartFile {
    /// Reads the part.
    pub fn decode(&self) -> Result<Arc<Columns>, RecordError> {
        if let Some(rows) = &self.rows {
            return Ok(rows.clone());
        }
        let bytes = std::fs::read(&self.path).map_err(RecordError::io(&self.path, "read"))?;
        if self.sha256.as_ref().is_some_and(|expected| *expected != sha256_hex(&bytes)) {
            return Err(RecordError::corrupt(&self.path, "damaged: its SHA-256 is not the one in the manifest"));
        }
        part::decode(self.table, bytes)
            .map(Arc::new)
            .map_err(|e| RecordError::corrupt(&self.path, format!("not a readable part: {e}")))
    }

    /// Row `index` has no valid value in a column.
    #[cold]
    fn lacks<R: Row>(&self, index: usize, column: usize) -> RecordError {
        let name = R::TABLE.columns[column].name;
        RecordError::corrupt(&self.path, format!("row {index}: {name} is out of range or absent"))
    }
}
