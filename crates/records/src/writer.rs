//! Writing of rows to disk during a run, in complete numbered parts.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::column::Columns;
use super::error::RecordError;
use super::files::{Existing, claim, part_name, write_file};
use super::manifest::{Manifest, PartInfo, RunInfo, Status, sha256_hex};
use super::part;
use super::tables::{RARE, Row, TABLES};

/// Enough bytes for a manifest and a small part of each table.
const RESERVE_BYTES: usize = 64 << 10;

/// The options of a writer.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rows of a part; memory holds up to this many rows of each table.
    pub part_rows: usize,
    /// Whether to write every part also as CSV.
    pub csv: bool,
}

impl Default for Options {
    fn default() -> Options {
        // About 35 MB of flows in memory and 5 MB on disk: few files, and a kill loses little.
        Options { part_rows: 1 << 18, csv: false }
    }
}

/// The parts of a result that were written last, by the names of their files: as long as they are in memory, nobody need
/// read their files.
#[derive(Clone, Default)]
pub struct LastParts(pub(super) Vec<(String, Arc<Columns>)>);

impl std::fmt::Debug for LastParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(file, _)| file)).finish()
    }
}

/// Writes the tables of one run into a directory.
///
/// The parts depend only on the rows and on the times of flushes. Call [`RecordWriter::flush`] at simulated times,
/// never at wall-clock times; otherwise two runs would cut their parts differently.
pub struct RecordWriter {
    dir: PathBuf,
    options: Options,
    manifest: Manifest,
    /// For each table, the rows not yet written and the number of the next part.
    tables: Vec<(Columns, usize)>,
    /// Disk space reserved for a last manifest on a full disk; freed when the process ends.
    reserve: Option<File>,
}

impl RecordWriter {
    /// Starts a result in `dir`. Until [`RecordWriter::finish`] the manifest says "running".
    ///
    /// A directory that still holds a result is refused: its later parts would be taken for parts of the new result.
    /// [`super::claim`] decides about an old result first.
    pub fn create(dir: &Path, run: RunInfo, options: Options) -> Result<RecordWriter, RecordError> {
        assert!(options.part_rows > 0, "a part has at least one row");
        claim(dir, &run, Existing::Refuse)?;
        let tables = TABLES.iter().map(|table| (Columns::new(table), 0)).collect();
        let reserve = Some(reserve(dir)?);
        let writer = RecordWriter { dir: dir.to_owned(), options, manifest: Manifest::new(run), tables, reserve };
        writer.manifest.write(dir)?;
        Ok(writer)
    }

    /// Appends rows to their table; a full part goes to disk at once.
    pub fn write<R: Row>(&mut self, rows: &[R]) -> Result<(), RecordError> {
        for row in rows {
            let (columns, _) = &mut self.tables[R::TABLE.index];
            columns.push(row);
            if columns.rows >= self.options.part_rows {
                self.write_part(R::TABLE.index)?;
                self.manifest.write(&self.dir)?;
            }
        }
        Ok(())
    }

    /// Writes all rows in memory as parts: after this call a kill loses none of them.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        let waiting: Vec<usize> = (0..TABLES.len()).filter(|&i| self.tables[i].0.rows > 0).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        for table in waiting {
            self.write_part(table)?;
        }
        self.manifest.write(&self.dir)
    }

    /// Writes the remaining rows, and the status of the run in the manifest. The parts written last stay in memory for who
    /// reads the result next.
    pub fn finish(mut self, status: Status) -> Result<(Manifest, LastParts), RecordError> {
        let mut last = LastParts::default();
        for table in 0..TABLES.len() {
            let (columns, next_part) = &self.tables[table];
            // An empty table still gets a part: `flows-*.parquet` then matches a file in every result.
            if columns.rows > 0 || *next_part == 0 && table < RARE {
                last.0.push(self.write_part(table)?);
            }
        }
        self.manifest.status = status;
        // Sort by table, not by the times at which parts filled up.
        let place = |part: &PartInfo| (TABLES.iter().position(|t| t.name == part.table), part.file.clone());
        self.manifest.parts.sort_by_key(place);
        self.manifest.write(&self.dir)?;
        Ok((self.manifest, last))
    }

    /// Ends a result after an error, and writes as much of the reason and the rows as the disk takes.
    pub fn give_up(mut self, why: &RecordError) {
        self.reserve = None;
        self.manifest.status = Status::Failed(why.to_string());
        let _ = self.manifest.write(&self.dir);
        let _ = self.flush();
    }

    /// Writes the rows of a table as its next part. Returns the name of the file and the rows.
    fn write_part(&mut self, table: usize) -> Result<(String, Arc<Columns>), RecordError> {
        let (columns, next_part) = &mut self.tables[table];
        let file = part_name(columns.table.name, *next_part, "parquet");
        let path = self.dir.join(&file);
        let bytes = part::encode(columns).map_err(|e| RecordError::corrupt(&path, e))?;
        if self.options.csv {
            let path = self.dir.join(part_name(columns.table.name, *next_part, "csv"));
            write_file(&path, columns.to_csv().as_bytes())?;
        }
        write_file(&path, &bytes)?;
        let (table, rows, sha256) = (columns.table.name.into(), columns.rows as u64, sha256_hex(&bytes));
        self.manifest.parts.push(PartInfo { table, file: file.clone(), rows, sha256 });
        *next_part += 1;
        let empty = Columns::new(columns.table);
        Ok((file, Arc::new(std::mem::replace(columns, empty))))
    }
}

/// A file without a name that occupies disk space.
fn reserve(dir: &Path) -> Result<File, RecordError> {
    let path = dir.join("manifest.json.tmp");
    let taken = File::create(&path).and_then(|mut file| {
        file.write_all(&[0x5f; RESERVE_BYTES])?;
        Ok(file)
    });
    let gone = fs::remove_file(&path);
    let file = taken.map_err(RecordError::io(&path, "write"))?;
    gone.map_err(RecordError::io(&path, "remove"))?;
    Ok(file)
}
